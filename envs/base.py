"""What both environments share: episodes over prompts, seeds, rewards, records.

The decoding loop is the session's; an environment only decides when to draft and how much to
verify, and adds up what the session measured.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from draftgym.features import FeatureLayout
from draftgym.runtime import DecisionSeconds
from draftgym.state import NO_CONFIDENCE, Controller, Float32Array, RoundRecord, RoundState
from envs.interface import Action, Reseedable, Resumable, Session, as_index
from envs.prompt_stream import PromptStream
from envs.rewards import RateTracker, RewardKind, RoundReward
from envs.totals import sum_up


class SessionEnv(gymnasium.Env[Float32Array, Action]):
    """Base of the environments: one episode answers one prompt.

    Args:
        session: Decodes and measures; its clock is the only source of time.
        prompts: Token ids of each prompt.
        max_new_tokens: Budget of a request, its first token included.
        layout: Observations and the size grid.
        other: Takes the decision that the agent does not.
        reward: Reward kind.
        rate: Pace shared with other environments of the run; a new one when None.
        decision_seconds: Measured cost of one decision of the exported policy. Charged for the
            agent's decisions, and for the other controller's unless that one is free.
        seed: Seed of the prompt order until `reset(seed=...)` sets another.
        worker: Number of this environment among those of the run.
        workers: Environments of the run.

    Raises:
        ValueError: Naming the argument that is out of range.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's declaration

    def __init__(
        self,
        session: Session,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        layout: FeatureLayout,
        other: Controller,
        reward: RewardKind,
        rate: RateTracker | None,
        decision_seconds: DecisionSeconds | float,
        seed: int | None,
        worker: int,
        workers: int,
    ) -> None:
        if max_new_tokens < 2:
            # Prefill makes the first token, so a budget of one leaves no round to decide.
            raise ValueError(f"max_new_tokens: must be at least 2, got {max_new_tokens}")
        self.session = session
        self.layout = layout
        self.other = other
        self.rate = RateTracker() if rate is None else rate
        self._prompts = prompts
        self._max_new_tokens = max_new_tokens
        self._reward = RoundReward(reward, self.rate)
        if not isinstance(decision_seconds, DecisionSeconds):
            decision_seconds = DecisionSeconds(decision_seconds, decision_seconds)
        self._cost = decision_seconds
        self._stream = PromptStream(len(prompts), seed, worker, workers)
        self._prompt = -1
        self._state: RoundState | None = None
        self._earned = 0.0
        self._read_seconds = 0.0
        self._finished_rounds: list[RoundRecord] = []
        self._episode: list[RoundRecord] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float32Array, dict[str, Any]]:
        """Start the next prompt's episode.

        Prompts that end before any decision (their first token is an end of sequence) are
        passed over.

        Args:
            seed: Restarts the prompt order; without one it goes on.
            options: `{"prompt": index}` asks for one prompt and leaves the order alone.

        Returns:
            First observation, and info with the `prompt` index and `skipped_prompts`.

        Raises:
            ValueError: If an option is unknown or out of range, or the prompt asked for ends
                before any decision.
            RuntimeError: If every prompt does.
        """
        super().reset(seed=seed)
        requested = self._requested_prompt(options)
        if seed is not None:
            self._stream.seed(seed)
            if isinstance(self.other, Reseedable):
                # A spawned key of its own: never the stream that orders the prompts.
                self.other.reseed(self._stream.controller_seed(seed))
        self._np_random = self._stream.generator
        skipped: list[int] = []
        while not self._begin_episode(self._stream.next() if requested is None else requested):
            if requested is not None:
                raise ValueError(f"options['prompt']: {requested} ends before any decision")
            skipped.append(self._prompt)
            if len(skipped) >= 2 * len(self._stream):
                raise RuntimeError(
                    "no prompt leads to a decision: every answer ends at once, or nothing can "
                    f"be drafted within max_new_tokens = {self._max_new_tokens}"
                )
        info = {"prompt": self._prompt, "skipped_prompts": tuple(skipped)}
        return self._look(self._running), info

    def step(self, action: Action) -> tuple[Float32Array, float, bool, bool, dict[str, Any]]:
        """Take one decision and play on to the next one.

        Args:
            action: One integer, as int, numpy integer or array of one element.

        Returns:
            Observation, reward, terminated, truncated (always False) and info: `prompt`; when
            a round ended, its record as `round`, whether it was `clamped`, and as
            `forced_rounds` the records of rounds after it that left nothing to decide; at the
            episode's end, `totals`.

        Raises:
            ValueError: If the action is not one integer in range.
            ResetNeeded: If no episode is running.
        """
        if self._state is None:
            raise ResetNeeded("no episode is running: call reset() first")
        index = as_index(action, int(self.action_space.n))  # type: ignore[attr-defined]
        self._earned = 0.0
        self._finished_rounds = []
        state = self._state
        self._apply(index, state)
        if self._finished_rounds:
            self._seek_decision()
        terminated = bool(self.session.finished)
        info: dict[str, Any] = {"prompt": self._prompt}
        if self._finished_rounds:
            first, *forced = self._finished_rounds
            info |= {"round": first, "clamped": first.clamped, "forced_rounds": tuple(forced)}
        if terminated:
            self._state = None
            info["totals"] = sum_up(self._episode, self.session.stop_reason)
            observation = self._observe(_ended(state))
        else:
            observation = self._look(self._running)
        return observation, float(self._earned), terminated, False, info

    def state_dict(self) -> dict[str, Any]:
        """Prompt order, pace and the other controller's random state, as plain data.

        A running episode is not in it: after `load_state_dict` the next call is `reset`.
        """
        state: dict[str, Any] = {
            "stream": self._stream.state_dict(),
            "rate": self.rate.state_dict(),
        }
        if isinstance(self.other, Resumable):
            state["controller"] = self.other.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; ends the running episode."""
        self._stream.load_state_dict(state["stream"])
        self.rate.load_state_dict(state["rate"])
        if isinstance(self.other, Resumable):
            self.other.load_state_dict(state["controller"])
        self._state = None

    @abstractmethod
    def _open_round(self) -> tuple[RoundState, bool]:
        """Begin a round and play it up to the agent's decision.

        Returns:
            The state, and whether there is anything for the agent to decide.
        """

    @abstractmethod
    def _apply(self, index: int, state: RoundState) -> None:
        """Carry out the agent's decision."""

    @abstractmethod
    def _force(self, state: RoundState) -> None:
        """Finish a round that leaves the agent nothing to decide."""

    @abstractmethod
    def _observe(self, state: RoundState) -> Float32Array:
        """The agent's observation."""

    @property
    def _running(self) -> RoundState:
        assert self._state is not None, "no round is open"
        return self._state

    def _begin_episode(self, prompt: int) -> bool:
        """Start a prompt; False when it ended before any decision."""
        self._state = None
        self._prompt = prompt
        self._episode = []
        self._finished_rounds = []
        self.other.reset()
        self.session.start(self._prompts[prompt], self._max_new_tokens, self._stream.sequence)
        self._seek_decision()
        return not self.session.finished

    def _seek_decision(self) -> None:
        """Open rounds, finishing those without a decision, until one is due or all is done."""
        self._state = None
        while not self.session.finished:
            self._reward.begin()
            state, due = self._open_round()
            if due:
                self._state = state
                return
            self._force(state)

    def _look(self, state: RoundState) -> Float32Array:
        """The agent's observation, with the reading of the device that it needs charged."""
        self._read_seconds = self._read(state)
        return self._observe(state)

    def _consult(self, state: RoundState, seconds: float) -> None:
        """Charge a decision of the other controller, unless its decisions are free."""
        if not self.other.free:
            self._read(state)
            self.session.charge_policy(seconds)

    def _read(self, state: RoundState) -> float:
        """Measure and charge reading the confidence; a tree read before costs nothing more."""
        if not state.nodes:
            return 0.0
        clock = self.session.clock
        begin = clock.boundary()  # what the device still drafts is not the policy's time
        state.read_confidence()
        seconds = clock.boundary() - begin
        self.session.charge_policy(seconds)
        return seconds

    def _finish(self, size: int) -> None:
        """Verify and commit, then book what the session measured."""
        record = self.session.end_round(size)
        self.other.observe(record)
        self._earned += self._reward.end(record)
        self._finished_rounds.append(record)
        self._episode.append(record)

    def _requested_prompt(self, options: Mapping[str, Any] | None) -> int | None:
        unknown = sorted(set(options or {}) - {"prompt"})
        if unknown:
            raise ValueError(f"options: unknown {unknown[0]!r}; accepted: prompt")
        if not options:
            return None
        return as_index(options["prompt"], len(self._prompts), "options['prompt']")


def box(low: Float32Array, high: Float32Array) -> spaces.Space[Float32Array]:
    """The observation space of a layout's bounds."""
    return spaces.Box(low, high, dtype=np.float32)


def _ended(state: RoundState) -> RoundState:
    """What is observed after the last round: no budget, no tree."""
    return replace(
        state,
        depth=0,
        nodes=0,
        max_depth=0,
        max_size=0,
        remaining_tokens=0,
        uningested_tokens=0,
        read_confidence=lambda law=True: NO_CONFIDENCE,
    )
