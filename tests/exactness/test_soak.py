"""A short soak; `python -m tests.exactness.soak` runs as long as one likes."""

from __future__ import annotations

import pytest

from draftgym.decoder.drafters import lm
from draftgym.decoder.session import DecoderSession
from tests.exactness.soak import soak
from tests.exactness.worlds import WORLDS


def test_no_wrong_token_under_adversarial_controllers() -> None:
    result = soak(8_000, seed=0)
    assert result.faults == []
    assert result.total("tokens") >= 8_000
    assert all(tally.accepted > 0 for name, tally in result.cells.items() if tally.rounds > 200)
    assert len(result.near_ties) <= 2


def test_a_kept_rejected_entry_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is not compacted: the entries of the wrong nodes stay."""
    monkeypatch.setattr(DecoderSession, "_keep", lambda self, start, slots: None)
    assert soak(800, seed=1, worlds=WORLDS[1:2]).total("wrong") > 0


def test_reading_past_the_committed_prefix_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that believes it has ingested the root reads poison."""
    ingest = lm.LmDrafter._ingest

    def off_by_one(self: lm.LmDrafter) -> object:
        logits = ingest(self)
        self._ingested += 1
        return logits

    monkeypatch.setattr(lm.LmDrafter, "_ingest", off_by_one)
    with pytest.raises(Exception):  # noqa: B017, PT011
        soak(500, seed=1)
