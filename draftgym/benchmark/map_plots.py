"""Plots of the map: gains over made-up costs, and by domain under measured ones, as PNG bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftgym.benchmark.plots import new_figure, png

Entry = Mapping[str, Any]

COLUMNS = 3
STEPS = (
    ("own_over_tuned", "cell tuned on the domain", "tab:blue"),
    ("information_over_tuned", "information bound", "tab:orange"),
    ("clairvoyant_over_tuned", "clairvoyant", "tab:grey"),
)


def cost_map(maps: Sequence[Entry]) -> bytes:
    """One panel per trace: gain over the tuned cell in percent, with its depth and size.

    Args:
        maps: Entries of the result line.

    Returns:
        PNG bytes.
    """
    figure, panels = _panels(maps, 4.6, 3.8)
    gains = [{(row["draft_pass"], row["verified_token"]): row for row in e["places"]} for e in maps]
    most = max(100 * (row["information"] - 1) for rows in gains for row in rows.values())
    for entry, rows, axes in zip(maps, gains, panels, strict=True):
        drafts, slopes = (sorted(values) for values in map(set, zip(*rows, strict=True)))
        table = np.array([[100 * (rows[d, s]["information"] - 1) for s in slopes] for d in drafts])
        # One scale for all, so that panels can be compared.
        axes.imshow(table, origin="lower", aspect="auto", cmap="viridis", vmin=0.0, vmax=most)
        for (y, x), gain in np.ndenumerate(table):
            depth, size = rows[drafts[y], slopes[x]]["cell"]
            axes.text(
                x, y, f"+{gain:.1f} %\nD{depth} V{size}", ha="center", va="center",
                fontsize="x-small", color="black" if gain > 0.6 * most else "white",
            )  # fmt: skip
        axes.set_xticks(range(len(slopes)), [f"{slope:g}" for slope in slopes])
        axes.set_yticks(range(len(drafts)), [f"{draft:g}" for draft in drafts])
        axes.set_xlabel("one more verified token, plain steps")
        axes.set_ylabel("one draft pass, plain steps")
        axes.set_title(f"{entry['drafter']}, {entry['prompts']} prompts", fontsize="small")
    figure.suptitle("information bound over the tuned fixed cell (costs made up)", fontsize="small")
    return png(figure)


def domain_plot(maps: Sequence[Entry]) -> bytes:
    """One panel per trace: speeds over the mixture's tuned cell, by domain, with intervals.

    Args:
        maps: Entries of the result line that hold domains.

    Returns:
        PNG bytes.
    """
    rows = max(len(entry["domains"]) for entry in maps)
    figure, panels = _panels(maps, 4.6, 0.42 * rows + 1.0)
    # Long intervals of small domains would squeeze all others.
    shown = [row[name]["ratio"] for e in maps for row in e["domains"] for name, _, _ in STEPS]
    low, high = min(1.0, *shown), max(shown)
    for entry, axes in zip(maps, panels, strict=True):
        for index, row in enumerate(reversed(entry["domains"])):
            for step, (name, label, colour) in enumerate(STEPS):
                ratio, (least, greatest) = row[name]["ratio"], row[name]["ci95"]
                error = [[max(0, ratio - least)], [max(0, greatest - ratio)]]
                axes.errorbar(
                    ratio, index + 0.22 * (1 - step), xerr=error, fmt="o", markersize=3.5,
                    linewidth=1, color=colour, label="" if index else label,
                )  # fmt: skip
        names = [f"{row['domain']} ({row['prompts']})" for row in reversed(entry["domains"])]
        axes.set_yticks(range(len(names)), names, fontsize="small")
        axes.axvline(1.0, color="black", linewidth=0.6)
        axes.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        axes.set_xlabel("speed over the mixture's tuned cell")
        depth, size = entry["measured"]["cell"]
        speed = entry["measured"]["tuned_over_plain"]
        axes.set_title(
            f"{entry['drafter']}: D{depth} V{size}, {speed:.2f} x plain", fontsize="small"
        )
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3,
        fontsize="small",
    )  # fmt: skip
    return png(figure)


def _panels(maps: Sequence[Entry], width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure with one panel per trace, of so many inches."""
    rows = -(-len(maps) // COLUMNS)
    columns = -(-len(maps) // rows)
    figure, grid = new_figure(width * columns, height * rows + 0.4, columns=columns, rows=rows)
    panels = list(np.ravel(grid))
    for spare in panels[len(maps) :]:
        spare.set_visible(False)
    return figure, panels[: len(maps)]
