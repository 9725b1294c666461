"""Verbs without paths: the newest fitting trace and table, or new ones; given paths as they are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from draftgym.commands import _inputs as command
from draftgym.commands import learn
from draftgym.commands._inputs import Inputs
from draftgym.configuration import load_yaml
from draftgym.costs.find import newest_table
from draftgym.costs.fingerprint import fingerprint
from draftgym.costs.table import LatencyTable
from draftgym.decoder.config import PairConfig, SamplingConfig
from draftgym.errors import ConfigurationError
from draftgym.runtime import load
from draftgym.traces.config import TraceConfig
from draftgym.traces.find import fits, newest_trace
from draftgym.traces.store import TraceWriter, load_trace
from policies.config import TrainConfig
from tests.tiny import tiny_pair
from tests.unit.test_bound import table as small_table
from tests.unit.test_clairvoyant import random_trace

PAIR = tiny_pair(drafter="hybrid")
CONFIG = load_yaml(command.DEFAULT_CONFIG, TrainConfig)


def write_trace(folder: Path, age: int, split: str = "policy", **changes: Any) -> Path:
    """A small trace that says it is of the default plan."""
    plan = TraceConfig(split=split).plan(PAIR.fingerprint())  # type: ignore[arg-type]
    trace = random_trace(3, (6,) * 24)
    writer = TraceWriter(folder, trace.shape, {**plan, **changes})
    writer.add(trace.sequences, {name: getattr(trace, name) for name in trace.shape.columns()})
    writer.finish({"context_limit": 2048, "provenance": {}})
    return aged(folder / "manifest.json", age).parent


def write_table(folder: Path, age: int, **changes: Any) -> Path:
    """A small table that says it was measured here."""
    here = fingerprint(PAIR.fingerprint(), PAIR.device, PAIR.dtype, torch.get_num_threads())
    made = small_table()
    kept = LatencyTable(made.samples, {**here, **changes}, made.decision_seconds)
    return aged(kept.save(folder / "latency.json"), age)


def aged(file: Path, age: int) -> Path:
    os.utime(file, (1e9 - age, 1e9 - age))
    return file


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Pairs loaded; making anything is an error unless a test allows it."""
    loaded: list[object] = []

    def load_pair(config: object) -> object:
        loaded.append(config)
        PAIR.config = config  # type: ignore[assignment]
        return PAIR

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("made anew")

    before = PAIR.config
    monkeypatch.setattr(command, "load_pair", load_pair)
    monkeypatch.setattr(command, "make_trace", refused)
    monkeypatch.setattr(command, "calibrate", refused)
    monkeypatch.setattr(PAIR, "config", before)
    return loaded


def test_the_newest_fitting_trace(tmp_path: Path) -> None:
    plan = TraceConfig().plan(PAIR.fingerprint())
    assert newest_trace(tmp_path, plan) is None
    write_trace(tmp_path / "old", age=9)
    within = write_trace(tmp_path / "run" / "trace", age=5)
    write_trace(tmp_path / "other-split", age=1, split="test")
    write_trace(tmp_path / "other-pair", age=1, fingerprint={"target": "big"})
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    unfinished = tmp_path / "unfinished"
    TraceWriter(unfinished, load_trace(within).shape, plan)
    assert newest_trace(tmp_path, plan) == within
    assert not fits(unfinished, plan)
    fewer = write_trace(tmp_path / "fewer", age=3, count=24)
    assert newest_trace(tmp_path, plan) == within
    assert newest_trace(tmp_path, {"split": "policy", "pair": plan["pair"]}) is not None
    assert newest_trace(tmp_path, {k: v for k, v in plan.items() if k != "count"}) == fewer


@pytest.mark.parametrize(
    "change",
    [
        {"threads": 77},
        {"dtype": "bfloat16"},
        {"versions": {"torch": "1.0"}},
        {"pair": {"target": "big"}},
    ],
)
def test_the_newest_table_of_this_machine(tmp_path: Path, change: dict[str, Any]) -> None:
    here = fingerprint(PAIR.fingerprint(), PAIR.device, PAIR.dtype, torch.get_num_threads())
    write_table(tmp_path / "elsewhere", 1, **change)
    assert newest_table(tmp_path, here) is None
    write_table(tmp_path / "old", 9)
    newer = write_table(tmp_path / "new", 5)
    aged(write_table(tmp_path / "damaged", 2), 2).write_text("[]")
    assert newest_table(tmp_path, here) == newer


def test_given_paths_are_taken_as_they_are(tmp_path: Path, loads: list[object]) -> None:
    trace = write_trace(tmp_path / "trace", age=0)
    write_table(tmp_path / "calibration", 0)
    inputs = Inputs(tmp_path)
    assert inputs.trace("nowhere", "policy") == "nowhere"
    assert inputs.table("no.json", load_trace(trace)) == "no.json"
    assert loads == []


def test_what_is_there_is_taken_and_said(
    tmp_path: Path, loads: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(tmp_path / "few", age=0, count=24)  # any number of prompts
    write_trace(tmp_path / "short", age=0, max_new_tokens=48)
    test = write_trace(tmp_path / "trace-test", age=0, split="test")
    file = write_table(tmp_path / "default", 0)
    inputs = Inputs(tmp_path)
    assert inputs.trace(None, "policy") == str(tmp_path / "few")
    assert inputs.trace(None, "test") == str(test)
    short = inputs.trace(None, "policy", count=999, max_new_tokens=48)
    assert short == str(tmp_path / "short")
    assert inputs.table(None, load_trace(test)) == str(file)
    assert inputs.pair(CONFIG.pair) is PAIR
    assert len(loads) == 1, "the pair is loaded once"
    said = capsys.readouterr().err
    for path in (tmp_path / "few", test, file):
        assert str(path) in said


def test_what_is_missing_is_made(
    tmp_path: Path,
    loads: list[object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made: list[tuple[object, ...]] = []

    def make_trace(config: TraceConfig, folder: Path, *, pair: object) -> None:
        made.append((config.split, config.count, config.max_new_tokens, pair))
        write_trace(folder, 0, split="test")

    def calibrate(config: TrainConfig, folder: Path, *, pair: object) -> None:
        assert (config, pair) == (CONFIG, PAIR)
        write_table(folder, 0)

    monkeypatch.setattr(command, "make_trace", make_trace)
    monkeypatch.setattr(command, "calibrate", calibrate)
    inputs = Inputs(tmp_path)
    trace = inputs.trace(None, "test")
    assert trace == str(tmp_path / "trace-test")
    short = inputs.trace(None, "test", count=5, max_new_tokens=32)
    assert short == str(tmp_path / "trace-test-32")
    assert made == [("test", None, 96, PAIR), ("test", 5, 32, PAIR)]
    table = inputs.table(None, load_trace(Path(trace)))
    assert table == str(tmp_path / "calibration" / "latency.json")
    said = capsys.readouterr().err
    assert "tracing 104 prompts" in said and "min on two cores" in said
    assert "tracing 5 prompts" in said
    assert "about a minute" in said


def test_a_table_is_not_looked_for_beside_another_pairs_trace(
    tmp_path: Path, loads: list[object]
) -> None:
    trace = write_trace(tmp_path / "big", age=0, fingerprint={"target": "big"})
    with pytest.raises(ConfigurationError, match="--table: the trace is not of this pair"):
        Inputs(tmp_path).table(None, load_trace(trace))


def test_learn_without_arguments(
    tmp_path: Path,
    loads: list[object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path / "runs" / "trace", age=0)
    write_table(tmp_path / "runs" / "calibration", 0)
    assert learn.main(["--steps", "10"]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert load(line["policy"], PAIR.fingerprint()).policy.training["steps"] == 10


def test_other_pairs_and_laws_have_folders_of_their_own(
    tmp_path: Path, loads: list[object]
) -> None:
    made: list[Path] = []

    def make(config: TraceConfig, folder: Path, **_: object) -> None:
        made.append(folder)

    command.make_trace = make  # the fixture puts it back
    warm = PairConfig.model_validate({"sampling": {"temperature": 1.0}})
    small = PairConfig.model_validate({"drafter": {"max_size": 8}})
    for config in (None, PairConfig(), warm, small):
        Inputs(tmp_path, config).trace(None, "validation")
    assert made[:2] == [tmp_path / "trace-validation"] * 2
    assert len(set(made)) == 3
    assert Inputs(tmp_path, small).trace_config("test").size_grid[-1] == 8


def test_costs_of_greedy_decoding_are_not_those_of_sampling(tmp_path: Path) -> None:
    greedy = fingerprint(PAIR.fingerprint(), PAIR.device, PAIR.dtype, torch.get_num_threads())
    write_table(tmp_path / "greedy", 0)
    assert newest_table(tmp_path, greedy) is not None
    law = SamplingConfig(temperature=1.0, seed=3).law
    assert law == SamplingConfig(temperature=1.0, seed=4).law != SamplingConfig().law
    assert newest_table(tmp_path, {**greedy, "law": law}) is None
