"""Laws of the next token under the right correction and under mistaken ones, in closed form.

Laws are tuples of probabilities and every formula keeps the type of its numbers: floats give
float64, `fractions.Fraction` gives exact arithmetic. Nothing is drawn here.

Source: Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.5 and appendix A.1.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

Law = tuple[Any, ...]
"""Probabilities of token 0, 1, ..: floats or Fractions, all of one type."""


def acceptance(p: Law, q: Law) -> Any:
    """Σ min(p, q) = 1 - TV(p, q): how often a token drawn from q is kept.

    Args:
        p: The target's law.
        q: The drafter's, over the same tokens.
    """
    return sum(map(min, p, q))


def total_variation(p: Law, q: Law) -> Any:
    """Σ |p - q| / 2; arguments as of `acceptance`."""
    return sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


def normalised(weights: Sequence[Any]) -> Law:
    """Weights as a law.

    Raises:
        ValueError: They sum to zero.
    """
    total = sum(weights)
    if not total:
        raise ValueError("nothing is left to draw from")
    return tuple(weight / total for weight in weights)


def masked(law: Law, allowed: Sequence[bool]) -> Law:
    """The law given that its token is allowed."""
    return normalised([a * mass for a, mass in zip(allowed, law, strict=True)])


def residual(p: Law, q: Law) -> Law:
    """max(p - q, 0), normalised; p itself where p = q, which is then never drawn from."""
    rest = [max(a - b, 0 * a) for a, b in zip(p, q, strict=True)]
    return normalised(rest) if any(rest) else p


def emitted(p: Law, q: Law, replacement: Law) -> Law:
    """min(p, q) + (1 - Σ min(p, q)) · replacement: the law of the token that comes out.

    Args:
        p: The target's law, which decides on acceptance.
        q: The law that proposals are drawn from.
        replacement: The law drawn from after a rejection.
    """
    rejected = 1 - acceptance(p, q)
    return tuple(min(a, b) + rejected * r for a, b, r in zip(p, q, replacement, strict=True))


def corrected(p: Law, q: Law) -> Law:
    """The right way: the residual replaces a rejected token, and the law is p."""
    return emitted(p, q, residual(p, q))


def restarted(p: Law, q: Law) -> Law:
    """The mistake of drawing afresh from p after a rejection: tokens that q favours gain."""
    return emitted(p, q, p)


def masked_too_late(p: Law, q: Law, allowed: Sequence[bool]) -> Law:
    """Acceptance and residual made of the unmasked p; only then is the residual masked.

    The drafter obeys the mask, so that no forbidden token ever comes out and the mistake does
    not show in any single text.

    Args:
        p: The target's law, unmasked.
        q: The drafter's, unmasked.
        allowed: Tokens that a grammar allows.

    Returns:
        The law of what comes out; it should be `masked(p, allowed)`.

    Raises:
        ValueError: No residual is left under the mask.
    """
    proposals = masked(q, allowed)
    return emitted(p, proposals, masked(residual(p, proposals), allowed))


def coupled_match(p: Law, q: Law) -> Any:
    """Σ_x 1 / Σ_y max(p_y / p_x, q_y / q_x): argmax(log p + G) = argmax(log q + G), shared G.

    E_y = exp(-G_y) are exponential, and the argmax is x where E_y / E_x exceeds both ratios of y
    for every other y: given E_x an exponential again, of rate the sum over all y.

    Source: Daliri et al. 2024 (arXiv 2408.07978).
    """
    return sum(
        1 / sum(max(b / p[x], d / q[x]) for b, d in zip(p, q, strict=True))
        for x in range(len(p))
        if p[x] and q[x]
    )


def worst_rounding(laws: int, tokens: int, seed: int) -> float:
    """Largest difference between `corrected` in float64 and the exact p, over random laws.

    Args:
        laws: Pairs (p, q), zeros among their entries.
        tokens: Of each law.
        seed: Of the laws.
    """
    generator = random.Random(seed)

    def law() -> Law:
        scales = generator.choices((0, 1, 10, 10**6), k=tokens)
        return normalised([Fraction(scale * generator.randrange(1, 10**6)) for scale in scales])

    def rounding(p: Law, q: Law) -> float:
        found = corrected(tuple(map(float, p)), tuple(map(float, q)))
        pairs = zip(found, corrected(p, q), strict=True)
        return max(float(abs(Fraction(got) - want)) for got, want in pairs)

    return max(rounding(law(), law()) for _ in range(laws))
