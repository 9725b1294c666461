"""Times made by hand."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from draftgym.costs.times import WORK, Float64Array, Work
from draftgym.runtime import DecisionSeconds


class RandomTimes:
    """Any cost for any work: every (units, context) has its own, in no order at all.

    Args:
        seed: Of the costs.
        units: Most units.
        contexts: Most context tokens.
    """

    decision_seconds = DecisionSeconds()

    def __init__(self, seed: int, units: int = 64, contexts: int = 1024) -> None:
        random = np.random.default_rng(seed)
        self.costs = {kind: random.uniform(0.1, 3.0, (units, contexts)) for kind in WORK}
        self.entries = 0  # asked for so far

    def mean(self, kind: Work, units: ArrayLike, context: ArrayLike) -> Float64Array:
        units, context = np.broadcast_arrays(units, context)
        self.entries += units.size
        cost: Float64Array = self.costs[kind][units, context]
        return cost

    def draw(
        self, kind: Work, units: ArrayLike, context: ArrayLike, rng: np.random.Generator
    ) -> Float64Array:
        return self.mean(kind, units, context)
