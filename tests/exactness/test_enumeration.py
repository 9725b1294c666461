"""The whole output law, enumerated through the session, equals the target's."""

from __future__ import annotations

from typing import Any

import pytest

from draftgym.decoder.config import SamplingConfig
from tests.exactness.enumerate import Law
from tests.exactness.enumerated_session import (
    CHAIN,
    CONTROLLERS,
    PROMPT,
    TREE,
    VOCAB,
    enumerate_law,
    largest_error,
)
from tests.exactness.table import forced_first, random_table, text_law

TOLERANCE = 1e-6


def expect_exact(law: Law, wanted: Law) -> None:
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert sum(wanted.values()) == pytest.approx(1, abs=1e-12)
    assert largest_error(law, wanted) < TOLERANCE


@pytest.mark.parametrize("name", CONTROLLERS)
@pytest.mark.parametrize("width", [2, 3])
def test_trees_keep_the_law(monkeypatch: pytest.MonkeyPatch, width: int, name: str) -> None:
    target, draft = random_table(1, VOCAB), random_table(2, VOCAB)
    law, records = enumerate_law(monkeypatch, name, target, draft, TREE, width=width)
    expect_exact(law, text_law(target, PROMPT, 4))
    assert name == "plain" or max(record.depth for record in records) >= 1


@pytest.mark.parametrize("name", CONTROLLERS)
def test_drawn_chains_keep_the_law(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    target, draft = forced_first(random_table(3, VOCAB), PROMPT), random_table(4, 3, holes=0.1)
    # The drafter knows three ids: the target's last one is never proposed.
    law, records = enumerate_law(monkeypatch, name, target, draft, CHAIN, draft_vocab=3)
    expect_exact(law, text_law(target, PROMPT, 4))
    assert all(record.size == record.depth for record in records), "a drawn token was discarded"


@pytest.mark.parametrize(("width", "sampling"), [(2, TREE), (1, CHAIN)])
def test_every_depth_size_and_acceptance_occurs(
    monkeypatch: pytest.MonkeyPatch, width: int, sampling: SamplingConfig
) -> None:
    target, draft = random_table(1, VOCAB), random_table(2, 3)
    if sampling is CHAIN:
        target = forced_first(target, PROMPT)
    _, records = enumerate_law(
        monkeypatch, "history", target, draft, sampling, width=width, draft_vocab=3
    )
    assert {record.depth for record in records} == {0, 1, 2}
    assert {record.accepted for record in records} == {0, 1, 2}
    assert {record.size for record in records} >= {0, 1, 2}


@pytest.mark.parametrize("sampling", [TREE, CHAIN])
@pytest.mark.parametrize("name", ["even token", "confidence"])
def test_ids_of_a_reduced_vocabulary(
    monkeypatch: pytest.MonkeyPatch, sampling: SamplingConfig, name: str
) -> None:
    target, draft = forced_first(random_table(5, VOCAB), PROMPT), random_table(6, 2)
    width = 1 if sampling is CHAIN else 2
    law, _ = enumerate_law(
        monkeypatch, name, target, draft, sampling, width=width, draft_ids=(3, 1)
    )
    expect_exact(law, text_law(target, PROMPT, 4))


@pytest.mark.parametrize("proposals", ["best", "drawn"])
@pytest.mark.parametrize("temperature", [0.6, 1.4])
def test_temperature_and_a_stop_inside_the_block(
    monkeypatch: pytest.MonkeyPatch, temperature: float, proposals: Any
) -> None:
    sampling = SamplingConfig(temperature=temperature, rule="rejection", proposals=proposals)
    eos = frozenset({1})
    target, draft = forced_first(random_table(7, VOCAB), PROMPT), random_table(8, VOCAB, holes=0.3)
    law, _ = enumerate_law(
        monkeypatch, "even token", target, draft, sampling, eos=eos,
        width=1 if proposals == "drawn" else 2,
    )  # fmt: skip
    expect_exact(law, text_law(target, PROMPT, 4, temperature=temperature, eos=eos))


@pytest.mark.parametrize("proposals", ["best", "drawn"])
def test_removed_tokens_stay_removed(monkeypatch: pytest.MonkeyPatch, proposals: Any) -> None:
    """Top-k 2 on both laws: q proposes what p has removed, and lacks what p has kept."""
    sampling = SamplingConfig(temperature=1.0, top_k=2, rule="rejection", proposals=proposals)
    target, draft = random_table(9, VOCAB), random_table(10, VOCAB)

    def kept(prefix: tuple[int, ...]) -> tuple[float, ...]:
        law = target(prefix)
        edge = sorted(law)[-2]
        best = [share if share >= edge else 0.0 for share in law]
        return tuple(share / sum(best) for share in best)

    law, _ = enumerate_law(
        monkeypatch, "confidence", target, draft, sampling, width=1 if proposals == "drawn" else 3
    )
    expect_exact(law, text_law(kept, PROMPT, 4))
