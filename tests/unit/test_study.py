"""Studies on traces: what varies, what is kept after a kill, what is refused, what is counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftgym.commands import study as command
from draftgym.commands.studies.on_traces import Arguments
from draftgym.configuration import load_yaml
from draftgym.console import Bar, QuietBar
from draftgym.costs.times import Float64Array
from draftgym.errors import ConfigurationError
from draftgym.features import FeatureLayout
from draftgym.state import MeasuredCosts
from draftgym.theory.fixed import fixed
from draftgym.theory.requests import request_totals
from draftgym.traces.config import TraceConfig
from draftgym.traces.store import TraceWriter
from draftgym.traces.trace import Trace
from policies.export import PolicyCard
from policies.feature_groups import feature_groups
from policies.study import StudyError, run_study, summary
from policies.variants import STUDIES, Setting, Variant
from tests.unit.test_bound import PAIR, table
from tests.unit.test_clairvoyant import random_trace
from tests.unit.test_learn import table_file
from tests.unit.test_learn import write as write_policy_trace

PROMPTS = 24
LAYOUT = FeatureLayout(max_depth=2, beam_width=2, size_grid=(0, 1, 2, 4))


def other_prompts(count: int = PROMPTS) -> Trace:
    trace = random_trace(9, (6,) * count)
    named = [replace(entry, prompt_id=f"test-{entry.prompt_id}") for entry in trace.sequences]
    return replace(trace, sequences=tuple(named))


def write_test_trace(folder: Path) -> str:
    trace = other_prompts()
    writer = TraceWriter(folder, trace.shape, {"fingerprint": PAIR, "split": "test"})
    writer.add(trace.sequences, {name: getattr(trace, name) for name in trace.shape.columns()})
    writer.finish({"context_limit": 2048, "provenance": {}})
    return str(folder)


def setting() -> Setting:
    trace = random_trace(3, (6,) * PROMPTS)
    return Setting(
        trace, other_prompts(), table(), LAYOUT, MeasuredCosts(), PolicyCard({}, {}, {}),
        2, (1, 2),
    )  # fmt: skip


def arguments(folder: Path, what: str = "networks") -> list[str]:
    if not (folder / "trace").exists():
        write_policy_trace(folder / "trace", PROMPTS)
        write_test_trace(folder / "test")
    return [
        what, "--trace", str(folder / "trace"), "--test-trace", str(folder / "test"), "--table",
        table_file(folder), "--output", str(folder / "out"), "--seeds", "2", "--steps", "3",
    ]  # fmt: skip


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments(tmp_path)) == 0
    captured = capsys.readouterr()
    line = json.loads(captured.out.splitlines()[-1])
    assert line["schema"] == "draftgym.study/1" and line["study"] == "networks"
    names = [row["name"] for row in line["variants"]]
    assert names == ["64 x 64", "linear", "16", "32 x 32", "128 x 128"]
    assert line["seeds"] == 2 and line["prompts"] == PROMPTS
    first = line["variants"][0]
    assert first["over_reference"] == {"ratio": 1.0, "ci95": [1.0, 1.0]}
    for row in line["variants"]:
        over = row["over_tuned"]
        assert row["ms_per_token"] * over["ratio"] == pytest.approx(line["tuned"]["ms_per_token"])
        assert len(over["per_seed"]) == 2 and set(row["domains"]) == {"code", "chat"}
        assert f"{row['name']:<9} {row['ms_per_token']:7.2f} ms" in captured.err
    stored = json.loads((tmp_path / "out" / "networks" / "result.json").read_text())
    assert stored["variants"] == line["variants"]


def counting(name: str, calls: list[tuple[str, int]], dies_at: int = -1) -> Variant:
    def seconds(setting: Setting, seed: int, bar: Bar) -> Float64Array:
        if len(calls) == dies_at:
            raise KeyboardInterrupt
        calls.append((name, seed))
        bar.advance(setting.steps)
        return np.full(len(setting.test.sequences), 1.0 + seed)

    return Variant(name, seconds)


def test_a_killed_study_goes_on_and_does_nothing_twice(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []
    with pytest.raises(KeyboardInterrupt):
        run_study(
            [counting(name, calls, dies_at=3) for name in "ab"], setting(), 2, tmp_path, {"a": 1}
        )
    assert calls == [("a", 0), ("b", 0), ("a", 1)]
    found = run_study([counting(name, calls) for name in "ab"], setting(), 2, tmp_path, {"a": 1})
    assert calls[3:] == [("b", 1)]
    assert [run[0] for run in found["b"]] == [1.0, 2.0]
    run_study([counting(name, calls) for name in "ab"], setting(), 3, tmp_path, {"a": 1})
    assert calls[4:] == [("a", 2), ("b", 2)], "more seeds are added to what is there"


def test_other_plans_and_damaged_results_are_refused(tmp_path: Path) -> None:
    variants = [counting("a", [])]
    run_study(variants, setting(), 1, tmp_path, {"steps": 1})
    with pytest.raises(StudyError, match=r"plan\.steps: it has 1, this is 2"):
        run_study(variants, setting(), 1, tmp_path, {"steps": 2})
    for damage in ('{"seconds": [1.0]}', '{"seconds": [null]}', "{}", "[", '{"seconds": "x"}'):
        (tmp_path / "a-0.json").write_text(damage)
        with pytest.raises(StudyError, match=r"a-0\.json.*remove it"):
            run_study(variants, setting(), 1, tmp_path, {"steps": 1})


def test_intervals_are_over_requests_and_means_over_seeds() -> None:
    base = setting()
    sequences = tuple(
        replace(entry, request_id=f"r{i // 4}", domain="one")
        for i, entry in enumerate(base.test.sequences)
    )
    mine = replace(base, test=replace(base.test, sequences=sequences))
    cell = fixed(mine.test, mine.times, *mine.cell)
    result = summary({"same": [cell, cell], "spread": [0.5 * cell, 1.5 * cell]}, mine)
    assert result["requests"] == PROMPTS // 4 and result["prompts"] == PROMPTS
    same, spread = result["variants"]
    assert same["over_tuned"]["ci95"] == [1.0, 1.0]
    assert spread["over_tuned"]["ratio"] == pytest.approx(1.0)
    assert spread["over_tuned"]["per_seed"] == pytest.approx([2.0, 2 / 3])
    totals = request_totals(mine.test, cell)
    assert totals.seconds.sum() == pytest.approx(cell.sum())
    assert (totals.tokens == 20).all()


def test_every_observation_is_in_one_group() -> None:
    groups = feature_groups(FeatureLayout())
    names = [name for group in groups.values() for name in group]
    assert sorted(names) == sorted(FeatureLayout().size_names)
    assert {"accepted_1", "mean_drafted", "rounds_seen"} <= set(groups["history"])
    assert {"expected_accepted_8", "frontier_score_1", "entropy"} <= set(groups["confidence"])
    assert {"depth", "uningested", "nodes"} <= set(groups["position"])
    assert groups["costs"] == ("draft_pass_over_plain", "verify_slope_over_plain")


def test_variants_differ_in_what_they_are_named_for() -> None:
    small = setting()
    quiet = QuietBar("", None)
    for study in ("objectives", "observations"):
        variants = STUDIES[study](small)
        seconds = {v.name: v.seconds(replace(small, steps=40), 0, quiet) for v in variants}
        reference = next(iter(seconds.values()))
        others = list(seconds.values())[1:]
        assert any(not np.array_equal(reference, other) for other in others), study
    assert next(v.name for v in STUDIES["objectives"](small)) == "time_to_go"


def test_traces_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    good = arguments(tmp_path)
    same = [str(tmp_path / "trace") if word == str(tmp_path / "test") else word for word in good]
    with pytest.raises(ConfigurationError, match="prompt 'prompt-0' is in"):
        command.main(same)
    swapped = [str(tmp_path / "test") if word == str(tmp_path / "trace") else word for word in good]
    with pytest.raises(ConfigurationError, match="made of the test split"):
        command.main(swapped)
    with pytest.raises(ConfigurationError, match="--seeds: must be 1 or more, got 0"):
        command.main([*good, "--seeds", "0"])


def test_default_folders_are_where_traces_are_put() -> None:
    configs = Path(__file__).parents[2] / "configs" / "trace"
    for name, expected in (("default", Arguments.trace), ("test", Arguments.test_trace)):
        assert load_yaml(configs / f"{name}.yaml", TraceConfig).output == expected
