"""Time per token on validation prompts, beside plain decoding interleaved in the same minutes.

The machine's pace drifts by more than two checkpoints differ, so checkpoints are compared by
their ratio to plain decoding, not by seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftgym.decoder.controllers import PlainController
from draftgym.state import Controller, RoundRecord
from policies.config import ValidationConfig
from policies.workbench import Workbench


@dataclass(frozen=True, slots=True)
class Validation:
    """One validation.

    Attributes:
        seconds_per_token: The policy's, decisions included.
        plain_seconds_per_token: Plain decoding's.
        tau_emitted: Mean tokens per round, bonus counted.
        depth_mean: Mean draft passes per round.
        size_mean: Mean verified tokens per round.
        policy_share: Share of time spent on features and decisions.
        tokens: Tokens emitted by the policy arm.
    """

    seconds_per_token: float
    plain_seconds_per_token: float
    tau_emitted: float
    depth_mean: float
    size_mean: float
    policy_share: float
    tokens: int

    @property
    def speedup(self) -> float:
        """Plain time per token over the policy's: above 1 is faster."""
        return self.plain_seconds_per_token / self.seconds_per_token

    def metrics(self) -> dict[str, Any]:
        """Plain numbers for the log."""
        names = self.__dataclass_fields__
        return {name: getattr(self, name) for name in names} | {"speedup": self.speedup}


def validate(bench: Workbench, config: ValidationConfig, controller: Controller) -> Validation:
    """Decode every validation prompt with the controller and plainly, in alternating order."""
    policy: list[RoundRecord] = []
    plain: list[RoundRecord] = []
    for index in range(bench.validation_prompts):
        arms = [
            (policy, controller, config.new_tokens),
            (plain, PlainController(), config.plain_new_tokens),
        ]
        for records, arm, tokens in arms if index % 2 == 0 else reversed(arms):
            records.extend(bench.decode(index, arm, tokens))
    return summarise(policy, plain)


def summarise(policy: Sequence[RoundRecord], plain: Sequence[RoundRecord]) -> Validation:
    """Total seconds over total tokens, per arm.

    Raises:
        ValueError: If an arm decoded no round.
    """
    if not policy or not plain:
        raise ValueError("validation decoded no round: raise validation.new_tokens")
    seconds = sum(record.seconds for record in policy)
    tokens = sum(record.emitted for record in policy)
    return Validation(
        seconds_per_token=seconds / tokens,
        plain_seconds_per_token=sum(r.seconds for r in plain) / sum(r.emitted for r in plain),
        tau_emitted=tokens / len(policy),
        depth_mean=sum(record.depth for record in policy) / len(policy),
        size_mean=sum(record.size for record in policy) / len(policy),
        policy_share=sum(record.policy_seconds for record in policy) / seconds,
        tokens=tokens,
    )
