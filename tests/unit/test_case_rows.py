"""Every row of the failure list (odd numbers) is named by a test."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_every_row_has_a_test() -> None:
    found: set[int] = set()
    for path in TESTS.rglob("test_*.py"):
        for names in re.findall(r"def test_rows?_((?:\d+_)+)", path.read_text(encoding="utf-8")):
            found |= {int(number) for number in names.split("_") if number}
    assert sorted(set(range(1, 58, 2)) - found) == []
