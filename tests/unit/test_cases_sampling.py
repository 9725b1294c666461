"""Failures of others that concern sampling. Numbers in names are rows of the failure list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from draftgym.clock import FakeClock
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.controllers import FixedController, PlainController
from draftgym.decoder.rules import RULES, chain
from draftgym.decoder.rules.chain import ChainRejectionRule
from draftgym.decoder.rules.coupled import CoupledRule
from draftgym.decoder.rules.rejection import RejectionRule
from draftgym.decoder.sampling.noise import gumbel
from draftgym.decoder.session import DecoderSession
from draftgym.decoder.tree import DraftTree, Selection
from tests.tiny import tiny_pair

CPU = torch.device("cpu")
DRAWN = SamplingConfig(temperature=1.0, rule="rejection", proposals="drawn", seed=3)
BEST = SamplingConfig(temperature=1.0, rule="rejection", seed=3)
COUPLED = SamplingConfig(temperature=1.0, seed=3)


def logits(*rows: tuple[float, ...]) -> Tensor:
    """Logits of the given laws."""
    return torch.tensor(rows).log()


def chosen(tokens: list[int]) -> Selection:
    """A drafted chain below the root."""
    tree = DraftTree(max(1, len(tokens)), CPU)
    tree.reset(torch.tensor(0))
    tree.add_chain(tokens, [-0.1 * (i + 1) for i in range(len(tokens))])
    return tree.select(len(tokens))


def follows(counts: np.ndarray, law: tuple[float, ...]) -> bool:
    """Every count within 4.5 standard deviations of the law's (chance of a miss: 1e-5)."""
    total, p = counts.sum(), np.array(law)
    return bool((np.abs(counts - total * p) < 4.5 * np.sqrt(total * p * (1 - p))).all())


def test_rows_3_29_a_best_token_is_a_one_hot_law() -> None:
    """p = (.5, .3, .2), q = (.6, .3, .1), always 0 drafted: a ratio with q gives (.83, 0, .17)."""
    law = (0.5, 0.3, 0.2)
    rule, counts, trials = RejectionRule(BEST), np.zeros(3), 3000
    rest = np.zeros(3)
    for sequence in range(trials):
        rule.start(sequence)
        verdict = rule.verify(logits(law, law), 5, chosen([0]))
        counts[verdict.tokens[0]] += 1
        if not verdict.path:
            rest[verdict.tokens[0]] += 1
    assert follows(counts, law)
    # Row 29: after a rejection only the rejected token is out of the question.
    assert rest[0] == 0
    assert follows(rest[1:], (0.6, 0.4))


@pytest.mark.parametrize("name", list(RULES))
def test_row_13_after_full_acceptance_comes_the_next_token(name: str) -> None:
    """The target forces A, B, C and A, B are drafted: never A, B, B."""
    sure = logits((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    sampling = {"greedy": SamplingConfig(), "coupled": COUPLED}.get(name, DRAWN)
    rule: Any = RULES[name](sampling)
    rule.start(0)
    if rule.draws_proposals:
        for row in sure[:2]:
            rule.draw(rule.rank(row[None], 6, None), 6, None)
    verdict = rule.verify(sure, 5, chosen([0, 1]))
    assert verdict.path == [1, 2] and verdict.tokens == [0, 1, 2]


def test_row_13_tokens_repeat_no_more_often_than_in_plain_sampling() -> None:
    """The target drafts for itself, so every path is accepted and every bonus follows one."""
    sampling = SamplingConfig(temperature=1.3, rule="rejection", proposals="drawn")
    pair = tiny_pair(2, "lm", beam_width=1, eos=frozenset(), sampling=sampling)
    rates = []
    for drafter, controller in (
        (pair.new_drafter(), FixedController(3, 3)),
        (None, PlainController()),
    ):
        session = DecoderSession(pair, drafter, clock=FakeClock())
        repeats = total = 0
        for sequence in range(12):
            session.start([3, 5, 7], 60, sequence)
            records = session.run(controller)
            assert drafter is None or all(r.accepted == r.depth for r in records)
            pairs = list(zip(session.tokens, session.tokens[1:], strict=False))
            repeats, total = repeats + sum(a == b for a, b in pairs), total + len(pairs)
        rates.append(repeats / total)
    assert abs(rates[0] - rates[1]) < 0.08


@pytest.mark.parametrize(
    "name", ["repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size"]
)
def test_row_25_what_depends_on_the_drafted_prefix_is_refused(name: str) -> None:
    """A penalty right for every drafted position needs state for each path; there is none."""
    with pytest.raises(ValidationError, match=name):
        SamplingConfig(**{"temperature": 1.0, name: 1.3})


@pytest.mark.parametrize("name", list(RULES))
def test_row_29_verification_changes_nothing_it_is_given(name: str) -> None:
    sampling = {"greedy": SamplingConfig(), "coupled": COUPLED}.get(name, DRAWN)
    rule: Any = RULES[name](sampling)
    rule.start(0)
    torch.manual_seed(0)
    target, drafted = torch.randn(4, 9), torch.randn(3, 9)
    before, draft_before = target.clone(), drafted.clone()
    laws = [rule.rank(row[None], 6 + i, None) for i, row in enumerate(drafted)]
    tokens = [8, 0, 3]
    if rule.draws_proposals:
        tokens = [int(rule.draw(law, 6 + i, None)) for i, law in enumerate(laws)]
    laws_before = [law.clone() for law in laws]
    selection = chosen(tokens)
    kept = selection.tokens.clone()
    first = rule.verify(target, 5, selection)
    assert len(first.tokens) == len(first.path) + 1
    assert torch.equal(target, before) and torch.equal(drafted, draft_before)
    assert all(torch.equal(a, b) for a, b in zip(laws, laws_before, strict=True))
    assert torch.equal(selection.tokens, kept)


@pytest.mark.parametrize("threshold", [1 - 2.0**-53, 0.5, 2.0**-53])
@pytest.mark.parametrize("nudge", [0.0, 1e-7, -1e-7])
def test_row_39_equal_laws_up_to_rounding(
    monkeypatch: pytest.MonkeyPatch, threshold: float, nudge: float
) -> None:
    """A rejection with nothing left to draw from falls back to p; no 0/0."""
    monkeypatch.setattr(
        chain, "uniform", lambda *key: torch.full((1,), threshold, dtype=torch.float64)
    )
    p = torch.tensor([[0.5, 0.3, 0.2, 0.0]])
    for sequence in range(20):
        rule = ChainRejectionRule(DRAWN)
        rule.start(sequence)
        q = p.clone()
        q[0, 0] += nudge
        drawn = int(rule.draw(rule.rank(q.log(), 6, None), 6, None))
        verdict = rule.verify(torch.cat((p, p)).log(), 5, chosen([drawn]))
        assert all(float(p[0, token]) > 0 for token in verdict.tokens)
        if nudge == 0:
            assert verdict.path == [1]


def test_row_39_an_impossible_token_is_never_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """p(x) = 0 with the smallest u there is: `u <= p / q` must not hold."""
    monkeypatch.setattr(
        chain, "uniform", lambda *key: torch.full((1,), 2.0**-53, dtype=torch.float64)
    )
    for sequence in range(20):
        rule = ChainRejectionRule(DRAWN)
        rule.start(sequence)
        drawn = int(rule.draw(rule.rank(logits((0.0, 0.0, 1.0)), 6, None), 6, None))
        assert drawn == 2
        verdict = rule.verify(logits((0.5, 0.5, 0.0), (0.5, 0.5, 0.0)), 5, chosen([drawn]))
        assert verdict.path == [] and verdict.tokens[0] in (0, 1)


def test_row_47_nothing_is_compiled_so_any_depth_may_come() -> None:
    """Depths change every round and reach a maximum that was never seen before."""
    root = Path(__file__).resolve().parents[2] / "draftgym"
    for path in root.rglob("*.py"):
        assert "torch.compile(" not in path.read_text(encoding="utf-8"), path
    pair = tiny_pair(1, "hybrid", eos=frozenset())
    plain = DecoderSession(pair, None, clock=FakeClock())
    plain.start([3, 5, 7], 80)
    plain.run(PlainController())
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock(), max_size=116)
    session.start([3, 5, 7], 80)
    depths = iter([1, 3, 0, 5, 2, 4, 1, 6, 3, 7, 8])
    while not session.finished:
        session.step(FixedController(next(depths, 8), 64))
    assert session.tokens == plain.tokens
    assert max(record.depth for record in session.records) == 8


def test_row_53_neighbouring_seeds_and_sequences_share_no_noise() -> None:
    """Seed plus index would give seed 0's worker 1 the stream of seed 1's worker 0."""
    at = torch.arange(4, 12)
    streams = [
        gumbel(seed, sequence, at, vocab=8).flatten().tolist()
        for seed in (0, 1)
        for sequence in range(4)
    ]
    values = [value for stream in streams for value in stream]
    assert len(set(values)) == len(values)
    texts = set()
    for seed in (0, 1):
        pair = tiny_pair(
            1, "none", eos=frozenset(), sampling=SamplingConfig(temperature=1.0, seed=seed)
        )
        session = DecoderSession(pair, None, clock=FakeClock())
        for sequence in range(4):
            session.start([3, 5, 7], 20, sequence)
            session.run(PlainController())
            texts.add(tuple(session.tokens))
    assert len(texts) == 8


def test_row_41_ties_are_broken_by_the_noise_alike_in_every_row() -> None:
    """Equal logits: the perturbed argmax is the same alone and among others."""
    flat = torch.zeros(4, 16)
    rule = CoupledRule(COUPLED)
    rule.start(2)
    alone = [rule.verify(flat[:1], 5 + depth, None).tokens[0] for depth in range(4)]
    assert rule.verify(flat, 5, chosen(alone[:3])).tokens == alone
