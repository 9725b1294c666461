"""Reward kinds, from measured seconds and emitted tokens only.

Nothing here reads a clock: a reward moves with what the session measured, never with logging,
learning or a network's forward pass.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, get_args

from draftgym.state import RoundRecord

RewardKind = Literal["rate", "throughput", "time_per_token", "emitted", "time_cost"]
REWARD_KINDS: tuple[RewardKind, ...] = get_args(RewardKind)

# Below any real round; keeps ratios finite under a simulated clock that charges nothing.
LEAST_SECONDS = 1e-9


def check_kind(kind: str) -> None:
    """Refuse an unknown reward kind.

    Raises:
        ValueError: Naming it and the accepted ones.
    """
    if kind not in REWARD_KINDS:
        raise ValueError(f"reward: unknown {kind!r}; accepted: {', '.join(REWARD_KINDS)}")


def check_pace(window_rounds: int, initial_seconds_per_token: float | None) -> None:
    """Refuse a pace that cannot be measured.

    Raises:
        ValueError: If an argument is not positive.
    """
    if window_rounds < 1:
        raise ValueError(f"window_rounds: must be at least 1, got {window_rounds}")
    if initial_seconds_per_token is not None and not 0 < initial_seconds_per_token < math.inf:
        raise ValueError(
            "initial_seconds_per_token: must be positive and finite, "
            f"got {initial_seconds_per_token}"
        )


class RateTracker:
    """Present pace μ: seconds over tokens, summed over recent rounds.

    Maximising Σ (tokens·μ - seconds) with μ the present ratio, again and again, minimises the
    ratio of sums (Dinkelbach 1967). Share one tracker between environments of a run.

    Args:
        window_rounds: Rounds that count.
        initial_seconds_per_token: Pace before the first round; None takes each first round's own.

    Raises:
        ValueError: If an argument is not positive.
    """

    def __init__(
        self, window_rounds: int = 512, initial_seconds_per_token: float | None = None
    ) -> None:
        check_pace(window_rounds, initial_seconds_per_token)
        self._rounds: deque[tuple[float, int]] = deque(maxlen=window_rounds)
        self._initial = initial_seconds_per_token

    @property
    def seconds_per_token(self) -> float | None:
        """μ, or None before anything was measured."""
        if not self._rounds:
            return self._initial
        # fsum: the same window gives the same μ, however it came about (resume).
        seconds = math.fsum(seconds for seconds, _ in self._rounds)
        return seconds / sum(tokens for _, tokens in self._rounds)

    def add(self, record: RoundRecord) -> None:
        """Count one finished round."""
        self._rounds.append((record.seconds, record.emitted))

    def state_dict(self) -> dict[str, Any]:
        """The window, as plain data."""
        return {
            "rounds": [list(entry) for entry in self._rounds],
            "initial_seconds_per_token": self._initial,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; the window's length stays this tracker's own."""
        self._initial = state["initial_seconds_per_token"]
        self._rounds.clear()
        self._rounds.extend((float(seconds), int(tokens)) for seconds, tokens in state["rounds"])


class RoundReward:
    """Splits a round's reward over its decisions.

    With e emitted tokens and t seconds of the round: `rate` e·μ - t, where the seconds of each
    draft pass are charged at its decision; at the round's end `throughput` e / t (Learning to
    Draft, arXiv:2603.01639), `time_per_token` -t / e, `emitted` e, `time_cost` -t. Over a round
    they sum to exactly that.

    Args:
        kind: Which of them.
        rate: The present pace; every finished round is added to it.

    Raises:
        ValueError: If the kind is unknown.
    """

    def __init__(self, kind: RewardKind, rate: RateTracker) -> None:
        check_kind(kind)
        self.kind = kind
        self.rate = rate
        self._charged = 0.0

    def begin(self) -> None:
        """A round begins: nothing of it is charged yet."""
        self._charged = 0.0

    def draft_pass(self, seconds: float) -> float:
        """Reward of the decision to draft, given the seconds of the pass and of deciding it."""
        if self.kind != "rate":
            return 0.0
        self._charged += seconds
        return -seconds

    def end(self, record: RoundRecord) -> float:
        """Reward of the decision that ended the round; adds the round to the pace."""
        tokens, seconds = record.emitted, record.seconds
        pace = self.rate.seconds_per_token
        self.rate.add(record)
        if self.kind == "rate":
            if pace is None:
                pace = seconds / max(tokens, 1)
            return tokens * pace - (seconds - self._charged)
        if self.kind == "throughput":
            return tokens / max(seconds, LEAST_SECONDS)
        if self.kind == "time_per_token":
            return -seconds / max(tokens, 1)
        return float(tokens) if self.kind == "emitted" else -seconds
