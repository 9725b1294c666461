"""Was the clock right? What rounds took is held against a second opinion on the whole request.

A slow round is no fault, however slow: a user waited for it. A clock that jumped is one: its
durations are negative, or do not add up to what the request took by the calendar.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from draftgym.errors import DraftGymError

if TYPE_CHECKING:
    from draftgym.benchmark.runner import Measurement

TOLERANCE = 0.02
SLACK_SECONDS = 0.05
"""Rounds may sum to so much more than the request that holds them; clocks are not read at once."""
OUTSIDE = 0.5
OUTSIDE_SECONDS = 1.0
"""A request may take so much longer than its rounds: what nobody is charged for lies between."""


class ClockError(DraftGymError, RuntimeError):
    """A clock whose durations cannot be true."""


def clock_fault(measured: Measurement) -> str | None:
    """What is wrong with the times of a measurement, in words; None if nothing is.

    Args:
        measured: With `request_seconds`, or only durations are looked at.
    """
    first = measured.first_token_seconds or 0.0
    durations = [first, measured.seconds, *measured.gaps_seconds]
    for record in measured.records:
        durations += [record.seconds, record.draft_seconds, record.verify_seconds]
        durations += [record.commit_seconds, record.policy_seconds]
    impossible = [value for value in durations if not (math.isfinite(value) and value >= 0)]
    if impossible:
        return f"a part of it took {impossible[0]:g} s"
    inside, whole = first + measured.seconds, measured.request_seconds
    if whole is None:
        return None
    if inside > whole * (1 + TOLERANCE) + SLACK_SECONDS:
        return f"its parts took {inside:.3f} s, the whole request {whole:.3f} s"
    if whole > inside * (1 + OUTSIDE) + OUTSIDE_SECONDS:
        return f"the request took {whole:.3f} s, its parts only {inside:.3f} s"
    return None
