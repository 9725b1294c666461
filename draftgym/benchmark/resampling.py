"""The bootstrap of a few prompts: draws, and the limits and p-values that are read off them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from draftgym.benchmark.student import quantile, two_sided

FEWEST_BEYOND = 5
"""Draws that must lie beyond a percentile for it to be read off; a normal tail beyond."""
_NORMAL = NormalDist()


class Resampling:
    """Prompts drawn with replacement within groups, and what draws of a figure then say.

    A two-sided p belongs to Student's t at the remaining degrees of freedom; `stretch` turns
    that t into normal deviations of the draws.

    Args:
        groups: Indices of prompts, each in one group; more prompts than groups.
        resamples: Draws.
        seed: Of the draws.
        significance: Share of cases that may lie outside the limits.
    """

    def __init__(
        self, groups: Sequence[NDArray[np.intp]], resamples: int, seed: int, significance: float
    ) -> None:
        count = sum(map(len, groups))
        self._freedom = count - len(groups)
        generator = np.random.default_rng(seed)
        picks = [
            group[generator.integers(0, len(group), size=(resamples, len(group)))]
            for group in groups
        ]
        self._picks = np.concatenate(picks, axis=1)  # [resamples, prompts]
        self._stretch = math.sqrt(count / self._freedom)
        self._reach = self._stretch * quantile(significance, self._freedom)
        self._tail = _NORMAL.cdf(-self._reach)
        self._fewest = FEWEST_BEYOND / resamples

    def paces(
        self, seconds: NDArray[np.float64], tokens: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Σ seconds / Σ tokens of each draw, [resamples], from values by prompt."""
        spent, emitted = (values[self._picks].sum(axis=1) for values in (seconds, tokens))
        return np.asarray(spent / emitted, np.float64)

    def limits(self, estimate: float, draws: NDArray[np.float64]) -> tuple[float, float]:
        """Expanded percentiles; Student's interval where too few draws lie beyond them."""
        if self._tail >= self._fewest:
            low, high = np.quantile(draws, [self._tail, 1 - self._tail])
            return float(low), float(high)
        if draws.min() > 0:
            factor = math.exp(self._reach * np.log(draws).std())
            return estimate / factor, estimate * factor
        half = self._reach * float(draws.std())
        return max(0.0, estimate - half), estimate + half

    def p_value(self, estimate: float, draws: NDArray[np.float64]) -> float:
        """The level at which the limits would just reach 1."""
        logs = draws.min() > 0
        deviation = float((np.log(draws) if logs else draws).std())
        distance = abs(math.log(estimate) if logs else estimate - 1)
        normal = distance / deviation if deviation else math.inf if distance else 0.0
        tail = min(_level_of_one(draws), _level_of_one(2 - draws))
        if self._tail < self._fewest:
            deviations = normal
        elif tail >= self._fewest:
            deviations = max(0.0, -_NORMAL.inv_cdf(min(tail, 0.5)))
        else:
            deviations = max(normal, -_NORMAL.inv_cdf(self._fewest))
        return two_sided(deviations / self._stretch, self._freedom)


def _level_of_one(draws: NDArray[np.float64]) -> float:
    """The largest level whose quantile (linear, as `np.quantile`) is at most 1; 0 if none is."""
    ordered = np.sort(draws)
    below = int(np.searchsorted(ordered, 1.0, side="right"))
    if below in (0, len(ordered)):
        return float(below > 0)
    step = (1.0 - ordered[below - 1]) / (ordered[below] - ordered[below - 1])
    return float((below - 1 + step) / (len(ordered) - 1))
