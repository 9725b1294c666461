"""The map of costs: no room where costs leave no choice, room where a choice is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgym.commands import map as command
from draftgym.errors import ConfigurationError
from draftgym.theory import information
from draftgym.theory.follow import follow
from draftgym.theory.information import information_bound
from draftgym.theory.landscape import LinearTimes, Place, ways
from draftgym.traces.trace import Trace
from tests.unit.test_bound import table
from tests.unit.test_clairvoyant import random_trace
from tests.unit.test_information import FOLDS, SimpleTimes, coin_trace


def found(trace: Trace, draft: float, slope: float) -> tuple[float, float]:
    result = Place.of(ways(trace, LinearTimes(draft, slope), FOLDS))
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


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One trace for every folder, two places, short training."""
    monkeypatch.setattr(command, "load_trace", lambda folder: coin_trace(told=True))
    monkeypatch.setattr(command, "DRAFTS", (0.1,))
    monkeypatch.setattr(command, "SLOPES", (0.0, 0.25))
    monkeypatch.setattr(information, "EPOCHS", 8)
    monkeypatch.setattr(command, "fold_of", lambda trace: FOLDS)
    monkeypatch.setattr(command, "git_state", lambda: ("0" * 40, False))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert command.main(arguments) == 0
    line: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return line


@pytest.mark.usefixtures("small")
def test_the_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--trace", "a", "--trace", "b", "--output", str(tmp_path)]
    line = run(capsys, *arguments)
    assert line["schema"] == "draftgym.map/2"
    assert [entry["trace"] for entry in line["maps"]] == ["a", "b"]
    gains = [row["information"] for row in line["maps"][0]["places"]]
    assert gains[0] < gains[1]
    assert line["maps"][0]["domains"] is None, "no costs were measured"
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "domains.png").exists()
    assert json.loads((tmp_path / "map.json").read_text())["maps"] == line["maps"]
    with pytest.raises(ConfigurationError, match="--more"):
        command.main([*arguments, "--more", "c"])
    halves = {
        Path("a"): coin_trace(told=True).select(np.arange(15)),
        Path("b"): coin_trace(told=True).select(np.arange(15, 30)),
    }
    monkeypatch.setattr(command, "load_trace", halves.__getitem__)
    with pytest.raises(ConfigurationError, match="--same-prompts: no prompt"):
        command.main([*arguments, "--same-prompts"])


@pytest.mark.usefixtures("small")
def test_domains_under_measured_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table().save(tmp_path / "latency.json")
    arguments = ["--trace", "a", "--output", str(tmp_path), "--table"]
    line = run(capsys, *arguments, str(tmp_path / "latency.json"), "--no-made-up")
    entry = line["maps"][0]
    assert entry["places"] == []
    assert "plot" not in line
    with pytest.raises(ConfigurationError, match="--no-made-up"):
        command.main(["--trace", "a", "--no-made-up"])
    assert [row["domain"] for row in entry["domains"]] == ["mixed", "chat", "code"]
    mixed = entry["domains"][0]
    for row in entry["domains"]:
        low, high = row["information_over_tuned"]["ci95"]
        assert low <= row["information_over_tuned"]["ratio"] <= high
        product = row["own_over_tuned"]["ratio"] * row["information_over_own"]["ratio"]
        assert product == pytest.approx(row["information_over_tuned"]["ratio"])
    assert mixed["prompts"] == sum(row["prompts"] for row in entry["domains"][1:])
    found = entry["measured"]
    assert mixed["tuned_over_plain"]["ratio"] == pytest.approx(found["tuned_over_plain"])
    assert mixed["clairvoyant_over_tuned"]["ratio"] == pytest.approx(found["clairvoyant"])
    assert (tmp_path / "domains.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("small")
def test_goes_on_after_the_last_whole_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--trace", "a", "--output", str(tmp_path)]
    line = run(capsys, *arguments)
    with monkeypatch.context() as broken:
        broken.setattr(command, "ways", None)
        assert run(capsys, *arguments)["maps"] == line["maps"]
        # The prompts that the only trace holds are all of it.
        assert run(capsys, *arguments, "--same-prompts")["maps"] == line["maps"]
        with pytest.raises(TypeError):  # another seed is another map
            command.main([*arguments, "--seed", "1"])
    monkeypatch.setattr(command, "git_state", lambda: ("0" * 40, True))
    monkeypatch.setattr(command, "ways", None)
    with pytest.raises(TypeError):  # by code that nobody knows
        command.main(arguments)


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
