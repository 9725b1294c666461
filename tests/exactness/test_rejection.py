"""Rejection sampling on the real session; its laws are in `test_sampled_laws`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftgym.clock import FakeClock
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.controllers import FixedController, PlainController
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError
from tests.tiny import tiny_pair

PROMPT = [3, 5, 7]
NO_EOS: frozenset[int] = frozenset()


def sampled(**changes: Any) -> SamplingConfig:
    return SamplingConfig(**({"temperature": 1.0, "rule": "rejection", "seed": 7} | changes))


def test_every_drawn_token_is_verified() -> None:
    pair = tiny_pair(1, "eagle3", beam_width=1, eos=NO_EOS, sampling=sampled(proposals="drawn"))
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    session.start(PROMPT, 40)
    records = session.run(FixedController(3, 1))
    assert all(record.size == record.depth for record in records)
    assert any(record.clamped for record in records)


@pytest.mark.parametrize(
    ("drafter", "width", "max_size", "message"),
    [
        ("ngram", 1, 32, "proposes without drawing"),
        ("hybrid", 1, 32, "proposes without drawing"),
        ("eagle3", 2, 32, "beam_width must be 1"),
        ("lm", 1, 4, "at least drafter.max_depth 8"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    drafter: Any, width: int, max_size: int, message: str
) -> None:
    pair = tiny_pair(1, drafter, beam_width=width, sampling=sampled(proposals="drawn"))
    with pytest.raises(ConfigurationError, match=message):
        DecoderSession(pair, pair.new_drafter(), clock=FakeClock(), max_size=max_size)


def test_runs_repeat_with_the_seed() -> None:
    pair = tiny_pair(1, "eagle3", eos=NO_EOS, sampling=sampled())
    texts = []
    for sequence in (0, 0, 1):
        session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
        session.start(PROMPT, 40, sequence)
        session.run(FixedController(2, 6))
        texts.append(tuple(session.tokens))
    assert texts[0] == texts[1] != texts[2]


def test_broken_logits_name_their_position() -> None:
    for proposals in ("best", "drawn"):
        pair = tiny_pair(1, "lm", beam_width=1, sampling=sampled(proposals=proposals))
        session = DecoderSession(pair, None, clock=FakeClock())
        session.start(PROMPT, 8)
        pair.target.head = lambda hidden: torch.full((len(hidden), 64), torch.nan)  # type: ignore[attr-defined]
        with pytest.raises(FloatingPointError, match="position 3"):
            session.step(PlainController())
