"""Rules tuned on traces, then measured beside the others, on a tiny pair under a fake clock."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftgym.benchmark import report
from draftgym.benchmark.config import EvaluateConfig
from draftgym.benchmark.contenders import Contenders
from draftgym.benchmark.evaluate import evaluate
from draftgym.benchmark.reference import Reference
from draftgym.benchmark.untrained import untrained_controller
from draftgym.clock import FakeClock
from draftgym.commands import _inputs, _newest, _rules, calibrate
from draftgym.commands._inputs import Inputs
from draftgym.commands._newest import with_newest
from draftgym.commands._rules import checked_trace, tuning_of
from draftgym.commands._settled import forget, settle, settled
from draftgym.costs.samples import LatencyError
from draftgym.decoder.pair import ModelPair
from draftgym.errors import ConfigurationError
from draftgym.prompts import load_prompts
from draftgym.provenance import hardware
from draftgym.runtime import load_controller, save_policy
from draftgym.traces import run
from draftgym.traces.config import TraceConfig
from tests.tiny import tiny_model
from tests.unit.test_trace_verify import new_pair

RULES = ("fixed", "random")


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return new_pair()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, pair: ModelPair) -> Path:
    """Traces of two splits and a latency table, all of one tiny pair."""
    folder = tmp_path_factory.mktemp("runs")
    for split, count in (("policy", 24), ("validation", 12)):
        config = TraceConfig(pair=pair.config, split=split, count=count, max_new_tokens=16)  # type: ignore[arg-type]
        prompts = load_prompts(config.prompts, config.split, count)
        run.collect(config, pair, prompts, folder / f"trace-{split}", FakeClock(), {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_inputs, "load_pair", lambda config: pair)
        patch.setattr(calibrate, "load_pair", lambda config: pair)
        patch.setattr(calibrate, "WallClock", lambda device: FakeClock())
        train = folder / "train.yaml"
        train.write_text("max_new_tokens: 40\nignore_eos: true\n")
        arguments = [str(train), "--output", str(folder / "table"), "--rounds", "6"]
        assert calibrate.main([*arguments, "--prompts", "3"]) == 0
    return folder


@pytest.fixture
def inputs(runs: Path, pair: ModelPair, monkeypatch: pytest.MonkeyPatch) -> Inputs:
    monkeypatch.setattr(_inputs, "load_pair", lambda config: pair)
    monkeypatch.setattr(_inputs, "make_trace", None)
    monkeypatch.setattr(_inputs, "calibrate", None)
    for module in (_rules, _newest):
        monkeypatch.setattr(module, "RUNS", runs)
    return Inputs(runs, pair.config)


def config(
    pair: ModelPair, output: Path, runs: Path = Path("runs"), **changes: Any
) -> EvaluateConfig:
    return EvaluateConfig.model_validate(
        {
            "pair": pair.config,
            "tuned_on": {
                "policy_trace": str(runs / "trace-policy"),
                "validation_trace": str(runs / "trace-validation"),
            },
            "rules": RULES,
            "finalists": 2,
            "test": {"prompts": 6, "max_new_tokens": 12},
            "warm_up_tokens": 2,
            "bootstrap_resamples": 200,
            "output": str(output),
            **changes,
        }
    )


def test_rules_are_tuned_once_and_measured(
    tmp_path: Path, pair: ModelPair, runs: Path, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = config(pair, tmp_path, runs, control=True)
    tuning = tuning_of(plan, tmp_path, inputs)
    monkeypatch.setattr(_rules, "tune_all", None)  # a second tuning would fail
    assert tuning_of(plan, tmp_path, inputs) == tuning
    assert [rule.name for rule in tuning.rules] == list(RULES)
    assert len(tuning.fitted_on) > 10 and tuning.of("fixed").prompts == 12
    assert set(tuning.fitted_on).isdisjoint(tuning.tuned_on)
    bounds = {row["method"] for row in tuning.details["bounds"]["methods"]}
    assert {"information bound", "clairvoyant", "random depth and size, simulated"} <= bounds
    monkeypatch.setattr(report, "plots", lambda results, details: {})
    found = evaluate(
        plan, pair=pair, reference=Reference(tiny_model), clock=FakeClock(), tuning=tuning
    )
    best = tuning.of("fixed").settings
    assert found.payload["best_fixed"]["depth"] == best["depth"]
    assert found.payload["best_fixed"]["size"] == best["size"]
    methods = [row["method"] for row in found.payload["results"]]
    assert methods[:2] == ["plain", "plain, once more"] and len(methods) == 5
    assert found.payload["results"][1]["speedup"] == pytest.approx(1.0)
    assert "random depth and size" in methods
    assert found.payload["identical_outputs"] == 6 and not found.faults
    assert found.payload["baseline_tuned"].keys() == {"ok", "why"}
    kept = json.loads((tmp_path / "report.json").read_text())
    told = {rule["name"]: rule for rule in kept["details"]["rules"]}
    assert told["random depth and size"]["tuned_on"]["prompts"] == 12
    assert told["random depth and size"]["short"] == "random setting"
    assert kept["details"]["measures"]["plain"]["all"]["target_rows_per_token"] == 1.0
    control = next(
        row for row in kept["details"]["comparisons"] if row["method"] == "plain, once more"
    )
    assert control["verdict"] == "no significant difference"
    assert kept["details"]["validation"][0]["prompts"] == 12


def test_rules_begin_anew_after_the_warm_up(
    tmp_path: Path, pair: ModelPair, runs: Path, inputs: Inputs
) -> None:
    plan = config(pair, tmp_path, runs)
    (random,) = Contenders(plan, pair, FakeClock(), tuning_of(plan, tmp_path, inputs)).rules()
    warmed = random._controller
    random.renew()
    assert type(random._controller) is type(warmed) and random._controller is not warmed


def test_other_traces_are_tuned_on_anew(
    tmp_path: Path, pair: ModelPair, runs: Path, inputs: Inputs
) -> None:
    plan = config(pair, tmp_path, runs, rules=("fixed",))
    first = tuning_of(plan, tmp_path, inputs)
    file = tmp_path / "rules.json"
    stored = json.loads(file.read_text())
    stored["origin"]["key"] = "another"
    file.write_text(json.dumps(stored))
    assert tuning_of(plan, tmp_path, inputs) == first
    file.write_text("{")
    assert tuning_of(plan, tmp_path, inputs).rules == first.rules
    assert json.loads(file.read_text())["origin"]["key"] == first.origin["key"]


def test_test_prompts_that_rules_have_seen_are_refused(
    tmp_path: Path, pair: ModelPair, runs: Path, inputs: Inputs
) -> None:
    plan = config(pair, tmp_path, runs, rules=("fixed",))
    tuning = tuning_of(plan, tmp_path, inputs)
    leaked = load_prompts(plan.prompts, "test", plan.test.prompts)[0].request_id
    with pytest.raises(ConfigurationError, match=rf"trace-policy: prompt '{leaked}' is a test"):
        evaluate(
            plan,
            pair=pair,
            reference=Reference(tiny_model),
            tuning=replace(tuning, fitted_on=(*tuning.fitted_on, leaked)),
        )


def test_a_latency_table_from_elsewhere_is_refused(
    tmp_path: Path, pair: ModelPair, runs: Path, inputs: Inputs
) -> None:
    stale = json.loads((runs / "table" / "latency.json").read_text())
    stale["fingerprint"]["threads"] += 1
    file = tmp_path / "stale.json"
    file.write_text(json.dumps(stale))
    plan = config(pair, tmp_path, runs)
    given = plan.model_copy(
        update={"tuned_on": plan.tuned_on.model_copy(update={"table": str(file)})}
    )
    with pytest.raises(LatencyError, match=r"measured elsewhere: fingerprint\.threads"):
        tuning_of(given, tmp_path, inputs)


def test_transformers_decodes_the_same_prompts(
    tmp_path: Path, pair: ModelPair, runs: Path, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "plots", lambda results, details: {})
    peers = ("generate", "prompt_lookup", "assistant")
    plan = config(pair, tmp_path, runs, rules=("fixed",), peers=peers, assistant_layers=1)
    found = evaluate(
        plan,
        pair=pair,
        reference=Reference(tiny_model),
        clock=FakeClock(),
        tuning=tuning_of(plan, tmp_path, inputs),
    )
    theirs = [name for name in found.details["measures"] if name.startswith("transformers")]
    assert len(theirs) == 3
    for name in theirs:
        assert found.details["measures"][name]["all"]["identical_outputs"] == 6
        assert found.details["measures"][name]["all"]["tau_emitted"] is None


def test_rules_without_tuning_are_refused(tmp_path: Path, pair: ModelPair) -> None:
    with pytest.raises(ValueError, match="rules: tuned on traces"):
        evaluate(config(pair, tmp_path), pair=pair)


def test_no_policy_at_hand_is_learned_once(
    tmp_path: Path, pair: ModelPair, runs: Path, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = _newest.learn
    monkeypatch.setattr(
        _newest, "learn", lambda known, folder, **_: learned(known, folder, steps=2, table_rows=2)
    )
    plan = config(pair, tmp_path, runs)
    found = with_newest(plan, tmp_path, inputs)
    assert found.policy == str(tmp_path / "learned" / "policy")
    assert found.beside == (str(tmp_path / "learned" / "table.json"),)
    assert found.named(found.beside[0]) == "learned table"
    load_controller(found.policy, pair.fingerprint())
    monkeypatch.setattr(_newest, "learn", None)  # a second learning would fail
    assert with_newest(plan, tmp_path, inputs) == found
    again = {**json.loads((tmp_path / "learned" / "origin.json").read_text()), "key": "other"}
    (tmp_path / "learned" / "origin.json").write_text(json.dumps(again))
    with pytest.raises(TypeError, match="NoneType"):  # other costs or code: learned anew
        with_newest(plan, tmp_path, inputs)


def test_a_rival_or_another_law_is_not_the_newest_policy(
    tmp_path: Path, pair: ModelPair, runs: Path, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = tmp_path / "runs"
    monkeypatch.setattr(_newest, "RUNS", shelf)
    machine = hardware(pair.device, pair.dtype)
    ours = replace(untrained_controller(8, 4).policy, pair=pair.fingerprint(), hardware=machine)
    rival = {"method": "learning to draft"}
    warm = {"law": "sampling at temperature 1"}
    for age, (name, training) in enumerate({"rival": rival, "warm": warm, "ours": {}}.items()):
        path = save_policy(shelf / name / "policy", replace(ours, training=training))
        os.utime(path / "policy.json", (1e9 - age, 1e9 - age))
    found = with_newest(config(pair, tmp_path, runs), tmp_path, inputs)
    assert found.policy == str(shelf / "ours" / "policy") and found.beside == ()


def test_an_unfinished_evaluation_goes_on_with_its_inputs(tmp_path: Path, pair: ModelPair) -> None:
    asked = config(pair, tmp_path, policy="newest")
    assert settled(asked, tmp_path) == asked
    found = asked.model_copy(update={"policy": "runs/a/policy"})
    settle(asked, found, tmp_path)
    assert settled(asked, tmp_path) == found
    other = asked.model_copy(update={"finalists": 3})
    assert settled(other, tmp_path) == other
    (tmp_path / "settled.json").write_text("{")
    assert settled(asked, tmp_path) == asked
    forget(tmp_path)
    assert not (tmp_path / "settled.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "test"}, r"tuned_on\.policy_trace: .*made of the test split"),
        ({"fingerprint": {"target": "big"}}, r"tuned_on\.policy_trace: .*of another pair"),
        ({"pair": {"sampling": {"temperature": 1.0}}}, "traced under 'sampling at temperature 1'"),
    ],
)
def test_a_trace_of_something_else_is_refused(
    tmp_path: Path,
    pair: ModelPair,
    runs: Path,
    inputs: Inputs,
    change: dict[str, Any],
    message: str,
) -> None:
    folder = tmp_path / "trace"
    shutil.copytree(runs / "trace-policy", folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["plan"] |= change
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigurationError, match=message):
        checked_trace(config(pair, tmp_path), inputs, str(folder), "policy")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rules": ["fixed", "best"]}, "rules: unknown rule 'best'; accepted: fixed"),
        ({"rules": ["fixed", "fixed"]}, "rules: each may be listed once"),
        ({"rules": ["random"]}, "cells, rules: give either"),
        ({"pair": {"drafter": {"kind": "lm"}}}, "rules: tuned on traces; .*'lm' cannot"),
        ({"cells": [{"depth": 1, "size": 2}]}, "cells, rules: give either"),
        ({"peers": ["generate"], "pair": {"sampling": {"temperature": 1.0}}}, "only greedy"),
    ],
)
def test_bad_contests_are_refused_by_name(
    tmp_path: Path, pair: ModelPair, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        EvaluateConfig.model_validate({**dict(config(pair, tmp_path)), **change})
