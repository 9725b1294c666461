"""Promises against acceptance: true ones lie on the diagonal, false ones are found out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftgym.commands import study as command
from draftgym.commands.studies import on_traces
from draftgym.errors import ConfigurationError
from draftgym.theory.reliability import by_cell, by_pass, reliability
from draftgym.traces.trace import ABSENT, Trace
from tests.unit.test_learn import write
from tests.unit.traces import make_trace

ROWS = 8000


def honest_trace() -> Trace:
    """Each pass adds one node, right with the probability that it promises."""
    random = np.random.default_rng(0)
    first, second = random.random((2, ROWS))
    drawn = random.random((2, ROWS))
    ranks = np.full((ROWS, 3, 2), ABSENT)
    ranks[drawn[0] < first, 1:, 0] = 0
    ranks[(drawn[0] < first) & (drawn[1] < second), 2, 1] = 1
    trace = make_trace(ranks.tolist(), budget=ROWS + 20, size_grid=(0, 1, 2))
    total = np.stack([np.zeros(ROWS), first, first + first * second], 1).astype(np.float32)
    best = np.stack([0 * total, np.minimum(total, first[:, None]), total], 2).astype(np.float32)
    nodes = np.broadcast_to(np.arange(3, dtype=np.int16), (ROWS, 3)).copy()
    return replace(trace, total=total, partial=best, nodes=nodes)


def test_true_promises_lie_on_the_diagonal() -> None:
    trace = honest_trace()
    passes = by_pass(trace)
    assert list(passes) == [1, 2], "no free proposal, nothing to compare"
    for found in passes.values():
        assert len(found.count) == 10 and found.error < 0.03
        assert found.count.sum() == ROWS - 2, "the end of a text cuts paths"
    assert passes[1].means == pytest.approx((0.5, 0.5), abs=0.02)
    assert passes[2].means == pytest.approx((0.25, 0.25), abs=0.02)
    cells = by_cell(trace)
    assert set(cells) == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert all(found.error < 0.04 for found in cells.values())
    assert cells[2, 2].means == pytest.approx((0.75, 0.75), abs=0.03)


def test_false_promises_are_found_out() -> None:
    trace = honest_trace()
    boastful = replace(trace, total=np.sqrt(trace.total), partial=1.5 * trace.partial)
    # The mean of sqrt(u) - u is 1/6.
    assert by_pass(boastful)[1].error == pytest.approx(1 / 6, abs=0.02)
    assert by_cell(boastful)[1, 1].error == pytest.approx(0.25, abs=0.03)


def test_bins_hold_equal_promises_together() -> None:
    found = reliability(np.array([0.0] * 50 + [1.0] * 50), np.array([0.0] * 40 + [1.0] * 60), 10)
    assert found.count.tolist() == [50, 50]
    assert found.predicted.tolist() == [0.0, 1.0] and found.realised.tolist() == [0.2, 1.0]
    assert found.error == pytest.approx(0.1)
    with pytest.raises(ValueError, match="positions: none"):
        reliability(np.zeros(0), np.zeros(0))


def test_the_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write(tmp_path / "trace")
    out = ["--output", str(tmp_path / "out")]
    assert command.main(["calibration", "--trace", trace, *out]) == 0
    captured = capsys.readouterr()
    line = json.loads(captured.out.splitlines()[-1])
    assert line["study"] == "calibration" and "free proposals" in captured.err
    assert [row["depth"] for row in line["passes"]] == [0, 1, 2]
    assert Path(line["plot"]).read_bytes().startswith(b"\x89PNG")
    for row in line["passes"] + line["cells"]:
        counts = np.array(row["bins"]["count"])
        promised = (counts * row["bins"]["predicted"]).sum() / counts.sum()
        assert row["promised"] == pytest.approx(promised)


def test_short_texts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = make_trace([[[0, 1], [0, 1]]])
    monkeypatch.setattr(on_traces, "load_trace", lambda _: trace)
    with pytest.raises(ConfigurationError, match="no text is longer"):
        command.main(["calibration", "--output", str(tmp_path / "out")])
