"""How much room there was, and how much of it was used."""

from __future__ import annotations

import numpy as np
import pytest

from draftgym.theory.bounds import CLAIRVOYANT, INFORMATION, TUNED, closed_gaps
from draftgym.theory.clairvoyant import clairvoyant
from draftgym.theory.fixed import best_fixed, fixed
from draftgym.theory.room import room, room_lines
from draftgym.traces.synthetic import SyntheticTimes
from tests.unit.test_clairvoyant import random_trace

TIMES = SyntheticTimes()


def test_shares_of_the_gaps() -> None:
    seconds = {TUNED: 10.0, "mine": 9.0, INFORMATION: 8.0, CLAIRVOYANT: 5.0}
    assert closed_gaps(seconds, "mine") == {INFORMATION: 0.5, CLAIRVOYANT: 0.2}
    assert closed_gaps({**seconds, INFORMATION: 10.0}, "mine")[INFORMATION] is None


def test_methods_are_measured_against_the_cell_tuned_on_other_prompts() -> None:
    ours, theirs = random_trace(0, (24,) * 12), random_trace(1, (24,) * 9)
    cell = best_fixed(ours, TIMES)
    tuned, ideal = fixed(theirs, TIMES, *cell), clairvoyant(theirs, TIMES).seconds
    half = (tuned + ideal) / 2
    found = room(ours, theirs, TIMES, {"cell": tuned, "half": half, "all": ideal})
    assert found["tuned_cell"] == {"depth": cell[0], "size": cell[1]}
    assert found["prompts"] == 9
    over = found["over_tuned"]
    assert over[TUNED] == over["cell"] == 1.0
    assert over[CLAIRVOYANT] == over["all"] == pytest.approx(tuned.sum() / ideal.sum())
    captured = {name: found["captured"][name][CLAIRVOYANT] for name in ("cell", "half", "all")}
    assert captured == pytest.approx({"cell": 0.0, "half": 0.5, "all": 1.0})
    text = "\n".join(room_lines(found))
    assert "50% of the gap to the clairvoyant" in text
    assert f"D={cell[0]}, V={cell[1]}" in text


def test_two_requests_are_too_few() -> None:
    ours, theirs = random_trace(0, (24,) * 12), random_trace(1, (24,) * 2)
    with pytest.raises(ValueError, match="three or more"):
        room(ours, theirs, TIMES, {"none": np.ones(2)})
