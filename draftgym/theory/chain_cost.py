"""When a longer draft pays: a chain of drafted tokens in closed form.

Costs are in plain decoding steps. A round of γ drafted tokens costs g(γ) for the target's pass over
γ + 1 tokens and c for each draft pass; where k drafted tokens are all accepted with probability
joint[k - 1], it emits 1 + Σ joint tokens. A constant acceptance α makes that 1 + α + … + α^γ.

Source: Leviathan et al. 2023 (arXiv 2211.17192), equation 1 and theorems 3.8 and 3.11.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgym.costs.times import Float64Array


def powers(alpha: float, longest: int) -> Float64Array:
    """Joint prefix acceptance α^k where tokens are accepted alike and apart from each other.

    Args:
        alpha: Acceptance of a token, 0 to 1.
        longest: Drafted tokens.

    Returns:
        [longest], k from 1.

    Raises:
        ValueError: α is no probability.
    """
    _check_share(alpha)
    found: Float64Array = np.power(alpha, np.arange(1.0, longest + 1))
    return found


def emitted(joint: ArrayLike) -> Float64Array:
    """Expected tokens of a round of 0, 1, 2, … drafted tokens, bonus counted.

    Args:
        joint: P(the first k drafted tokens are all accepted), k from 1, [K].

    Returns:
        [K + 1], by γ from 0.
    """
    kept: Float64Array = np.cumsum(np.concatenate(([1.0], np.asarray(joint, np.float64))))
    return kept


def expected_tokens(alpha: float, gamma: int) -> float:
    """E = (1 - α^(γ+1)) / (1 - α), tokens of a round.

    Args:
        alpha: Acceptance of a token, 0 to 1.
        gamma: Drafted tokens, γ.

    Raises:
        ValueError: α is no probability.
    """
    _check_share(alpha)
    return float(gamma + 1) if alpha == 1 else float((1 - alpha ** (gamma + 1)) / (1 - alpha))


def speed(alpha: float, gamma: int, cost: float, verify: float = 1.0) -> float:
    """S = E / (g(γ) + cγ), speed over plain decoding.

    Args:
        alpha: Acceptance of a token.
        gamma: Drafted tokens.
        cost: Of a draft pass, c.
        verify: Of the target's pass over γ + 1 tokens, g(γ).
    """
    return expected_tokens(alpha, gamma) / (verify + cost * gamma)


def pays(joint: ArrayLike, costs: ArrayLike) -> NDArray[np.bool_]:
    """The marginal rule: whether one more drafted token is worth more than the round's average.

    That is joint[γ] / (C(γ+1) - C(γ)) > E(γ) / C(γ), with C the cost of a round.

    Args:
        joint: P(the first k drafted tokens are all accepted), k from 1, [K].
        costs: Of a round, plain steps, by γ from 0, [K + 1].

    Returns:
        [K], for the step from γ = 0, 1, ….
    """
    joint, costs = np.asarray(joint, np.float64), np.asarray(costs, np.float64)
    worth: NDArray[np.bool_] = joint * costs[:-1] > emitted(joint)[:-1] * np.diff(costs)
    return worth


def longest_that_pays(joint: ArrayLike, costs: ArrayLike) -> int:
    """The draft at which the marginal rule stops: the best one where the cost of a token never
    falls with γ, because what it adds never rises.

    Args:
        joint: As for `pays`.
        costs: As for `pays`.
    """
    step = pays(joint, costs)
    return len(step) if step.all() else int(step.argmin())


def chain_costs(cost: float, longest: int, verify: Sequence[float] | float = 1.0) -> Float64Array:
    """Cost of a round, g(γ) + cγ, by γ from 0.

    Args:
        cost: Of a draft pass, c.
        longest: Most drafted tokens.
        verify: g(γ), one for all or by γ from 0.
    """
    costs: Float64Array = np.asarray(verify, np.float64) + cost * np.arange(longest + 1.0)
    return costs


def operations(alpha: float, gamma: int, ratio: float) -> float:
    """Operations per emitted token over plain decoding's: (γĉ + γ + 1) / E.

    Args:
        alpha: Acceptance of a token.
        gamma: Drafted tokens.
        ratio: Operations of a draft pass over the target's for one token, ĉ.
    """
    return (gamma * ratio + gamma + 1) / expected_tokens(alpha, gamma)


def equal_positions(alphas: Sequence[float], gamma: int) -> float:
    """Tokens of a round that is as likely to begin in one text as in any other.

    Args:
        alphas: Constant acceptance of each text.
        gamma: Drafted tokens.
    """
    return float(np.mean([expected_tokens(alpha, gamma) for alpha in alphas]))


def equal_texts(alphas: Sequence[float], gamma: int) -> float:
    """Tokens per round over texts of one length: hard texts take more of the rounds.

    Args:
        alphas: Constant acceptance of each text.
        gamma: Drafted tokens.
    """
    return float(1 / np.mean([1 / expected_tokens(alpha, gamma) for alpha in alphas]))


def _check_share(alpha: float) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha: must be 0 to 1, got {alpha}")
