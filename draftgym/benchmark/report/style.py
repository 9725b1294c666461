"""How charts look: narrow enough for a phone, colours that the page can turn dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftgym.benchmark.plots import new_figure

INK, MUTED, GRID, PAPER = "#1b1f24", "#5a6570", "#d5dae0", "#fefefe"
SERIES = ("#0072b2", "#c4500a", "#007f5f", "#9c4f86", "#6b5b00")
# Read without colour as well: every series has a marker and a dash of its own.
MARKERS = ("o", "s", "D", "^", "v")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))

KINDS = {
    "learned": (SERIES[0], "o"),
    "tuned fixed setting": (SERIES[1], "s"),
    "fixed setting": (SERIES[1], "P"),
    "published rule": (SERIES[2], "D"),
    "baseline": (INK, "^"),
    "Transformers": (SERIES[3], "v"),
    "control": (INK, "<"),
    "other": (MUTED, "X"),
}
"""Colour and marker of a method's kind."""
FAR = 5.0
"""Times the median beyond which a point is out of the picture: one outlier would flatten it."""

PAGE_COLOURS = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    PAPER: "--paper",
    **{colour: f"--series-{index}" for index, colour in enumerate(SERIES, start=1)},
}
"""What `page.css` calls the colours of a chart."""

SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8.5,
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1.0,
    "axes.formatter.useoffset": False,
}
"""Matplotlib's settings while charts are drawn."""

WIDTH = 4.0
"""Inches. On a phone the page shows this as it is, so that 9 points stay legible."""


def rows_figure(labels: Sequence[str], extra: float = 0.9) -> tuple[Any, Any]:
    """A figure with one line per label, the first on top.

    Args:
        labels: Names, beside the axis.
        extra: Inches for everything else.
    """
    figure, axes = new_figure(WIDTH, 0.24 * len(labels) + extra)
    axes.set_yticks(range(len(labels)), [literal(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    return figure, axes


def legend(figure: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend above the panels, in as many columns as fit."""
    points = 28 + 4.9 * max(map(len, labels))  # of a column
    columns = max(1, min(len(labels), int(72 * WIDTH // points)))
    figure.legend(
        handles, [literal(label) for label in labels], loc="outside upper left", ncols=columns
    )


def literal(text: str) -> str:
    """Text that Matplotlib does not take for a hidden legend entry."""
    return text.lstrip("_")


def outside(axes: Any, place: int, edge: float, value: float) -> None:
    """An arrow at the right edge in place of a point far beyond it, with the value."""
    axes.plot(edge, place, ">", color=MUTED)
    axes.annotate(
        f"{value:,.0f}", (edge, place), (-5, 0), textcoords="offset points",
        ha="right", va="center", fontsize=8, color=INK,
    )  # fmt: skip
