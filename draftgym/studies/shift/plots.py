"""Plots of the study, as PNG bytes. It neither measures nor writes files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftgym.benchmark.plots import new_figure, png
from draftgym.benchmark.statistics import Interval, Ratio
from draftgym.studies.shift.acceptance import Acceptance
from draftgym.studies.shift.gains import Gain
from draftgym.studies.shift.temperatures import AtTemperature

Matrix = Mapping[str, Mapping[str, Ratio]]

SPEEDS = (
    ("own_over_mixture", "cell tuned on this kind", "tab:blue"),
    ("policy_over_mixture", "policy learned on all kinds", "tab:orange"),
)
_WIDEST = 0.5
"""Share of the estimates' span that an axis reaches beyond them; longer intervals are cut."""


def matrix_plot(matrices: Mapping[str, Matrix], tested_on: str) -> bytes:
    """One heat map per matrix: speed over the mixture's cell, in percent.

    Args:
        matrices: By title.
        tested_on: What the columns are.

    Returns:
        PNG bytes.
    """
    rows = max(map(len, matrices.values()))
    figure, panels = new_figure(6.4 * len(matrices), 0.5 * rows + 1.8, columns=len(matrices))
    gains = {
        title: np.array(
            [[100 * (cell.estimate - 1) for cell in row.values()] for row in m.values()]
        )
        for title, m in matrices.items()
    }
    most = max(float(np.abs(table).max()) for table in gains.values()) or 1.0
    for axes, (title, matrix) in zip(np.atleast_1d(panels), matrices.items(), strict=True):
        table, names = gains[title], list(next(iter(matrix.values())))
        # One scale for all, with no change in the middle.
        axes.imshow(table, aspect="auto", cmap="PuOr_r", vmin=-most, vmax=most)
        for (y, x), gain in np.ndenumerate(table):
            ratio = list(list(matrix.values())[y].values())[x]
            sure = ratio.low > 1 or ratio.high < 1
            axes.text(
                x, y, f"{gain:+.1f}", ha="center", va="center", fontsize="small",
                fontweight="bold" if sure else "normal",
                color="white" if abs(gain) > 0.7 * most else "black",
            )  # fmt: skip
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axes.set_yticks(range(len(matrix)), list(matrix))
        axes.set_xlabel(f"tested on ({tested_on})")
        axes.set_ylabel("from learning prompts of")
        axes.set_title(title, fontsize="medium")
    figure.suptitle(
        "speed over the cell tuned on all kinds, % (bold: 95% interval without 0)",
        fontsize="small",
    )
    return png(figure)


def group_plot(gains: Mapping[str, Sequence[Gain]], accepted: Mapping[str, Acceptance]) -> bytes:
    """Tokens per round, and speeds over the mixture's cell, by part, with intervals.

    Args:
        gains: By kind of part.
        accepted: By name of a part.

    Returns:
        PNG bytes.
    """
    rows = [gain for kind in gains.values() for gain in kind][::-1]
    figure, (left, right) = new_figure(11, 0.42 * len(rows) + 1.6, columns=2)
    names = [f"{gain.name} ({accepted[gain.name].requests})" for gain in rows]
    for step, (field, label, colour) in enumerate(
        (
            ("look_up", "look-ups alone", "tab:grey"),
            ("tau", "the mixture's cell", "tab:green"),
            ("deepest", "the deepest cell", "tab:purple"),
        )
    ):
        shown = [getattr(accepted[gain.name], field) for gain in rows]
        _intervals(left, shown, 0.2 * (1 - step), label, colour)
    for step, (field, label, colour) in enumerate(SPEEDS):
        shown = [getattr(gain, field) for gain in rows]
        _intervals(right, shown, 0.12 * (1 - 2 * step), label, colour)
    left.set_xlabel("tokens per round")
    right.set_xlabel("speed over the cell tuned on all kinds")
    right.axvline(1.0, color="black", linewidth=0.6)
    _limit(right, [getattr(gain, field).estimate for gain in rows for field, _, _ in SPEEDS])
    for axes in (left, right):
        axes.set_yticks(range(len(names)), names, fontsize="small")
        axes.legend(fontsize="x-small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return png(figure)


def temperature_plot(rows: Sequence[AtTemperature]) -> bytes:
    """Tokens per round and speeds by temperature, with intervals.

    Args:
        rows: In ascending temperature.

    Returns:
        PNG bytes.
    """
    figure, (left, middle, right) = new_figure(13, 4.2, columns=3)
    places = [row.temperature for row in rows]
    told = [row.acceptance for row in rows]
    lines: tuple[tuple[Any, str, str, Sequence[Interval]], ...] = (
        (left, "look-ups alone", "tab:grey", [mine.look_up for mine in told]),
        (left, "cell of temperature 0", "tab:green", [mine.tau for mine in told]),
        (left, "deepest cell", "tab:purple", [mine.deepest for mine in told]),
        (middle, "cell of temperature 0", "tab:green", [r.cold_cell_over_plain for r in rows]),
        (right, "policy learned here", "tab:orange", [r.policy_over_cell for r in rows]),
        (right, "policy learned at 0", "tab:blue", [r.cold_policy_over_cell for r in rows]),
    )
    for index, (axes, label, colour, values) in enumerate(lines):
        middles = np.array([value.estimate for value in values])
        error = [middles - [v.low for v in values], [v.high for v in values] - middles]
        axes.errorbar(
            np.array(places) + 0.015 * (index % 3 - 1), middles, yerr=np.maximum(error, 0),
            marker="o", markersize=3.5, linewidth=1, color=colour, label=label,
        )  # fmt: skip
    for axes in (left, middle, right):
        axes.set_xlabel("temperature")
        axes.legend(fontsize="x-small")
    left.set_ylabel("tokens per round")
    middle.set_ylabel("speed over plain decoding")
    right.set_ylabel("speed over the cell tuned here")
    for axes in (middle, right):
        axes.axhline(1.0, color="black", linewidth=0.6)
    for row in rows:
        depth, size = row.own_cell
        middle.annotate(
            f"D{depth} V{size}", (row.temperature, row.cold_cell_over_plain.estimate),
            textcoords="offset points", xytext=(4, 6), fontsize="x-small",
        )  # fmt: skip
    return png(figure)


def _intervals(
    axes: Any, values: Sequence[Interval], shift: float, label: str, colour: str
) -> None:
    middles = np.array([value.estimate for value in values])
    error = [middles - [v.low for v in values], [v.high for v in values] - middles]
    axes.errorbar(
        middles, np.arange(len(values)) + shift, xerr=np.maximum(error, 0), fmt="o",
        markersize=3.5, linewidth=1, color=colour, label=label,
    )  # fmt: skip


def _limit(axes: Any, estimates: Sequence[float]) -> None:
    """Long intervals of small parts would squeeze all others."""
    low, high = min(1.0, *estimates), max(1.0, *estimates)
    axes.set_xlim(low - _WIDEST * (high - low), high + _WIDEST * (high - low))
