"""Scaling: what is measured, how the exponent is fitted, and that it says it is synthetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftgym.clock import FakeClock, WallClock
from draftgym.commands import study as command
from draftgym.console import QuietBar
from draftgym.errors import ConfigurationError
from draftgym.features import FeatureLayout
from draftgym.theory import information
from draftgym.theory.scaling import INFORMATION, Load, exponent, scaling

LAYOUT = FeatureLayout(max_depth=2, beam_width=2, size_grid=(0, 1, 2, 4))


def test_the_exponent_is_that_of_a_power() -> None:
    loads = [Load(n, 3e-6 * n**1.5, 0) for n in (10, 100, 1000)]
    assert exponent(loads) == pytest.approx(1.5)
    assert exponent(loads[:1]) is None


def test_every_computation_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(information, "EPOCHS", 1)
    bar = QuietBar("", None)
    loads = scaling((3000, 1000), LAYOUT, WallClock(), bar, information_up_to=2000)
    assert set(loads) == {"clairvoyant bound", "fixed cell", "replay", INFORMATION}
    assert [load.positions for load in loads["replay"]] == [1045, 3040]
    assert [load.positions for load in loads[INFORMATION]] == [1045]
    for entries in loads.values():
        assert all(load.seconds > 0 and load.peak_bytes > 1000 for load in entries)
    fixed_cell = loads["fixed cell"]
    assert fixed_cell[1].peak_bytes > fixed_cell[0].peak_bytes
    still = scaling((200,), LAYOUT, FakeClock(), bar)
    assert all(entries[0].seconds == 0.0 for entries in still.values()), "no clock of its own"


def test_the_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--output", str(tmp_path)]
    assert command.main(["scaling", "--positions", "500", "1500", *out]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["synthetic"] is True
    assert {row["name"] for row in line["computations"]} == {
        "clairvoyant bound", "fixed cell", "replay"
    }  # fmt: skip
    assert all(isinstance(row["exponent"], float) for row in line["computations"])
    assert Path(line["plot"]).read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigurationError, match="--positions: must be 1 or more"):
        command.main(["scaling", "--positions", "0", *out])
