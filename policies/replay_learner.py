"""PPO of one decision over hundreds of requests at once; where they come from is not known here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from draftgym.batch_state import BoolArray, IntArray
from draftgym.runtime import PolicyHead
from draftgym.state import Float32Array
from policies.checkpoint import ppo_tensors
from policies.config import NormaliserConfig, PPOConfig
from policies.export import export_head
from policies.normaliser import RunningNormaliser
from policies.ppo import build_ppo, update
from policies.rollout import RoundRolloutBuffer

REWARD_CLIP = 10.0
"""Bound of a reward in units of `reward_unit`, as in a live run."""


class ReplayEnvironment(Protocol):
    """Many requests in step, as `envs.replay.ReplayVecEnv` plays them."""

    num_envs: int

    @property
    def round_ended(self) -> BoolArray:
        """Whether the last step ended a round, [m]."""

    def reset(self) -> Any:
        """Observations of the first decisions, [m, features]."""

    def step(self, actions: IntArray) -> tuple[Any, NDArray[Any], NDArray[Any], list[Any]]:
        """Fresh observations [m, features], rewards [m], ended episodes [m], infos."""


class ReplayLearner:
    """PPO of one decision.

    Args:
        features: Observation length.
        actions: Number of actions.
        config: Hyperparameters; a rollout is over all requests together.
        rollouts: Of the whole training, for the learning rate.
        reward_unit: Seconds that count as a reward of one.
        seed: Of the weights and of everything drawn.
        shown: 1 for the entries of an observation that it is shown, 0 for the others, [features].
    """

    def __init__(
        self,
        features: int,
        actions: int,
        config: PPOConfig,
        rollouts: int,
        reward_unit: float,
        seed: int,
        shown: Float32Array,
    ) -> None:
        self._config, self._actions, self._total = config, actions, rollouts
        self._shown = shown
        self._unit = reward_unit
        self._model = build_ppo(config, features, actions, seed, "cpu")
        self._normaliser = RunningNormaliser(features, NormaliserConfig())
        self._random = np.random.default_rng(seed)
        self.rollouts = 0

    def learn(self, environment: ReplayEnvironment, rollouts: int) -> None:
        """Collect rollouts and learn from each.

        Args:
            environment: In which this decision is asked for.
            rollouts: How many.
        """
        seen = self._shown * environment.reset()
        if not self.rollouts:
            seen = self._first_statistics(environment, seen)
        starts = np.ones(environment.num_envs, np.bool_)
        for _ in range(rollouts):
            seen, starts, raw = self._collect(environment, seen, starts)
            self.rollouts += 1
            update(self._model, self.rollouts / self._total)
            # Only now: the buffer was filled, and learned from, under the old statistics.
            self._normaliser.update(raw)

    def head(self) -> PolicyHead:
        """The acting half of the present network."""
        head = export_head(ppo_tensors(self._model), self._normaliser.frozen)
        first, *others = head.weights
        return replace(head, weights=(first * self._shown, *others))

    def _first_statistics(self, environment: ReplayEnvironment, seen: Float32Array) -> Float32Array:
        """Observe under random decisions, for as long as a rollout takes; what is seen next."""
        rows = []
        for _ in range(self._config.rollout_steps // environment.num_envs):
            rows.append(seen)
            drawn = self._random.integers(self._actions, size=len(seen))
            seen = self._shown * environment.step(drawn)[0]
        self._normaliser.update(np.concatenate(rows))
        return seen

    def _collect(
        self, environment: ReplayEnvironment, seen: Float32Array, starts: BoolArray
    ) -> tuple[Float32Array, BoolArray, Float32Array]:
        """Fill the buffer; what is seen next, which horizons start there, all raw observations."""
        policy, config = self._model.policy, self._config
        buffer = RoundRolloutBuffer(
            config.rollout_steps // environment.num_envs,
            self._model.observation_space,
            self._model.action_space,
            device=self._model.device,
            gamma=config.discount,
            gae_lambda=config.gae_lambda,
            n_envs=environment.num_envs,
        )
        self._model.rollout_buffer = buffer
        policy.set_training_mode(False)
        rows = []
        while not buffer.full:
            rows.append(seen)
            inputs = self._normaliser(seen)
            with torch.no_grad():
                actions, values, log_probabilities = policy(torch.from_numpy(inputs))
            fresh, rewards, ended, _ = environment.step(actions.numpy())
            seen = self._shown * fresh
            scaled = np.clip(rewards / self._unit, -REWARD_CLIP, REWARD_CLIP)
            buffer.add(inputs, actions.numpy(), scaled, starts, values, log_probabilities)
            by_round = config.credit_horizon == "round"
            starts = ended | environment.round_ended if by_round else ended
        with torch.no_grad():
            last = policy.predict_values(torch.from_numpy(self._normaliser(seen)))
        buffer.compute_returns_and_advantage(last, starts)
        return seen, starts, np.concatenate(rows)
