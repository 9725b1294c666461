"""The `learn` verb: from a trace and a table to a policy that a decoder loads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from draftgym.commands import bound
from draftgym.commands import learn as command
from draftgym.costs.ratios import cost_ratios
from draftgym.costs.table import LatencyTable
from draftgym.errors import ConfigurationError
from draftgym.runtime import load
from draftgym.traces.store import TraceWriter
from tests.unit.test_bound import PAIR, table
from tests.unit.test_clairvoyant import random_trace
from tests.unit.test_information import SimpleTimes


def write(folder: Path, count: int = 24, split: str = "policy") -> str:
    trace = random_trace(3, (6,) * count)
    writer = TraceWriter(folder, trace.shape, {"fingerprint": PAIR, "split": split})
    writer.add(trace.sequences, {name: getattr(trace, name) for name in trace.shape.columns()})
    writer.finish({"context_limit": 2048, "provenance": {}})
    return str(folder)


def table_file(folder: Path) -> str:
    made = table()
    here = {"cpu": "x", "cores": 2, "threads": 2, "device": "cpu", "dtype": "float32"}
    made.fingerprint = {**made.fingerprint, **here}
    return str(made.save(folder / "latency.json"))


def test_a_policy_comes_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, file = write(tmp_path / "trace"), table_file(tmp_path)
    arguments = ["--trace", trace, "--table", file, "--output", str(tmp_path / "out")]
    assert command.main([*arguments, "--steps", "20"]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["schema"] == "draftgym.learn/1"
    assert len(line["held_out"]["curve"]) == 10
    best = max(line["held_out"]["curve"])
    assert best / 1.006 < line["held_out"]["over_tuned_cell"] <= best
    assert line["held_out"]["steps"] in range(2, 21, 2)
    controller = load(line["policy"], PAIR)
    assert controller.policy.training["method"] == "all-action"
    assert controller.policy.hardware["threads"] == 2
    assert controller.costs.draft_pass_over_plain > 0
    judged = ["--trace", trace, "--table", file, "--policy", line["policy"]]
    assert bound.main(judged) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["methods"]
    assert rows[-1]["method"].startswith("policy") and rows[-1]["ms_per_token"] > 0


def test_other_splits_and_too_few_prompts_are_refused(tmp_path: Path) -> None:
    file = table_file(tmp_path)
    test = write(tmp_path / "test", split="test")
    with pytest.raises(ConfigurationError, match="made of the test split"):
        command.main(["--trace", test, "--table", file])
    single = write(tmp_path / "single", count=1)
    arguments = ["--trace", single, "--table", file, "--output", str(tmp_path / "out")]
    with pytest.raises(ConfigurationError, match="none to hold out"):
        command.main(arguments)


def test_cost_ratios() -> None:
    costs = cost_ratios(SimpleTimes(), (0, 1, 2, 4), 100, max_depth=2)
    assert costs.draft_pass_over_plain == pytest.approx(0.1)
    assert costs.verify_slope_over_plain == pytest.approx(0.1)
    assert cost_ratios(SimpleTimes(), (0, 2), 100, max_depth=0).draft_pass_over_plain == 0.0
    assert np.isfinite(costs.verify_slope_over_plain)


def test_the_only_pass_of_a_round_is_priced_where_there_are_no_later_ones() -> None:
    made = table()
    single = {kind: part for kind, part in made.samples.items() if kind != "later"}
    times = LatencyTable(single, made.fingerprint, made.decision_seconds)
    costs = cost_ratios(times, (0, 1, 2, 4), 100, max_depth=1)
    assert costs.draft_pass_over_plain == pytest.approx(1.5 / 10.2)
