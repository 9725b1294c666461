"""Deciding is charged what it costs, and nothing where it costs nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftgym.benchmark.overhead import Overhead, Recalling, _Pair, _ratio, measure_overhead
from draftgym.benchmark.runner import Request
from draftgym.clock import FakeClock
from draftgym.decoder.session import DecoderSession
from draftgym.errors import DraftGymError
from draftgym.state import RoundRecord, RoundState
from tests.tiny import tiny_pair

REQUESTS = [Request(f"p{n}", "d", tuple(range(3, 3 + n))) for n in (3, 5, 9)]


class Scripted:
    """Depths and sizes by the length of the text; every decision takes some seconds."""

    def __init__(self, clock: FakeClock, seconds: float, free: bool = False) -> None:
        self._clock, self._seconds, self.free = clock, seconds, free
        self.asked = 0

    def _take(self) -> None:
        self.asked += 1
        self._clock.set_to(self._clock.boundary() + self._seconds)

    def reset(self) -> None: ...

    def draft_again(self, state: RoundState) -> bool:
        self._take()
        return state.depth < state.context_tokens % 3

    def choose_size(self, state: RoundState) -> int:
        self._take()
        return state.context_tokens % 4

    def observe(self, record: RoundRecord) -> None: ...


def measure(seconds: float, repeats: int = 3) -> Overhead:
    clock = FakeClock()
    pair = tiny_pair(eos=frozenset())
    session = DecoderSession(pair, pair.new_drafter(), clock=clock)
    policy = Scripted(clock, seconds, free=not seconds)
    return measure_overhead(session, REQUESTS, policy, max_new_tokens=20, repeats=repeats)


def test_costly_decisions_show() -> None:
    found = measure(2e-3)
    assert found.asked_seconds - found.recalled_seconds == pytest.approx(
        found.charged_share * found.asked_seconds
    )
    share = found.asked_seconds / found.recalled_seconds - 1
    assert found.ratio.estimate - 1 == pytest.approx(share, rel=0.15)  # few rounds, unequal ones
    assert 1.05 < found.ratio.low <= found.ratio.estimate
    assert found.rounds % 3 == 0


@pytest.mark.parametrize("overhead", [0.0, 0.005])
def test_a_drifting_noisy_machine_is_seen_through(overhead: float) -> None:
    """Runs differ by a third, rounds by 5 % and sometimes by five times; half a percent shows."""
    random = np.random.default_rng(1)
    pairs = []
    for _ in range(240):
        asks, cost = random.random(40) < 0.5, random.uniform(0.02, 0.08, 40)

        def run(asked: Any, cost: Any = cost) -> Any:
            drift = np.exp(random.normal(0, 0.3) + random.normal(0, 0.01, 40).cumsum())
            delays = np.where(random.random(40) < 0.02, 5.0, 1.0)
            noise = np.exp(random.normal(0, 0.05, 40))
            return cost * (1 + overhead * asked) * drift * noise * delays

        pairs.append(_Pair(run(asks), run(~asks), asks))
    found = _ratio(pairs, 0)
    assert found.low < 1 + overhead < found.high
    assert found.high - found.low < 0.008
    assert (found.low > 1) == (overhead > 0)


def test_free_decisions_cost_nothing() -> None:
    found = measure(0.0)
    assert found.ratio.estimate == pytest.approx(1.0)
    assert found.charged_share == 0.0


def test_recalled_rounds_do_not_ask() -> None:
    clock = FakeClock()
    policy = Scripted(clock, 1.0)
    pair = tiny_pair(eos=frozenset())
    session = DecoderSession(pair, pair.new_drafter(), clock=clock)
    session.start(REQUESTS[0].tokens, 20)
    answers = [(r.depth, r.requested_size) for r in session.run(policy)]
    before = policy.asked
    session.start(REQUESTS[0].tokens, 20)
    recalled = session.run(Recalling(policy, answers, [False] * len(answers)))
    assert [(r.depth, r.requested_size) for r in recalled] == answers
    assert policy.asked == before and all(r.policy_seconds == 0 for r in recalled)


def test_what_cannot_be_compared_is_refused() -> None:
    clock = FakeClock()
    pair = tiny_pair(eos=frozenset())
    session = DecoderSession(pair, pair.new_drafter(), clock=clock)
    with pytest.raises(DraftGymError, match="at least two"):
        measure_overhead(session, REQUESTS[:1], Scripted(clock, 0.1), max_new_tokens=9)

    class Fickle(Scripted):
        def choose_size(self, state: RoundState) -> int:
            return (super().choose_size(state) + self.asked) % 5

    with pytest.raises(DraftGymError, match="p3: does not repeat itself"):
        measure_overhead(session, REQUESTS, Fickle(clock, 0.1), max_new_tokens=20)
