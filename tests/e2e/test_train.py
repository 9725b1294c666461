"""Training end to end on a tiny pair: artifact, kill and resume, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftgym.commands import train as command
from draftgym.commands.train import Arguments, read_config
from draftgym.errors import ConfigurationError, DraftGymError
from draftgym.features import FeatureLayout
from draftgym.prompts import SPLITS, PromptSource, load_prompts
from draftgym.runtime import load, load_table, read_policy
from draftgym.runtime.network import Network
from draftgym.traces.store import load_trace
from policies import training
from policies.checkpoint import load_checkpoint, restore_ppo
from policies.config import TrainConfig
from policies.ppo import build_ppo
from policies.validation import Gain, Validation
from tests.e2e.train_tiny import PLAN, SETTINGS, run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """One uninterrupted run with an evaluation."""
    threads = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("train") / "tiny"
    yield folder, run(folder, plan=PLAN)
    torch.set_num_threads(threads)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.train_tiny", str(folder), *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_result_line_and_files(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, payload = finished
    assert payload.keys() == {"run", "policy", "steps", "seconds", "room", "evaluation"}
    assert payload["steps"] == {"size": 128, "depth": 128}
    # Learning from a trace is work that the simulated clock does not charge.
    assert payload["seconds"].pop("pretrain") == 0
    assert payload["seconds"].keys() == {"calibrate", "trace", "train", "validate", "evaluate"}
    assert all(value > 0 for value in payload["seconds"].values())
    assert payload["evaluation"]["policy_vs_plain"]["verdict"] in (
        "faster",
        "slower",
        "no significant difference",
    )
    for name in (
        "config.yaml", "latency.json", "latency.png", "pretrained/policy.json",
        "policy/policy.json", "evaluation/report.md",
    ):  # fmt: skip
        assert (folder / name).is_file(), name


def test_metrics_hold_what_is_promised(finished: tuple[Path, dict[str, Any]]) -> None:
    found = rows(finished[0])
    rollouts = [row for row in found if row["kind"] == "rollout"]
    assert [row["policy"] for row in rollouts] == ["size"] * 2 + ["depth"] * 2 + ["size"] * 2 + [
        "depth"
    ] * 2
    assert [row["round"] for row in rollouts] == [1] * 4 + [2] * 4
    promised = {
        "reward_per_round", "seconds_per_token", "tau_emitted", "depths", "sizes", "draft_share",
        "verify_share", "commit_share", "policy_share", "approx_kl", "explained_variance",
        "learning_rate", "wall_seconds",
    }  # fmt: skip
    for row in rollouts:
        assert promised <= row.keys()
        assert sum(row["depths"].values()) == row["rounds"] == sum(row["sizes"].values())
    # The learner's decisions are charged, by the exported controller's measured cost.
    assert all(row["policy_share"] > 0 for row in rollouts)
    validations = [row for row in found if row["kind"] == "validation"]
    # What the trace taught is the first candidate.
    assert [row["step"] for row in validations] == [32 * i for i in range(9)]
    assert all(row["whole_policy"] for row in validations)
    assert found[-1]["kind"] == "evaluation"


def test_exported_policy_is_the_best_validated_one(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = finished
    policy = json.loads((folder / "policy" / "policy.json").read_text())
    validations = [row for row in rows(folder) if row["kind"] == "validation"]
    best = max(row["speedup"] for row in validations if row["whole_policy"])
    assert policy["training"]["validation_speedup"] == best
    assert policy["training"]["steps"] == {"size": 128, "depth": 128}
    taught = policy["training"]["pretraining"]
    assert taught["method"] == "all-action" and taught["steps"] == 20
    assert 0 < taught["held_out"]["prompts"] < 12
    assert taught["costs"] == policy["training"]["costs"]
    # The costs are those of the run's own latency table: a pass and its token, a verified token.
    assert taught["costs"]["draft_pass_over_plain"] == pytest.approx(2.05 / 30.1, rel=0.02)
    assert taught["costs"]["verify_slope_over_plain"] == pytest.approx(0.5 / 30.1, rel=0.02)
    assert taught["costs"]["plain_seconds"] == pytest.approx(0.0301)


def test_policies_learn_from_the_policy_split_only(finished: tuple[Path, dict[str, Any]]) -> None:
    trace = load_trace(finished[0] / "trace")
    assert trace.source["plan"]["split"] == "policy"
    splits = {
        split: {prompt.id for prompt in load_prompts([PromptSource()], split)} for split in SPLITS
    }
    ids = {entry.prompt_id for entry in trace.sequences}
    assert len(ids) == 12 and ids <= splits["policy"]
    assert not ids & (splits["validation"] | splits["test"] | splits["drafter"])


def short(folder: Path, **changes: Any) -> dict[str, Any]:
    """A run of one phase beside another run."""
    schedule = [{"policy": "size", "steps": 64}]
    return run(folder, changes={"run": folder.name, "schedule": schedule, **changes})


def test_only_a_validated_improvement_replaces_what_the_trace_taught(
    finished: tuple[Path, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Better beside plain decoding, but not surely better beside what is kept.
    measured = iter(((1.5, None), (1.7, Gain(0.02, 0.011)), (1.6, Gain(-0.1, 0.01))))
    monkeypatch.setattr(training, "validate", lambda *_: validation(*next(measured)))
    folder = finished[0].parent / "worse"
    short(folder)
    for name in ("depth", "size"):
        taught, kept = (read_policy(folder / part).head(name) for part in ("pretrained", "policy"))  # type: ignore[arg-type]
        assert taught is not None and kept is not None
        for mine, theirs in zip(kept.weights, taught.weights, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert read_policy(folder / "policy").training["best_step"] == 0
    # The trace of the run beside it has the same plan.
    assert f"trace: {finished[0] / 'trace'}" in capsys.readouterr().err.replace("\n", "")
    assert not (folder / "trace").exists()
    first, second = ((path / "pretrained" / "policy.safetensors").read_bytes() for path in
                     (folder, finished[0]))  # fmt: skip
    assert first == second


def test_a_sure_improvement_is_kept_and_measured_beside_the_one_before(
    finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = iter(((1.5, None), (1.4, Gain(0.02, 0.009)), (1.4, Gain(0.0, 0.01))))
    beside: list[Any] = []

    def validate(*arguments: Any) -> Validation:
        beside.append(arguments[3])
        return validation(*next(measured))

    monkeypatch.setattr(training, "validate", validate)
    folder = finished[0].parent / "better"
    short(folder)
    assert read_policy(folder / "policy").training["best_step"] == 32
    assert [row["kept"] for row in rows(folder) if row["kind"] == "validation"] == [
        True, True, False,
    ]  # fmt: skip
    assert beside[0] is None
    for name in ("depth", "size"):
        taught, before, kept = (
            controller.head(name)
            for controller in (
                read_policy(folder / "pretrained"), beside[1].policy, beside[2].policy
            )
        )  # fmt: skip
        for theirs, mine in zip(taught.weights, before.weights, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        same = all(map(np.array_equal, kept.weights, taught.weights))
        assert same == (name == "depth")  # the phase learns the size


def validation(speedup: float, gain: Gain | None) -> Validation:
    return Validation(0.02, 0.02 * speedup, 1.0, 0.0, 0.0, 0.0, 10, gain)


def test_the_table_is_exported_and_measured_beside_the_policy(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    folder, payload = finished
    table = load_table(folder / "table.json")
    assert (folder / "table.txt").read_text() == table.text() + "\n"
    evaluation = payload["evaluation"]
    assert set(evaluation["beside_vs_best_fixed"]) == {str(folder / "table.json")}
    assert str(folder / "table.json") in [row["method"] for row in evaluation["results"]]


def test_without_a_trace_policies_start_at_the_rule(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    payload = short(folder, pretraining={"enabled": False})
    assert payload["seconds"]["trace"] == payload["seconds"]["pretrain"] == 0
    assert not (folder / "trace").exists() and not (folder / "pretrained").exists()
    policy = read_policy(folder / "policy")
    assert policy.depth is None and policy.fallback == {"depth": 3}
    assert "pretraining" not in policy.training
    validations = [row for row in rows(folder) if row["kind"] == "validation"]
    assert [row["step"] for row in validations] == [32, 64]


@pytest.mark.parametrize("name", ["size", "depth"])
def test_loaded_policy_decides_as_the_checkpoint(
    finished: tuple[Path, dict[str, Any]], name: str
) -> None:
    folder, _ = finished
    policy = load(folder / "policy").policy
    head = policy.size if name == "size" else policy.depth
    assert head is not None
    assert head.normaliser is not None
    layout = FeatureLayout()
    low, high = (
        (layout.size_low, layout.size_high)
        if name == "size"
        else (layout.depth_low, layout.depth_high)
    )
    config = TrainConfig.model_validate(SETTINGS)
    actions = len(layout.size_grid) if name == "size" else 2
    model = build_ppo(config.size_ppo, len(low), actions, seed=5, device="cpu")
    best = load_checkpoint(folder / "checkpoints" / "best.safetensors").part(name)
    restore_ppo(model, {k: v for k, v in best.items() if k.startswith("network.")}, 0)
    network = Network(head)
    spread = np.random.default_rng(3).uniform(low, high, (1000, len(low)))
    observations = spread.astype(np.float32)
    expected, _ = model.predict(head.normaliser(observations), deterministic=True)
    assert [network.act(row) for row in observations] == expected.tolist()


def test_killed_and_resumed_equals_uninterrupted(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """SIGKILL while tracing and in two phases; the artifact must be the same bytes."""
    folder = tmp_path / "tiny"
    arguments: list[str] = []
    for reached in (
        lambda: (folder / "trace" / "shard-00000.json").is_file(),
        lambda: rollouts(folder) >= 2,
        lambda: rollouts(folder) >= 5,
    ):
        process = start(folder, *arguments)
        try:
            wait_for(reached, process)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        if not arguments:
            assert not json.loads((folder / "trace" / "manifest.json").read_text())["complete"]
        arguments = ["--resume"]
    last = start(folder, *arguments)
    output, errors = last.communicate(timeout=300)
    assert last.returncode == 0, errors
    assert "resuming after rollout" in errors
    payload = json.loads(output.splitlines()[-1])
    whole, _ = finished
    assert payload["steps"] == {"size": 128, "depth": 128}
    for name in ("policy.json", "policy.safetensors"):
        for part in ("pretrained", "policy"):
            assert (folder / part / name).read_bytes() == (whole / part / name).read_bytes()
    # Every rollout of the uninterrupted run is in the log, none was lost to the kills.
    seen = {row["rollout"]: row for row in rows(folder) if row["kind"] == "rollout"}
    assert seen.keys() == set(range(1, 9))
    ours = {row["rollout"]: row for row in rows(whole) if row["kind"] == "rollout"}
    assert seen == ours


def rollouts(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.is_file() else []
    whole = [json.loads(line) for line in lines if line.endswith("\n")]
    return max((row.get("rollout", 0) for row in whole), default=0)


def wait_for(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    for _ in range(10_000):
        if process.poll() is not None:
            raise AssertionError(f"ended early: {process.communicate()[1]}")
        if reached():
            return
        time.sleep(0.02)
    raise AssertionError("no progress")


def test_existing_run_is_refused_without_resume(finished: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(DraftGymError, match="--resume"):
        run(finished[0])


def test_changed_configuration_is_refused_on_resume(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    with pytest.raises(ConfigurationError, match=r"validation\.prompts was 2, now 3"):
        run(
            finished[0],
            resume=True,
            changes={"validation": {**SETTINGS["validation"], "prompts": 3}},
        )


def test_resume_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DraftGymError, match="no run to resume"):
        run(tmp_path / "none", resume=True)


def test_finished_run_resumes_to_the_same_result(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, payload = finished
    before = (folder / "policy" / "policy.safetensors").read_bytes()
    again = run(folder, resume=True)
    assert again["steps"] == payload["steps"]
    assert (folder / "policy" / "policy.safetensors").read_bytes() == before


def test_command_line_overrides(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("seed: 3\n")
    arguments = Arguments(config=file, run="other", set=("pair.device=cpu", "seed=4"))
    config = read_config(arguments)
    assert (config.run, config.seed, config.pair.device) == ("other", 4, "cpu")
    with pytest.raises(ConfigurationError, match=r"mine\.yaml.*\n.*nothing: unknown field"):
        read_config(Arguments(config=file, set=("nothing=1",)))
    with pytest.raises(ConfigurationError, match="must look like"):
        read_config(Arguments(config=file, set=("nothing",)))


def test_stopping_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: Any, **__: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "train", stopped)
    file = tmp_path / "mine.yaml"
    file.write_text("run: mine\n")
    assert command.main([str(file)]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--run mine --resume" in captured.err.replace("\n", " ")


def test_online_wandb_without_a_login_stops_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="wandb login"):
        run(tmp_path / "run", changes={"wandb": {"mode": "online"}})
    assert not (tmp_path / "run").exists()
