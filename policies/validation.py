"""Time per token on validation prompts, beside plain decoding and the best pair so far.

The machine's pace drifts by more than two checkpoints differ, so a pair is measured prompt by
prompt beside the one that it would replace, and replaces it only if it is faster by more than the
prompts' own scatter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftgym.decoder.controllers import PlainController
from draftgym.state import Controller, RoundRecord
from policies.config import ValidationConfig
from policies.workbench import Workbench

MARGIN = 2.0
"""Standard errors by which a pair must be faster than the one that it replaces."""


@dataclass(frozen=True, slots=True)
class Gain:
    """How much faster than the kept pair: mean over prompts of the ratio's logarithm.

    Attributes:
        log_speedup: Above 0 is faster.
        standard_error: Of it; infinite for a single prompt.
    """

    log_speedup: float
    standard_error: float

    @property
    def certain(self) -> bool:
        """Whether it is more than chance."""
        return self.log_speedup > MARGIN * self.standard_error


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
        gain: Over the kept pair; None where there is none yet.
    """

    seconds_per_token: float
    plain_seconds_per_token: float
    tau_emitted: float
    depth_mean: float
    size_mean: float
    policy_share: float
    tokens: int
    gain: Gain | None = None

    @property
    def speedup(self) -> float:
        """Plain time per token over the policy's: above 1 is faster."""
        return self.plain_seconds_per_token / self.seconds_per_token

    def metrics(self) -> dict[str, Any]:
        """Plain numbers for the log."""
        names = [name for name in self.__dataclass_fields__ if name != "gain"]
        row = {name: getattr(self, name) for name in names} | {"speedup": self.speedup}
        if self.gain is not None:
            row |= {
                "over_kept": math.exp(self.gain.log_speedup),
                "over_kept_error": self.gain.standard_error,
            }
        return row


def validate(
    bench: Workbench,
    config: ValidationConfig,
    controller: Controller,
    kept: Controller | None = None,
) -> Validation:
    """Decode every validation prompt with each controller and plainly, in alternating order.

    Args:
        bench: Decodes.
        config: Tokens per prompt.
        controller: Under test.
        kept: The best so far.

    Raises:
        ValueError: If an arm decoded no round.
    """
    arms: list[tuple[list[float], list[RoundRecord], Controller, int]] = [
        ([], [], controller, config.new_tokens),
        ([], [], PlainController(), config.plain_new_tokens),
    ]
    if kept is not None:
        arms.append(([], [], kept, config.new_tokens))
    for index in range(bench.validation_prompts):
        for paces, records, arm, tokens in arms if index % 2 == 0 else reversed(arms):
            rounds = bench.decode(index, arm, tokens)
            records.extend(rounds)
            if rounds:
                paces.append(_pace(rounds))
    gain = None if kept is None else _gain(arms[0][0], arms[2][0])
    return summarise(arms[0][1], arms[1][1], gain)


def summarise(
    policy: Sequence[RoundRecord], plain: Sequence[RoundRecord], gain: Gain | None = None
) -> Validation:
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
        plain_seconds_per_token=_pace(plain),
        tau_emitted=tokens / len(policy),
        depth_mean=sum(record.depth for record in policy) / len(policy),
        size_mean=sum(record.size for record in policy) / len(policy),
        policy_share=sum(record.policy_seconds for record in policy) / seconds,
        tokens=tokens,
        gain=gain,
    )


def _pace(records: Sequence[RoundRecord]) -> float:
    """Seconds per token."""
    return sum(record.seconds for record in records) / sum(record.emitted for record in records)


def _gain(mine: Sequence[float], theirs: Sequence[float]) -> Gain:
    ratios = [math.log(b / a) for a, b in zip(mine, theirs, strict=True)]
    if len(ratios) < 2:
        return Gain(statistics.fmean(ratios), math.inf)
    return Gain(statistics.fmean(ratios), statistics.stdev(ratios) / math.sqrt(len(ratios)))
