"""A controller on a trace: what decoding every request under it takes, by mean seconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from draftgym.batch_state import BatchController, IntArray
from draftgym.costs.times import Float64Array, Times, Work
from draftgym.features import FeatureLayout
from draftgym.runtime import DecisionSeconds
from draftgym.state import MeasuredCosts
from draftgym.traces.replay import ReplayBatch
from draftgym.traces.trace import Trace

RoundChoice = Callable[[ReplayBatch, IntArray], tuple[IntArray, IntArray]]
"""(batch, requests whose rounds are open) to (draft passes, verification sizes), [k] each."""


class MeanTimes:
    """Times without spread: every draw is the mean.

    Args:
        times: Where the means come from.
        decisions: Seconds of decisions, in place of theirs.
    """

    def __init__(self, times: Times, decisions: DecisionSeconds | None = None) -> None:
        self._times = times
        self.decision_seconds = times.decision_seconds if decisions is None else decisions

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
        limit = np.minimum(batch.max_depth, controller.deepest)
        asked = running[limit[running] > 0]
        while len(asked):
            if not controller.free:
                batch.charge(asked, decision.depth)
            asked = asked[controller.draft_again(batch.rounds(asked))]
            batch.draft(asked)
            asked = asked[batch.depth[asked] < limit[asked]]
        if not controller.free:
            batch.charge(running[batch.nodes(running) > 0], decision.size)
        finished = batch.close(running, controller.choose_size(batch.rounds(running)))
        seconds[running] += finished.seconds
        running = running[~batch.finished[running]]
    return seconds


def judge_rounds(
    trace: Trace,
    times: Times,
    layout: FeatureLayout,
    choose: RoundChoice,
    costs: MeasuredCosts,
    *,
    every: int = 1,
) -> Float64Array:
    """Play every request once, deciding depth and size together where a round starts.

    Args:
        trace: Positions.
        times: Mean seconds of work; a decision takes as long as one of the depth.
        layout: Observations and the size grid.
        choose: Decides.
        costs: Cost ratios that it is shown.
        every: Rounds that a decision is kept for, from a request's first on.

    Returns:
        Seconds of all rounds of each sequence, decisions included, [sequences].
    """
    count = len(trace.sequences)
    batch = ReplayBatch(trace, MeanTimes(times), layout, count, costs=costs, seed=0)
    batch.start(np.arange(count), np.arange(count))
    seconds = np.zeros(count)
    depth, size = np.zeros(count, np.int64), np.zeros(count, np.int64)
    running, turn = np.flatnonzero(~batch.finished), 0
    while len(running):
        batch.open(running)
        if turn % every == 0:
            depth[running], size[running] = choose(batch, running)
            batch.charge(running, times.decision_seconds.depth)
        going = running
        while len(going):
            going = going[batch.depth[going] < np.minimum(depth, batch.max_depth)[going]]
            batch.draft(going)
        finished = batch.close(running, size[running])
        seconds[running] += finished.seconds
        running, turn = running[~batch.finished[running]], turn + 1
    return seconds
