"""Figures of the study, as PNG bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftgym.benchmark.plots import new_figure, png
from draftgym.studies.exactness.pair import Cell

LABELS = {
    "chain_rejection": "drawn from q: 1 - TV(p, q)",
    "rejection": "drafter's best x: p(x)",
    "coupled": "coupled: shared Gumbel noise",
}


def laws_plot(laws: Mapping[str, tuple[Sequence[float], Sequence[float]]], p: Any) -> bytes:
    """Expected and counted laws beside the law that should come out.

    Args:
        laws: Expected and counted probabilities by name.
        p: The target's law; those named `masked` should be its conditional on the first two.
    """
    figure, panels = new_figure(12, 3.6, columns=len(laws))
    at = np.arange(len(p))
    conditional = [p[0] / (p[0] + p[1]), p[1] / (p[0] + p[1]), 0.0]
    for axes, (name, (expected, counted)) in zip(panels, laws.items(), strict=True):
        right = conditional if name.startswith("masked") else p
        axes.bar(at - 0.27, right, 0.27, color="lightgrey", label="should be")
        axes.bar(at, expected, 0.27, label="formula")
        axes.bar(at + 0.27, counted, 0.27, label="counted")
        axes.set_xticks(at, ["a", "b", "c"])
        axes.set_title(name)
        axes.set_ylim(0, 0.8)
    panels[0].set_ylabel("probability of the next token")
    panels[0].legend(fontsize="small")
    return png(figure)


def pair_plot(cells: Sequence[Cell]) -> bytes:
    """Acceptance, measured and computed, and p-values of the next token's law, by temperature.

    Args:
        cells: Of any rules and temperatures.
    """
    figure, (left, right) = new_figure(11, 4.2, columns=2)
    for index, (rule, label) in enumerate(LABELS.items()):
        own = sorted((c for c in cells if c.rule == rule), key=lambda c: c.temperature)
        if not own:
            continue
        colour = f"C{index}"
        at = np.array([cell.temperature for cell in own])
        shares = [cell.measured_share for cell in own]
        left.plot(at, [cell.computed_share for cell in own], color=colour, label=label)
        bars = [[s.estimate - s.low for s in shares], [s.high - s.estimate for s in shares]]
        left.errorbar(
            at + 0.012 * (index - 1), [s.estimate for s in shares], bars,
            color=colour, fmt="o", capsize=3,
        )  # fmt: skip
        right.plot(at, _shown(c.text.p_value for c in own), "o", color=colour, label=rule)
        right.plot(at, _shown(c.repeated.p_value for c in own), "s", color=colour, fillstyle="none")
        wrong = [(c.temperature, c.restarted.p_value) for c in own if c.restarted]
        if wrong:
            right.plot(
                [t for t, _ in wrong], _shown(p for _, p in wrong), "x", color="black",
                label="restarted from p",
            )  # fmt: skip
    left.set_ylabel("proposals kept: lines computed, dots measured")
    left.set_ylim(0, 1)
    right.set_ylabel("p-value: dots text, squares repeated")
    right.set_yscale("log")
    right.axhline(0.05, color="grey", linewidth=0.8, linestyle=":")
    for axes in (left, right):
        axes.set_xlabel("temperature")
        axes.legend(fontsize="small")
    return png(figure)


def _shown(values: Any) -> list[float]:
    """p-values that a logarithmic axis can hold."""
    return [max(value, 1e-12) for value in values]
