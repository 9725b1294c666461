"""What a policy's decisions cost: rounds that ask it against the same ones with known answers.

The answers of a whole request are recorded once. Then it is decoded again and again, and in every
round a coin says whether the policy is asked or its answer recalled; each two runs toss opposite
coins, so that every round is measured both ways, side by side on the same machine. Nothing else
differs: same text, same depths, same sizes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftgym.benchmark.runner import Request, quiet_process
from draftgym.benchmark.statistics import Interval, PromptTotals, paired_ratio
from draftgym.console import Bar
from draftgym.decoder.session import DecoderSession
from draftgym.errors import DraftGymError
from draftgym.state import Controller, RoundRecord, RoundState


@dataclass(frozen=True, slots=True)
class Overhead:
    """What was measured.

    Attributes:
        ratio: Seconds of rounds that ask, over those of the same rounds that recall.
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
    rows: list[tuple[str, float, float, int]] = []
    charged = 0.0
    with quiet_process():
        session.start(requests[0].tokens, min(16, max_new_tokens))
        session.run(policy)
        for request in requests:
            answers = _settings(_decode(session, request, max_new_tokens, policy))
            spent = {True: 0.0, False: 0.0}
            for _ in range(repeats):
                toss = [coins.random() < 0.5 for _ in answers]
                for asks in (toss, [not coin for coin in toss]):
                    controller = Recalling(policy, answers, asks)
                    records = _decode(session, request, max_new_tokens, controller)
                    if _settings(records) != answers:
                        raise DraftGymError(f"{request.prompt_id}: does not repeat itself")
                    for record, asked in zip(records, asks, strict=True):
                        spent[asked] += record.seconds
                        charged += record.policy_seconds
                    if bar is not None:
                        bar.advance()
            if answers:
                rows.append((request.prompt_id, spent[True], spent[False], len(answers)))
    if len(rows) < 2:
        raise DraftGymError("requests: at least two must go beyond their first token")
    rows.sort()
    ids = tuple(row[0] for row in rows)
    asked, recalled, rounds = np.array([row[1:] for row in rows], np.float64).T
    measured = repeats * rounds
    ratio = paired_ratio(
        PromptTotals(ids, asked, measured), PromptTotals(ids, recalled, measured), seed=seed
    )
    total = int(measured.sum())
    return Overhead(
        ratio, asked.sum() / total, recalled.sum() / total, charged / asked.sum(), total
    )


def _decode(
    session: DecoderSession, request: Request, max_new_tokens: int, controller: Controller
) -> list[RoundRecord]:
    session.start(request.tokens, max_new_tokens, sequence=request.sequence)
    return session.run(controller)


def _settings(records: Sequence[RoundRecord]) -> list[tuple[int, int]]:
    return [(record.depth, record.requested_size) for record in records]
