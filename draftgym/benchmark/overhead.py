"""What a policy's decisions cost: rounds that ask it against the same ones with known answers.

The answers of a whole request are recorded once. Then it is decoded again and again, and in every
round a coin says whether the policy is asked or its answer recalled; each two runs toss opposite
coins, so that every round is measured both ways, side by side on the same machine. Nothing else
differs: same text, same depths, same sizes. Two runs of a request meet a machine that drifts, but
slowly: within a stretch of rounds only the coins tell rounds apart, so each stretch's own mean is
taken out, and what remains is regressed on the coins.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftgym.benchmark.runner import Request, quiet_process
from draftgym.benchmark.statistics import CONFIDENCE, RESAMPLES, Interval
from draftgym.console import Bar
from draftgym.costs.drift import STRETCH
from draftgym.costs.times import Float64Array
from draftgym.decoder.session import DecoderSession
from draftgym.errors import DraftGymError
from draftgym.state import Controller, RoundRecord, RoundState

SPREADS = 4.5
"""Median deviations, some three standard ones, beyond which a difference is cut off."""
_STEPS = 20


@dataclass(frozen=True, slots=True)
class Overhead:
    """What was measured.

    Attributes:
        ratio: Time of a round that asks, over that of the same round where it recalls, drift
            taken out; the interval is over stretches of rounds.
        asked_seconds: Mean of a round that asks.
        recalled_seconds: Mean of a round that recalls.
        charged_share: Share of the rounds that ask which the session's clock charges to decisions.
        rounds: Measured each way.
    """

    ratio: Interval
    asked_seconds: float
    recalled_seconds: float
    charged_share: float
    rounds: int


class Recalling:
    """A policy whose answers are known; asks it in some rounds nevertheless.

    Args:
        policy: That answered.
        answers: Depth and requested size of every round of the request.
        asks: Whether each round asks the policy.
    """

    def __init__(
        self, policy: Controller, answers: Sequence[tuple[int, int]], asks: Sequence[bool]
    ) -> None:
        self._policy, self._answers, self._asks = policy, answers, asks
        self._round = 0

    @property
    def _asking(self) -> bool:
        # A request that grows longer than it was will be refused by whoever compares.
        return self._round >= len(self._asks) or self._asks[self._round]

    @property
    def free(self) -> bool:
        return self._policy.free if self._asking else True

    def reset(self) -> None:
        self._round = 0
        self._policy.reset()

    def draft_again(self, state: RoundState) -> bool:
        if self._asking:
            return self._policy.draft_again(state)
        return state.depth < self._answers[self._round][0]

    def choose_size(self, state: RoundState) -> int:
        if self._asking:
            return self._policy.choose_size(state)
        return self._answers[self._round][1]

    def observe(self, record: RoundRecord) -> None:
        self._policy.observe(record)
        self._round += 1


def measure_overhead(
    session: DecoderSession,
    requests: Sequence[Request],
    policy: Controller,
    *,
    max_new_tokens: int,
    repeats: int = 4,
    seed: int = 0,
    bar: Bar | None = None,
) -> Overhead:
    """Measure every round both ways, `repeats` times.

    Args:
        session: Greedy or coupled, so that a request is the same every time.
        requests: At least two; those of a single token are left out.
        policy: Decides alike whenever it is asked alike.
        max_new_tokens: Budget per request.
        repeats: Pairs of runs of each request.
        seed: Of the coins and the interval.
        bar: Advanced once per run.

    Raises:
        DraftGymError: If fewer than two requests have a round, or a request does not repeat.
    """
    coins = random.Random(f"overhead {seed}")
    pairs: list[_Pair] = []
    requests_with_rounds = 0
    charged = 0.0
    with quiet_process():
        session.start(requests[0].tokens, min(16, max_new_tokens))
        session.run(policy)
        for request in requests:
            answers = _settings(_decode(session, request, max_new_tokens, policy))
            requests_with_rounds += bool(answers)
            for _ in range(repeats):
                toss = [coins.random() < 0.5 for _ in answers]
                runs = []
                for asks in (toss, [not coin for coin in toss]):
                    controller = Recalling(policy, answers, asks)
                    records = _decode(session, request, max_new_tokens, controller)
                    if _settings(records) != answers:
                        raise DraftGymError(f"{request.prompt_id}: does not repeat itself")
                    runs.append(np.array([record.seconds for record in records]))
                    charged += sum(record.policy_seconds for record in records)
                    if bar is not None:
                        bar.advance()
                pairs.append(_Pair(runs[0], runs[1], np.array(toss, np.bool_)))
    if requests_with_rounds < 2:
        raise DraftGymError("requests: at least two must go beyond their first token")
    asked = sum(float(np.where(pair.asks, pair.first, pair.second).sum()) for pair in pairs)
    recalled = sum(float(np.where(pair.asks, pair.second, pair.first).sum()) for pair in pairs)
    total = sum(len(pair.asks) for pair in pairs)
    return Overhead(_ratio(pairs, seed), asked / total, recalled / total, charged / asked, total)


@dataclass(frozen=True, eq=False)
class _Pair:
    """Seconds of the rounds of two runs of a request, and whether the first one asked, [n] each."""

    first: Float64Array
    second: Float64Array
    asks: np.ndarray[Any, np.dtype[np.bool_]]


def _ratio(pairs: Sequence[_Pair], seed: int) -> Interval:
    """Rounds that ask over rounds that recall, by least squares within stretches."""
    differences, coins, weights, parts = [], [], [], []
    stretches = 0
    for pair in pairs:
        part = np.arange(len(pair.asks)) // STRETCH
        differences.append(np.log(pair.first / pair.second))
        coins.append(np.where(pair.asks, 1.0, -1.0))
        weights.append(np.sqrt(pair.first * pair.second))
        parts.append(stretches + part)
        stretches += int(part.max(initial=-1)) + 1
    weight, part = np.concatenate(weights), np.concatenate(parts)
    sign, difference = np.concatenate(coins), np.concatenate(differences)
    share = np.bincount(part, weight)

    def mean(values: Float64Array) -> Float64Array:
        """Of each round's stretch, [n]."""
        return (np.bincount(part, weight * values) / share)[part]

    coin = sign - mean(sign)
    down = np.bincount(part, weight * coin**2)  # [stretches]
    if not down.sum() > 0:
        raise DraftGymError("rounds: too few for both kinds to meet in a stretch")
    kept, effect = difference, 0.0
    for _ in range(_STEPS):
        # Whatever else the machine did falls on both kinds of rounds alike: it is cut off.
        fitted = mean(kept) + effect * coin
        rest = difference - fitted
        usual = SPREADS * float(np.median(np.abs(rest)))
        kept = fitted + rest.clip(-usual, usual) if usual > 0 else difference
        up = np.bincount(part, weight * coin * kept)  # [stretches]
        effect = float(up.sum() / down.sum())
    drawn = np.random.default_rng(seed).multinomial(
        stretches, np.full(stretches, 1 / stretches), RESAMPLES
    )  # [resamples, stretches]
    found = np.exp((drawn @ up) / np.maximum(drawn @ down, np.finfo(np.float64).tiny))
    low, high = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(np.exp(effect)), float(low), float(high))


def _decode(
    session: DecoderSession, request: Request, max_new_tokens: int, controller: Controller
) -> list[RoundRecord]:
    session.start(request.tokens, max_new_tokens, sequence=request.sequence)
    return session.run(controller)


def _settings(records: Sequence[RoundRecord]) -> list[tuple[int, int]]:
    return [(record.depth, record.requested_size) for record in records]
