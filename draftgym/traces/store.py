"""Traces on disk: Arrow shards while one is made, one memory-mapped Arrow file afterwards.

A folder holds `manifest.json` and, when complete, `rows.arrow` and `sequences.json`. While it is
made, each group of requests is a shard: its rows, then its sequences, whose file is written last
and makes the shard count. A killed collection goes on after the last shard that counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from draftgym.errors import DraftGymError
from draftgym.runtime.folder import first_difference
from draftgym.storage import write_json, writing
from draftgym.traces.trace import Trace, TracedSequence, TraceShape

SCHEMA = "draftgym.trace/1"
MANIFEST, ROWS, SEQUENCES = "manifest.json", "rows.arrow", "sequences.json"
Columns = Mapping[str, np.ndarray[Any, Any]]


class TraceError(DraftGymError, ValueError):
    """A trace folder cannot be read; the message names the file."""


class TraceWriter:
    """Collects shards in a folder and joins them at the end.

    Args:
        folder: Made if missing; what an interrupted collection of the same plan left is kept.
        shape: Sizes of the columns.
        plan: Everything that decides the content, plain data.

    Raises:
        TraceError: The folder holds another plan's trace, or a complete one.
    """

    def __init__(self, folder: Path, shape: TraceShape, plan: Mapping[str, Any]) -> None:
        self._folder, self._shape = folder, shape
        self._plan = json.loads(json.dumps(plan))
        before = _read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else None
        if before is None:
            write_json(folder / MANIFEST, self._manifest(complete=False))
        else:
            changed = first_difference(before.get("plan"), self._plan, "plan", "it")
            if changed is not None:
                raise TraceError(f"{folder}: holds another trace ({changed}); choose a new folder")
            if before.get("complete"):
                raise TraceError(f"{folder}: holds this trace already")

    @property
    def shards(self) -> int:
        """Shards that count."""
        count = 0
        while self._sequences(count).is_file():
            count += 1
        return count

    def add(self, sequences: Sequence[TracedSequence], columns: Columns) -> None:
        """Write the next shard.

        Args:
            sequences: Its requests.
            columns: Their rows, `sequence` counting from 0 within the shard.
        """
        number = self.shards
        with writing(self._rows(number)) as file:
            _write_rows(file, [_batch(columns, self._shape)])
        write_json(self._sequences(number), [asdict(entry) for entry in sequences], indent=None)

    def finish(self, summary: Mapping[str, Any]) -> int:
        """Join the shards into one file of one record batch, then remove them.

        Args:
            summary: Put into the manifest; must hold `context_limit`.

        Returns:
            Rows.

        Raises:
            TraceError: There is no shard.
        """
        count = self.shards
        tables: list[pa.Table] = []
        sequences: list[dict[str, Any]] = []
        for number in range(count):
            table = _map_table(self._rows(number))
            numbers = np.array(table.column("sequence")) + len(sequences)
            index = table.column_names.index("sequence")
            tables.append(table.set_column(index, "sequence", pa.array(numbers.astype(np.int32))))
            sequences += _read_json(self._sequences(number))
        if not tables:
            raise TraceError(f"{self._folder}: nothing was traced")
        joined = pa.concat_tables(tables).combine_chunks()
        with writing(self._folder / ROWS) as file:
            _write_rows(file, joined.to_batches())
        write_json(self._folder / SEQUENCES, sequences, indent=None)
        write_json(self._folder / MANIFEST, {**self._manifest(complete=True), **summary})
        for number in range(count):
            self._sequences(number).unlink()
            self._rows(number).unlink()
        return int(joined.num_rows)

    def _manifest(self, *, complete: bool) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "complete": complete,
            "shape": asdict(self._shape),
            "plan": self._plan,
        }

    def _rows(self, number: int) -> Path:
        return self._folder / f"shard-{number:05d}.arrow"

    def _sequences(self, number: int) -> Path:
        return self._folder / f"shard-{number:05d}.json"


def load_trace(folder: Path) -> Trace:
    """Map a complete trace into memory; columns are read from the disk as they are used.

    Raises:
        TraceError: The folder holds no complete trace, or a damaged one; names the file.
    """
    manifest = _read_json(folder / MANIFEST)
    if manifest.get("schema") != SCHEMA:
        raise TraceError(f"{folder / MANIFEST}: schema {manifest.get('schema')!r}, need {SCHEMA}")
    if not manifest.get("complete"):
        raise TraceError(f"{folder}: the trace is not complete; go on with it by the same command")
    try:
        known = {**manifest["shape"], "size_grid": tuple(manifest["shape"]["size_grid"])}
        shape = TraceShape(**known)
        sequences = tuple(
            TracedSequence(**{**entry, "tokens": tuple(entry["tokens"])})
            for entry in _read_json(folder / SEQUENCES)
        )
        table = _map_table(folder / ROWS)
        columns = {
            name: _column(table, name, kind, inner) for name, (kind, inner) in
            shape.columns().items()
        }  # fmt: skip
        trace = Trace(
            shape=shape,
            sequences=sequences,
            context_limit=int(manifest["context_limit"]),
            source=manifest,
            **columns,
        )
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise TraceError(f"{folder}: damaged trace: {error}") from error
    if trace.first[-1] != len(trace):
        raise TraceError(f"{folder / ROWS}: {len(trace)} rows, sequences need {trace.first[-1]}")
    return trace


def _batch(columns: Columns, shape: TraceShape) -> pa.RecordBatch:
    arrays, names = [], []
    for name, (kind, inner) in shape.columns().items():
        flat = pa.array(np.ascontiguousarray(columns[name], kind).reshape(-1))
        width = int(np.prod(inner))
        arrays.append(pa.FixedSizeListArray.from_arrays(flat, width) if inner else flat)
        names.append(name)
    return pa.RecordBatch.from_arrays(arrays, names)


def _write_rows(file: BinaryIO, batches: Sequence[pa.RecordBatch]) -> None:
    with pa.ipc.new_stream(file, batches[0].schema) as stream:  # the format `datasets` maps
        for batch in batches:
            stream.write_batch(batch)


def _map_table(path: Path) -> pa.Table:
    from datasets import Dataset  # late: it loads slowly

    try:
        return Dataset.from_file(str(path)).data.table
    except (OSError, pa.ArrowException) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error


def _column(table: pa.Table, name: str, kind: str, inner: tuple[int, ...]) -> np.ndarray[Any, Any]:
    chunks = table.column(name).chunks
    flat = [chunk.flatten() if inner else chunk for chunk in chunks]
    if len(flat) != 1:
        raise ValueError(f"{name}: {len(flat)} record batches, expected one")
    values: np.ndarray[Any, Any] = flat[0].to_numpy(zero_copy_only=True)
    if values.dtype != kind:
        raise ValueError(f"{name}: {values.dtype}, expected {kind}")
    return values.reshape(-1, *inner)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError(f"{path}: missing") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
