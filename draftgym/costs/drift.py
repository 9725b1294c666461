"""How much slower than usual the machine was in each measured round.

A shared machine drifts by a tenth and more within seconds, and costs are ratios of means over
different rounds. But settings are interleaved: in any short stretch all of them met the same
machine. So stretches and settings are told apart by a two-way fit, seconds ≈ cost(setting) ·
slowness(stretch). Contexts grow within a prompt, and what grows with them is cost, not drift: a
line over the context is taken out of the slowness again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftgym.costs.times import Float64Array
from draftgym.state import RoundRecord

STRETCH = 12
"""Rounds that are taken to have met the same machine: about half a second of decoding."""

_STEPS = 30


def slowness(records: Sequence[RoundRecord], stretch: int = STRETCH) -> Float64Array:
    """Factor of each round over the machine's usual pace, [rounds].

    At the usual pace all rounds together take as long as they did.

    Args:
        records: In the order of measurement, settings interleaved; a single stretch tells nothing.
        stretch: Rounds that share a factor.
    """
    if len(records) <= stretch:
        return np.ones(len(records))
    # A first pass hangs on more than the setting, so it is left out.
    seconds = np.array(
        [
            record.seconds - record.policy_seconds - sum(record.pass_seconds[:1])
            for record in records
        ]
    )
    context = np.array([float(record.context_tokens) for record in records])
    names = [(record.depth, record.size) for record in records]
    _, setting = np.unique(np.array(names), axis=0, return_inverse=True)
    part = np.arange(len(records)) // stretch
    factor = np.ones(part[-1] + 1)
    for _ in range(_STEPS):
        steady = seconds / factor[part]
        cost = np.bincount(setting, steady) / np.bincount(setting)
        factor = np.bincount(part, seconds) / np.bincount(part, cost[setting])
    factor = factor / _line(np.bincount(part, context) / np.bincount(part), factor)
    each = factor[part]
    usual: float = seconds.sum() / (seconds / each).sum()
    return each / usual


def _line(context: Float64Array, factor: Float64Array) -> Float64Array:
    """Least-squares line of the factors over the context; more context is never cheaper."""
    centred = context - context.mean()
    spread = float((centred**2).sum())
    slope = float((centred * factor).sum()) / spread if spread else 0.0
    fitted: Float64Array = factor.mean() + max(slope, 0.0) * centred
    return fitted
