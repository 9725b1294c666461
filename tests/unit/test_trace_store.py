"""Traces on disk: what was written is read back, mapped, and a kill loses a shard at most."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from draftgym.traces.store import Columns, TraceError, TraceWriter, load_trace
from draftgym.traces.trace import Trace
from tests.unit.traces import make_trace

PLAN = {"count": 3, "seed": 0}
SUMMARY = {"context_limit": 512, "provenance": {}}


def example(seed: int, lengths: tuple[int, ...]) -> Trace:
    rows = sum(n - 1 for n in lengths)
    random = np.random.default_rng(seed)
    ranks = random.integers(0, 6, (rows, 3, 4)).tolist()
    return make_trace(ranks, lengths, seed=seed)


def columns(trace: Trace) -> Columns:
    return {name: getattr(trace, name) for name in trace.shape.columns()}


def write(folder: Path, *parts: Trace) -> None:
    writer = TraceWriter(folder, parts[0].shape, PLAN)
    for part in parts[writer.shards :]:
        writer.add(part.sequences, columns(part))


def test_shards_are_joined_into_one_mapped_trace(tmp_path: Path) -> None:
    parts = example(0, (4, 2)), example(1, (1, 3)), example(2, (6,))
    write(tmp_path, *parts)
    assert TraceWriter(tmp_path, parts[0].shape, PLAN).finish(SUMMARY) == 3 + 1 + 0 + 2 + 5
    trace = load_trace(tmp_path)
    assert trace.context_limit == 512
    assert trace.sequence.tolist() == [0] * 3 + [1] + [3] * 2 + [4] * 5
    assert trace.sequences == tuple(entry for part in parts for entry in part.sequences)
    for name in trace.shape.columns():
        if name != "sequence":
            wanted = np.concatenate([getattr(part, name) for part in parts])
            np.testing.assert_array_equal(getattr(trace, name), wanted)
    assert not trace.rank.flags.owndata, "columns must be mapped, not copied"
    assert not trace.rank.flags.writeable
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "manifest.json", "rows.arrow", "sequences.json",
    ]  # fmt: skip


def test_an_interrupted_collection_goes_on(tmp_path: Path) -> None:
    first, second = example(0, (4,)), example(1, (5,))
    write(tmp_path, first)
    (tmp_path / "shard-00001.arrow").write_bytes(b"killed while writing")  # no sequences yet
    with pytest.raises(TraceError, match="not complete"):
        load_trace(tmp_path)
    write(tmp_path, first, second)
    TraceWriter(tmp_path, first.shape, PLAN).finish(SUMMARY)
    np.testing.assert_array_equal(
        load_trace(tmp_path).rank, np.concatenate((first.rank, second.rank))
    )


def test_another_plan_is_refused_by_field(tmp_path: Path) -> None:
    part = example(0, (4,))
    write(tmp_path, part)
    with pytest.raises(TraceError, match=r"plan\.seed: it has 0, this is 1"):
        TraceWriter(tmp_path, part.shape, {**PLAN, "seed": 1})


def test_a_complete_trace_is_not_written_again(tmp_path: Path) -> None:
    part = example(0, (4,))
    write(tmp_path, part)
    TraceWriter(tmp_path, part.shape, PLAN).finish(SUMMARY)
    with pytest.raises(TraceError, match="holds this trace already"):
        TraceWriter(tmp_path, part.shape, PLAN)


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"manifest\.json: missing"):
        load_trace(tmp_path)
    part = example(0, (4,))
    write(tmp_path, part)
    TraceWriter(tmp_path, part.shape, PLAN).finish(SUMMARY)
    manifest, sequences = tmp_path / "manifest.json", tmp_path / "sequences.json"
    good = manifest.read_text(), sequences.read_text()
    sequences.write_text("[]")
    with pytest.raises(TraceError, match=r"rows\.arrow: 3 rows, sequences need 0"):
        load_trace(tmp_path)
    sequences.write_text('[{"tokens": [1]}]')
    with pytest.raises(TraceError, match="damaged trace"):
        load_trace(tmp_path)
    sequences.write_text(good[1])
    changed = json.loads(good[0])
    changed["shape"]["path"] = 9
    manifest.write_text(json.dumps(changed))
    with pytest.raises(TraceError, match="damaged trace"):
        load_trace(tmp_path)
    manifest.write_text(good[0].replace("draftgym.trace/1", "draftgym.trace/0"))
    with pytest.raises(TraceError, match=r"schema 'draftgym\.trace/0'"):
        load_trace(tmp_path)
    manifest.write_text(good[0])
    rows = tmp_path / "rows.arrow"
    rows.write_bytes(rows.read_bytes()[:200])
    with pytest.raises(TraceError, match="trace"):
        load_trace(tmp_path)
