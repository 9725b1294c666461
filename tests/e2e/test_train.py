"""Training end to end on a tiny pair: artifact, kill and resume, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftgym.commands import train as command
from draftgym.commands.train import Arguments, read_config
from draftgym.errors import ConfigurationError, DraftGymError
from draftgym.features import FeatureLayout
from draftgym.runtime import load
from draftgym.runtime.network import Network
from policies.checkpoint import load_checkpoint, restore_ppo
from policies.config import TrainConfig
from policies.ppo import build_ppo
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
    assert payload.keys() == {"run", "policy", "steps", "seconds", "evaluation"}
    assert payload["steps"] == {"size": 128, "depth": 128}
    assert payload["seconds"].keys() == {"calibrate", "train", "validate", "evaluate"}
    assert all(value > 0 for value in payload["seconds"].values())
    assert payload["evaluation"]["policy_vs_plain"]["verdict"] in (
        "faster",
        "slower",
        "no significant difference",
    )
    for name in ("config.yaml", "policy/policy.json", "evaluation/report.md"):
        assert (folder / name).is_file(), name


def test_metrics_hold_what_is_promised(finished: tuple[Path, dict[str, Any]]) -> None:
    found = rows(finished[0])
    rollouts = [row for row in found if row["kind"] == "rollout"]
    assert [row["policy"] for row in rollouts] == ["size"] * 2 + ["depth"] * 2 + ["size"] * 2 + [
        "depth"
    ] * 2
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
    assert len(validations) == 8
    assert [row["whole_policy"] for row in validations] == [False] * 2 + [True] * 6
    assert found[-1]["kind"] == "evaluation"


def test_exported_policy_is_the_best_validated_one(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = finished
    policy = json.loads((folder / "policy" / "policy.json").read_text())
    validations = [row for row in rows(folder) if row["kind"] == "validation"]
    best = max(row["speedup"] for row in validations if row["whole_policy"])
    assert policy["training"]["validation_speedup"] == best
    assert policy["training"]["steps"] == {"size": 128, "depth": 128}


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
    """SIGKILL twice, in different phases; the artifact must be the same bytes."""
    folder = tmp_path / "tiny"
    arguments: list[str] = []
    for stop_after in (2, 5):
        process = start(folder, *arguments)
        try:
            wait_for_rollouts(folder, stop_after, process)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        arguments = ["--resume"]
    last = start(folder, *arguments)
    output, errors = last.communicate(timeout=300)
    assert last.returncode == 0, errors
    assert "resuming after rollout" in errors
    payload = json.loads(output.splitlines()[-1])
    whole, _ = finished
    assert payload["steps"] == {"size": 128, "depth": 128}
    for name in ("policy.json", "policy.safetensors"):
        assert (folder / "policy" / name).read_bytes() == (whole / "policy" / name).read_bytes()
    # Every rollout of the uninterrupted run is in the log, none was lost to the kills.
    seen = {row["rollout"]: row for row in rows(folder) if row["kind"] == "rollout"}
    assert seen.keys() == set(range(1, 9))
    ours = {row["rollout"]: row for row in rows(whole) if row["kind"] == "rollout"}
    assert seen == ours


def wait_for_rollouts(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    for _ in range(10_000):
        if process.poll() is not None:
            raise AssertionError(f"ended early: {process.communicate()[1]}")
        file = folder / "metrics.jsonl"
        if file.is_file():
            lines = file.read_text().splitlines(keepends=True)
            whole = [json.loads(line) for line in lines if line.endswith("\n")]
            if max((row.get("rollout", 0) for row in whole), default=0) >= count:
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
