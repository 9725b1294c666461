"""Known ways of losing the law, each planted in the real code, each seen by the enumeration."""

from __future__ import annotations

import inspect
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

import pytest

from draftgym.decoder.rules import base, chain, rejection
from draftgym.decoder.rules.chain import ChainRejectionRule
from draftgym.decoder.rules.rejection import RejectionRule
from draftgym.decoder.session import DecoderSession
from tests.exactness.enumerated_session import (
    CHAIN,
    PROMPT,
    TREE,
    VOCAB,
    Reader,
    enumerate_law,
    largest_error,
)
from tests.exactness.table import TableCache, forced_first, random_table, text_law

SEEN = 1e-3


@dataclass(frozen=True)
class Edit:
    """Replaces a piece of a function's text; that it no longer occurs there is an error."""

    owner: Any
    name: str
    old: str
    new: str

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        function = getattr(self.owner, self.name)
        text = textwrap.dedent(inspect.getsource(function))
        assert text.count(self.old) == 1, f"{self.old!r} is not in {self.name} once"
        code = "from __future__ import annotations\n" + text.replace(self.old, self.new)
        made: dict[str, Any] = {}
        # The module's own names, so that its noise can still be replaced afterwards.
        exec(code, vars(sys.modules[function.__module__]), made)
        patch.setattr(self.owner, self.name, made[self.name])


VERIFY = (ChainRejectionRule, "verify")
DRAW = (ChainRejectionRule, "draw")
CORRECT, RESIDUAL = (chain, "correct"), (chain, "residual")
CHAIN_FAULTS = {
    "q of another temperature": Edit(
        *DRAW, ".append((log_q, ids))", ".append(((2 * log_q).log_softmax(-1), ids))"
    ),
    "argmax scored with softmax q": Edit(
        *DRAW, "return noise.add_(log_q).argmax(-1)", "return log_q.argmax(-1)"
    ),
    "correction drawn from p": Edit(*RESIDUAL, "(p - q)", "p.clone()"),
    "residual not renormalised": Edit(
        *RESIDUAL,
        "return torch.where",
        "rest[:, -1] += 1 - rest.sum(-1)\n    return torch.where",
    ),
    "residual of p / q": Edit(*RESIDUAL, "(p - q)", "(p / 2)"),
    "bonus from a used row": Edit(*CORRECT, ", p[-1:]))", ", p[-2:-1]))"),
    "everything accepted": Edit(*CORRECT, ".log() <= ratio", ".log() <= ratio.clamp_min(0)"),
    "accepted with p": Edit(
        *CORRECT, "ratio = (log_p[:-1].gather(1, column) - log_q.gather(1, column))[:, 0]",
        "ratio = log_p[:-1].gather(1, column)[:, 0]",
    ),
}  # fmt: skip
TREE_FAULTS = {
    "bonus from a used row": Edit(
        base, "follow", "path[-1] if path else 0", "path[-2] if len(path) > 1 else 0"
    ),
    "warped twice": Edit(
        RejectionRule, "verify", "(logits, self._sampling)", "(2 * logits, self._sampling)"
    ),
    "stale cache entries": Edit(TableCache, "compact", "start + slot] for slot", "start] for slot"),
}


def chain_error(monkeypatch: pytest.MonkeyPatch, controller: str | Reader = "deep") -> float:
    target, draft = forced_first(random_table(3, VOCAB), PROMPT), random_table(4, 2)
    law, _ = enumerate_law(monkeypatch, controller, target, draft, CHAIN, draft_vocab=2)
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    return largest_error(law, text_law(target, PROMPT, 4))


def tree_error(monkeypatch: pytest.MonkeyPatch) -> float:
    target, draft = random_table(1, VOCAB), random_table(2, VOCAB)
    law, _ = enumerate_law(monkeypatch, "deep", target, draft, TREE, width=2)
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    return largest_error(law, text_law(target, PROMPT, 4))


def test_without_a_fault_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        assert chain_error(patch) < 1e-6
    assert tree_error(monkeypatch) < 1e-6


@pytest.mark.parametrize("name", CHAIN_FAULTS)
def test_faults_of_the_drawn_chain(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    CHAIN_FAULTS[name].plant(monkeypatch)
    assert chain_error(monkeypatch) > SEEN


@pytest.mark.parametrize("name", TREE_FAULTS)
def test_faults_of_the_tree(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    TREE_FAULTS[name].plant(monkeypatch)
    monkeypatch.setattr(rejection, "follow", base.follow)
    assert tree_error(monkeypatch) > SEEN


def discard_draws(patch: pytest.MonkeyPatch) -> None:
    """Verify as many drawn tokens as the controller likes and forget the others."""
    Edit(
        DecoderSession,
        "end_round",
        "self._tree.size if self.rule.draws_proposals else size",
        "size",
    ).plant(patch)
    Edit(*VERIFY, "self._proposed, []", "self._proposed[: len(log_p) - 1], []").plant(patch)


def test_a_discarded_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    discard_draws(monkeypatch)
    assert chain_error(monkeypatch, "confidence") > SEEN


def test_discarding_unlikely_draws_as_worked_out_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """With p = (.4, .6) and q = (.6, .4), dropping draws with low q gives (.56, .44)."""
    target = forced_first(lambda prefix: (0.4, 0.6), PROMPT)

    def second_token() -> tuple[float, float]:
        likely = Reader(
            lambda session, state: state.depth == 0,
            lambda session, state: sum(
                score > -0.7 for score in state.read_confidence().node_scores
            ),
        )
        with monkeypatch.context() as patch:
            law, _ = enumerate_law(
                patch, likely, target, lambda prefix: (0.6, 0.4), CHAIN, 3, vocab=2
            )
        shares = [sum(w for text, w in law.items() if text[1] == token) for token in range(2)]
        return shares[0], shares[1]

    assert second_token() == pytest.approx((0.4, 0.6), abs=1e-6)
    discard_draws(monkeypatch)
    assert second_token() == pytest.approx((0.56, 0.44), abs=1e-6)


def test_a_correction_with_the_noise_of_its_proposal(monkeypatch: pytest.MonkeyPatch) -> None:
    Edit(*VERIFY, "stream=self._fresh()", "stream=self._streams").plant(monkeypatch)
    with pytest.raises(AssertionError, match="decides twice"):
        chain_error(monkeypatch)


def test_a_path_through_two_nodes_of_one_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    Edit(base, "accepted_path", "parents[slot] == current and ", "").plant(monkeypatch)
    with pytest.raises(AssertionError, match="decides twice"):
        tree_error(monkeypatch)
