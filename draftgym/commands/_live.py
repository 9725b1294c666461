"""Joins what a training configuration names: session, prompts, environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftgym.benchmark.runner import Request, encode
from draftgym.clock import Clock, FakeClock
from draftgym.decoder.controllers import PlainController
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.session import DecoderSession
from draftgym.prompts import Split, load_prompts
from draftgym.runtime import DecisionSeconds
from draftgym.state import Controller, RoundRecord
from envs.base import SessionEnv
from envs.depth import DraftDepthEnv
from envs.rewards import RateTracker
from envs.size import VerifySizeEnv
from policies.config import PolicyName, TrainConfig

DEFAULT_CONFIG = Path(__file__).resolve().parents[2] / "configs" / "train" / "default.yaml"


def open_session(config: TrainConfig, pair: ModelPair, clock: Clock) -> DecoderSession:
    """The session of a training configuration.

    Args:
        config: Limits of a round, history, end of a request.
        pair: Decodes.
        clock: Times it.
    """
    return DecoderSession(
        pair,
        pair.new_drafter(),
        clock=clock,
        max_depth=config.layout.max_depth,
        max_size=config.layout.size_grid[-1],
        history=config.layout.history_rounds,
        ignore_eos=config.ignore_eos,
    )


def load_requests(
    config: TrainConfig, pair: ModelPair, split: Split, count: int | None
) -> list[Request]:
    """The prompts of a training configuration.

    Args:
        config: Sources and seed.
        pair: Encodes them.
        split: Which of them.
        count: How many; all when None.
    """
    prompts = load_prompts(config.prompts, split, count, config.seed)
    return encode(prompts, pair.encode_prompt)


class LiveBench:
    """Implements `policies.workbench.Workbench` over one real session.

    Args:
        config: Of the run.
        session: Every environment and the policy arm of validations decode in it.
        plain: A session without a drafter, for plain decoding.
        training: Prompts of the policy split.
        validation: Prompts of the validation split.
        pace_seconds_per_token: Pace before anything was decoded: a plain step's seconds.
    """

    def __init__(
        self,
        config: TrainConfig,
        session: DecoderSession,
        plain: DecoderSession,
        training: Sequence[Request],
        validation: Sequence[Request],
        pace_seconds_per_token: float,
    ) -> None:
        self._config = config
        self._session = session
        self._plain = plain
        self._training = [request.tokens for request in training]
        self._validation = validation
        self._layout = config.layout.features()
        self._rate = RateTracker(config.reward.rate_window_rounds, pace_seconds_per_token)

    @property
    def clock(self) -> Clock:
        return self._session.clock

    @property
    def validation_prompts(self) -> int:
        return len(self._validation)

    def environment(
        self,
        policy: PolicyName,
        other: Controller,
        decision_seconds: DecisionSeconds,
        deepest: int | None = None,
    ) -> SessionEnv:
        shared: dict[str, Any] = {
            "session": self._session,
            "prompts": self._training,
            "max_new_tokens": self._config.max_new_tokens,
            "layout": self._layout,
            "reward": self._config.reward.kind,
            "rate": self._rate,
            "decision_seconds": decision_seconds,
            "seed": self._config.seed,
        }
        if policy == "size":
            return VerifySizeEnv(**shared, depth_controller=other)
        return DraftDepthEnv(**shared, size_controller=other, deepest=deepest)

    def decode(
        self, prompt: int, controller: Controller, max_new_tokens: int
    ) -> Sequence[RoundRecord]:
        session = self._plain if isinstance(controller, PlainController) else self._session
        session.start(self._validation[prompt].tokens, max_new_tokens)
        return tuple(session.run(controller))

    def state(self) -> Mapping[str, Any]:
        clock = self.clock
        simulated = clock.boundary() if isinstance(clock, FakeClock) else None
        return {"rate": self._rate.state_dict(), "simulated_seconds": simulated}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._rate.load_state_dict(state["rate"])
        if isinstance(self.clock, FakeClock):
            self.clock.set_to(state["simulated_seconds"])
