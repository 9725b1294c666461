"""`study cost`: formulas at known values, logs of chains, predictions against a simulated clock."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from draftgym.benchmark.samples import SampleStore
from draftgym.clock import FakeClock
from draftgym.commands import _inputs, calibrate, trace
from draftgym.commands import study as command
from draftgym.commands.studies import cost
from draftgym.decoder.config import PairConfig
from draftgym.decoder.pair import ModelPair
from draftgym.errors import ConfigurationError
from draftgym.studies.cost.joint import (
    Text,
    equal_means,
    joint_acceptance,
    rounds_walked,
    runs,
    texts_of,
    walk,
)
from draftgym.studies.cost.predict import FOLLOWED, FORMULA
from draftgym.studies.cost.values import known_values, table
from draftgym.theory.chain_cost import (
    chain_costs,
    emitted,
    expected_tokens,
    longest_that_pays,
    operations,
    pays,
    powers,
)
from draftgym.traces.trace import ABSENT
from tests.e2e.train_tiny import LetterTokenizer
from tests.tiny import tiny_pair
from tests.unit.traces import make_trace


@pytest.mark.parametrize("known", known_values(), ids=lambda known: known.name)
def test_known_values(known: object) -> None:
    assert known.ok, known  # type: ignore[attr-defined]


def test_the_closed_form_is_the_sum_and_the_simulation() -> None:
    for alpha, gamma in product((0.0, 0.3, 0.9, 1.0), (0, 1, 6)):
        summed = emitted(powers(alpha, gamma))[-1]
        assert expected_tokens(alpha, gamma) == pytest.approx(summed)
    random = np.random.default_rng(0)
    rounds = np.logical_and.accumulate(random.random((100_000, 6)) < 0.7, axis=1).sum(1) + 1
    spread = rounds.std() / np.sqrt(len(rounds))
    assert abs(rounds.mean() - expected_tokens(0.7, 6)) < 4 * spread


def test_the_marginal_rule_finds_the_best_draft() -> None:
    assert len(table()) == 6 and all(len(row["speed"]) == 16 for row in table())
    for row in table():
        assert row["stops_at"] == row["best"], row
    # A pass of the target that grows with the draft ends it sooner.
    joint = powers(0.7, 16)
    rising = chain_costs(0.05, 16, (1 + 0.1 * np.arange(17)).tolist())
    assert longest_that_pays(joint, rising) == int((emitted(joint) / rising).argmax()) < 6
    assert longest_that_pays(powers(0.0, 4), chain_costs(0.05, 4)) == 0
    assert pays(powers(1.0, 4), chain_costs(0.05, 4)).all()


def test_operations_grow_with_what_is_thrown_away() -> None:
    assert operations(1.0, 5, 0.0) == pytest.approx(1.0)  # nothing is
    assert operations(0.0, 5, 0.1) == pytest.approx(6.5)  # everything but one token is
    with pytest.raises(ValueError, match="alpha: must be 0 to 1"):
        operations(1.5, 5, 0.0)


def chain_rows(kept: list[list[int]], deepest: int) -> list[list[list[int]]]:
    """Ranks of a chain's trace in which position i keeps kept[i] tokens of the deepest draft."""
    return [
        [
            [place if place < min(level, count) else int(ABSENT) for place in range(deepest)]
            for level in range(deepest + 1)
        ]
        for text in kept
        for count in text
    ]


def test_logs_are_read_off_a_trace() -> None:
    kept = [[2, 0, 1, 1, 0], [1, 2, 1]]
    made = make_trace(chain_rows(kept, 2), (6, 4), beam_width=1, size_grid=(0, 1, 2))
    first, second = texts_of(made)
    # Of 6 tokens, rows 1 to 3 have more than two still to come, and the hits reach one further.
    assert first.chain.tolist() == [2, 0, 1] and first.hits.tolist() == [True, False, True, True]
    assert second.chain.tolist() == [1] and second.hits.tolist() == [True, True]
    assert runs(first.hits, 2).tolist() == [1, 0, 2]
    with pytest.raises(ValueError, match="beam_width"):
        texts_of(make_trace(chain_rows(kept, 2), (6, 4)))


def test_a_walk_goes_from_round_to_round() -> None:
    kept = np.array([2, 0, 1, 1, 0])
    assert walk(kept, 2) == (5, 2)  # from 0 to 3, from there past the end
    assert walk(kept, 1) == (5, 3)  # from 0 to 2, to 4, and past the end


def texts_with(hits: list[str], longest: int) -> list[Text]:
    """Texts whose chains keep every run of hits."""
    found = []
    for index, text in enumerate(hits):
        array = np.array([letter == "1" for letter in text])
        found.append(Text(f"request-{index}", runs(array, longest), array))
    return found


def test_joint_acceptance_beside_powers_of_the_mean() -> None:
    # Hits in runs of three: after one, another is likelier than the mean.
    joint = joint_acceptance(texts_with(["111000" * 20, "000111" * 20] * 4, 3), 3)
    assert joint.mean == pytest.approx(0.5, abs=0.01)
    assert joint.chain[2].estimate > 1.3 * joint.power[2].estimate
    assert joint.chain_over_power[0].estimate == pytest.approx(1.0)
    assert joint.chain_over_power[2].low > 1.0
    assert [share.estimate for share in joint.hits] == joint.prefix.tolist()
    # Hits that alternate: never two in a row, so a constant mean promises too much.
    other = joint_acceptance(texts_with(["10" * 60, "01" * 60] * 4, 3), 3)
    assert other.prefix[1] == 0 and other.chain_over_power[1].high < 1.0


def test_equal_means_different_lengths() -> None:
    texts = texts_with(["1" * 90 + "0" * 10, "10" * 50], 6)
    found = equal_means(texts, [1, 6], 6)
    assert found.mean == pytest.approx(0.7)
    assert found.formula[1] == pytest.approx(3.058819)
    assert found.over_texts[1].estimate == pytest.approx(found.formula[1], rel=0.03)
    # A text of .9 and one of .5, apart from each other: fewer tokens, as worked out by hand.
    within = found.within_texts[1]
    assert within.estimate == pytest.approx(2.875146, rel=0.03)
    assert within.low < within.estimate < within.high < found.over_texts[1].high
    # 13 rounds of 7 and 4 of a single token; 48 of 2.
    assert found.in_order[1] == pytest.approx((13 * 7 + 4 + 48 * 2) / (17 + 48))
    assert rounds_walked(texts, 6)[0].estimate == 1.0


def pair_of(config: PairConfig) -> ModelPair:
    """A tiny pair with the configured limits, whose texts never end early."""
    drafter = config.drafter
    pair = tiny_pair(
        beam_width=drafter.beam_width, max_depth=drafter.max_depth, eos=frozenset(), context=1024
    )
    pair.config = config
    pair.tokenizer = LetterTokenizer()
    return pair


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of a study of a tiny pair on a simulated clock."""
    monkeypatch.setattr(_inputs, "load_pair", pair_of)
    monkeypatch.setattr(_inputs, "calibrate", partial(calibrate.calibrate, rounds=8, prompts=4))
    for module in (calibrate, trace, cost):
        monkeypatch.setattr(module, "WallClock", lambda device="cpu": FakeClock())
    monkeypatch.chdir(tmp_path)
    return ["cost", "--prompts", "4", "--tokens", "24", "--lengths", "1", "3", "--output", "out"]


def test_predictions_meet_a_simulated_clock(
    study: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.main(study) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["schema"] == "draftgym.study.cost/1" and line["ok"] and line["missed"] == []
    measured = line["measured"]
    errors = measured["errors"]
    assert errors[FOLLOWED]["worst_abs_error_pct"] < 2.0
    assert errors[FORMULA]["worst_abs_error_pct"] > 2.5
    assert measured["live"]["3"]["low"] <= measured["live"]["3"]["estimate"]
    told = measured["live_rounds"]["3"]
    assert told["cost"] == pytest.approx(measured["costs"]["rounds"][3], rel=0.05)
    assert told["tokens"] / told["cost"] == pytest.approx(measured["live"]["3"]["estimate"])
    stored = json.loads(Path("out/cost/result.json").read_text())
    assert stored["measured"] == measured
    assert all(Path(plot).read_bytes()[:4] == b"\x89PNG" for plot in measured["plots"].values())

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("done twice")

    # Given again, it takes what it kept.
    monkeypatch.setattr(cost, "make_trace", refused)
    monkeypatch.setattr(SampleStore, "append", refused)
    assert command.main(study) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["measured"]["live"] == measured["live"]


def test_the_formulas_alone_need_no_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("loaded a pair")

    monkeypatch.setattr(_inputs, "load_pair", refused)
    missed = replace(known_values()[0], expected=3.0)
    for values, status in (known_values(), 0), ([missed], 1):
        monkeypatch.setattr(cost, "known_values", lambda values=values: values)
        assert command.main(["cost", "--prompts", "0", "--output", str(tmp_path)]) == status
        line = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert line["ok"] is (status == 0) and len(line["measured"]["table"]) == 6
    assert [entry.name for entry in tmp_path.iterdir()] == ["cost-formulas"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompts", "1"], "--prompts: must be at least 2"),
        (["--lengths", "9"], "--lengths: must be 1 to 8"),
        (["--lengths", "2", "2"], "--lengths: repeats"),
        (["--tokens", "9"], "--tokens: must be at least 10"),
    ],
)
def test_what_cannot_be_studied_is_refused(options: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        command.main(["cost", *options])


def test_a_pair_without_a_head_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pair.yaml"
    file.write_text("drafter: {kind: ngram}\n")
    with pytest.raises(ConfigurationError, match=r"--pair: .*eagle3 or hybrid"):
        command.main(["cost", "--pair", str(file)])
