"""The cost ratios that controllers are shown, from a latency table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftgym.costs.times import Times
from draftgym.state import MeasuredCosts


def cost_ratios(
    times: Times, size_grid: Sequence[int], context: int, *, passes: bool
) -> MeasuredCosts:
    """One later pass, and the slope of verification, over a plain step.

    Args:
        times: Mean seconds of work.
        size_grid: Sizes that the slope is fitted over, by least squares through a size of 0.
        context: Committed tokens.
        passes: Whether the drafter makes passes.
    """
    sizes = np.array(size_grid)
    rest = float(times.mean("propose", 0, context) + times.mean("commit", 0, context))
    rounds = times.mean("verify", sizes, context) + rest
    plain = float(times.mean("verify", 0, context)) + rest
    extra = rounds / plain - 1.0
    slope = float((sizes * extra).sum() / (sizes**2).sum())
    draft = float(times.mean("later", 0, context)) / plain if passes else 0.0
    return MeasuredCosts(draft, max(0.0, slope))
