"""Means and ratios of values that come in clusters, with 95% intervals over clusters.

Rejections of one request share its text, so requests are resampled, never rejections. Values may be
negative, which times per token may not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgym.benchmark.statistics import SIGNIFICANCE, Interval
from draftgym.benchmark.student import quantile

RESAMPLES = 4000
FEWEST = 8
"""Clusters below which percentiles of draws say too little: Student's interval instead."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Clusters:
    """Draws of clusters, shared by everything that is compared.

    Attributes:
        members: Index of its cluster for each value, [values].
        weights: How often each draw took each cluster, [draws, clusters].
    """

    members: NDArray[np.intp]
    weights: Floats

    @property
    def count(self) -> int:
        """Clusters."""
        return int(self.weights.shape[1])


def clustered(names: Sequence[str], seed: int = 0) -> Clusters:
    """Draw clusters with replacement.

    Args:
        names: Cluster of each value.
        seed: Of the draws.
    """
    known, members = np.unique(np.asarray(names, str), return_inverse=True)
    count = len(known)
    draws = np.random.default_rng(seed).multinomial(
        count, np.full(count, 1 / max(count, 1)), RESAMPLES
    )
    return Clusters(members.astype(np.intp), draws.astype(np.float64))


def mean(
    clusters: Clusters,
    over: ArrayLike,
    under: ArrayLike | None = None,
    significance: float = SIGNIFICANCE,
) -> Interval:
    """Σ over / Σ under, with an interval over clusters.

    Args:
        clusters: Of the values.
        over: Numerators, [values].
        under: Denominators, [values]; 1 each when None.
        significance: Share of cases that may lie outside.

    Returns:
        NaN throughout where the denominators sum to 0; limits NaN with fewer than two clusters
        that have any.
    """
    above = np.asarray(over, np.float64)
    below = np.ones_like(above) if under is None else np.asarray(under, np.float64)
    sums, sizes = (np.bincount(clusters.members, x, clusters.count) for x in (above, below))
    if not sizes.sum():
        return Interval(math.nan, math.nan, math.nan)
    estimate = float(sums.sum() / sizes.sum())
    used = int((sizes != 0).sum())
    if used < 2:
        return Interval(estimate, math.nan, math.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = clusters.weights @ sums / (clusters.weights @ sizes)
    return _limits(estimate, draws[np.isfinite(draws)], used, significance)


def share(clusters: Clusters, hits: ArrayLike, of: ArrayLike | None = None) -> Interval:
    """A mean of what is between 0 and 1, as its limits are then, too; arguments as of `mean`."""
    found = mean(clusters, hits, of)
    low, high = (min(1.0, max(0.0, limit)) if limit == limit else limit for limit in found.limits)
    return Interval(found.estimate, low, high)


def ratio(clusters: Clusters, over: ArrayLike, under: ArrayLike) -> Interval:
    """A mean divided by another of the same clusters, drawn together.

    Returns:
        NaN where nothing is above 0 in the denominator; a limit may be infinite.
    """
    above, below = (np.asarray(values, np.float64) for values in (over, under))
    sums, sizes = (np.bincount(clusters.members, x, clusters.count) for x in (above, below))
    if not sizes.sum():
        return Interval(math.nan, math.nan, math.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = clusters.weights @ sums / (clusters.weights @ sizes)
    draws = np.sort(draws[~np.isnan(draws)])
    low, high = (draws[round(q * (len(draws) - 1))] for q in (0.025, 0.975))
    return Interval(float(sums.sum() / sizes.sum()), float(low), float(high))


def _limits(estimate: float, draws: Floats, count: int, significance: float) -> Interval:
    """Expanded percentiles as in `draftgym.benchmark.statistics.paired_ratio`."""
    stretch = math.sqrt(count / (count - 1))
    reach = stretch * quantile(significance, count - 1)
    if count < FEWEST:
        half = reach * float(draws.std())
        return Interval(estimate, estimate - half, estimate + half)
    tail = NormalDist().cdf(-reach)
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(estimate, float(low), float(high))
