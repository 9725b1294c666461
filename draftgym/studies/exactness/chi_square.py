"""Chi-square of draws against their laws: one law drawn from often, or many laws drawn from once.

It does not know where draws come from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

FEWEST = 5.0
"""Cells that are expected less often share one."""


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """A statistic, its degrees of freedom, and the draws that it is of."""

    statistic: float
    freedom: int
    draws: int

    @property
    def p_value(self) -> float:
        """Probability of a larger statistic under the law."""
        if self.freedom == 0:
            return 1.0
        half = torch.tensor([self.freedom, self.statistic], dtype=torch.float64) / 2
        return float(torch.special.gammaincc(half[0], half[1]))

    def __add__(self, other: ChiSquare) -> ChiSquare:
        return ChiSquare(
            self.statistic + other.statistic,
            self.freedom + other.freedom,
            self.draws + other.draws,
        )


def of_one_law(observed: NDArray[np.float64], law: NDArray[np.float64]) -> ChiSquare:
    """Pearson's statistic; tokens expected less than `FEWEST` times are pooled.

    Args:
        observed: How often each token came, shape [tokens].
        law: Probabilities, shape [tokens].

    Returns:
        The statistic; infinite where an impossible token came.
    """
    draws = observed.sum()
    expected = law / law.sum() * draws
    often = expected >= FEWEST
    seen = np.append(observed[often], observed[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    possible = wanted > 0
    if observed[law == 0].sum() > 0:
        return ChiSquare(np.inf, max(1, int(possible.sum()) - 1), int(draws))
    statistic = float(((seen - wanted)[possible] ** 2 / wanted[possible]).sum())
    return ChiSquare(statistic, int(possible.sum()) - 1, int(draws))


def of_many_laws(observed: NDArray[np.float64], laws: NDArray[np.float64]) -> ChiSquare:
    """Draws from different laws over the same cells, one each.

    With x the indicator of a draw's cell and π its law, Σ (x - π) has mean 0 and covariance
    Σ (diag π - π π'), also where a law depends on the draws before it (a martingale). With equal
    laws this is Pearson's statistic.

    Args:
        observed: Cell of each draw as an indicator, shape [draws, cells].
        laws: Shape of `observed`; rows sum to 1.
    """
    often = laws.sum(0) >= FEWEST
    x, pi = (
        np.column_stack((cells[:, often], cells[:, ~often].sum(1))) for cells in (observed, laws)
    )
    apart = (x - pi).sum(0)
    covariance = np.diag(pi.sum(0)) - pi.T @ pi
    values, vectors = np.linalg.eigh(covariance)
    # Cells sum to 1, so one direction at least has no variance.
    real = values > 1e-6 * max(1.0, values.max())
    along = vectors[:, real].T @ apart
    return ChiSquare(float((along**2 / values[real]).sum()), int(real.sum()), len(x))
