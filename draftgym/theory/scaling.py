"""Time and memory of bounds and replays against the length of a trace, on synthetic positions."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from draftgym.clock import Clock
from draftgym.console import Bar
from draftgym.costs.times import Times
from draftgym.features import FeatureLayout
from draftgym.state import MeasuredCosts
from draftgym.theory.bounds import fold_of
from draftgym.theory.clairvoyant import clairvoyant
from draftgym.theory.fixed import fixed
from draftgym.theory.information import information_bound
from draftgym.traces.controllers import RandomBatch
from draftgym.traces.judge import judge
from draftgym.traces.synthetic import SyntheticTimes, synthetic_trace
from draftgym.traces.trace import Trace

TOKENS = 96
"""Of each synthetic request, the budget of a default trace."""

INFORMATION = "information bound"


@dataclass(frozen=True, slots=True)
class Load:
    """What one computation took on one trace.

    Attributes:
        positions: Of the trace.
        seconds: Wall time.
        peak_bytes: Most memory that numpy and Python held at once, the trace left out.
    """

    positions: int
    seconds: float
    peak_bytes: int


def scaling(
    positions: Sequence[int],
    layout: FeatureLayout,
    clock: Clock,
    bar: Bar,
    *,
    information_up_to: int = 0,
) -> dict[str, list[Load]]:
    """Measure every computation on traces of several lengths.

    Args:
        positions: Lengths; rounded to whole requests.
        layout: Shapes the trees.
        clock: Source of time.
        bar: Advanced by positions.
        information_up_to: The information bound trains networks; longer traces go without it.

    Returns:
        By computation, shortest trace first.
    """
    found: dict[str, list[Load]] = {}
    for wanted in sorted(positions):
        requests = max(1, round(wanted / (TOKENS - 1)))
        trace = synthetic_trace(layout, sequences=requests, tokens=TOKENS)
        for name, work in _computations(layout).items():
            if name != INFORMATION or len(trace) <= information_up_to:
                found.setdefault(name, []).append(_measured(trace, work, clock))
        bar.advance(wanted)
    return found


def exponent(loads: Sequence[Load]) -> float | None:
    """Slope of log seconds over log positions; None from fewer than two lengths."""
    if len(loads) < 2:
        return None
    points = np.log([(load.positions, load.seconds) for load in loads])
    return float(np.polyfit(points[:, 0], points[:, 1], 1)[0])


def _computations(layout: FeatureLayout) -> Mapping[str, Callable[[Trace, Times], object]]:
    random = RandomBatch(0, layout.max_depth, layout.size_grid)
    return {
        "clairvoyant bound": clairvoyant,
        "fixed cell": lambda trace, times: fixed(trace, times, 2, layout.size_grid[-1]),
        "replay": lambda trace, times: judge(trace, times, layout, random, MeasuredCosts()),
        INFORMATION: lambda trace, times: information_bound(trace, times, fold_of(trace)),
    }


def _measured(trace: Trace, work: Callable[[Trace, Times], object], clock: Clock) -> Load:
    times = SyntheticTimes()
    start = clock.boundary()
    work(trace, times)
    seconds = clock.boundary() - start
    # Tracing memory slows Python down, so it has a run of its own.
    tracemalloc.start()
    try:
        work(trace, times)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return Load(len(trace), seconds, peak)
