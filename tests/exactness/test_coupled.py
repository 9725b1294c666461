"""Coupled sampling: the text depends on the seed alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgym.clock import FakeClock
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.controllers import FixedController, PlainController, RandomController
from draftgym.decoder.session import DecoderSession
from tests.tiny import tiny_pair

PROMPT = [3, 5, 7, 9, 11]
GRID = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
NO_EOS: frozenset[int] = frozenset()


def decode(pair: Any, controller: Any, tokens: int = 60, sequence: int = 0, **options: Any) -> Any:
    drafter = None if isinstance(controller, PlainController) else pair.new_drafter()
    session = DecoderSession(pair, drafter, clock=FakeClock(), **options)
    session.start(PROMPT, tokens, sequence)
    session.run(controller)
    return session


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.3])
@pytest.mark.parametrize("drafter", ["hybrid", "eagle3", "lm", "ngram"])
def test_same_text_as_plain_sampling(drafter: Any, temperature: float) -> None:
    sampling = SamplingConfig(temperature=temperature, seed=5)
    pair = tiny_pair(1, drafter, eos=NO_EOS, sampling=sampling, draft_layers=1)
    for sequence in range(3):
        plain = decode(pair, PlainController(), sequence=sequence)
        for seed in range(2):
            drafted = decode(pair, RandomController(seed, 8, GRID), sequence=sequence)
            assert drafted.tokens == plain.tokens


@settings(max_examples=15, deadline=None)
@given(
    top_k=st.integers(0, 8),
    top_p=st.sampled_from([0.4, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 1000),
)
def test_truncation_keeps_the_text(top_k: int, top_p: float, min_p: float, seed: int) -> None:
    sampling = SamplingConfig(temperature=0.9, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    pair = tiny_pair(2, "hybrid", eos=NO_EOS, sampling=sampling)
    plain = decode(pair, PlainController(), 40)
    assert decode(pair, RandomController(seed, 6, GRID), 40).tokens == plain.tokens


def test_seed_and_sequence_change_the_text() -> None:
    texts = []
    for seed, sequence in ((0, 0), (0, 1), (1, 0)):
        sampling = SamplingConfig(temperature=1.0, seed=seed)
        pair = tiny_pair(1, eos=NO_EOS, sampling=sampling)
        texts.append(tuple(decode(pair, PlainController(), sequence=sequence).tokens))
    assert len(set(texts)) == 3


def test_the_target_as_its_own_drafter_is_always_right() -> None:
    """Shared noise: equal laws make equal choices, whatever the temperature."""
    sampling = SamplingConfig(temperature=1.3, seed=2)
    pair = tiny_pair(1, "lm", beam_width=1, eos=NO_EOS, sampling=sampling)
    records = decode(pair, FixedController(4, 16)).records
    assert all(record.accepted == record.depth for record in records)
    weaker = tiny_pair(1, "lm", beam_width=1, eos=NO_EOS, sampling=sampling, draft_layers=1)
    worse = decode(weaker, FixedController(4, 16)).records
    assert sum(r.accepted for r in worse) < sum(r.accepted for r in records)


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
def test_log_probabilities_equal_those_of_the_plain_run(rule: str) -> None:
    sampling = SamplingConfig(temperature=0.0 if rule == "greedy" else 0.8, seed=3)
    pair = tiny_pair(3, "hybrid", eos=NO_EOS, sampling=sampling)
    plain = decode(pair, PlainController(), log_probs=True)
    drafted = decode(pair, FixedController(2, 12), log_probs=True)
    assert len(plain.log_probs) == len(plain.tokens) == len(drafted.log_probs)
    assert drafted.log_probs == pytest.approx(plain.log_probs, abs=1e-4)
    assert max(plain.log_probs) <= 0
