"""Evaluations in W&B: an offline run is written and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wandb

from draftgym.commands import _dashboard
from draftgym.commands._dashboard import curves, headline, log_evaluation, tables
from draftgym.errors import ConfigurationError
from policies.config import WandbConfig
from tests.wandb_records import items, records

OFFLINE = WandbConfig(mode="offline", project="testing")
POLICY = "runs/mine/policy"
MEASURES = {
    "ms_per_token": 20.0, "first_token_ms": {"p50": 90.0, "p95": 130.0},
    "acceptance_by_position": [0.7, 0.4], "joules_per_token": None, "prompts": 2,
}  # fmt: skip
PAYLOAD: dict[str, Any] = {
    "results": [
        {"method": "plain", "ms_per_token": 40.0, "ci95": [39.0, 41.0], "tau_emitted": 1.0,
         "speedup": 1.0},
        {"method": POLICY, "ms_per_token": 20.0, "ci95": [18.0, 22.0], "tau_emitted": 3.0,
         "speedup": 2.0},
    ],
    "best_fixed": {"depth": 1, "size": 8, "speedup": 1.9},
    "best_fixed_hindsight": {"depth": 2, "size": 8, "speedup": 1.95},
    "policy_vs_best_fixed": {"ratio": 1.05, "ci95": [1.01, 1.1], "verdict": "faster"},
    "policy_vs_plain": None,
    "identical_outputs": 2, "prompts": 2, "repeats": 3,
    "provenance": {"commit": "abc", "cpu": "none"},
}  # fmt: skip
DETAILS: dict[str, Any] = {
    "measures": {
        "plain": {"all": {**MEASURES, "acceptance_by_position": None}, "domains": {}},
        POLICY: {"all": MEASURES, "domains": {"code": MEASURES, "chat": MEASURES}},
    },
    "comparisons": [
        {"baseline": "plain", "method": POLICY, "ratio": 2.0, "ci95": [1.8, 2.2], "p": 0.001,
         "p_holm": 0.002, "verdict": "faster"},
    ],
    "domains": {POLICY: {"code": {"speedup": 2.2, "ci95": None}, "chat": 1.4}},
    "decisions": {
        "plain": {"depth": [0, 0], "size": [0, 0]},
        POLICY: {"depth": [0, 1, 1, 3], "size": [8, 8, 2, 32]},
    },
    "over_time": {POLICY: {"depth": [1.5, 1.0, 0.5], "size": [8.0, 6.0]}},
    "decisions_by_domain": {POLICY: {"code": {"depth": 1.0, "size": 9.0}}},
    "rules": [{"name": "svip", "settings": {"threshold": 0.4}, "tuned_on": {"prompts": 12}}],
    "bounds": {"table": "t", "methods": [
        {"method": "clairvoyant", "ms_per_token": 15.0, "over_tuned": {"ratio": 1.5}}]},
    "cost_curves": {"plain_ms": 40.0, "draft_pass_ms": 2.0, "verify_ms": {"1": 41.0, "16": 80.0}},
    "reliability": {"bins": {"1": [{"predicted": 0.2, "observed": 0.25, "rounds": 9}]}},
    "time_split": {POLICY: {"draft": 2.0, "verify": 17.0}},
    "validation": [{"method": "fixed D=1 V=8", "prompts": 12, "speedup": 1.8}],
    "divergences": [],
    "config": {"policy": None, "repeats": 3},
}  # fmt: skip
TABLES = {
    "results", "measures", "comparisons", "domains", "decisions_by_domain", "rules", "bounds",
    "time_split", "validation",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An evaluation with its report."""
    (tmp_path / "plots").mkdir()
    (tmp_path / "report.html").write_text("<!doctype html><title>Report</title>")
    (tmp_path / "report.md").write_text("# Report\n")
    (tmp_path / "report.json").write_text("{}\n")
    (tmp_path / "plots" / "time.png").write_bytes(b"\x89PNG")
    return tmp_path


def only_file(run: Path) -> Path:
    (file,) = run.glob("run-*.wandb")
    return file


def test_an_offline_run_holds_everything(folder: Path) -> None:
    run = log_evaluation(folder, PAYLOAD, DETAILS, OFFLINE, group="mine", coadaptation_round=2)
    assert run is not None and run.parent == folder / "wandb"
    found = records(only_file(run))
    started = next(record.run for record in found if record.HasField("run"))
    assert (started.project, started.run_group, started.job_type, started.display_name) == (
        "testing", "mine", "evaluation", "evaluate mine, round 2",
    )  # fmt: skip
    settings = {entry.key: json.loads(entry.value_json) for entry in started.config.update}
    assert settings["round"] == 2 and settings["provenance"]["commit"] == "abc"
    rows = [items(record.history.item) for record in found if record.HasField("history")]
    shown = rows[0]
    key = "runs.mine.policy"
    assert {f"evaluation/{name}" for name in TABLES} <= shown.keys()
    assert shown["evaluation/report"]["_type"] == "html-file"
    assert shown[f"depth/{key}"]["values"] == [1, 2, 0, 1]
    assert shown[f"depth/{key}"]["bins"] == [-0.5, 0.5, 1.5, 2.5, 3.5]
    assert sum(shown[f"size/{key}"]["values"]) == 4
    table = json.loads((run / "files" / shown["evaluation/measures"]["path"]).read_text())
    assert [row[:2] for row in table["data"]] == [
        ["plain", "all"], [POLICY, "all"], [POLICY, "code"], [POLICY, "chat"],
    ]  # fmt: skip
    assert "first_token_ms.p95" in table["columns"]
    points = [{k: v for k, v in row.items() if k[0] != "_"} for row in rows[1:]]
    assert points == list(curves(DETAILS))
    summary = {}
    for record in found:
        if record.HasField("summary"):
            summary |= items(record.summary.update)
    assert summary["policy_vs_best_fixed/verdict"] == "faster"
    assert summary[f"speedup/{key}"] == 2.0
    # The run's own files are artifacts too, tables among them.
    artifacts = {r.artifact.type: r.artifact for r in found if r.HasField("artifact")}
    names = {entry.path for entry in artifacts["evaluation"].manifest.contents}
    assert names == {"report.html", "report.md", "report.json", "plots/time.png"}


def test_curves_are_drawn_over_their_own_axes() -> None:
    points = list(curves(DETAILS))
    assert points[:3] == [
        {"round_of_request": 0, "over_time/depth/runs.mine.policy": 1.5,
         "over_time/size/runs.mine.policy": 8.0},
        {"round_of_request": 1, "over_time/depth/runs.mine.policy": 1.0,
         "over_time/size/runs.mine.policy": 6.0},
        {"round_of_request": 2, "over_time/depth/runs.mine.policy": 0.5},
    ]  # fmt: skip
    assert {"draft_position": 2, "acceptance/runs.mine.policy": 0.4} in points
    assert points[-3:] == [
        {"tokens_verified": 1, "cost/verify_ms": 41.0},
        {"tokens_verified": 16, "cost/verify_ms": 80.0},
        {"predicted": 0.2, "reliability/depth 1": 0.25},
    ]
    for point in points:
        axis, *others = point
        assert all(f"{other.partition('/')[0]}/*" in _dashboard.AXES for other in others)
        assert axis in _dashboard.AXES.values()


def test_a_report_of_few_details_is_shown(folder: Path) -> None:
    bare = {**PAYLOAD, "policy_vs_best_fixed": None}
    assert tables(bare, {}).keys() == {"results"}
    assert list(curves({})) == []
    (folder / "report.html").unlink()
    run = log_evaluation(folder, bare, {"measures": None, "reliability": None}, OFFLINE)
    assert run is not None
    rows = [items(r.history.item) for r in records(only_file(run)) if r.HasField("history")]
    assert len(rows) == 1 and "evaluation/results" in rows[0]


def test_intervals_and_nested_entries_become_columns() -> None:
    found = tables(PAYLOAD, DETAILS)
    assert found["results"][0]["ci95_low"] == 39.0 and found["results"][0]["ci95_high"] == 41.0
    assert found["domains"][0]["ci95_low"] is None
    assert found["domains"][1] == {"method": POLICY, "domain": "chat", "speedup": 1.4}
    assert found["rules"][0]["settings.threshold"] == 0.4
    assert found["bounds"][0]["over_tuned.ratio"] == 1.5
    assert found["measures"][1]["acceptance_by_position"] == "[0.7, 0.4]"
    assert headline(PAYLOAD)["best_fixed/depth"] == 1
    assert "policy_vs_plain" not in str(headline(PAYLOAD))


def test_the_group_is_the_training_run_of_the_policy(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []
    monkeypatch.setattr(_dashboard, "start_wandb", lambda *_, group, **__: seen.append(group))
    run = tmp_path / "runs" / "taught"
    (run / "policy").mkdir(parents=True)
    details = {"config": {"policy": str(run / "policy")}}
    log_evaluation(folder, PAYLOAD, details, OFFLINE)
    (run / "config.yaml").write_text("run: taught\n")
    log_evaluation(folder, PAYLOAD, details, OFFLINE)
    log_evaluation(folder, PAYLOAD, details, OFFLINE, group="other")
    assert seen == [None, "taught", "other"]


def test_disabled_writes_nothing(folder: Path) -> None:
    assert log_evaluation(folder, PAYLOAD, DETAILS, WandbConfig(mode="disabled")) is None
    assert not (folder / "wandb").exists()


def test_online_without_a_login_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match=r"wandb\.mode.*wandb login"):
        log_evaluation(folder, PAYLOAD, DETAILS, WandbConfig(mode="online"))


def broken_table(*_: Any, **__: Any) -> Any:
    raise OSError("disk full")


def unable(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no service")


@pytest.mark.parametrize(
    ("name", "instead", "words"),
    [("Table", broken_table, "disk full"), ("init", unable, "no service")],
)
def test_an_evaluation_outlives_wandb(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    instead: Callable[..., Any],
    words: str,
) -> None:
    monkeypatch.setattr(wandb, name, instead)
    assert log_evaluation(folder, PAYLOAD, DETAILS, OFFLINE) is None
    assert words in capsys.readouterr().err
