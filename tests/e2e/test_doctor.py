"""`doctor` on tiny pairs: every drafter, its line, its words, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from draftgym.clock import FakeClock
from draftgym.commands import doctor as command
from draftgym.decoder.config import PairConfig
from draftgym.decoder.pair import ModelPair
from draftgym.doctor import measure
from draftgym.errors import ConfigurationError
from tests.e2e.train_tiny import LetterTokenizer
from tests.tiny import tiny_pair


@pytest.fixture
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (command, measure):
        monkeypatch.setattr(module, "TOKENS", 24)


KEYS = {
    "verdict", "expected_speedup", "best_fixed", "draft_pass_over_plain", "verify_over_plain",
    "acceptance_by_position", "why", "advice", "seconds", "provenance",
}  # fmt: skip


def pair(kind: Literal["hybrid", "eagle3", "lm", "ngram"], **changes: Any) -> ModelPair:
    # No end of text: a random target may end at once, and then there is nothing to judge.
    made = tiny_pair(drafter=kind, eos=frozenset(), **changes)
    made.tokenizer = LetterTokenizer()
    return made


def examine(made: ModelPair, clock: FakeClock | None = None) -> dict[str, Any]:
    return command.doctor(made.config, 1, pair=made, clock=clock or FakeClock())


@pytest.mark.usefixtures("short_texts")
def test_a_random_head_does_not_pay_and_its_costs_are_the_clocks() -> None:
    found = examine(pair("eagle3"))
    assert found.keys() == KEYS
    assert found["verdict"] == "do not speculate"
    assert found["expected_speedup"]["high"] < 1
    assert found["draft_pass_over_plain"] == pytest.approx(2.05 / 30.1, rel=0.2)
    for size, cost in found["verify_over_plain"].items():
        assert cost == pytest.approx((30.1 + 0.5 * size) / 30.1, rel=0.01)
    assert found["acceptance_by_position"][0] < 0.5
    assert any("Acceptance too low" in line for line in found["advice"])
    assert found["seconds"] > 1


@pytest.mark.usefixtures("short_texts")
def test_the_target_as_its_own_drafter_is_measured_live_and_pays() -> None:
    found = examine(pair("lm", max_depth=4))
    assert found["verdict"] == "speculate"
    assert found["best_fixed"] == {"depth": 4, "size": 8}
    shares = found["acceptance_by_position"]
    assert len(shares) == 4 and shares == sorted(shares, reverse=True)
    # Its own best tokens are in the tree; only the end of the budget refuses some.
    assert shares[0] > 0.9 and found["expected_speedup"]["ratio"] > 2


@pytest.mark.usefixtures("short_texts")
def test_a_dear_drafter_is_refused_for_its_price() -> None:
    clock = FakeClock(fixed_seconds={**FakeClock.FIXED, "draft": 0.1})
    found = examine(pair("lm", max_depth=4), clock)
    assert found["verdict"] == "do not speculate"
    assert any("Drafter too slow" in line for line in found["advice"])


def test_look_ups_pay_where_the_target_repeats_itself() -> None:
    found = examine(pair("ngram", seed=1))
    assert found["verdict"] == "speculate"
    assert found["best_fixed"]["depth"] == 0 and found["draft_pass_over_plain"] == 0
    assert "Drafting takes no pass" in found["why"][1]


@pytest.mark.usefixtures("short_texts")
def test_a_hybrid_drafter_is_judged_with_and_without_passes() -> None:
    found = examine(pair("hybrid"))
    assert found["draft_pass_over_plain"] == pytest.approx(2.05 / 30.1, rel=0.2)
    assert found["best_fixed"]["depth"] == 0  # the head is random
    assert "passes would not pay even if they were free" in found["why"][1]


def test_the_command_prints_words_then_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def load(config: PairConfig) -> ModelPair:
        seen.append(config)
        return pair("ngram")

    monkeypatch.setattr(command, "load_pair", load)
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump({"target": "tiny", "drafter": {"kind": "ngram"}}))
    assert command.main(["--pair", str(file), "--seconds", "1"]) == 0
    captured = capsys.readouterr()
    line = json.loads(captured.out)
    assert line["schema"] == "draftgym.doctor/1"
    assert line.keys() == KEYS | {"schema"}
    assert seen[0].target == "tiny"
    said = captured.err.splitlines()
    assert any("plain decoding" in part and "95% range" in part for part in said)
    assert [f"  - {reason}" for reason in line["why"]] == [
        part for part in said if part[4:] in line["why"]
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seconds", "0"], "--seconds: must be at least 1"),
        (["--seconds", "nan"], "--seconds: must be at least 1"),
        (["--seed", "-1"], "--seed: must not be negative"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        command.main(arguments)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"drafter": {"kind": "none"}}, r"drafter\.kind: 'none' never speculates"),
        ({"sampling": {"temperature": 1.0, "rule": "rejection"}}, "rejection"),
        ({"nothing": 1}, "nothing: unknown field"),
    ],
)
def test_wrong_pairs_are_refused_before_anything_loads(
    content: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "load_pair", lambda _: pytest.fail("loaded"))
    file = tmp_path / "pair.yaml"
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigurationError, match=message):
        command.main(["--pair", str(file)])


def test_a_context_too_small_for_the_prompts_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"context_limit_tokens: 0 bundled prompts"):
        examine(pair("ngram", context=64))
