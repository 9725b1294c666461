"""What a round is worth: by its own tokens and seconds, or by the time that it leaves to go."""

from __future__ import annotations

from typing import Literal, get_args

from draftgym.costs.times import Float64Array
from policies.config import RewardKind

Objective = Literal["time_to_go", RewardKind]
"""`time_to_go` is what the best fixed cell would still take before the round, less the round's
seconds, less what it would take afterwards: the credit horizon is the request, not the round."""

OBJECTIVES: tuple[Objective, ...] = ("time_to_go", *get_args(RewardKind))


def round_reward(
    kind: RewardKind, tokens: Float64Array, seconds: Float64Array, pace: float
) -> Float64Array:
    """Reward of rounds, as the environments sum it over their decisions.

    Args:
        kind: `rate` e·μ - t, `throughput` e / t, `time_per_token` -t / e, `emitted` e,
            `time_cost` -t.
        tokens: Emitted by each round, e, at least 1.
        seconds: Of each whole round, t, passes and decisions included; any unit, above 0.
        pace: Recent seconds per token, μ, in that unit.

    Returns:
        In the shape of the arguments.
    """
    if kind == "rate":
        return tokens * pace - seconds
    if kind == "throughput":
        return tokens / seconds
    if kind == "time_per_token":
        return -seconds / tokens
    return tokens if kind == "emitted" else -seconds
