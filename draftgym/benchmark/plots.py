"""Plots of an evaluation, as PNG bytes. It neither measures nor writes files."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

LEAST_SHARE = 0.01
"""Of rounds, for a depth or size to be drawn."""


def plots(results: Sequence[Row], details: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw every plot of a report.

    Args:
        results: Rows of the result line.
        details: As `report.write_report` takes them.

    Returns:
        PNG bytes by name.
    """
    figures = {
        "time_per_token": _time_per_token(results),
        "validation": _validation(details["validation"]),
        "decisions": _decisions(details["decisions"]),
        "time_split": _time_split(details["time_split"]),
    }
    return {name: png(figure) for name, figure in figures.items()}


def new_figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Any, Any]:
    """A figure, and its panels: one alone, a list of them, or a grid.

    Args:
        width: Inches.
        height: Inches.
        columns: Panels beside each other.
        rows: Panels below each other.
    """
    # The object interface, because pyplot would pick a display and keep every figure alive.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns)


def png(figure: Any) -> bytes:
    """The figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _time_per_token(results: Sequence[Row]) -> Any:
    figure, axes = new_figure(7, 0.5 * len(results) + 1.5)
    for index, row in enumerate(reversed(results)):
        low, high = row["ci95"]
        value = row["ms_per_token"]
        axes.errorbar(value, index, xerr=[[max(0, value - low)], [max(0, high - value)]], fmt="o")
    axes.set_yticks(range(len(results)), [row["method"] for row in reversed(results)])
    axes.set_xlabel("ms per token, test prompts (95% interval)")
    return figure


def _validation(rows: Sequence[Row]) -> Any:
    figure, axes = new_figure(6, 4)
    for depth in sorted({row["depth"] for row in rows}):
        line = sorted((row["size"], row["speedup"]) for row in rows if row["depth"] == depth)
        axes.plot(*zip(*line, strict=True), marker="o", label=f"D = {depth}")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xlabel("verified tokens V")
    axes.set_ylabel("speedup over plain decoding, validation")
    axes.legend(fontsize="small")
    return figure


def _decisions(decisions: Mapping[str, Mapping[str, Sequence[int]]]) -> Any:
    figure, panels = new_figure(9, 3.5, columns=2)
    width = 0.8 / max(1, len(decisions))
    for axes, kind in zip(panels, ("depth", "size"), strict=True):
        shares = {method: _shares(chosen[kind]) for method, chosen in decisions.items()}
        used = sorted({value for part in shares.values() for value in part})
        for index, (method, part) in enumerate(shares.items()):
            # Values are labels, not a scale: sizes of a policy's grid are far apart.
            shift = (index - (len(decisions) - 1) / 2) * width
            places = [position + shift for position in range(len(used))]
            axes.bar(places, [part.get(value, 0.0) for value in used], width, label=method)
        axes.set_xticks(range(len(used)), [str(value) for value in used])
        axes.set_xlabel(f"{kind} of the round")
        axes.set_ylabel(f"share of rounds, from {LEAST_SHARE:.0%}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def _shares(values: Sequence[int]) -> dict[int, float]:
    """Share of each value, those that are rare left out: many rare sizes would hide the rest."""
    counts = Counter(values)
    return {
        value: count / len(values)
        for value, count in counts.items()
        if count >= LEAST_SHARE * len(values)
    }


def _time_split(split: Mapping[str, Mapping[str, float]]) -> Any:
    figure, axes = new_figure(7, 0.5 * len(split) + 1.8)
    methods = list(split)[::-1]
    left = [0.0] * len(methods)
    for part in ("verify", "draft", "commit", "policy", "other"):
        values = [split[method][part] for method in methods]
        axes.barh(methods, values, left=left, label=part)
        left = [a + b for a, b in zip(left, values, strict=True)]
    axes.set_xlabel("ms per token")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=5)
    return figure
