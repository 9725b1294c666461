"""What drafters promise, calibrated on traces: isotonic regression, and where rounds start."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike

from draftgym.costs.times import Float64Array
from draftgym.traces.trace import IntArray, Trace

STARTS = 32
"""Tokens of every text at which a request may start: few would see few positions."""


def isotonic(values: ArrayLike, weights: ArrayLike) -> Float64Array:
    """The nondecreasing sequence nearest to some values by weighted squares.

    Pool adjacent violators (Ayer et al. 1955): a value below the one before is averaged with it.

    Args:
        values: In the order of what they hang on, [n].
        weights: Above 0, [n].

    Returns:
        Shape [n].
    """
    means: list[float] = []
    masses: list[float] = []
    counts: list[int] = []
    for value, weight in zip(np.asarray(values, float), np.asarray(weights, float), strict=True):
        mean, mass, count = float(value), float(weight), 1
        while means and means[-1] >= mean:
            before = masses.pop()
            mean = (means.pop() * before + mean * mass) / (before + mass)
            mass, count = before + mass, count + counts.pop()
        means.append(mean)
        masses.append(mass)
        counts.append(count)
    return np.repeat(means, counts)


def curve(
    promised: Float64Array, observed: Float64Array, weights: Float64Array, bins: int
) -> tuple[list[float], list[float]]:
    """A nondecreasing step function from promises to what came of them.

    Args:
        promised: At least one, [n].
        observed: What came of each, [n].
        weights: Above 0, [n].
        bins: Most steps; bins of equal weight, equal promises together.

    Returns:
        Where each step begins, ascending, and its height; steps of equal height are one.
    """
    order = np.argsort(promised, kind="stable")
    x, y, w = promised[order], observed[order], weights[order]
    wanted = np.linspace(0.0, float(w.sum()), bins + 1)[:-1]
    begins = np.unique(x[np.searchsorted(np.cumsum(w), wanted, side="right").clip(max=len(x) - 1)])
    begins[0] = x[0]
    place = np.searchsorted(begins, x, side="right") - 1
    mass = np.bincount(place, w)
    heights = isotonic(np.bincount(place, w * y) / mass, mass)
    new = np.append(True, np.diff(heights) > 0.0)
    return begins[new].tolist(), heights[new].tolist()


def round_starts(trace: Trace, depth: int, size: int) -> Float64Array:
    """How often rounds of a fixed cell start at every position, [n].

    Positions are not met equally often: where a text repeats itself rounds leap over most of them,
    so that plain averages over a trace promise too much. Whether a round starts somewhere hangs
    on earlier tokens only, so weighting by it does not look at what is to be predicted.

    Args:
        trace: Positions.
        depth: Of the cell.
        size: Of the cell.
    """
    rows: IntArray = np.arange(len(trace))
    depths = np.minimum(depth, trace.depth_limit).astype(np.int64)
    leaps = 1 + trace.accepted(rows, depths, np.full(len(trace), size))
    counts = np.zeros(len(trace))
    for begin, end in itertools.pairwise(trace.first.tolist()):
        counts[begin : min(begin + STARTS, end)] = 1.0 / STARTS
        for row in range(begin, end):
            ahead = row + leaps[row]
            if ahead < end:
                counts[ahead] += counts[row]
    return counts
