"""The map of costs: no room where costs leave no choice, room where a choice is told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from draftgym.commands import map as command
from draftgym.errors import ConfigurationError
from draftgym.theory import information
from draftgym.theory.follow import follow
from draftgym.theory.information import information_bound
from draftgym.theory.landscape import LinearTimes, place
from draftgym.traces.trace import Trace
from tests.unit.test_clairvoyant import random_trace
from tests.unit.test_information import FOLDS, SimpleTimes, coin_trace


def found(trace: Trace, draft: float, slope: float) -> tuple[float, float]:
    result = place(trace, LinearTimes(draft, slope), FOLDS)
    assert 1.0 <= result.information <= result.clairvoyant + 1e-9
    return result.information, result.tuned_over_plain


def test_free_work_leaves_no_choice() -> None:
    gain, speed = found(coin_trace(told=True), 0.0, 0.0)
    assert gain == pytest.approx(1.0, abs=0.01)
    assert speed > 2.0


def test_dear_work_is_chosen_where_it_pays() -> None:
    gain, speed = found(coin_trace(told=True), 0.1, 0.25)
    assert gain > 1.2
    assert speed >= 1.0
    assert found(coin_trace(told=False), 0.1, 0.25)[0] < 1.05


def test_the_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "load_trace", lambda folder: coin_trace(told=True))
    monkeypatch.setattr(command, "DRAFTS", (0.1,))
    monkeypatch.setattr(command, "SLOPES", (0.0, 0.25))
    monkeypatch.setattr(information, "EPOCHS", 8)
    monkeypatch.setattr(command, "fold_of", lambda trace: FOLDS)
    arguments = ["--trace", "a", "--trace", "b", "--output", str(tmp_path)]
    assert command.main(arguments) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["schema"] == "draftgym.map/1"
    assert [entry["trace"] for entry in line["maps"]] == ["a", "b"]
    gains = [row["information"] for row in line["maps"][0]["places"]]
    assert gains[0] < gains[1]
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "map.json").read_text())["maps"] == line["maps"]
    with pytest.raises(ConfigurationError, match="--more"):
        command.main([*arguments, "--more", "c"])


def test_other_prompts_teach_too() -> None:
    trace, times = coin_trace(told=True), SimpleTimes()
    few, folds = trace.select(np.arange(6)), np.arange(6) % 3
    alone = information_bound(few, times, folds).sum()
    more = trace.select(np.arange(6, 30))
    taught = information_bound(few, times, folds, more=more).sum()
    right = few.rank[:, 1, 0] == 0
    told = follow(few, times, lambda rows, _: (right[rows] * 1, right[rows] * 4)).sum()
    assert taught < 1.03 * told
    assert taught <= alone
    with pytest.raises(ValueError, match="more: its shape"):
        information_bound(few, times, folds, more=random_trace(0, (6,) * 5))
