"""Figures of the study, as PNG bytes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from draftgym.benchmark.plots import new_figure, png


def survival_plot(blocks: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Runs beside chance, and the surviving share of the escrow, by block length.

    Args:
        blocks: What `findings.survival` returns, by label.
    """
    figure, (left, right) = new_figure(13, 4.4, columns=2)
    series = (("share", "own continuation"), ("shuffled", "shuffled"), ("wrong", "another text's"))
    labels = [
        (name, length)
        for name, found in blocks.items()
        for length in found["runs"]
        if found["runs"][length]["rejections"]
    ]
    for offset, (key, label) in enumerate(series):
        cells = [blocks[name]["runs"][length][key] for name, length in labels]
        _bars(left, [i + 0.27 * (offset - 1) for i in range(len(cells))], cells, 0.25, label)
    ticks = [f"{length}+ tokens\n{_wrapped(name)}" for name, length in labels]
    left.set_xticks(range(len(ticks)), ticks, fontsize="small")
    left.set_ylabel("share of tails with such a run")
    left.legend(fontsize="small")
    for offset, (key, label) in enumerate(
        (("longest", "longest run"), ("direct", "at position 0"), ("wrong", "another text's"))
    ):
        cells = [found["fraction"][key] for found in blocks.values()]
        _bars(right, [i + 0.27 * (offset - 1) for i in range(len(cells))], cells, 0.25, label)
    right.set_xticks(range(len(blocks)), map(_wrapped, blocks), fontsize="small")
    right.set_ylabel("surviving share of the tail's tokens")
    right.legend(fontsize="small")
    return png(figure)


def approaches_plot(blocks: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Tokens recovered, tokens beyond a fresh draft, and the bar, by approach and block.

    Args:
        blocks: What `findings.value` returns, by label.
    """
    figure, panels = new_figure(5 * len(blocks), 4.2, columns=len(blocks))
    for axes, (name, found) in zip(
        [panels] if len(blocks) == 1 else panels, blocks.items(), strict=True
    ):
        rows = [row for row in found["approaches"] if row["approach"] != "plain step"]
        places = list(range(len(rows)))
        for shift, key, label in ((-0.2, "recovered", "recovered"),
                                  (0.2, "beyond_fresh", "beyond a fresh draft")):  # fmt: skip
            _bars(axes, [i + shift for i in places], [row[key] for row in rows], 0.36, label)
        for place, row in zip(places, rows, strict=True):
            line = (place - 0.42, place + 0.42)
            label = "bar beside a fresh draft" if place == 0 else ""
            axes.plot(line, [row["beside_bar"]] * 2, color="black", label=label)
        names = [row["approach"] + ("" if row["live"] else "\n(hindsight)") for row in rows]
        axes.set_xticks(places, names, fontsize="small")
        axes.set_title(name, fontsize="medium")
        axes.set_ylabel("tokens per rejection")
        axes.legend(fontsize="small", loc="upper left")
    return png(figure)


def gates_plot(name: str, found: Mapping[str, Any]) -> bytes:
    """Net gain where each gate is open, with its interval.

    Args:
        name: The action that gates decide on.
        found: Its gates, from `findings.value`.
    """
    rows = list(found["gates"])[::-1]
    figure, axes = new_figure(8, 1.2 + 0.24 * len(rows))
    for place, row in enumerate(rows):
        colour = "tab:green" if row.clears else "tab:grey"
        axes.plot((row.gain.low, row.gain.high), (place, place), color=colour)
        axes.plot(row.gain.estimate, place, "o", color=colour, markersize=4)
    axes.axvline(0, color="black", linewidth=0.8)
    sides = [f"{row.signal} {'≥' if row.gate.above else '≤'} {row.gate.threshold:.3g}"
             for row in rows]  # fmt: skip
    axes.set_yticks(range(len(rows)), sides, fontsize="small")
    axes.set_xlabel(f"{name}: net tokens where the gate is open")
    return png(figure)


def _wrapped(name: str) -> str:
    return textwrap.fill(name, 10)


def _bars(axes: Any, places: list[float], cells: list[Any], width: float, label: str) -> None:
    heights = [cell.estimate for cell in cells]
    below = [max(0.0, cell.estimate - cell.low) for cell in cells]
    above = [max(0.0, cell.high - cell.estimate) for cell in cells]
    axes.bar(places, heights, width, yerr=(below, above), label=label, error_kw={"linewidth": 0.8})
