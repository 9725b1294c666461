"""`check` on the tiny pair: it passes what is exact and fails what is not."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from draftgym.benchmark.exactness import CheckResult, CoveringController
from draftgym.benchmark.reference import Reference
from draftgym.clock import FakeClock
from draftgym.commands import check
from draftgym.decoder.config import PairConfig
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.rules.coupled import CoupledRule
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError
from draftgym.prompts import PromptSource, load_prompts
from tests.tiny import tiny_model, tiny_pair


class CharacterTokenizer:
    """Stands in for a tokenizer: characters folded into the tiny vocabulary."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) % 64 for character in text[:12]]}


@pytest.fixture
def pair() -> ModelPair:
    made = tiny_pair(max_depth=3)
    made.tokenizer = CharacterTokenizer()
    return made


def run(
    pair: ModelPair,
    drafters: Sequence[str] = ("ngram", "eagle3"),
    prompts: int = 5,
    rules: Sequence[str] = ("greedy",),
) -> CheckResult:
    return check.check_pair(
        pair,
        pair.config.drafter,
        Reference(tiny_model),
        load_prompts([PromptSource()], "test", prompts),
        tokens=60,
        drafters=drafters,
        rules=rules,
        seed=0,
        clock=FakeClock(),
    )


def test_last_line_has_the_promised_shape(
    pair: ModelPair, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(pair)
    status = check.report(result)
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["schema"] == "draftgym.check/1"
    assert set(line) == {
        "schema",
        "cells",
        "differing_tokens",
        "hf_differing_tokens",
        "near_ties",
        "ok",
    }
    assert [cell["drafter"] for cell in line["cells"]] == ["ngram", "eagle3"]
    for cell in line["cells"]:
        assert set(cell) == {
            "drafter",
            "rule",
            "temperature",
            "tokens",
            "rounds",
            "plain_rounds",
            "accepted",
            "cells_visited",
            "cells_total",
            "differing_tokens",
        }
        assert cell["rule"] == "greedy"
        # 59 tokens of rounds per prompt: the first of 60 comes from prefill, EOS is ignored.
        assert cell["tokens"] == 5 * 59
        assert cell["rounds"] + cell["accepted"] == cell["tokens"]
        assert cell["differing_tokens"] == 0
        assert cell["cells_visited"] == cell["cells_total"]
        assert cell["plain_rounds"] >= 1
        assert cell["accepted"] > 0
    assert [cell["cells_total"] for cell in line["cells"]] == [11, 44]
    assert line["differing_tokens"] == line["hf_differing_tokens"] == 0
    assert (status, line["ok"]) == (0, True)


def test_all_drafters_under_all_laws(pair: ModelPair) -> None:
    drafters = ("ngram", "eagle3", "lm", "hybrid")
    result = run(pair, drafters, 5, ("greedy", "coupled"))
    assert result.ok and not result.near_ties
    assert [(cell.rule, cell.temperature) for cell in result.cells[::4]] == [
        ("greedy", 0.0),
        *(("coupled", temperature) for temperature in (0.3, 0.7, 1.0, 1.3)),
    ]
    assert tuple(cell.drafter for cell in result.cells[:4]) == drafters


def test_noise_of_another_position_is_found(
    pair: ModelPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verification whose noise is off by one draws another text than plain sampling."""
    honest: Any = CoupledRule.scores

    def shifted(self: CoupledRule, logits: Any, start: int, chosen: Any) -> Any:
        return honest(self, logits, start if chosen is None else start + 1, chosen)

    monkeypatch.setattr(CoupledRule, "scores", shifted)
    result = run(pair, ["ngram"], rules=["coupled"])
    assert result.differing_tokens > 0 and not result.ok


def test_a_corrupted_token_is_found(pair: ModelPair, monkeypatch: pytest.MonkeyPatch) -> None:
    honest: Any = DecoderSession._cut

    def dishonest(self: DecoderSession, tokens: list[int]) -> list[int]:
        kept: list[int] = honest(self, tokens)
        if self.drafter is not None and len(self.tokens) == 30:
            kept[-1] = (kept[-1] + 1) % 64
        return kept

    monkeypatch.setattr(DecoderSession, "_cut", dishonest)
    result = run(pair, ["ngram"], prompts=6)
    assert result.differing_tokens > 0
    assert result.hf_differing_tokens == 0
    assert result.faults
    assert not result.ok
    assert check.report(result) == 1


def test_a_drafter_that_accepts_nothing_fails_the_check(
    pair: ModelPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "draftgym.decoder.rules.base.accepted_path", lambda tokens, parents, target: []
    )
    result = run(pair, ["ngram"])
    assert result.differing_tokens == 0
    assert result.cells[0].accepted == 0
    assert check.report(result) == 1


def test_too_few_rounds_to_request_every_cell_fail_the_check(pair: ModelPair) -> None:
    result = check.check_pair(
        pair,
        pair.config.drafter,
        Reference(tiny_model),
        load_prompts([PromptSource()], "test", 1),
        tokens=8,
        drafters=["eagle3"],
        rules=["greedy"],
        seed=0,
        clock=FakeClock(),
    )
    assert result.cells[0].cells_visited < result.cells[0].cells_total
    assert check.report(result) == 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--drafters", "oracle"], "--drafters: unknown 'oracle'; accepted: ngram, eagle3"),
        (["--rules", "rejection"], "--rules: unknown 'rejection'; accepted: greedy"),
        (["--drafters", ","], "--drafters: empty"),
        (["--prompts", "0"], "--prompts: must be at least 1"),
        (["--tokens", "1"], "--tokens: must be at least 2"),
    ],
)
def test_bad_options_are_refused_before_anything_loads(option: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check.main(option)


def test_main_checks_in_float32(
    pair: ModelPair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[PairConfig] = []

    def load(config: PairConfig) -> ModelPair:
        asked.append(config)
        return pair

    monkeypatch.setattr(check, "load_pair", load)
    monkeypatch.setattr(check, "reference_of", lambda loaded: Reference(tiny_model))
    assert check.main(["--prompts", "2", "--tokens", "24", "--drafters", "ngram"]) == 0
    assert [config.dtype for config in asked] == ["float32"]
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [cell["drafter"] for cell in line["cells"]] == ["ngram"]


def test_covering_controller_visits_every_cell_once_per_cycle() -> None:
    table = [(depth, size) for depth in range(3) for size in (0, 2, 4)]
    controller = CoveringController(table, seed=3)
    seen = []
    for _ in range(2 * len(table)):
        seen.append(controller._current)
        controller.observe(None)  # type: ignore[arg-type]
    assert sorted(seen[:9]) == sorted(seen[9:]) == sorted(table)
    assert seen[:9] != seen[9:]
