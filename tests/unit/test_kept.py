"""Finished parts: found again under their key, refused when they are not what was written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from draftgym.errors import DraftGymError
from draftgym.kept import keep, kept


def test_a_part_is_found_under_its_key_alone(tmp_path: Path) -> None:
    file = tmp_path / "part.json"
    assert kept(file, {"seed": 1}) is None
    keep(file, {"seed": 1}, {"law": [0.1, float("-inf")], "text": "é"})
    assert kept(file, {"seed": 1}) == {"law": [0.1, None], "text": "é"}
    assert kept(file, {"seed": 2}) is None
    keep(file, {"seed": 2}, 3)
    assert kept(file, {"seed": 2}) == 3 and kept(file, {"seed": 1}) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-9],
        lambda text: "[]",
        lambda text: text.replace("0.25", "0.75"),
        lambda text: json.dumps({"key": json.loads(text)["key"]}),
    ],
    ids=["empty", "cut", "another file", "edited", "half"],
)
def test_damage_is_refused_by_name(tmp_path: Path, damage: Callable[[str], str]) -> None:
    file = tmp_path / "part.json"
    keep(file, "key", {"share": 0.25})
    file.write_text(damage(file.read_text()))
    with pytest.raises(DraftGymError, match=r"part\.json: .*remove it and run again"):
        kept(file, "key")
