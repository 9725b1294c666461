"""Values of the formulas that are known beforehand, and the table that they stand in."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftgym.studies.known import Known
from draftgym.theory.chain_cost import (
    chain_costs,
    emitted,
    equal_positions,
    equal_texts,
    expected_tokens,
    longest_that_pays,
    operations,
    powers,
    speed,
)

ALPHAS, COSTS, LONGEST = (0.3, 0.7, 0.9), (0.05, 0.20), 16
EASY_AND_HARD = (0.9, 0.5)
"""Two texts whose mean acceptance is .7."""


def known_values() -> list[Known]:
    """Each worked out by hand from the formula that it names."""
    six, rounding = 6, 5e-7
    return [
        Known("E(α=.7, γ=6)", 3.058819, expected_tokens(0.7, six), rounding),
        Known("E(α=.7, γ=6), summed", 3.058819, float(emitted(powers(0.7, six))[-1]), rounding),
        Known("S(α=.7, γ=6, c=.05)", 2.353, speed(0.7, six, 0.05), 5e-4),
        Known("S(α=.7, γ=3, c=.20)", 1.583, speed(0.7, 3, 0.20), 5e-4),
        Known("S(α=.7, γ=6, c=.05, g=3)", 0.927, speed(0.7, six, 0.05, 3.0), 5e-4),
        Known("operations(α=.2, γ=5, ĉ=0)", 4.8, operations(0.2, 5, 0.0), 5e-4),
        # .7^6 / .05 = 2.35298 is just more than S(5) = 2.35294; .7^7 / .05 = 1.647 is less.
        Known("longest that pays(α=.7, c=.05)", 6, _stop(0.7, 0.05), 0),
        Known("longest that pays(α=.7, c=.20)", 3, _stop(0.7, 0.20), 0),
        # (5.217031 + 1.984375) / 2, and 2 / (1 / 5.217031 + 1 / 1.984375).
        Known("E(α=.9 and .5, γ=6), by position", 3.600703, equal_positions(EASY_AND_HARD, six),
              rounding),
        Known("E(α=.9 and .5, γ=6), by text", 2.875146, equal_texts(EASY_AND_HARD, six), rounding),
    ]  # fmt: skip


def _stop(alpha: float, cost: float) -> int:
    return longest_that_pays(powers(alpha, LONGEST), chain_costs(cost, LONGEST))


def table() -> list[dict[str, Any]]:
    """E and S by γ = 1..16 for every α and c, and the γ at which the marginal rule stops."""
    rows = []
    for alpha in ALPHAS:
        joint = powers(alpha, LONGEST)
        tokens = emitted(joint)
        for cost in COSTS:
            costs = chain_costs(cost, LONGEST)
            speeds = tokens / costs
            rows.append(
                {
                    "alpha": alpha,
                    "c": cost,
                    "gamma": np.arange(1, LONGEST + 1),
                    "tokens": tokens[1:],
                    "speed": speeds[1:],
                    "stops_at": longest_that_pays(joint, costs),
                    "best": int(speeds.argmax()),
                }
            )
    return rows
