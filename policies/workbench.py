"""What the trainer needs from the world: environments, decoding, time. Composed elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from draftgym.clock import Clock
from draftgym.runtime import DecisionSeconds
from draftgym.state import Controller, RoundRecord
from policies.config import PolicyName
from policies.rollout import Environment


class Workbench(Protocol):
    """One decoder session and the environments over it; only one environment is live."""

    @property
    def clock(self) -> Clock:
        """The run's only source of time."""

    def environment(
        self,
        policy: PolicyName,
        other: Controller,
        decision_seconds: DecisionSeconds,
        deepest: int | None = None,
    ) -> Environment:
        """The environment in which `policy` decides and `other` takes the other decision.

        Args:
            policy: Who learns.
            other: Takes the other decision.
            decision_seconds: Measured cost of the exported policy's decisions, charged for each
                decision of the learner, and of `other` unless that one is free.
            deepest: Draft passes after which a learner of the depth is not asked.
        """

    def decode(
        self, prompt: int, controller: Controller, max_new_tokens: int
    ) -> Sequence[RoundRecord]:
        """Rounds of one validation prompt, by index, under a controller."""

    @property
    def validation_prompts(self) -> int:
        """Number of validation prompts."""

    def state(self) -> Mapping[str, Any]:
        """JSON-able state to checkpoint: the reward's pace and a simulated clock's time."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""
