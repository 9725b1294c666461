"""Fixed cells on a trace: one depth and one size in all rounds, with mean seconds."""

from __future__ import annotations

from itertools import product

import numpy as np

from draftgym.costs.times import Float64Array, Times
from draftgym.theory.follow import follow
from draftgym.traces.trace import Trace


def fixed(trace: Trace, times: Times, depth: int, size: int) -> Float64Array:
    """Mean seconds of a fixed cell.

    Args:
        trace: Positions and what each setting accepts there.
        times: Mean seconds of work.
        depth: Draft passes of every round, at most the trace's deepest.
        size: Verification size of every round.

    Returns:
        Seconds of all rounds of each sequence, [sequences].

    Raises:
        ValueError: A depth that the trace does not hold, or a negative size.
    """
    if not 0 <= depth <= trace.shape.max_depth or size < 0:
        raise ValueError(
            f"depth: 0 to {trace.shape.max_depth}, size: 0 or more; got {depth}, {size}"
        )
    return follow(
        trace, times, lambda rows, _: (np.full_like(rows, depth), np.full_like(rows, size))
    )


def best_fixed(trace: Trace, times: Times) -> tuple[int, int]:
    """The cheapest cell (depth, size) of the trace's depths and size grid.

    Args:
        trace: Positions and what each setting accepts there.
        times: Mean seconds of work.
    """
    cells = list(product(range(trace.shape.max_depth + 1), trace.shape.size_grid))
    return min(cells, key=lambda cell: float(fixed(trace, times, *cell).sum()))
