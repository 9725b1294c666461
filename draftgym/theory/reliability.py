"""How true the drafter's confidence is: promised accepted tokens against accepted ones.

A trace keeps sums of path probabilities, not every node's: what pass d adds to the promise is the
probability that the text goes on inside the tree at that depth, and the sums of the best V nodes
are what a size policy reads. Both are compared with what was accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftgym.costs.times import Float64Array
from draftgym.theory.rounds import Positions
from draftgym.traces.trace import IntArray, Trace

BINS = 10


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram, bins of equal counts as far as ties allow.

    Attributes:
        predicted: Mean promise of each bin, tokens, [bins].
        realised: Mean accepted tokens there, [bins].
        count: Positions, [bins].
    """

    predicted: Float64Array
    realised: Float64Array
    count: IntArray

    @property
    def error(self) -> float:
        """Expected calibration error: mean distance of the bins from the diagonal, tokens."""
        distance = np.abs(self.predicted - self.realised)
        return float((self.count * distance).sum() / self.count.sum())

    @property
    def means(self) -> tuple[float, float]:
        """Promised and accepted tokens over all positions."""
        total = self.count.sum()
        promised = float((self.count * self.predicted).sum() / total)
        return promised, float((self.count * self.realised).sum() / total)


def reliability(predicted: Float64Array, realised: Float64Array, bins: int = BINS) -> Reliability:
    """Bin promises and compare.

    Args:
        predicted: Promised tokens, [n].
        realised: Accepted tokens, [n].
        bins: Quantile bins; equal promises stay together.

    Raises:
        ValueError: There is nothing to compare.
    """
    if not len(predicted):
        raise ValueError("positions: none to compare promises with acceptance on")
    edges = np.unique(np.quantile(predicted, np.linspace(0, 1, bins + 1)[1:-1]))
    place = np.searchsorted(edges, predicted, side="right")
    count = np.bincount(place)
    used = count > 0
    sums = (np.bincount(place, values) for values in (predicted, realised))
    promised, kept = (total[used] / count[used] for total in sums)
    return Reliability(promised, kept, count[used])


def by_pass(trace: Trace, bins: int = BINS) -> dict[int, Reliability]:
    """What each pass adds: promised against accepted tokens, by depth of the tree.

    Args:
        trace: Positions; those so near the end of a text that it may cut a path are left out.
        bins: Quantile bins.

    Returns:
        By depth: 0 is free proposals, left out where there are none.
    """
    kept = trace.accepted_by_size(np.array([np.iinfo(np.int16).max]))[:, :, 0].astype(np.float64)
    promise = trace.total.astype(np.float64)
    found = {}
    for depth in range(trace.shape.max_depth + 1):
        rows = _whole(trace, depth)
        if depth == 0:
            rows &= trace.nodes[:, 0] > 0
        if rows.any():
            before = (promise[rows, depth - 1], kept[rows, depth - 1]) if depth else (0.0, 0.0)
            found[depth] = reliability(
                promise[rows, depth] - before[0], kept[rows, depth] - before[1], bins
            )
    return found


def by_cell(trace: Trace, bins: int = BINS) -> dict[tuple[int, int], Reliability]:
    """What the best V nodes after d passes promise against what they keep.

    Args:
        trace: As for `by_pass`.
        bins: Quantile bins.

    Returns:
        By depth and size above 0.
    """
    sizes = np.array(trace.shape.size_grid)
    kept = trace.accepted_by_size(sizes)
    found = {}
    for depth in range(trace.shape.max_depth + 1):
        rows = _whole(trace, depth) & (trace.nodes[:, depth] > 0)
        if rows.any():
            for column, size in enumerate(sizes.tolist()[1:], start=1):
                promise = trace.partial[rows, depth, column].astype(np.float64)
                realised = kept[rows, depth, column].astype(np.float64)
                found[depth, size] = reliability(promise, realised, bins)
    return found


def _whole(trace: Trace, depth: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Rows that may draft so deep and whose text is longer than any path of the tree."""
    enough: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        Positions.of(trace).left > trace.shape.path
    ) & (trace.depth_limit >= depth)
    return enough
