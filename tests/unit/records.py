"""Finished rounds made up for tests."""

from __future__ import annotations

from draftgym.state import RoundRecord


def timed_round(seconds: float, emitted: int) -> RoundRecord:
    """A round of which only the time and the tokens matter."""
    return RoundRecord(
        depth=0,
        nodes=0,
        requested_size=0,
        size=0,
        accepted=emitted - 1,
        tokens=tuple(range(emitted)),
        context_tokens=5,
        uningested_tokens=1,
        clamped=False,
        draft_seconds=0.0,
        pass_seconds=(),
        verify_seconds=seconds,
        commit_seconds=0.0,
        policy_seconds=0.0,
        seconds=seconds,
    )
