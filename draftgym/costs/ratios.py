"""The cost ratios that controllers are shown, from a latency table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftgym.costs.times import Times, Work
from draftgym.state import MeasuredCosts


def plain_step_seconds(times: Times, context: int) -> float:
    """Mean seconds of a round that drafts and verifies nothing.

    Args:
        times: Mean seconds of work.
        context: Committed tokens.
    """
    return float(times.mean("verify", 0, context)) + _rest(times, context)


def cost_ratios(
    times: Times, size_grid: Sequence[int], context: int, *, max_depth: int
) -> MeasuredCosts:
    """One draft pass, and the slope of verification, over a plain step.

    Args:
        times: Mean seconds of work.
        size_grid: Sizes that the slope is fitted over, by least squares through a size of 0.
        context: Committed tokens.
        max_depth: Passes that a round may make. A later pass is priced, or the first where there is
            no other.
    """
    sizes = np.array(size_grid)
    plain = plain_step_seconds(times, context)
    extra = (times.mean("verify", sizes, context) + _rest(times, context)) / plain - 1.0
    slope = float((sizes * extra).sum() / (sizes**2).sum())
    priced: Work = "later" if max_depth > 1 else "first"
    draft = float(times.mean(priced, 1, context)) / plain if max_depth else 0.0
    return MeasuredCosts(draft, max(0.0, slope))


def _rest(times: Times, context: int) -> float:
    return float(times.mean("propose", 0, context) + times.mean("commit", 0, context))
