"""Decisions followed through a trace, with mean seconds and every clamp of live decoding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from draftgym.costs.times import Float64Array, Times
from draftgym.theory.rounds import Positions, play
from draftgym.traces.trace import IntArray, Trace

Choose = Callable[[IntArray, IntArray], tuple[IntArray, IntArray]]
"""(rows where rounds start, tokens unread there) to (draft passes, verification sizes), all [m]."""


def follow(trace: Trace, times: Times, choose: Choose) -> Float64Array:
    """Mean seconds of the rounds that some decisions lead to; deciding costs nothing here.

    Args:
        trace: Positions and what each setting accepts there.
        times: Mean seconds of work.
        choose: Decides every round, all sequences at a time.

    Returns:
        Seconds of all rounds of each sequence, [sequences].
    """
    positions = Positions.of(trace)
    seconds = np.zeros(len(trace.sequences))
    rows, ends = trace.first[:-1], trace.first[1:]
    running = np.flatnonzero(rows < ends)
    unread = np.array([entry.prompt_tokens for entry in trace.sequences], np.int64)
    while len(running):
        here = rows[running]
        depth, size = choose(here, unread[running])
        played = play(trace, positions, times, here, depth, size)
        seconds[running] += played.seconds
        drafts = played.depth > 0
        if drafts.any():
            first = times.mean("first", unread[running], positions.context[here])
            seconds[running] += np.where(drafts, first, 0.0)
        unread[running] = np.where(drafts, 0, unread[running]) + played.emitted
        rows[running] += played.emitted
        running = running[rows[running] < ends[running]]
    return seconds
