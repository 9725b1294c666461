"""Replay environments for Gymnasium: one request, the interface of the live ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from draftgym.batch_state import BatchController
from draftgym.costs.times import Times
from draftgym.features import FeatureLayout
from draftgym.state import Float32Array, MeasuredCosts, RoundRecord
from draftgym.traces.controllers import FixedBatch, RandomBatch
from draftgym.traces.replay import ReplayBatch
from draftgym.traces.trace import Trace
from envs.batch_rewards import BatchRate
from envs.interface import Action, as_index
from envs.replay_game import DepthGame, ReplayGame, SizeGame
from envs.rewards import RewardKind
from envs.totals import sum_up

_DEFAULT_SIZE = 8


class ReplayEnv(gymnasium.Env[Float32Array, Action]):
    """Base of the environments: one episode answers one sequence of the trace.

    Args:
        game: Over a batch of one request.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's declaration

    def __init__(self, game: ReplayGame) -> None:
        self._game = game
        self._episode: list[RoundRecord] = []
        self.action_space = game.action_space
        self.observation_space = game.observation_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float32Array, dict[str, Any]]:
        """Start the next sequence's episode.

        Args:
            seed: Restarts the order and all draws; without one they go on.
            options: `{"prompt": index}` asks for one sequence and leaves the order alone.

        Returns:
            First observation, and info with the `prompt` index and `skipped_prompts`, which end
            before any decision.

        Raises:
            ValueError: If an option is unknown or out of range, or the sequence asked for ends
                before any decision.
            RuntimeError: If every sequence does.
        """
        super().reset(seed=seed)
        unknown = sorted(set(options or {}) - {"prompt"})
        if unknown:
            raise ValueError(f"options: unknown {unknown[0]!r}; accepted: prompt")
        batch = self._game.batch
        asked = None
        if options:
            count = len(batch.trace.sequences)
            asked = as_index(options["prompt"], count, "options['prompt']")
        self._game.seed([seed])
        (skipped,) = self._game.begin(asked)
        self._episode = []
        info = {"prompt": int(batch.sequence[0]), "skipped_prompts": tuple(skipped)}
        return self._game.observe()[0], info

    def step(self, action: Action) -> tuple[Float32Array, float, bool, bool, dict[str, Any]]:
        """Take one decision and play on to the next one.

        Args:
            action: One integer, as int, numpy integer or array of one element.

        Returns:
            What the live environments return, `info` included.

        Raises:
            ValueError: If the action is not one integer in range.
            ResetNeeded: If no episode is running.
        """
        game = self._game
        index = as_index(action, int(game.action_space.n))
        outcome = game.step(np.array([index]), restart=False)
        sequence = int(game.batch.sequence[0])
        info: dict[str, Any] = {"prompt": sequence}
        records = [game.batch.record(rounds, 0) for rounds in outcome.rounds]
        self._episode += records
        if records:
            first, *forced = records
            info |= {"round": first, "clamped": first.clamped, "forced_rounds": tuple(forced)}
        terminated = bool(outcome.finished[0])
        if terminated:
            observation = outcome.ends[0].observation[0]
            info["totals"] = sum_up(self._episode, game.batch.stop_reason(sequence))
        else:
            observation = game.observe()[0]
        return observation, float(outcome.reward[0]), terminated, False, info


class DraftDepthReplayEnv(ReplayEnv):
    """`DraftGym/DraftDepth-v0` without a model: rounds come from a trace, seconds from a table.

    ## Description
    Actions, observations, rewards and episode ends are those of `envs.depth.DraftDepthEnv`. The
    text and the trees are the recorded ones; seconds are drawn from measured samples. Reading
    the confidence is charged as far as `times.decision_seconds` holds it.

    ## Version History
    - v0: first version.

    Args:
        trace: A trace, or a function that makes it: that lets Gymnasium copy the specification
            without copying a trace.
        times: Seconds of work and of decisions.
        layout: Observations.
        size_controller: Chooses the verification size; a fixed 8 when None.
        reward: Reward kind.
        rate: Pace shared with other environments of the run.
        costs: Cost ratios shown in the observation.
        seed: Of the order and of drawn seconds, until `reset(seed=...)`.

    Raises:
        ValueError: If an argument is out of range, or the trace's drafter makes no passes.
    """

    def __init__(
        self,
        trace: Trace | Callable[[], Trace],
        times: Times,
        *,
        layout: FeatureLayout | None = None,
        size_controller: BatchController | None = None,
        reward: RewardKind = "rate",
        rate: BatchRate | None = None,
        costs: MeasuredCosts | None = None,
        seed: int | None = None,
    ) -> None:
        batch = _single(trace, times, layout, costs)
        other = size_controller or FixedBatch(0, _DEFAULT_SIZE)
        super().__init__(DepthGame(batch, other, reward=reward, rate=rate, seed=seed))


class VerifySizeReplayEnv(ReplayEnv):
    """`DraftGym/VerifySize-v0` without a model: rounds come from a trace, seconds from a table.

    ## Description
    Actions, observations, rewards and episode ends are those of `envs.size.VerifySizeEnv`. The
    text and the trees are the recorded ones; seconds are drawn from measured samples. Reading
    the confidence is charged as far as `times.decision_seconds` holds it.

    ## Version History
    - v0: first version.

    Args:
        trace: A trace, or a function that makes it: that lets Gymnasium copy the specification
            without copying a trace.
        times: Seconds of work and of decisions.
        layout: Observations and the size grid.
        depth_controller: Says before every draft pass whether to make it; a uniformly random
            depth in every round when None.
        reward: Reward kind.
        rate: Pace shared with other environments of the run.
        costs: Cost ratios shown in the observation.
        seed: Of the order and of all draws, until `reset(seed=...)`.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        trace: Trace | Callable[[], Trace],
        times: Times,
        *,
        layout: FeatureLayout | None = None,
        depth_controller: BatchController | None = None,
        reward: RewardKind = "rate",
        rate: BatchRate | None = None,
        costs: MeasuredCosts | None = None,
        seed: int | None = None,
    ) -> None:
        batch = _single(trace, times, layout, costs)
        grid = batch.layout.size_grid
        other = depth_controller or RandomBatch(seed, batch.trace.shape.max_depth, grid)
        super().__init__(SizeGame(batch, other, reward=reward, rate=rate, seed=seed))


def _single(
    trace: Trace | Callable[[], Trace],
    times: Times,
    layout: FeatureLayout | None,
    costs: MeasuredCosts | None,
) -> ReplayBatch:
    """One request."""
    made = trace() if callable(trace) else trace
    return ReplayBatch(made, times, layout or FeatureLayout(), 1, costs=costs)
