"""Rejected tails proposed again: lossless, forgotten between sequences, refused by traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from draftgym.benchmark.config import EvaluateConfig
from draftgym.benchmark.reference import Reference
from draftgym.clock import FakeClock
from draftgym.decoder.config import DrafterConfig, PairConfig, SamplingConfig
from draftgym.decoder.controllers import FixedController, RandomController
from draftgym.decoder.drafters.base import Committed
from draftgym.decoder.drafters.growth import grow
from draftgym.decoder.drafters.rejoin import RejoinDrafter
from draftgym.decoder.rules import Rule
from draftgym.decoder.session import DecoderSession
from draftgym.decoder.tree import DraftTree
from draftgym.errors import ConfigurationError
from draftgym.prompts import Prompt
from draftgym.studies.rejoin import live
from draftgym.studies.rejoin.live import race, tune_depth
from draftgym.traces.collect import Tracer
from draftgym.traces.config import TraceConfig
from policies.config import TrainConfig
from tests.exactness.enumerated_session import (
    PROMPT,
    TREE,
    VOCAB,
    enumerate_law,
    largest_error,
)
from tests.exactness.poison import PoisonedSession
from tests.exactness.table import forced_first, random_table, text_law
from tests.tiny import tiny_pair
from tests.unit.test_hybrid import law, paths

SURVIVAL = (0.3, 0.2, 0.1)
CHAINS = {"reattach": SURVIVAL[:1], "candidates": SURVIVAL}
CPU = torch.device("cpu")


class ScriptedDrafter:
    """A chain whose token at each place of the sequence is written down, some of them wrong."""

    name, draws, feature_layers, context_limit = "scripted", False, (), 1 << 30

    def __init__(self, script: list[int], max_depth: int) -> None:
        self.script = script
        self.max_depth = self.max_nodes = max_depth

    def start(self, committed: Committed, rule: Rule) -> None:
        self._committed = committed

    @property
    def uningested(self) -> int:
        return 0

    def propose(self, tree: DraftTree, max_depth: int) -> None:
        """Nothing is free."""

    def expand(self, tree: DraftTree) -> None:
        place = len(self._committed.ids) + tree.passes
        token = self.script[place] if place < len(self.script) else 0
        log_probs = torch.full((1, 64), -9.0)
        log_probs[0, token] = -0.1
        grow(tree, log_probs, tree.frontier, tree.frontier_scores, 1)


def plain_text(pair: Any, prompt: list[int], budget: int, sequence: int = 0) -> list[int]:
    session = DecoderSession(pair, None, clock=FakeClock())
    session.start(prompt, budget, sequence)
    session.run(FixedController(0, 0))
    return session.tokens


def rejoined(pair: Any, mode: str, script: list[int] | None = None, depth: int = 6) -> Any:
    """A drafter that rejoins, over the pair's head or a script."""
    model = pair.new_drafter() if script is None else ScriptedDrafter(script, depth)
    return RejoinDrafter(model, CHAINS[mode], 0.5)


def wrong_at(text: list[int], places: set[int]) -> list[int]:
    """The true text but for a few places."""
    return [(token + 1) % 64 if i in places else token for i, token in enumerate(text)]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    chains=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=4),
    step=st.sampled_from([0.01, 0.5, 2.0]),
    passes=st.integers(0, 3),
    width=st.integers(1, 3),
)
def test_free_chains_and_a_model_make_one_tree(
    seed: int, chains: list[list[int]], step: float, passes: int, width: int
) -> None:
    free = {tuple(c[: i + 1]) for c in chains for i in range(len(c))}
    tree = DraftTree(len(free) + width + max(0, passes - 1) * width**2, CPU)
    tree.reset(torch.tensor(0))
    starts = [-0.3 * (i + 1) for i in range(len(chains))]
    tree.add_chains(
        chains,
        [[s - step * i for i in range(len(c))] for c, s in zip(chains, starts, strict=True)],
    )
    assert set(paths(tree)) == free and tree.size == tree.free == len(free)
    before = dict(zip(paths(tree), tree.scores[1 : tree.size + 1].tolist(), strict=True))
    expanded: list[tuple[int, ...]] = []
    for _ in range(passes):
        known = [(), *paths(tree)]
        frontier = [known[int(node)] for node in tree.frontier]
        assert [len(path) for path in frontier] == [tree.passes] * len(frontier)
        expanded += frontier
        log_probs = torch.stack([law(path, seed) for path in frontier])
        grow(tree, log_probs, tree.frontier, tree.frontier_scores, width)
    found = paths(tree)
    assert len(set(found)) == len(found), "one path is two nodes"
    score = {(): 0.0} | dict(zip(found, tree.scores[1 : tree.size + 1].tolist(), strict=True))
    seen = tree.ancestors[: tree.size + 1, : tree.size + 1]
    for node, path in enumerate(found, 1):
        above = {(), *(path[: i + 1] for i in range(len(path)))}
        shown = {((), *found)[i] for i in seen[node].nonzero()[:, 0].tolist()}
        assert shown == above and score[path] <= score[path[:-1]]
        model = score[path[:-1]] + float(law(path[:-1], seed)[path[-1]])
        if path not in free:
            assert score[path] == pytest.approx(model, abs=1e-5)
        elif path[:-1] in expanded:
            assert score[path] == pytest.approx(max(before[path], model), abs=1e-5)
        else:
            assert score[path] == before[path]
    for parent in expanded:
        assert sum(path[:-1] == parent and path not in free for path in found) == width


@pytest.mark.parametrize("mode", CHAINS)
def test_a_replaced_token_costs_one_round_and_no_pass(mode: str) -> None:
    """One wrong token in a right chain: its tail is kept in a round that drafts nothing."""
    pair = tiny_pair(1, "none", eos=frozenset())
    prompt = [3, 5, 7]
    text = prompt + plain_text(pair, prompt, 20)
    # Drafted: places 4 to 9, wrong at 6. Two accepted, the correction, then 7, 8, 9 again.
    drafter = rejoined(pair, mode, wrong_at(text, {6}))
    session = PoisonedSession(pair, drafter, clock=FakeClock())
    session.start(prompt, 20)
    first = session.step(FixedController(6, 6))
    second = session.step(FixedController(0, 32))
    assert (first.accepted, second.depth, second.accepted) == (2, 0, 3)
    assert second.tokens == tuple(text[7:11])
    counts = drafter.counts
    assert (counts.rejections, counts.escrows, counts.escrow_tokens) == (1, 1, 3)
    assert counts.recovered == 3 and counts.recovering == 1


@pytest.mark.parametrize("mode", CHAINS)
def test_nothing_is_carried_past_the_budget(mode: str) -> None:
    pair = tiny_pair(1, "none", eos=frozenset())
    prompt = [3, 5, 7]
    script = wrong_at(prompt + plain_text(pair, prompt, 20), {5})
    for left in range(1, 6):
        session = PoisonedSession(pair, rejoined(pair, mode, script), clock=FakeClock())
        session.start(prompt, 3 + left)  # the first round emits two tokens, the prefill one
        session.step(FixedController(6, 6))
        state = session.begin_round()
        deepest = int(session._tree.depths[1 : state.nodes + 1].max()) if state.nodes else 0
        assert (state.remaining_tokens, deepest) == (left, min(4, left - 1))
        session.end_round(32)


def test_only_candidates_recover_a_shifted_tail() -> None:
    """The draft holds a token too many: the tail is right once its front is left out."""
    pair = tiny_pair(5, "none", eos=frozenset())
    prompt = [3, 5, 7]
    text = prompt + plain_text(pair, prompt, 20)
    assert len(set(text[5:10])) > 3
    script = [*text[:6], (text[6] + 1) % 64, (text[7] + 1) % 64, *text[7:]]
    accepted = {}
    for mode in CHAINS:
        session = PoisonedSession(pair, rejoined(pair, mode, script), clock=FakeClock())
        session.start(prompt, 20)
        session.step(FixedController(6, 6))
        accepted[mode] = session.step(FixedController(0, 32)).accepted
    assert accepted == {"reattach": 0, "candidates": 2}


@pytest.mark.parametrize(
    ("mode", "temperature", "drafter", "width"),
    [
        ("reattach", 0.0, "eagle3", 1),
        ("candidates", 0.0, "lm", 1),
        ("candidates", 0.0, "eagle3", 3),
        ("reattach", 1.0, "lm", 1),
        ("candidates", 1.0, "eagle3", 1),
    ],
)
def test_text_is_plain_decodings(mode: str, temperature: float, drafter: Any, width: int) -> None:
    sampling = SamplingConfig(temperature=temperature)
    pair = tiny_pair(
        2,
        drafter,
        beam_width=width,
        max_depth=6,
        eos=frozenset(),
        sampling=sampling,
        draft_layers=1,
    )
    wrapped = rejoined(pair, mode)
    session = PoisonedSession(pair, wrapped, clock=FakeClock(), max_size=64)
    sizes = (0, 1, 2, 4, 8, 64)
    for sequence, controller in enumerate(
        [FixedController(6, 64), FixedController(6, 3), RandomController(1, 6, sizes)]
    ):
        session.start([9, 8, 7], 30, sequence)
        session.run(controller)
        assert session.tokens == plain_text(pair, [9, 8, 7], 30, sequence)
    assert wrapped.counts.carried > 0


@pytest.mark.parametrize("mode", CHAINS)
@pytest.mark.parametrize("size", [64, 2])
def test_ends_inside_what_is_carried(mode: str, size: int) -> None:
    """End of sequence, budget and context limit among carried tokens; sizes are clamped."""
    prompt = [3, 5, 7]
    whole = plain_text(tiny_pair(1, "none", eos=frozenset()), prompt, 20)
    text = prompt + whole
    script = wrong_at(text, {6, 12})
    for budget in range(1, 12, 2):
        pair = tiny_pair(1, "none", eos=frozenset())
        session = PoisonedSession(pair, rejoined(pair, mode, script), clock=FakeClock())
        session.start(prompt, budget)
        session.run(FixedController(6, size))
        assert (session.tokens, session.stop_reason) == (whole[:budget], "budget")
    ends = {token: whole.index(token) for token in whole}
    for token, first in list(ends.items())[1::2]:
        pair = tiny_pair(1, "none", eos=frozenset({token}))
        session = PoisonedSession(pair, rejoined(pair, mode, script), clock=FakeClock())
        session.start(prompt, 20)
        session.run(FixedController(6, size))
        assert (session.tokens, session.stop_reason) == (whole[: first + 1], "eos")
    for limit in range(8, 16, 2):
        pair = tiny_pair(1, "none", eos=frozenset(), context=limit)
        session = PoisonedSession(pair, rejoined(pair, mode, script), clock=FakeClock())
        session.start(prompt, 40)
        session.run(FixedController(6, size))
        assert (session.tokens, session.stop_reason) == (whole[: limit - 3], "context")


@pytest.mark.parametrize("mode", CHAINS)
@pytest.mark.parametrize("controller", ["deep", "pruned", "history", "confidence"])
def test_rejection_keeps_the_law(
    monkeypatch: pytest.MonkeyPatch, mode: str, controller: str
) -> None:
    """Every text's probability, enumerated through the session, is the target's."""
    wrapped: list[RejoinDrafter] = []

    def wrap(drafter: Any) -> RejoinDrafter:
        wrapped.append(RejoinDrafter(drafter, CHAINS[mode], 0.5))
        return wrapped[-1]

    target, draft = forced_first(random_table(1, VOCAB), PROMPT), random_table(2, VOCAB)
    law_, _ = enumerate_law(
        monkeypatch, controller, target, draft, TREE, tokens=5, width=1, wrap=wrap
    )
    assert sum(law_.values()) == pytest.approx(1, abs=1e-12)
    assert largest_error(law_, text_law(target, PROMPT, 5)) < 1e-6
    assert wrapped[0].counts.recovered > 0, "nothing was ever carried over"


@pytest.mark.parametrize("mode", CHAINS)
def test_nothing_is_carried_into_the_next_sequence(mode: str) -> None:
    pair = tiny_pair(1, "none", eos=frozenset())
    prompts = [3, 5, 7], [8, 1, 2]
    texts = [prompt + plain_text(pair, prompt, 20) for prompt in prompts]
    shared = rejoined(pair, mode, wrong_at(texts[0], {6}))
    session = PoisonedSession(pair, shared, clock=FakeClock())
    session.start(prompts[0], 20)
    assert session.step(FixedController(6, 6)).accepted == 2  # an escrow is waiting
    shared.model.script = wrong_at(texts[1], {5})
    fresh = PoisonedSession(pair, rejoined(pair, mode, wrong_at(texts[1], {5})), clock=FakeClock())
    for one in (session, fresh):
        one.start(prompts[1], 20)
    state = session.begin_round()
    assert state.nodes == 0
    session.end_round(0)
    fresh.step(FixedController(0, 0))
    rest = [one.run(FixedController(6, 32)) for one in (session, fresh)]
    assert rest[0] == rest[1] and session.tokens == texts[1][3:]


def test_configuration() -> None:
    for mode, chains in (("reattach", 1), ("candidates", 2)):
        drafter = DrafterConfig(
            kind="eagle3", rejoin=mode, rejoin_survival=(0.3, 0.2), max_depth=5, beam_width=1
        )
        pair = tiny_pair(0, "eagle3", beam_width=1, max_depth=5)
        pair.config = PairConfig(target="tiny", drafter=drafter)
        made = pair.new_drafter()
        assert isinstance(made, RejoinDrafter)
        assert made.max_nodes == 5 + sum((4, 3)[:chains])
        assert not isinstance(pair.new_drafter("eagle3"), RejoinDrafter)
        assert pair.fingerprint()["drafter_kind"] == f"eagle3+{mode}"
        assert DrafterConfig.model_validate(drafter.model_dump(mode="json")) == drafter
    # Older traces know nothing of the option, and their plans must still agree.
    assert not any("rejoin" in name for name in DrafterConfig(kind="eagle3").model_dump())


@pytest.mark.parametrize(
    ("drafter", "sampling", "message"),
    [
        ({"kind": "hybrid", "rejoin": "reattach"}, {}, "accepted kinds: eagle3, lm"),
        ({"kind": "ngram", "rejoin": "candidates"}, {}, "accepted kinds: eagle3, lm"),
        ({"kind": "eagle3", "rejoin": "bridge"}, {}, "'reattach' or 'candidates'"),
        ({"kind": "eagle3", "rejoin_survival": [0.5, 1.0]}, {}, "between 0 and 1"),
        (
            {"kind": "eagle3", "rejoin": "reattach", "beam_width": 1},
            {"temperature": 1.0, "rule": "rejection", "proposals": "drawn"},
            "not a fresh draw",
        ),
    ],
)
def test_refused_options(drafter: Any, sampling: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PairConfig.model_validate({"drafter": drafter, "sampling": sampling})


@pytest.mark.parametrize("mode", CHAINS)
def test_traces_refuse_it(mode: Any) -> None:
    pair = {"drafter": {"kind": "eagle3", "rejoin": mode}}
    refused = rf"pair\.drafter\.rejoin: '{mode}' cannot be traced: .* earlier rounds"
    with pytest.raises(ValidationError, match=refused):
        TraceConfig.model_validate({"pair": pair})
    with pytest.raises(ValidationError, match=refused):
        EvaluateConfig.model_validate({"pair": pair, "cells": [], "rules": ["fixed"]})
    with pytest.raises(ValidationError, match=r"pretraining\.enabled: .* without rejoin"):
        TrainConfig.model_validate({"pair": pair, "pretraining": {"enabled": True}})
    assert not TrainConfig.model_validate({"pair": pair}).pretrains
    tiny = tiny_pair(0, "eagle3")
    session = DecoderSession(tiny, tiny.new_drafter(), clock=FakeClock())
    with pytest.raises(ConfigurationError, match=r"drafter\.rejoin: .* no tree"):
        Tracer(session, rejoined(tiny, mode), (0, 4))


def no_model() -> Any:
    raise AssertionError("a text differs, so the reference was asked")


REFERENCE = Reference(no_model)


class Encoded:
    """Prompts of a pair without a tokenizer: the first turn is the ids."""

    def apply(self, pair: Any) -> Any:
        pair.tokenizer = self
        return pair

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}


def racing(count: int = 6) -> tuple[Any, list[Prompt]]:
    """A pair whose draft model is the target's first layer, and prompts, one in two languages."""
    pair = Encoded().apply(tiny_pair(2, "lm", eos=frozenset(), draft_layers=1))
    prompts = [
        Prompt(f"p{i}", f"r{max(1, i)}", "chat", "en", (f"{i + 3} {2 * i + 5} 7",), "test")
        for i in range(count + 1)
    ]
    return pair, prompts


def test_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, prompts = racing()
    options: Any = {"depth": 5, "short_depth": 1, "folder": tmp_path, "reference": REFERENCE}
    found = race(pair, prompts, 18, FakeClock(), **options)
    methods = found["methods"]
    assert list(methods)[:2] == ["plain", "chain D=5"] and len(methods) == 7
    assert (found["prompts"], found["requests"], found["identical"]) == (7, 6, 7)
    assert found["divergences"] == [] and found["faults"] == 0
    # A plain step takes 30 ms to verify and 0.1 ms to commit on this clock.
    assert methods["plain"]["ms_per_token"]["estimate"] == pytest.approx(30.1)
    assert methods["plain"]["tau_emitted"] == 1
    for name, row in methods.items():
        mine, chain = row["ms_per_token"]["estimate"], methods["chain D=5"]["ms_per_token"]
        assert row["over_chain"]["estimate"] == pytest.approx(chain["estimate"] / mine)
        assert row["speedup"]["estimate"] == pytest.approx(30.1 / mine)
        assert ("rejoin" in row) == ("reattach" in name or "candidates" in name)
    for name, most in (("reattach D=5 V=9", 4), ("candidates D=5 V=15", 10)):
        row, chain = methods[name], methods["chain D=5"]
        carried = row["rejoin"]
        assert 0 < carried["carried"] <= most * carried["escrows"]
        assert 0 < carried["recovered_tokens"] < carried["escrow_tokens"]
        assert row["verified_per_round"] > chain["verified_per_round"]
        returns = {key: value["estimate"] for key, value in carried["per_rejection"].items()}
        assert returns["recovered"] == pytest.approx(
            carried["recovered_tokens"] / carried["rejections"]
        )
        for value in carried["per_rejection"].values():
            low, high = value["ci95"]
            assert low <= value["estimate"] <= high
        assert np.ptp(carried["per_rejection"]["recovered"]["ci95"]) > 0
        # The two ways to say whether it pays agree, and both by hand from rounds and paces.
        assert (returns["net"] > returns["bar"]) == (row["over_chain"]["estimate"] > 1)
        rounds, before = row["rounds"], chain["rounds"]
        tokens = row["tau_emitted"] * rounds
        net = (tokens - rounds * tokens / before) / carried["rejections"]
        assert returns["net"] == pytest.approx(net)
        dearer = (row["ms_per_round"] - chain["ms_per_round"]) * rounds / carried["rejections"]
        assert returns["bar"] == pytest.approx(dearer / chain["ms_per_token"]["estimate"])

    def stopped(*_: Any) -> Any:
        raise AssertionError("measured again")

    monkeypatch.setattr("draftgym.decoder.session.DecoderSession.start", stopped)
    again = race(pair, prompts, 18, FakeClock(), **options)
    assert {**again, "load_per_core_before": 0} == {**found, "load_per_core_before": 0}


def test_race_goes_on_where_it_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, prompts = racing(2)
    options: Any = {"depth": 4, "short_depth": 1, "reference": REFERENCE}
    whole = race(pair, prompts, 8, FakeClock(), **options)["methods"]
    starts, start = [], DecoderSession.start

    def killed(session: DecoderSession, *rest: Any) -> None:
        starts.append(rest)
        if len(starts) == 7 + 7 * 2 + 3:  # warm-up, two blocks, a part of the third
            raise KeyboardInterrupt
        start(session, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(DecoderSession, "start", killed)
        with pytest.raises(KeyboardInterrupt):
            race(pair, prompts, 8, FakeClock(), folder=tmp_path, **options)
    with (tmp_path / "live_samples.jsonl").open("a") as file:
        file.write('{"torn')
    assert race(pair, prompts, 8, FakeClock(), folder=tmp_path, **options)["methods"] == whole


def test_a_race_that_goes_on_keeps_its_short_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, prompts = racing(1)
    tuned = tune_depth(pair, prompts, 12, FakeClock(), (1, 3), folder=tmp_path)
    other = FakeClock({**FakeClock.FIXED, "draft": 60e-3})
    monkeypatch.setattr(live, "run_blocks", lambda *_, **__: pytest.fail("measured again"))
    assert tune_depth(pair, prompts, 12, other, (1, 3), folder=tmp_path) == tuned


def test_the_short_chain_is_the_fastest_one() -> None:
    pair, prompts = racing(1)
    pair = replace(pair, draft_model=pair.target)  # whose drafts are all right
    assert tune_depth(pair, prompts, 12, FakeClock(), (1, 3)) == 3
    dear = FakeClock({**FakeClock.FIXED, "draft": 60e-3})
    assert tune_depth(pair, prompts, 12, dear, (1, 3)) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drafter": DrafterConfig(kind="ngram")}, "'ngram' drafts no chain"),
        ({"sampling": SamplingConfig(temperature=1.0, rule="rejection")}, "accepted: greedy"),
    ],
)
def test_race_refuses(changes: dict[str, Any], message: str) -> None:
    pair, prompts = racing(1)
    other = replace(pair, config=pair.config.model_copy(update=changes))
    with pytest.raises(ConfigurationError, match=message):
        race(other, prompts, 8, FakeClock(), reference=REFERENCE)
