"""Edges of the session, for every drafter under every rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from draftgym.clock import FakeClock
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.controllers import FixedController, PlainController, RandomController
from draftgym.decoder.generate import generate
from draftgym.decoder.session import DecoderSession
from draftgym.decoder.streaming import TextStream
from tests.exactness.poison import PoisonedSession
from tests.tiny import tiny_pair
from tests.unit.test_stopping import spell

GRID = (0, 1, 2, 4, 8, 16, 32)
RULES: dict[str, SamplingConfig] = {
    "greedy": SamplingConfig(),
    "coupled": SamplingConfig(temperature=0.9, seed=5),
    "rejection": SamplingConfig(temperature=0.9, rule="rejection", seed=5),
    "drawn": SamplingConfig(temperature=0.9, rule="rejection", proposals="drawn", seed=5),
}
CELLS = [
    (drafter, rule)
    for drafter in ("hybrid", "eagle3", "lm", "ngram")
    for rule in RULES
    if rule != "drawn" or drafter in ("eagle3", "lm")
]
every_cell = pytest.mark.parametrize(("drafter", "rule"), CELLS)


def pair_of(drafter: Any, rule: str, **options: Any) -> Any:
    return tiny_pair(
        1,
        drafter,
        beam_width=1 if rule == "drawn" else 4,
        eos=frozenset(),
        sampling=RULES[rule],
        **options,
    )


def session_of(pair: Any, **options: Any) -> DecoderSession:
    return PoisonedSession(pair, pair.new_drafter(), clock=FakeClock(), **options)


def plain(pair: Any, prompt: list[int], tokens: int) -> list[int]:
    session = DecoderSession(pair, None, clock=FakeClock())
    session.start(prompt, tokens)
    session.run(PlainController())
    return session.tokens


def same_as_plain(rule: str) -> bool:
    return rule in ("greedy", "coupled")


@every_cell
@pytest.mark.parametrize("budget", [1, 2, 3])
def test_smallest_budgets(drafter: Any, rule: str, budget: int) -> None:
    pair = pair_of(drafter, rule)
    session = session_of(pair)
    for prompt in ([4, 4, 4, 4, 4], [3, 5, 7, 9]):
        session.start(prompt, budget)
        records = session.run(FixedController(8, 32))
        assert len(session.tokens) == budget and session.stop_reason == "budget"
        assert all(record.size <= max(0, budget - 2) * 5 for record in records)
        if same_as_plain(rule):
            assert session.tokens == plain(pair, prompt, budget)


@every_cell
@pytest.mark.parametrize("length", [1, 20, 30, 31])
def test_row_33_the_context_of_target_and_drafter(drafter: Any, rule: str, length: int) -> None:
    """The target takes 32 tokens, the head 24; `lm` needs room for its guesses."""
    pair = pair_of(drafter, rule, context=32, draft_context=24 + 9)
    prompt = [2 + i % 5 for i in range(length)]
    session = session_of(pair)
    session.start(prompt, 60)
    records = session.run(FixedController(8, 32))
    assert length + len(session.tokens) == 32 and session.stop_reason == "context"
    limit = session.drafter.context_limit if session.drafter else 0
    assert all(record.depth == 0 for record in records if record.context_tokens >= limit)
    assert drafter not in ("eagle3", "hybrid") or limit == 24
    if same_as_plain(rule):
        wide = pair_of(drafter, rule, context=96)
        assert session.tokens == plain(wide, prompt, 32 - length)


@every_cell
@pytest.mark.parametrize("prompt", [[5], [5, 5], [1, 2, 3]])
def test_prompts_shorter_than_any_suffix_looked_up(
    drafter: Any, rule: str, prompt: list[int]
) -> None:
    pair = pair_of(drafter, rule)
    session = session_of(pair)
    session.start(prompt, 30)
    session.run(RandomController(1, 6, GRID))
    assert len(session.tokens) == 30
    if same_as_plain(rule):
        assert session.tokens == plain(pair, prompt, 30)


@pytest.mark.parametrize("rule", ["greedy", "coupled", "drawn"])
@pytest.mark.parametrize("history", [[4, 0, 0, 4], [0] * 20 + [6], [1, 0, 3, 0, 0, 5]])
def test_row_23_passes_resume_with_full_acceptance(rule: str, history: list[int]) -> None:
    """The target drafts for itself, so whatever is drafted is right, after any pause."""
    pair = tiny_pair(1, "lm", beam_width=1, eos=frozenset(), sampling=RULES[rule])
    session = session_of(pair)
    session.start([3, 5, 7], 80)
    for depth in history:
        record = session.step(FixedController(depth, depth))
        assert record.depth == depth and record.accepted == depth


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.parametrize("drafter", ["hybrid", "eagle3", "lm"])
def test_row_23_a_tree_after_a_pause_is_the_tree_without_one(drafter: Any, rule: str) -> None:
    pair = pair_of(drafter, rule)
    trees = []
    for depth in (0, 3):
        session = session_of(pair)
        session.start([3, 5, 7, 9, 3, 5, 7], 60)
        # Size 0 keeps the rounds alike: one token each, with passes and without.
        for _ in range(10):
            session.step(FixedController(depth, 0))
        state = session.begin_round()
        for _ in range(3):
            session.draft()
        tree = session._tree
        size = slice(1, state.nodes + 1)
        trees.append((tree.tokens[size].clone(), tree.parents[size], tree.scores[size].clone()))
    assert torch.equal(trees[0][0], trees[1][0]) and torch.equal(trees[0][1], trees[1][1])
    torch.testing.assert_close(trees[0][2], trees[1][2], atol=1e-4, rtol=1e-4)


@every_cell
def test_nothing_leaks_from_one_call_to_the_next(drafter: Any, rule: str) -> None:
    """A used session answers like a new one, token for token and round for round."""
    pair = pair_of(drafter, rule)

    def answer(session: DecoderSession) -> tuple[list[int], list[int]]:
        session.start([3, 5, 7, 9], 40, 3)
        session.run(FixedController(3, 8))
        return session.tokens, [record.accepted for record in session.records]

    used = session_of(pair)
    for sequence, prompt in enumerate(([9] * 30, [1], list(range(40)))):
        used.start(prompt, 25, sequence)
        used.step(FixedController(4, 32))  # left in the middle
    used.begin_round()
    fresh = answer(session_of(pair))
    assert answer(used) == fresh == answer(used)


@every_cell
def test_row_27_a_stream_gives_each_id_once_and_whole_characters(drafter: Any, rule: str) -> None:
    pair = pair_of(drafter, rule)
    session = session_of(pair)
    seen: list[int] = []
    pieces: list[str] = []
    stream = TextStream(spell, pieces.append)

    def receive(tokens: Sequence[int]) -> None:
        seen.extend(tokens)
        stream.push(tokens)

    result = generate(session, [3, 5, 7], 60, RandomController(2, 6, GRID), receive)
    stream.close()
    assert tuple(seen) == result.tokens
    assert "".join(pieces) == spell(result.tokens)


@pytest.mark.parametrize("chunk", [1, 3, 7, 16])
def test_a_prompt_read_in_chunks_is_the_same_prompt(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    pair = pair_of("eagle3", "greedy")
    prompt = [(7 * i) % 64 for i in range(48)]
    whole = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    whole.start(prompt, 30)
    monkeypatch.setattr("draftgym.decoder.session.PREFILL_CHUNK_TOKENS", chunk)
    parts = session_of(pair)
    parts.start(prompt, 30)
    assert whole._features is not None and parts._features is not None
    torch.testing.assert_close(parts._features[:48], whole._features[:48], atol=1e-4, rtol=1e-4)
    parts.run(FixedController(3, 8))
    assert parts.tokens == plain(pair_of("none", "greedy"), prompt, 30)
