"""Student's t law for whole degrees of freedom, in closed form."""

from __future__ import annotations

import math
import sys
from functools import cache


def two_sided(t: float, freedom: int) -> float:
    """P(|T| > t) (Abramowitz & Stegun 26.7.3 and 26.7.4), at least the rounding error of 1.

    Args:
        t: Not negative; may be infinite.
        freedom: Degrees of freedom, at least 1.
    """
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term, series = (cosine if odd else 1.0), 0.0
    for power in range(odd, freedom - 1, 2):
        series += term
        term *= cosine**2 * (power + 1) / (power + 2)
    inside = math.sin(angle) * series
    if odd:
        inside = 2 / math.pi * (angle + inside)
    return max(sys.float_info.epsilon, 1.0 - inside)


@cache
def quantile(outside: float, freedom: int) -> float:
    """The t with P(|T| > t) = `outside`, by bisection over the angle of the closed form.

    Args:
        outside: Probability, above 0 and below 1.
        freedom: Degrees of freedom, at least 1.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if two_sided(math.sqrt(freedom) * math.tan(middle), freedom) > outside:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)
