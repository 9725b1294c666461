"""Replay environments for Stable-Baselines3: m of them in one object, no model in the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from draftgym.batch_state import BatchController, BoolArray, IntArray
from draftgym.state import Float32Array
from draftgym.traces.replay import FinishedRounds, ReplayBatch
from envs.batch_rewards import BatchRate
from envs.replay_game import DepthGame, ReplayGame, SizeGame
from envs.rewards import RewardKind


class ReplayVecEnv(VecEnv):
    """Steps a game; an environment whose episode ended starts the next one in the same step.

    `info` of an environment is empty, except at an episode's end: `terminal_observation`,
    `sequence` (the one that ended) and `TimeLimit.truncated`, always False. What the rounds of
    a step cost is in `rounds`, as columns.

    Args:
        game: Decisions, episodes and rewards.
    """

    render_mode = None

    def __init__(self, game: ReplayGame) -> None:
        self._game = game
        self._actions: IntArray = game.everyone
        self.rounds: tuple[FinishedRounds, ...] = ()
        super().__init__(game.batch.requests, game.observation_space, game.action_space)

    @property
    def rate(self) -> BatchRate:
        """The present pace."""
        return self._game.rate

    @property
    def round_ended(self) -> BoolArray:
        """Whether the last step ended a round, [m]: a credit horizon of one round ends there."""
        ended = np.zeros(self.num_envs, np.bool_)
        for rounds in self.rounds:
            ended[rounds.who] = True
        return ended

    def reset(self) -> Float32Array:
        """Start an episode in every environment, with the seeds of `seed` if it was called."""
        self._game.seed(self._seeds)
        self._reset_seeds()
        skipped = self._game.begin()
        sequences = self._game.batch.sequence.tolist()
        self.reset_infos = [
            {"sequence": sequence, "skipped_sequences": tuple(passed)}
            for sequence, passed in zip(sequences, skipped, strict=True)
        ]
        self.rounds = ()
        return self._game.observe()

    def step_async(self, actions: NDArray[Any]) -> None:
        """Take note of one action per environment, [m]."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Carry them out.

        Returns:
            Fresh observations [m, features], float32 rewards [m], ended episodes [m], infos.
        """
        game = self._game
        outcome = game.step(self._actions, restart=True)
        self.rounds = outcome.rounds
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for ends in outcome.ends:
            for place, index in enumerate(ends.who.tolist()):
                infos[index] = {
                    "terminal_observation": ends.observation[place],
                    "sequence": int(ends.sequence[place]),
                    "TimeLimit.truncated": False,
                }
        return game.observe(), outcome.reward.astype(np.float32), outcome.finished, infos

    def close(self) -> None:
        """Nothing is held open."""

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The attribute, the same for all environments, once for each."""
        return [getattr(self, attr_name)] * len(self._numbers(indices))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of all environments.

        Raises:
            ValueError: If only some are meant: they share everything.
        """
        if len(self._numbers(indices)) != self.num_envs:
            raise ValueError(f"{attr_name}: replay environments share their attributes; set all")
        setattr(self, attr_name, value)

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """Refused: there is one object for all environments.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(f"{method_name}: replay environments have no methods of their own")

    def env_is_wrapped(self, wrapper_class: Any, indices: VecEnvIndices = None) -> list[bool]:
        """Nothing wraps them one by one."""
        return [False] * len(self._numbers(indices))

    def _numbers(self, indices: VecEnvIndices) -> Sequence[int]:
        return list(self._get_indices(indices))


class DepthReplayVecEnv(ReplayVecEnv):
    """`DraftGym/DraftDepth-v0` over a trace, for m requests at once.

    Args:
        batch: The requests.
        size_controller: Chooses the verification size.
        reward: Reward kind.
        rate: Pace shared with other environments of the run.
        seed: Of orders and draws, until `seed`.

    Raises:
        ValueError: If the trace's drafter makes no passes.
    """

    def __init__(
        self,
        batch: ReplayBatch,
        size_controller: BatchController,
        *,
        reward: RewardKind = "rate",
        rate: BatchRate | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(DepthGame(batch, size_controller, reward=reward, rate=rate, seed=seed))


class SizeReplayVecEnv(ReplayVecEnv):
    """`DraftGym/VerifySize-v0` over a trace, for m requests at once.

    Args:
        batch: The requests.
        depth_controller: Says before every draft pass whether to make it.
        reward: Reward kind.
        rate: Pace shared with other environments of the run.
        seed: Of orders and draws, until `seed`.
    """

    def __init__(
        self,
        batch: ReplayBatch,
        depth_controller: BatchController,
        *,
        reward: RewardKind = "rate",
        rate: BatchRate | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(SizeGame(batch, depth_controller, reward=reward, rate=rate, seed=seed))
