"""The reward kinds of `envs.rewards`, for many rounds that end together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftgym.batch_state import IntArray
from draftgym.traces.replay import FinishedRounds
from envs.rewards import LEAST_SECONDS, RewardKind, check_kind, check_pace

Float64Array = NDArray[np.float64]


class BatchRate:
    """Present pace μ as `envs.rewards.RateTracker` has it; rounds count in their order.

    Args:
        window_rounds: Rounds that count, over all environments together.
        initial_seconds_per_token: Pace before the first round; None takes each first round's own.

    Raises:
        ValueError: If an argument is not positive.
    """

    def __init__(
        self, window_rounds: int = 512, initial_seconds_per_token: float | None = None
    ) -> None:
        check_pace(window_rounds, initial_seconds_per_token)
        self._window = window_rounds
        self._initial = initial_seconds_per_token
        self._seconds = np.zeros(0)
        self._tokens = np.zeros(0, np.int64)

    @property
    def seconds_per_token(self) -> float | None:
        """μ, or None before anything was measured."""
        if not len(self._tokens):
            return self._initial
        return float(self._seconds.sum() / self._tokens.sum())

    def add(self, seconds: Float64Array, tokens: IntArray) -> Float64Array:
        """Count rounds, one after the other.

        Args:
            seconds: Of each round, [k].
            tokens: Emitted by it, [k].

        Returns:
            The pace that each of them met, [k].
        """
        known = len(self._tokens)
        self._seconds = np.concatenate((self._seconds, seconds))
        self._tokens = np.concatenate((self._tokens, tokens))
        met = known + np.arange(len(tokens))
        pace = _window_sums(self._seconds, met, self._window) / np.maximum(
            _window_sums(self._tokens, met, self._window), 1
        )
        if not known and len(tokens):
            own = seconds[0] / max(tokens[0], 1)
            pace[0] = own if self._initial is None else self._initial
        self._seconds = self._seconds[-self._window :]
        self._tokens = self._tokens[-self._window :]
        return pace


class BatchReward:
    """Splits the rewards of m environments over their decisions, as `RoundReward` does for one.

    Args:
        kind: Reward kind.
        rate: The present pace; every finished round is added to it.
        environments: m.

    Raises:
        ValueError: If the kind is unknown.
    """

    def __init__(self, kind: RewardKind, rate: BatchRate, environments: int) -> None:
        check_kind(kind)
        self.kind = kind
        self.rate = rate
        self._charged = np.zeros(environments)

    def begin(self, who: IntArray) -> None:
        """Rounds begin: nothing of them is charged yet."""
        self._charged[who] = 0.0

    def draft_pass(self, who: IntArray, seconds: Float64Array) -> Float64Array:
        """Rewards of decisions to draft, given the seconds of passes and decisions, [k]."""
        if self.kind != "rate":
            return np.zeros(len(who))
        self._charged[who] += seconds
        return -seconds

    def end(self, rounds: FinishedRounds) -> Float64Array:
        """Rewards of the decisions that ended the rounds, [k]; adds them to the pace."""
        tokens, seconds = rounds.emitted, rounds.seconds
        pace = self.rate.add(seconds, tokens)
        if self.kind == "rate":
            return tokens * pace - (seconds - self._charged[rounds.who])
        if self.kind == "throughput":
            return tokens / np.maximum(seconds, LEAST_SECONDS)
        if self.kind == "time_per_token":
            return -seconds / np.maximum(tokens, 1)
        return tokens.astype(np.float64) if self.kind == "emitted" else -seconds


def _window_sums(values: NDArray[np.generic], stops: IntArray, window: int) -> Float64Array:
    """Sums of the last `window` values before each stop, [k]."""
    totals = np.zeros(len(values) + 1)
    np.cumsum(values, out=totals[1:])
    return totals[stops] - totals[np.maximum(stops - window, 0)]
