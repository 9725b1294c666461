"""Known values: what counts as found, and what a study may not leave out."""

from __future__ import annotations

import math

import pytest

from draftgym.commands import study as command
from draftgym.studies.known import Known, study_result, study_schema


def test_a_value_is_found_within_its_tolerance_only() -> None:
    assert Known("x", 1.0, 1.01, 0.02).ok
    assert not Known("x", 1.0, 1.03, 0.02).ok
    assert not Known("x", 1.0, math.nan, 0.02).ok
    assert not Known("x", 1.0, math.inf, math.inf).ok


def test_a_missed_value_is_named() -> None:
    values = [Known("hit", 1.0, 1.0, 0.0), Known("miss", 1.0, 2.0, 0.5)]
    line = study_result("exactness", values, {"prompts": 3}, 1.5, {"commit": "abc"})
    assert line["ok"] is False and line["missed"] == ["miss"]
    assert line["known"]["miss"] == {"expected": 1.0, "got": 2.0, "within": 0.5}
    assert line["measured"] == {"prompts": 3} and line["seconds"] == 1.5
    assert study_result("exactness", values[:1], {}, 1.0, {})["ok"] is True
    assert study_schema("exactness") == "draftgym.study.exactness/1"


def test_no_values_or_two_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="exactness: known values need different names"):
        study_result("exactness", [], {}, 1.0, {})
    twice = [Known("x", 1.0, 1.0, 0.0)] * 2
    with pytest.raises(ValueError, match="different names"):
        study_result("exactness", twice, {}, 1.0, {})


def test_an_unknown_study_is_answered_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 2
    assert "no study named" in capsys.readouterr().err
    assert command.main(["nonsense"]) == 2
    printed = capsys.readouterr().err
    assert "unknown study 'nonsense'" in printed and "objectives" in printed
    assert command.main(["--help"]) == 0
