"""Requests of a trace: its units of resampling, with the translations of one request together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftgym.benchmark.statistics import PromptTotals
from draftgym.costs.times import Float64Array
from draftgym.traces.trace import Trace

Mask = NDArray[np.bool_]
"""Which sequences of a trace are meant, [sequences]."""


def request_ids(trace: Trace) -> list[str]:
    """What each sequence asks; its own name where it has no translations."""
    return [entry.request_id or entry.prompt_id for entry in trace.sequences]


def request_domains(trace: Trace) -> dict[str, str]:
    """Domain of each request: the strata of intervals."""
    domains = (entry.domain for entry in trace.sequences)
    return dict(zip(request_ids(trace), domains, strict=True))


def request_totals(trace: Trace, seconds: Float64Array, mine: Mask | None = None) -> PromptTotals:
    """Seconds and tokens of each request, its translations added up.

    Args:
        trace: Gives requests and tokens; sequences without a round are left out.
        seconds: Of each sequence, or whatever else adds up, [sequences].
        mine: Which sequences count; all when None.

    Raises:
        StatisticsError: No sequence is left.
    """
    used = trace.lengths > 1 if mine is None else mine & (trace.lengths > 1)
    names, place = np.unique(np.array(request_ids(trace))[used], return_inverse=True)
    spent, made = (
        np.bincount(place, values[used], len(names)).astype(np.float64)
        for values in (seconds, trace.lengths - 1)
    )
    return PromptTotals(tuple(names.tolist()), spent, made)
