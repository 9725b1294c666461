"""Rejection sampling keeps the law; first checks on the real session."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from draftgym.clock import FakeClock
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.controllers import FixedController, PlainController
from draftgym.decoder.sampling.warp import warp
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError
from tests.tiny import tiny_model, tiny_pair

PROMPT = [3, 5, 7]
NO_EOS: frozenset[int] = frozenset()
ALPHA = 1e-4


def chi_square_p(observed: np.ndarray, expected: np.ndarray) -> float:
    """Probability of a larger chi-square statistic if the law is the expected one."""
    statistic = float((((observed - expected) ** 2) / expected).sum())
    half = torch.tensor([len(observed) - 1, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(half[0], half[1]))


def sampled(**changes: Any) -> SamplingConfig:
    return SamplingConfig(**({"temperature": 1.0, "rule": "rejection", "seed": 7} | changes))


@pytest.mark.parametrize(
    ("drafter", "proposals", "width"),
    [
        ("hybrid", "best", 3),
        ("eagle3", "best", 2),
        ("lm", "best", 3),
        ("eagle3", "drawn", 1),
        ("lm", "drawn", 1),
    ],
)
def test_second_and_third_token_have_the_targets_law(
    drafter: Any, proposals: Any, width: int
) -> None:
    sampling = sampled(proposals=proposals)
    model = tiny_model(4, vocab=8)
    pair = tiny_pair(
        4, drafter, beam_width=width, max_depth=3, eos=NO_EOS, model=model, sampling=sampling,
        draft_layers=1 if drafter == "lm" else None,
    )  # fmt: skip
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock(), max_size=16)
    with torch.no_grad():
        law = warp(model(torch.tensor([PROMPT])).logits[:, -1], sampling)[0].exp()
        nexts = warp(
            model(torch.tensor([[*PROMPT, token] for token in range(8)])).logits[:, -1], sampling
        ).exp()
    joint = (law[:, None] * nexts).double().flatten().numpy()
    counts, accepted = np.zeros(64), 0
    trials = 1500
    for sequence in range(trials):
        session.start(PROMPT, 4, sequence)
        session.run(FixedController(2, 4))
        first, second = session.tokens[:2]
        counts[first * 8 + second] += 1
        accepted += session.records[0].accepted
    assert accepted > trials / 20
    expected = joint / joint.sum() * trials
    often = expected >= 5
    observed = np.append(counts[often], counts[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    assert chi_square_p(observed, wanted) > ALPHA


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
