"""Reads the file of an offline W&B run: protocol buffers in blocks of LevelDB's log format."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

_BLOCK = 32768
_FILE_HEADER = struct.Struct("<4sHB")
_HEADER = struct.Struct("<IHB")
_FULL, _LAST = 1, 4


def records(path: Path) -> list[Any]:
    """Every record of a `run-*.wandb` file, in order.

    W&B's own process may still be writing when a run has finished; its last word is waited for.
    """
    for _ in range(600):
        found = list(_records(path))
        if any(record.HasField("exit") for record in found):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{path}: the run has not ended")


def _records(path: Path) -> Iterator[Any]:
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    position, parts = _FILE_HEADER.size, b""
    while position + _HEADER.size <= len(data):
        if _BLOCK - position % _BLOCK < _HEADER.size:  # padding to the next block
            position += _BLOCK - position % _BLOCK
            continue
        _, length, kind = _HEADER.unpack_from(data, position)
        position += _HEADER.size
        parts += data[position : position + length]
        position += length
        if kind in (_FULL, _LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def items(entries: Any) -> dict[str, Any]:
    """Values of history, summary or settings by name."""
    found: dict[str, Any] = {}
    for entry in entries:
        *outer, last = entry.nested_key or [entry.key]
        inner = found
        for name in outer:
            inner = inner.setdefault(name, {})
        inner[last] = json.loads(entry.value_json)
    return found
