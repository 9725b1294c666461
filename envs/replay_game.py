"""Decisions, episodes and rewards of many replayed requests; no training library.

What `envs.base`, `envs.depth` and `envs.size` do with a live session, for m requests of a
`ReplayBatch` at once: one environment per request, all at a decision whenever `step` returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from draftgym.batch_features import BatchFeatures
from draftgym.batch_state import BatchController, BoolArray, IntArray, RoundBatch
from draftgym.state import Float32Array
from draftgym.traces.replay import FinishedRounds, ReplayBatch
from envs.base import box
from envs.batch_rewards import BatchRate, BatchReward
from envs.interface import Reseedable
from envs.prompt_stream import PromptStream
from envs.rewards import RewardKind


@dataclass(frozen=True, slots=True)
class EpisodeEnds:
    """Episodes that ended together.

    Attributes:
        who: Environments, [k].
        sequence: What they answered, [k].
        observation: What the agent sees after the last round, [k, features].
    """

    who: IntArray
    sequence: IntArray
    observation: Float32Array


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step of all environments led to.

    Attributes:
        reward: [m].
        finished: Whether the episode ended, [m].
        rounds: Rounds that the decisions ended, then those played without asking, as they came.
        ends: The episodes that ended.
    """

    reward: NDArray[np.float64]
    finished: BoolArray
    rounds: tuple[FinishedRounds, ...]
    ends: tuple[EpisodeEnds, ...]


class ReplayGame(ABC):
    """Episodes of m environments; each answers sequences of the trace in an order of its own.

    Args:
        batch: The requests; its decision seconds are charged for the agent's decisions, and for
            the other controller's unless that one is free.
        other: Takes the decision that the agent does not.
        reward: Reward kind.
        rate: Pace shared with other environments of the run; a new one when None.
        seed: Of the orders, the other controller and the drawn seconds, until another is set.
    """

    action_space: spaces.Discrete
    observation_space: spaces.Space[Float32Array]

    def __init__(
        self,
        batch: ReplayBatch,
        other: BatchController,
        *,
        reward: RewardKind,
        rate: BatchRate | None,
        seed: int | None,
    ) -> None:
        self.batch, self.other = batch, other
        self.rate = BatchRate() if rate is None else rate
        self.everyone = np.arange(batch.requests)
        self._features = BatchFeatures(batch.layout)
        self._reward = BatchReward(reward, self.rate, batch.requests)
        self._cost = batch.times.decision_seconds
        self._streams = [
            PromptStream(len(batch.trace.sequences), seed, worker, batch.requests, disjoint=False)
            for worker in range(batch.requests)
        ]
        self._rounds: list[FinishedRounds]
        self._ends: list[EpisodeEnds]
        self._skipped: defaultdict[int, list[int]]
        self._prepare()
        if seed is not None:
            self._seed_draws(seed)

    def seed(self, seeds: Sequence[int | None]) -> None:
        """Restart the orders of some environments; the first seed restarts all draws too.

        Args:
            seeds: One per environment; None lets its order go on.
        """
        for stream, seed in zip(self._streams, seeds, strict=True):
            if seed is not None:
                stream.seed(seed)
        if seeds[0] is not None:
            self._seed_draws(seeds[0])

    def begin(self, sequence: int | None = None) -> list[list[int]]:
        """Start an episode in every environment, up to its first decision.

        Sequences that end before any decision are passed over.

        Args:
            sequence: What all of them answer; None takes the next ones of their orders.

        Returns:
            Per environment the sequences passed over.

        Raises:
            ValueError: If the sequence asked for ends before any decision.
            RuntimeError: If every sequence does.
        """
        self._prepare()
        if sequence is None:
            self._start_next(self.everyone)
        else:
            self._fresh[:] = True
            self.batch.start(self.everyone, np.full(self.batch.requests, sequence))
        self._seek_decision(self.everyone, restart=sequence is None)
        if self.batch.finished.any():
            raise ValueError(f"sequence {sequence} ends before any decision")
        return [self._skipped[index] for index in range(self.batch.requests)]

    def step(self, actions: IntArray, *, restart: bool) -> Outcome:
        """Take one decision in every environment and play on to the next ones.

        Args:
            actions: One index per environment, [m].
            restart: Start the next episode where one ends.

        Raises:
            ResetNeeded: If an environment has no running episode.
            ValueError: If they are not m integers in range.
            RuntimeError: If no sequence leads to a decision.
        """
        if self.batch.finished.any():
            raise ResetNeeded("no episode is running: call reset() first")
        actions = self._checked(actions)
        self._prepare()
        self._seek_decision(self._apply(actions), restart=restart)
        if not restart:
            self._note_ends(np.flatnonzero(self.batch.finished))
        finished = self._fresh if restart else self.batch.finished.copy()
        return Outcome(self._earned, finished, tuple(self._rounds), tuple(self._ends))

    def observe(self) -> Float32Array:
        """What the agent sees in every environment; a fresh array, [m, features]."""
        return self._look(self.batch.rounds(slice(None)))

    @abstractmethod
    def _open(self, who: IntArray) -> BoolArray:
        """Begin rounds, play them up to the decisions; whether there is anything to decide, [k]."""

    @abstractmethod
    def _apply(self, actions: IntArray) -> IntArray:
        """Carry out the decisions; which environments' rounds they ended."""

    @abstractmethod
    def _force(self, who: IntArray) -> None:
        """Finish rounds that leave the agent nothing to decide."""

    @abstractmethod
    def _look(self, rounds: RoundBatch) -> Float32Array:
        """The agent's observations."""

    def _prepare(self) -> None:
        """Nothing has happened in this step yet."""
        self._earned = np.zeros(self.batch.requests)
        self._fresh = np.zeros(self.batch.requests, np.bool_)
        self._rounds, self._ends = [], []
        self._skipped = defaultdict(list)
        self._asked_context = self.batch.context.copy()

    def _seek_decision(self, who: IntArray, *, restart: bool) -> None:
        """Open rounds, finishing those without a decision, until one is due or all is done."""
        while len(who := self._playing(who, restart)):
            self._reward.begin(who)
            due = self._open(who)
            who = who[~due]
            if len(who):
                self._force(who)

    def _playing(self, who: IntArray, restart: bool) -> IntArray:
        """Those with a sequence to go on with; finished ones are restarted or left out."""
        over = self.batch.finished[who]
        if restart:
            self._restart(who[over])
            return who
        return who[~over]

    def _restart(self, over: IntArray) -> None:
        """Start the next sequences of environments whose sequences are finished."""
        while len(over):
            self._note_ends(over[~self._fresh[over]])
            for index in over[self._fresh[over]].tolist():
                self._skipped[index].append(int(self.batch.sequence[index]))
                if len(self._skipped[index]) >= 2 * len(self._streams[index]):
                    raise RuntimeError("no sequence of the trace leads to a decision")
            self._start_next(over)
            over = over[self.batch.finished[over]]

    def _start_next(self, who: IntArray) -> None:
        self._fresh[who] = True
        self.batch.start(who, np.array([self._streams[index].next() for index in who.tolist()]))

    def _note_ends(self, who: IntArray) -> None:
        """Keep what is seen after the last rounds: no budget, no tree."""
        if not len(who):
            return
        none = np.zeros(len(who), np.int64)
        ended = replace(
            self.batch.rounds(who),
            depth=none,
            nodes=none,
            max_depth=none,
            max_size=none,
            context_tokens=self._asked_context[who],
            remaining_tokens=none,
            uningested_tokens=none,
        )
        self._ends.append(EpisodeEnds(who, self.batch.sequence[who], self._look(ended)))

    def _finish(self, who: IntArray, size: IntArray) -> None:
        """Verify and commit, then book what the rounds cost."""
        rounds = self.batch.close(who, size)
        # What is earned before an episode's first decision is no decision's.
        self._earned[who] += np.where(self._fresh[who], 0.0, self._reward.end(rounds))
        self._rounds.append(rounds)

    def _checked(self, actions: IntArray) -> IntArray:
        actions = np.asarray(actions)
        count = int(self.action_space.n)
        if actions.shape != (self.batch.requests,) or actions.dtype.kind not in "iu":
            raise ValueError(
                f"actions: must be {self.batch.requests} integers, "
                f"got {actions.dtype} {list(actions.shape)}"
            )
        if actions.min() < 0 or actions.max() >= count:
            raise ValueError(f"actions: must be 0 to {count - 1}, got {actions.tolist()!r:.80}")
        return actions

    def _seed_draws(self, seed: int) -> None:
        # Spawned keys of their own: never the streams that order the sequences.
        self.batch.reseed(np.random.SeedSequence(seed, spawn_key=(0, 2)))
        if isinstance(self.other, Reseedable):
            self.other.reseed(self._streams[0].controller_seed(seed))


class DepthGame(ReplayGame):
    """The decisions of `envs.depth.DraftDepthEnv`.

    Raises:
        ValueError: Also if the trace's drafter makes no passes.
    """

    def __init__(
        self,
        batch: ReplayBatch,
        other: BatchController,
        *,
        reward: RewardKind = "rate",
        rate: BatchRate | None = None,
        seed: int | None = None,
    ) -> None:
        if batch.trace.shape.max_depth == 0:
            raise ValueError("trace: its drafter makes no passes, so there is no depth to learn")
        super().__init__(batch, other, reward=reward, rate=rate, seed=seed)
        self.action_space = spaces.Discrete(2)
        self.observation_space = box(batch.layout.depth_low, batch.layout.depth_high)

    def _open(self, who: IntArray) -> BoolArray:
        self.batch.open(who)
        due: BoolArray = self.batch.max_depth[who] > 0
        return due

    def _apply(self, actions: IntArray) -> IntArray:
        batch, cost = self.batch, self._cost.depth
        batch.charge(self.everyone, cost)
        drafting = np.flatnonzero(actions)
        if len(drafting):
            seconds = batch.draft(drafting) + cost
            self._earned[drafting] += self._reward.draft_pass(drafting, seconds)
        ended = np.flatnonzero((actions == 0) | (batch.depth >= batch.max_depth))
        if len(ended):
            self._force(ended)
        return ended

    def _force(self, who: IntArray) -> None:
        rounds = self.batch.rounds(who)
        if not self.other.free:
            self.batch.charge(who[rounds.nodes > 0], self._cost.size)
        self._finish(who, self.other.choose_size(rounds))

    def _look(self, rounds: RoundBatch) -> Float32Array:
        return self._features.depth_observation(rounds)


class SizeGame(ReplayGame):
    """The decisions of `envs.size.VerifySizeEnv`."""

    def __init__(
        self,
        batch: ReplayBatch,
        other: BatchController,
        *,
        reward: RewardKind = "rate",
        rate: BatchRate | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(batch, other, reward=reward, rate=rate, seed=seed)
        self._grid = np.array(batch.layout.size_grid, np.int64)
        self.action_space = spaces.Discrete(len(self._grid))
        self.observation_space = box(batch.layout.size_low, batch.layout.size_high)

    def _open(self, who: IntArray) -> BoolArray:
        batch, other = self.batch, self.other
        batch.open(who)
        limit = np.minimum(batch.max_depth, other.deepest)
        drafting = who[limit[who] > 0]
        while len(drafting):
            if not other.free:
                batch.charge(drafting, self._cost.depth)
            drafting = drafting[other.draft_again(batch.rounds(drafting))]
            batch.deepen(drafting)
            drafting = drafting[batch.depth[drafting] < limit[drafting]]
        batch.time_passes(who)
        # Also with an empty tree: a step is a round, and its size is clamped to 0.
        return np.ones(len(who), np.bool_)

    def _apply(self, actions: IntArray) -> IntArray:
        batch = self.batch
        batch.charge(np.flatnonzero(batch.nodes(slice(None))), self._cost.size)
        self._finish(self.everyone, self._grid[actions])
        return self.everyone

    def _force(self, who: IntArray) -> None:
        self._finish(who, np.zeros(len(who), np.int64))

    def _look(self, rounds: RoundBatch) -> Float32Array:
        return self._features.size_observation(rounds)
