"""`calibrate` on a tiny pair: its result line, its table and its plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from draftgym.clock import FakeClock
from draftgym.commands import calibrate as command
from draftgym.configuration import validate
from draftgym.costs.fingerprint import fingerprint
from draftgym.costs.samples import LatencyError
from draftgym.costs.table import LatencyTable
from draftgym.errors import ConfigurationError
from policies.config import TrainConfig
from tests.e2e.train_tiny import SETTINGS, pair


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("calibration")
    clock = FakeClock(fixed_seconds={**FakeClock.FIXED, "read": 3e-5})
    config = validate({**SETTINGS, "max_new_tokens": 64}, TrainConfig, "tiny")
    payload = command.calibrate(config, folder, rounds=5, prompts=3, pair=pair(), clock=clock)
    return folder, payload


def test_milliseconds_are_those_of_the_clock(measured: tuple[Path, dict[str, Any]]) -> None:
    _, payload = measured
    assert payload.keys() == {"table", "plot", "milliseconds", "provenance"}
    milliseconds = payload["milliseconds"]
    assert list(milliseconds) == ["propose", "first", "later", "verify", "commit"]
    for size in (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
        *quartiles, count = milliseconds["verify"][f"V={size}, context 0-255"]
        assert quartiles == pytest.approx([30 + 0.5 * size] * 3)
        assert count >= 3  # of 5: first rounds are left out, and budgets clamp
    assert milliseconds["commit"]["context 0-255"][:3] == pytest.approx([0.1] * 3)
    unread = {name.partition(" ")[0] for name in milliseconds["first"]}
    assert {"1", "2-3", "4-7", "8-15", "16-31", "32-63"} <= unread
    first, _, third, _ = milliseconds["first"]["16-31 unread, context 0-255"]
    assert 2 + 0.05 * 16 <= first <= third <= 2 + 0.05 * 31


def test_the_table_belongs_to_this_pair_and_machine(
    measured: tuple[Path, dict[str, Any]],
) -> None:
    folder, payload = measured
    assert (payload["table"], payload["plot"]) == (folder / "latency.json", folder / "latency.png")
    assert (folder / "latency.png").read_bytes().startswith(b"\x89PNG")
    made = pair()
    here = fingerprint(made.fingerprint(), made.device, made.dtype, torch.get_num_threads())
    table = LatencyTable.load(folder / "latency.json", here)
    # A decision of the clock, and reading the tree.
    assert table.decision_seconds.depth == pytest.approx(2e-5 + 3e-5)
    assert table.decision_seconds.size == pytest.approx(2e-5 + 3e-5)
    with pytest.raises(LatencyError, match=r"fingerprint\.threads"):
        LatencyTable.load(folder / "latency.json", {**here, "threads": 77})


def test_the_command_prints_one_line_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "load_pair", lambda config: pair())
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump({**SETTINGS, "ignore_eos": True}))
    output = tmp_path / "out"
    arguments = [str(file), "--output", str(output), "--rounds", "2", "--prompts", "2"]
    assert command.main(arguments) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["schema"] == "draftgym.calibrate/1"
    assert line["table"] == str(output / "latency.json")
    for low, median, high, count in line["milliseconds"]["verify"].values():
        assert 0 < low <= median <= high and count >= 1
    assert line["provenance"]["dtype"] == "float32"


@pytest.mark.parametrize("option", ["rounds", "prompts"])
def test_bad_options_are_refused_before_anything_loads(option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--{option}: must be at least"):
        command.main([f"--{option}", "0"])
