"""Figures of `study cost`, as PNG bytes. It neither measures nor writes files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftgym.benchmark.plots import new_figure, png
from draftgym.benchmark.statistics import Interval
from draftgym.costs.times import Float64Array
from draftgym.studies.cost.joint import EqualMeans, Joint
from draftgym.studies.cost.predict import ChainCosts


def formula_plot(table: Sequence[Mapping[str, Any]]) -> bytes:
    """Speed against γ by acceptance, a panel for each cost; circles where the marginal rule stops.

    Args:
        table: From `draftgym.studies.cost.values.table`.
    """
    costs = sorted({row["c"] for row in table})
    figure, panels = new_figure(10, 4.2, columns=len(costs))
    for axes, cost in zip(panels, costs, strict=True):
        for row in (row for row in table if row["c"] == cost):
            (line,) = axes.plot(row["gamma"], row["speed"], label=f"α = {row['alpha']}")
            stop = row["stops_at"]
            if stop:
                axes.plot(stop, row["speed"][stop - 1], "o", color=line.get_color())
        axes.axhline(1.0, color="grey", linestyle=":")
        axes.set_title(f"c = {cost:.2f}")
        axes.set_xlabel("drafted tokens γ")
        axes.set_ylabel("speed over plain decoding")
        axes.legend(fontsize="small")
    return png(figure)


def joint_plot(joint: Joint, orders: EqualMeans) -> bytes:
    """Joint prefix acceptance beside powers of the mean; tokens per round of one mean.

    Args:
        joint: Measured.
        orders: Of the same hits.
    """
    figure, (left, right) = new_figure(11, 4.5, columns=2)
    rarest = 0.5 / joint.positions  # less than once
    series = {"first k drafted tokens": joint.chain, "k hits in a row": joint.hits}
    for name, shares in {**series, "mean to the power k": joint.power}.items():
        _band(left, range(1, len(shares) + 1), shares, name, rarest)
    left.set_yscale("log")
    left.set_ylim(bottom=rarest)
    left.set_xlabel("tokens k")
    left.set_ylabel("P(all k accepted)")
    left.legend(fontsize="small")
    right.plot(orders.gamma, orders.in_order, "k", marker="o", label="hits in order")
    _band(right, orders.gamma, orders.within_texts, "shuffled within texts")
    _band(right, orders.gamma, orders.over_texts, "shuffled over texts")
    right.plot(orders.gamma, orders.formula, ":", label="formula")
    right.set_xlabel("drafted tokens γ")
    right.set_ylabel(f"tokens per round, mean acceptance {orders.mean:.3f}")
    right.legend(fontsize="small")
    return png(figure)


def speed_plot(
    predicted: Mapping[str, Float64Array], live: Mapping[int, Interval], costs: ChainCosts
) -> bytes:
    """Predicted and measured speed against γ, and what a round costs.

    Args:
        predicted: Speeds by γ from 0, by prediction.
        live: Measured speed by γ.
        costs: Of rounds.
    """
    figure, (left, right) = new_figure(11, 4.5, columns=2)
    for name, speeds in predicted.items():
        left.plot(np.arange(len(speeds)), speeds, label=name)
    values = [ratio.estimate for ratio in live.values()]
    reach = [
        [ratio.estimate - ratio.low for ratio in live.values()],
        [ratio.high - ratio.estimate for ratio in live.values()],
    ]
    left.errorbar(list(live), values, reach, fmt="ko", capsize=3, label="measured, 95%")
    left.axhline(1.0, color="grey", linestyle=":")
    left.set_xlabel("drafted tokens γ")
    left.set_ylabel("speed over plain decoding")
    left.legend(fontsize="small", loc="lower left")
    gamma = np.arange(len(costs.verify))
    right.plot(gamma, costs.verify, marker="o", label="target's pass, g(γ)")
    right.plot(gamma, costs.rounds, marker="o", label="round")
    right.plot(gamma, 1 + costs.later * gamma, ":", label="1 + cγ")
    right.set_ylim(bottom=0)
    right.set_xlabel("drafted tokens γ")
    right.set_ylabel("plain decoding steps")
    right.legend(fontsize="small")
    return png(figure)


def _band(
    axes: Any, places: Sequence[int], shares: Sequence[Interval], name: str, floor: float = 0.0
) -> None:
    """A line and its interval, shown down to a floor: a logarithmic axis has no place for 0."""
    values = [share.estimate if share.estimate > floor else np.nan for share in shares]
    (line,) = axes.plot(places, values, marker="o", label=name)
    lows, highs = ([getattr(share, end) for share in shares] for end in ("low", "high"))
    shown = [np.maximum(ends, floor) for ends in (lows, highs)]
    axes.fill_between(places, *shown, color=line.get_color(), alpha=0.2)
