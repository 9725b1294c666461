"""Collects decisions from a live environment into a buffer whose credit horizon is one round.

An environment ends a round on the step whose `info` has a `RoundRecord` under `"round"`, and
lists under `"forced_rounds"` those that followed without a decision. Returns end there and do
not bootstrap: under the `rate` reward a round's sum is what it changes in the objective, and
what follows belongs to later decisions (see the design's "Time and objective"). The networks'
forward pass happens outside every timed region.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer

from draftgym.state import RoundRecord

Float32Array = NDArray[np.float32]
Environment = gymnasium.Env[Float32Array, Any]


class RoundRolloutBuffer(RolloutBuffer):
    """SB3's buffer, where an "episode start" marks the start of a credit horizon.

    SB3 cuts advantages and bootstraps at episode starts; marking every round's first decision
    makes a round the horizon without touching its arithmetic.
    """

    def extend_last(self, reward: float) -> None:
        """Add what the last decision's round still earned after the buffer was full."""
        self.rewards[self.pos - 1] += np.float32(reward)

    def close(self, horizon_ended: bool, last_value: float) -> None:
        """Compute returns and advantages.

        Args:
            horizon_ended: The last decision ended its round (or episode): no bootstrap.
            last_value: Value of the state after it, used otherwise.
        """
        self.compute_returns_and_advantage(
            torch.tensor([last_value]), np.array([horizon_ended], np.bool_)
        )


@dataclass(slots=True)
class RolloutStatistics:
    """What happened in one rollout, from the rounds themselves; seconds and tokens are sums."""

    decisions: int = 0
    rounds: int = 0
    episodes: int = 0
    emitted: int = 0
    accepted: int = 0
    clamped: int = 0
    reward: float = 0.0
    seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0
    policy_seconds: float = 0.0
    depths: Counter[int] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)

    def add(self, record: RoundRecord) -> None:
        """Count one finished round."""
        self.rounds += 1
        self.emitted += record.emitted
        self.accepted += record.accepted
        self.clamped += record.clamped
        self.seconds += record.seconds
        self.draft_seconds += record.draft_seconds
        self.verify_seconds += record.verify_seconds
        self.commit_seconds += record.commit_seconds
        self.policy_seconds += record.policy_seconds
        self.depths[record.depth] += 1
        self.sizes[record.size] += 1

    def metrics(self) -> dict[str, Any]:
        """Plain numbers for the log; histograms count rounds."""
        rounds, seconds = max(self.rounds, 1), max(self.seconds, 1e-12)
        return {
            "rounds": self.rounds,
            "episodes": self.episodes,
            "tokens": self.emitted,
            "reward_per_round": self.reward / rounds,
            "seconds_per_token": self.seconds / max(self.emitted, 1),
            "tau_emitted": self.emitted / rounds,
            "accepted_per_round": self.accepted / rounds,
            "clamped_share": self.clamped / rounds,
            "depth_mean": sum(k * n for k, n in self.depths.items()) / rounds,
            "size_mean": sum(k * n for k, n in self.sizes.items()) / rounds,
            "depths": {str(k): self.depths[k] for k in sorted(self.depths)},
            "sizes": {str(k): self.sizes[k] for k in sorted(self.sizes)},
            "draft_share": self.draft_seconds / seconds,
            "verify_share": self.verify_seconds / seconds,
            "commit_share": self.commit_seconds / seconds,
            "policy_share": self.policy_seconds / seconds,
        }


def finished_round(info: Mapping[str, Any]) -> RoundRecord | None:
    """The round that a step finished, if it finished one."""
    record = info.get("round")
    if record is not None and not isinstance(record, RoundRecord):
        raise TypeError(f"info['round'] must be a RoundRecord, got {type(record).__name__}")
    return record


def observe_only(model: PPO, environment: Environment, steps: int, seed: int) -> Float32Array:
    """Raw observations under uniformly random actions, for the first normaliser statistics.

    Returns:
        Shape [steps, features].
    """
    random = np.random.default_rng(seed)
    actions = int(model.action_space.n)  # type: ignore[attr-defined]
    observation, _ = environment.reset(seed=seed)
    rows = []
    for _ in range(steps):
        rows.append(np.array(observation, np.float32))
        observation, _, terminated, truncated, _ = environment.step(int(random.integers(actions)))
        if terminated or truncated:
            observation, _ = environment.reset()
    return np.stack(rows)


class Collector:
    """Fills PPO's buffer from one live environment.

    Args:
        model: PPO over a `RoundRolloutBuffer`.
        normalise: Raw observation to network input; stands still during a rollout.
        reward_scale: Multiplies rewards for PPO only; one over a plain step's seconds makes a
            reward in seconds of order one.
        reward_clip: Bound of a scaled reward. No real round comes near it; a round during which
            the machine stalled would otherwise outweigh a thousand others.
        horizon: `round` or `episode`, where returns end.
    """

    def __init__(
        self,
        model: PPO,
        normalise: Callable[[Float32Array], Float32Array],
        reward_scale: float,
        reward_clip: float,
        horizon: str,
    ) -> None:
        self._model = model
        self._normalise = normalise
        self._scale = reward_scale
        self._clip = reward_clip
        self._by_round = horizon == "round"

    def collect(
        self,
        environment: Environment,
        seed: int,
        progress: Callable[[], None] = lambda: None,
    ) -> tuple[RolloutStatistics, Float32Array]:
        """Collect one full buffer from a fresh episode on and compute its returns.

        Starting afresh leaves nothing of the decoder to be checkpointed, at the price of one
        cut episode per rollout; a round the buffer's end cuts is played to its end and its
        reward credited.

        Args:
            environment: The live environment.
            seed: Seeds its prompt order for this rollout.
            progress: Called after every decision.

        Returns:
            Statistics, and raw observations of shape [steps, features].
        """
        buffer = self._model.rollout_buffer
        assert isinstance(buffer, RoundRolloutBuffer)
        self._model.policy.set_training_mode(False)
        buffer.reset()
        statistics = RolloutStatistics()
        raw: list[Float32Array] = []
        observation, _ = environment.reset(seed=seed)
        starts, episode_over = True, False
        while not buffer.full:
            if episode_over:
                observation, _ = environment.reset()
                episode_over = False
            inputs = self._normalise(observation)
            action, value, log_probability = self._act(inputs)
            raw.append(np.array(observation, np.float32))
            observation, reward, round_over, episode_over = self._step(
                environment, action, statistics
            )
            buffer.add(
                inputs[None],
                np.array([action]),
                np.array([self._scaled(reward)], np.float32),
                np.array([starts]),
                value,
                log_probability,
            )
            starts = episode_over or (self._by_round and round_over)
            progress()
        if self._by_round:
            while not starts:
                action, _, _ = self._act(self._normalise(observation))
                observation, reward, round_over, episode_over = self._step(
                    environment, action, statistics
                )
                buffer.extend_last(self._scaled(reward))
                starts = round_over or episode_over
        last_value = 0.0 if starts else float(self._act(self._normalise(observation))[1])
        buffer.close(starts, last_value)
        statistics.decisions = len(raw)
        return statistics, np.stack(raw)

    def _scaled(self, reward: float) -> float:
        return min(max(reward * self._scale, -self._clip), self._clip)

    def _act(self, inputs: Float32Array) -> tuple[int, torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            tensor = torch.as_tensor(inputs[None], device=self._model.device)  # [1, features]
            actions, values, log_probabilities = self._model.policy(tensor)
        return int(actions.item()), values, log_probabilities

    @staticmethod
    def _step(
        environment: Environment, action: int, statistics: RolloutStatistics
    ) -> tuple[Float32Array, float, bool, bool]:
        observation, reward, terminated, truncated, info = environment.step(action)
        statistics.reward += float(reward)
        record = finished_round(info)
        if record is not None:
            for finished in (record, *info.get("forced_rounds", ())):
                statistics.add(finished)
        statistics.episodes += bool(terminated or truncated)
        return observation, float(reward), record is not None, bool(terminated or truncated)
