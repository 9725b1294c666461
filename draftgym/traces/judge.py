"""A controller on a trace: what decoding every request under it takes, by mean seconds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from draftgym.batch_state import BatchController
from draftgym.costs.times import Float64Array, Times, Work
from draftgym.features import FeatureLayout
from draftgym.state import MeasuredCosts
from draftgym.traces.replay import ReplayBatch
from draftgym.traces.trace import Trace


class MeanTimes:
    """Times without spread: every draw is the mean.

    Args:
        times: Where the means come from.
    """

    def __init__(self, times: Times) -> None:
        self._times = times
        self.decision_seconds = times.decision_seconds

    def mean(self, kind: Work, units: ArrayLike, context: ArrayLike) -> Float64Array:
        """As the times say."""
        return self._times.mean(kind, units, context)

    def draw(
        self, kind: Work, units: ArrayLike, context: ArrayLike, rng: np.random.Generator
    ) -> Float64Array:
        """The mean."""
        return self._times.mean(kind, units, context)


def judge(
    trace: Trace,
    times: Times,
    layout: FeatureLayout,
    controller: BatchController,
    costs: MeasuredCosts,
) -> Float64Array:
    """Play every request once.

    Args:
        trace: Positions.
        times: Mean seconds of work, and of decisions unless the controller is free.
        layout: Observations and the size grid.
        controller: Decides.
        costs: Cost ratios that it is shown.

    Returns:
        Seconds of all rounds of each sequence, decisions included, [sequences].
    """
    count = len(trace.sequences)
    batch = ReplayBatch(trace, MeanTimes(times), layout, count, costs=costs, seed=0)
    batch.start(np.arange(count), np.arange(count))
    seconds = np.zeros(count)
    decision = times.decision_seconds
    running = np.flatnonzero(~batch.finished)
    while len(running):
        batch.open(running)
        asked = running[batch.max_depth[running] > 0]
        while len(asked):
            if not controller.free:
                batch.charge(asked, decision.depth)
            asked = asked[controller.draft_again(batch.rounds(asked))]
            batch.draft(asked)
            asked = asked[batch.depth[asked] < batch.max_depth[asked]]
        if not controller.free:
            batch.charge(running[batch.nodes(running) > 0], decision.size)
        finished = batch.close(running, controller.choose_size(batch.rounds(running)))
        seconds[running] += finished.seconds
        running = running[~batch.finished[running]]
    return seconds
