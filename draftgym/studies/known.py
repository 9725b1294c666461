"""Values that a study must find again, and the last line that says whether it did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Known:
    """A value known beforehand beside the one that came out.

    Attributes:
        name: What it is of; unique within a study.
        expected: From theory or arithmetic by hand, never from an earlier run.
        got: What the study's own code found.
        within: Largest accepted difference, in the value's own unit.
    """

    name: str
    expected: float
    got: float
    within: float

    @property
    def ok(self) -> bool:
        """Whether the value was found; never for what is not finite."""
        return math.isfinite(self.got) and abs(self.got - self.expected) <= self.within


def study_schema(study: str) -> str:
    """Name of the layout of a study's last line."""
    return f"draftgym.study.{study}/1"


def study_result(
    study: str,
    known: Sequence[Known],
    measured: Mapping[str, Any],
    seconds: float,
    origin: Mapping[str, Any],
) -> dict[str, Any]:
    """The payload of a study's last line.

    Args:
        study: Its name.
        known: Values that must come out.
        measured: What was found on the pair; JSON after `draftgym.storage.plain`.
        seconds: Wall time of the whole study.
        origin: From `draftgym.provenance.provenance`.

    Raises:
        ValueError: Two known values of one name, or none at all: nothing would be checked.
    """
    names = [value.name for value in known]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{study}: known values need different names, got {names}")
    missed = [value.name for value in known if not value.ok]
    return {
        "study": study,
        "ok": not missed,
        "missed": missed,
        "known": {
            value.name: {"expected": value.expected, "got": value.got, "within": value.within}
            for value in known
        },
        "measured": dict(measured),
        "seconds": seconds,
        "provenance": dict(origin),
    }
