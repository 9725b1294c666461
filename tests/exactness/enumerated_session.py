"""Controllers that look at drawn values, and the law of the text under any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from draftgym.clock import FakeClock
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.session import DecoderSession
from draftgym.state import RoundRecord, RoundState
from tests.exactness.enumerate import EnumeratedNoise, Law
from tests.exactness.table import Table, table_pair

VOCAB, PROMPT = 4, (1, 0)
CHAIN = SamplingConfig(temperature=1.0, rule="rejection", proposals="drawn")
TREE = SamplingConfig(temperature=1.0, rule="rejection")


@dataclass(slots=True)
class Reader:
    """Decides by looking at anything: the open tree included, drawn tokens and all."""

    again: Callable[[DecoderSession, RoundState], bool]
    size: Callable[[DecoderSession, RoundState], int]
    session: Any = None
    free: bool = True

    def reset(self) -> None:
        """Keeps nothing between requests."""

    def draft_again(self, state: RoundState) -> bool:
        return self.again(self.session, state)

    def choose_size(self, state: RoundState) -> int:
        return self.size(self.session, state)

    def observe(self, record: RoundRecord) -> None:
        """Reads the session's history instead."""


def last_token(session: DecoderSession) -> int:
    return int(session._tree.tokens[session._tree.size])


def confident(session: DecoderSession, state: RoundState) -> bool:
    return state.depth == 0 or state.read_confidence().frontier_scores[0] > -1.0


def likely_nodes(session: DecoderSession, state: RoundState) -> int:
    return sum(score > -1.6 for score in state.read_confidence().node_scores)


def after_history(session: DecoderSession, state: RoundState) -> int:
    """Sizes 0 to 3, by what was accepted and what was committed."""
    accepted = state.history.accepted[-1] if state.history.rounds else 1
    return (accepted * 3 + session.tokens[-1]) % 4


def sometimes_plain(session: DecoderSession, state: RoundState) -> bool:
    """No pass at all after a round that drafted; else up to two, by the drawn token."""
    if state.history.rounds and state.history.drafted[-1] > 0 and session.tokens[-1] % 2 == 1:
        return False
    return state.depth == 0 or last_token(session) != 1


CONTROLLERS = {
    "plain": lambda: Reader(lambda s, st: False, lambda s, st: 0),
    "one": lambda: Reader(lambda s, st: st.depth < 1, lambda s, st: 1),
    "deep": lambda: Reader(lambda s, st: True, lambda s, st: 32),
    "pruned": lambda: Reader(lambda s, st: True, lambda s, st: 2),
    "drafts for nothing": lambda: Reader(lambda s, st: True, lambda s, st: 0),
    "even token": lambda: Reader(
        lambda s, st: st.depth == 0 or last_token(s) % 2 == 0, lambda s, st: 1 + last_token(s)
    ),
    "confidence": lambda: Reader(confident, likely_nodes),
    "history": lambda: Reader(sometimes_plain, after_history),
}


def enumerate_law(
    patch: pytest.MonkeyPatch,
    controller: str | Reader,
    target: Table,
    draft: Table,
    sampling: SamplingConfig,
    tokens: int = 4,
    wrap: Callable[[Any], Any] = lambda drafter: drafter,
    **options: Any,
) -> tuple[Law, list[RoundRecord]]:
    """The law of the text under a controller.

    Args:
        patch: Puts the noise back after the test.
        controller: It, or its name.
        target: Laws of the target.
        draft: Laws of the drafter.
        sampling: Warping and rule.
        tokens: Budget, the first token included.
        wrap: Puts a drafter around the table's.
        options: Of `table_pair`.

    Returns:
        Probability of every text, and the rounds of all runs.
    """
    pair, drafter = table_pair(target, draft, sampling, **options)
    session = DecoderSession(pair, wrap(drafter), clock=FakeClock())
    decider = CONTROLLERS[controller]() if isinstance(controller, str) else controller
    decider.session = session
    noise, records = EnumeratedNoise(), []
    noise.install(patch)

    def decode() -> list[int]:
        session.start(PROMPT, tokens)
        records.extend(session.run(decider))
        return session.tokens

    return noise.law(decode), records


def largest_error(law: Law, wanted: Law) -> float:
    texts = law.keys() | wanted.keys()
    return max(abs(law.get(text, 0.0) - wanted.get(text, 0.0)) for text in texts)
