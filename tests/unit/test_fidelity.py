"""`fidelity`: a simulator with the true times has no error, one with false times has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftgym.clock import FakeClock
from draftgym.commands import _inputs, calibrate, fidelity
from draftgym.errors import ConfigurationError
from draftgym.prompts import load_prompts
from draftgym.traces import run
from draftgym.traces.config import TraceConfig
from tests.unit.test_trace_verify import new_pair

CONFIG = TraceConfig(count=4, max_new_tokens=24, ignore_eos=True)


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A trace and a table of one tiny pair, every clock simulated."""
    for module in (_inputs, calibrate):
        monkeypatch.setattr(module, "load_pair", lambda config: new_pair())
    for command in (fidelity, calibrate):
        monkeypatch.setattr(command, "WallClock", lambda device: FakeClock())
    prompts = load_prompts(CONFIG.prompts, "policy", CONFIG.count)
    run.collect(CONFIG, new_pair(), prompts, tmp_path / "trace", FakeClock(), {})
    config = tmp_path / "train.yaml"
    config.write_text("max_new_tokens: 40\nignore_eos: true\n")
    arguments = [str(config), "--output", str(tmp_path), "--rounds", "8", "--prompts", "4"]
    assert calibrate.main(arguments) == 0
    return ["--trace", str(tmp_path / "trace"), "--table", str(tmp_path / "latency.json")]


def result(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert fidelity.main([*arguments, "--prompts", "3", "--cells", "6"]) == 0
    line: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return line


def test_predictions_meet_a_simulated_clock(
    inputs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = result(inputs, capsys)
    assert line["schema"] == "draftgym.fidelity/1"
    assert len(line["settings"]) == 6  # type: ignore[arg-type]
    assert line["worst_abs_error_pct"] < 2.0  # type: ignore[operator]


def test_false_times_show(inputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(inputs[-1])
    table = json.loads(file.read_text())
    verify = table["samples"]["verify"]
    verify["seconds"] = [
        2.0 * seconds if size else seconds
        for size, seconds in zip(verify["units"], verify["seconds"], strict=True)
    ]
    file.write_text(json.dumps(table))
    assert result(inputs, capsys)["worst_abs_error_pct"] > 20.0  # type: ignore[operator]


def test_a_table_from_elsewhere_is_refused(inputs: list[str]) -> None:
    file = Path(inputs[-1])
    table = json.loads(file.read_text())
    table["fingerprint"]["threads"] += 1
    file.write_text(json.dumps(table))
    with pytest.raises(ValueError, match=r"measured elsewhere: fingerprint\.threads"):
        fidelity.main([*inputs, "--prompts", "2"])
    with pytest.raises(ConfigurationError, match="--prompts"):
        fidelity.main([*inputs, "--prompts", "1"])
