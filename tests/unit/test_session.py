"""The session: lossless at every edge. Numbers in names are rows of the failure list."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgym.clock import FakeClock, WallClock
from draftgym.decoder.controllers import FixedController, PlainController, RandomController
from draftgym.decoder.drafters.eagle3 import Eagle3Drafter
from draftgym.decoder.generate import generate
from draftgym.decoder.rules.greedy import GreedyRule
from draftgym.decoder.session import DecoderSession
from tests.oracle import OracleDrafter
from tests.tiny import tiny_model, tiny_pair

PROMPT = [3, 5, 7, 9, 11]
GRID = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 116)
NO_EOS: frozenset[int] = frozenset()


def plain(pair: Any, tokens: int, prompt: list[int] = PROMPT) -> list[int]:
    session = DecoderSession(pair, None, clock=FakeClock())
    session.start(prompt, tokens)
    session.run(PlainController())
    return session.tokens


def oracle_session(pair: Any, length: int = 60, **options: Any) -> DecoderSession:
    rank = options.pop("rank", lambda position: position % 3)
    reference = PROMPT + plain(tiny_pair(1, eos=NO_EOS), length)
    return DecoderSession(pair, OracleDrafter(reference, rank), clock=FakeClock(), **options)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("drafter", ["hybrid", "eagle3", "lm", "ngram"])
def test_same_tokens_as_transformers(kind: str, drafter: Any) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(5)
    shape: dict[str, Any] = {
        name: getattr(tiny_model().config, name)
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "max_position_embeddings",
            "initializer_range",
        )
    }
    extra = {"head_dim": 16, "sliding_window": None} if kind in ("qwen3", "mistral") else {}
    config = AutoConfig.for_model(kind, **shape, **extra)
    model = AutoModelForCausalLM.from_config(config).eval()
    pair = tiny_pair(2, drafter, eos=NO_EOS, model=model)
    with torch.no_grad():
        expected = model.generate(
            torch.tensor([PROMPT]), do_sample=False, max_new_tokens=80, eos_token_id=None
        )[0, len(PROMPT) :].tolist()
    assert plain(pair, 80) == expected
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock(), max_size=116)
    for seed in range(3):
        session.start(PROMPT, 80)
        session.run(RandomController(seed, 8, GRID))
        assert session.tokens == expected


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    ranks=st.lists(st.sampled_from([0, 1, 2, None]), min_size=1, max_size=7),
    prompt=st.lists(st.integers(0, 63), min_size=1, max_size=12),
)
def test_any_tree_any_depth_any_size_is_lossless(
    seed: int, ranks: list[int | None], prompt: list[int]
) -> None:
    pair = tiny_pair(seed % 5, eos=NO_EOS)
    expected = plain(pair, 40, prompt)
    drafter = OracleDrafter(prompt + expected, lambda position: ranks[position % len(ranks)])
    session = DecoderSession(pair, drafter, clock=FakeClock(), max_size=64)
    session.start(prompt, 40)
    records = session.run(RandomController(seed, 6, GRID))
    assert session.tokens == expected
    assert sum(record.emitted for record in records) + 1 == 40
    assert all(record.accepted <= record.size for record in records)


def test_row_5_everything_drafted_by_an_oracle_is_accepted() -> None:
    session = oracle_session(tiny_pair(1, eos=NO_EOS), rank=lambda position: 0)
    session.start(PROMPT, 60)
    records = session.run(FixedController(4, 64))
    assert all(record.accepted == record.depth for record in records)
    assert len(records) == pytest.approx(59 / 5, abs=1)


@pytest.mark.parametrize("place", range(12))
def test_row_1_stops_at_the_first_eos_inside_a_block(place: int) -> None:
    answer = plain(tiny_pair(1, eos=NO_EOS), 60)
    place = answer.index(answer[place])  # first occurrence
    for stops in (frozenset({answer[place]}), frozenset({answer[place], 63})):
        expected = next(i for i, token in enumerate(answer) if token in stops) + 1
        session = oracle_session(tiny_pair(1, eos=stops), rank=lambda position: 0)
        session.start(PROMPT, 60)
        records = session.run(FixedController(5, 64))
        assert session.tokens == answer[:expected]
        assert session.stop_reason == "eos"
        assert sum(record.emitted for record in records) == expected - 1
        assert all(record.accepted <= record.emitted for record in records)


def test_eos_is_ignored_on_request() -> None:
    answer = plain(tiny_pair(1, eos=NO_EOS), 30)
    session = oracle_session(tiny_pair(1, eos=frozenset(answer)), ignore_eos=True)
    session.start(PROMPT, 30)
    session.run(FixedController(3, 8))
    assert session.tokens == answer and session.stop_reason == "budget"


@pytest.mark.parametrize("budget", [1, 2, 3, 5])
def test_small_budgets_are_kept_exactly(budget: int) -> None:
    session = oracle_session(tiny_pair(1, eos=NO_EOS), rank=lambda position: 0)
    session.start(PROMPT, budget)
    records = session.run(FixedController(6, 64))
    assert session.tokens == plain(tiny_pair(1, eos=NO_EOS), budget)
    assert session.stop_reason == "budget"
    assert all(record.depth <= budget - 2 for record in records)


def test_row_33_context_limits_shrink_the_draft_then_stop() -> None:
    prompt = list(range(2, 24))  # 22 tokens
    pair = tiny_pair(1, context=32, draft_context=24 + 9, eos=NO_EOS)
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    assert session.drafter is not None and session.drafter.context_limit == 24
    session.start(prompt, 20)
    records = session.run(FixedController(5, 16))
    assert len(prompt) + len(session.tokens) == 32
    assert session.stop_reason == "context"
    assert records[0].depth == 1  # 23 committed, the drafter works up to 24
    assert all(record.depth == 0 for record in records if record.context_tokens >= 24)
    wide = tiny_pair(1, context=64, eos=NO_EOS)
    assert session.tokens == plain(wide, 10, prompt)


@pytest.mark.parametrize("history", [[4, 4], [4, 0, 0, 4], [0] * 6 + [3], [2, 0, 5, 1]])
def test_rows_5_15_23_draft_state_depends_on_committed_tokens_only(history: list[int]) -> None:
    """After any history the drafter says what a fresh one says on the target's features."""
    pair = tiny_pair(1, eos=NO_EOS)
    drafter = pair.new_drafter()
    session = DecoderSession(pair, drafter, clock=FakeClock(), max_size=32)
    session.start(PROMPT, 60)
    for depth in history:
        session.step(FixedController(depth, 8))
    session.begin_round()
    session.draft()
    ours = session._tree.expanded_log_probs
    committed = session._committed
    fresh = pair.new_drafter()
    assert isinstance(fresh, Eagle3Drafter)
    clean = DecoderSession(pair, None, clock=FakeClock())
    clean.start(PROMPT, 60)
    cache = pair.target.new_cache(256)
    ids = torch.tensor(committed.ids[:-1])
    positions = torch.arange(len(ids))
    features = torch.zeros_like(session._features)  # type: ignore[arg-type]
    pair.target.forward(
        ids,
        positions,
        cache,
        0,
        positions[:, None] >= positions,
        features=features[: len(ids)],
        feature_layers=fresh.feature_layers,
    )
    committed_fresh = type(committed)(committed.device_ids.clone(), features, list(committed.ids))
    fresh.start(committed_fresh, GreedyRule())
    session._tree.reset(torch.tensor(committed.ids[-1]))
    fresh.expand(session._tree)
    assert session.drafter is not None and session.drafter.uningested == 0
    torch.testing.assert_close(ours, session._tree.expanded_log_probs, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        session._features[: len(ids)],  # type: ignore[index]
        features[: len(ids)],
        atol=1e-4,
        rtol=1e-4,
    )


def test_row_23_plain_rounds_keep_memory_constant() -> None:
    pair = tiny_pair(1, context=1024, eos=NO_EOS)
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    session.start(PROMPT, 600)
    sizes = set()
    for _ in range(500):
        session.step(PlainController())
        tensors = [v for v in vars(session).values() if isinstance(v, torch.Tensor)]
        sizes.add(sum(v.numel() for v in tensors))
    assert len(sizes) == 1
    record = session.step(FixedController(2, 4))
    assert record.uningested_tokens == len(PROMPT) + 500 and record.depth == 2


def test_row_37_acceptance_figures() -> None:
    """Accepted 2, 0, 3 of 3, then the budget cuts: counts follow the emitted tokens."""
    reference = PROMPT + plain(tiny_pair(1, eos=NO_EOS), 60)
    start = len(PROMPT) + 1
    wrong = {start + 2, start + 3}
    drafter = OracleDrafter(reference, lambda p: None if p in wrong else 0, width=1)
    session = DecoderSession(tiny_pair(1, eos=NO_EOS), drafter, clock=FakeClock())
    session.start(PROMPT, 10)
    records = session.run(FixedController(3, 3))
    assert [record.accepted for record in records] == [2, 0, 3, 0]
    assert [record.emitted for record in records] == [3, 1, 4, 1]
    assert [record.size for record in records] == [3, 3, 3, 0]
    assert session.history.accepted == [2, 0, 3, 0]


def test_row_41_exact_ties_resolve_alike() -> None:
    model = tiny_model(1)
    with torch.no_grad():
        model.lm_head.weight[32:] = model.lm_head.weight[:32]  # every maximum is a tie
    pair = tiny_pair(1, eos=NO_EOS, model=model)
    expected = plain(pair, 50)
    assert max(expected) < 32
    drafter = OracleDrafter(PROMPT + expected, lambda position: position % 3)
    session = DecoderSession(pair, drafter, clock=FakeClock())
    session.start(PROMPT, 50)
    session.run(FixedController(4, 20))
    assert session.tokens == expected


def test_row_27_streaming_gives_each_id_once_in_order() -> None:
    session = oracle_session(tiny_pair(1, eos=NO_EOS))
    seen: list[int] = []
    result = generate(session, PROMPT, 50, FixedController(4, 12), seen.extend)
    assert tuple(seen) == result.tokens and len(seen) == 50
    assert result.tau_emitted == pytest.approx(49 / len(result.records))


def test_nothing_leaks_from_one_sequence_to_the_next() -> None:
    pair = tiny_pair(1, "ngram", eos=NO_EOS)
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    answers = []
    for prompt in ([4, 4, 4, 4], PROMPT, [9, 9], PROMPT):
        session.start(prompt, 40)
        session.run(FixedController(0, 8))
        answers.append((list(session.tokens), [r.accepted for r in session.records]))
    assert answers[1] == answers[3]


@pytest.mark.parametrize(
    ("prompt", "budget", "message"),
    [
        ([], 5, "empty"),
        ([3, 64], 5, "holds id 64"),
        ([-1], 5, "holds id -1"),
        ([3], 0, "max_new_tokens"),
        ([3] * 256, 5, "no room"),
    ],
)
def test_bad_requests_name_what_is_wrong(prompt: list[int], budget: int, message: str) -> None:
    pair = tiny_pair(1)
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    with pytest.raises(ValueError, match=message):
        session.start(prompt, budget)
    with pytest.raises(RuntimeError, match="finished"):
        session.begin_round()


def test_rounds_are_opened_and_closed_in_order() -> None:
    pair = tiny_pair(1, max_depth=2, eos=NO_EOS)
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock(), max_depth=2)
    session.start(PROMPT, 20)
    with pytest.raises(RuntimeError, match="begin_round"):
        session.draft()
    state = session.begin_round()
    with pytest.raises(RuntimeError, match="not ended"):
        session.begin_round()
    session.draft()
    session.draft()
    assert state.depth == 2 and state.nodes == 4 + 16
    with pytest.raises(RuntimeError, match="2 passes"):
        session.draft()
    with pytest.raises(ValueError, match="negative"):
        session.end_round(-1)
    record = session.end_round(1000)
    assert record.clamped and record.size == 20 and record.requested_size == 1000


def test_nan_weights_raise_with_a_position() -> None:
    model = tiny_model(1)
    with torch.no_grad():
        model.lm_head.weight[3, 0] = float("nan")
    pair = tiny_pair(1, model=model)
    session = DecoderSession(pair, None, clock=FakeClock())
    with pytest.raises(FloatingPointError, match="position 4"):
        session.start(PROMPT, 5)


def test_row_9_the_clock_synchronises_at_round_boundaries_only() -> None:
    calls: list[int] = []
    pair = tiny_pair(1, eos=NO_EOS)
    clock = WallClock("cpu", synchronise=lambda: calls.append(1))
    session = DecoderSession(pair, pair.new_drafter(), clock=clock)
    session.start(PROMPT, 40)
    assert len(calls) == 2
    calls.clear()
    record = session.step(FixedController(4, 8))
    assert len(calls) == 2  # fixed cells pay for no synchronisation in between
    parts = record.draft_seconds + record.verify_seconds + record.commit_seconds
    assert 0 < parts <= record.seconds
    assert len(record.pass_seconds) == 4 and record.policy_seconds == 0


def test_policy_time_is_part_of_the_round() -> None:
    class Slow(FixedController):
        free = False

    pair = tiny_pair(1, eos=NO_EOS)
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    session.start(PROMPT, 40)
    slow, fast = session.step(Slow(2, 4)), session.step(FixedController(2, 4))
    assert slow.policy_seconds == pytest.approx(4 * FakeClock.FIXED["decide"])  # 3 asks + size
    assert slow.seconds - slow.policy_seconds > 0.9 * fast.seconds


def test_manual_rounds_charge_segments_and_policy_only() -> None:
    pair = tiny_pair(1, eos=NO_EOS)
    clock = FakeClock()
    session = DecoderSession(pair, pair.new_drafter(), clock=clock)
    session.start(PROMPT, 40)
    session.begin_round()
    session.draft()
    clock.note("verify", 1000)  # someone else's work between two steps of the environment
    session.charge_policy(0.25)
    record = session.end_round(4)
    assert record.policy_seconds == 0.25
    assert record.seconds == pytest.approx(
        record.draft_seconds + record.verify_seconds + record.commit_seconds + 0.25
    )
    assert record.seconds < 0.4


def test_row_7_bf16_tokens_are_argmax_or_near_ties() -> None:
    """Rounding hangs on the shape of the pass; each token must be (nearly) the target's own."""
    model = tiny_model(1).bfloat16()
    pair = tiny_pair(1, eos=NO_EOS, model=model)
    assert pair.head is not None
    pair.head.bfloat16()
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock(), max_size=64)
    for seed in range(3):
        session.start(PROMPT, 120)
        session.run(RandomController(seed, 8, GRID))
        ids = torch.tensor([PROMPT + session.tokens])
        with torch.no_grad():
            logits = model(ids).logits[0, len(PROMPT) - 1 : -1].float()  # [120, vocab]
        chosen = logits.gather(1, torch.tensor(session.tokens)[:, None]).squeeze(1)
        gaps = logits.max(1).values - chosen
        assert float(gaps.max()) <= 0.5
        assert float((gaps == 0).float().mean()) > 0.9
