"""Measured samples on disk, so that a stopped evaluation goes on where it was.

One JSON line per (method, prompt, repeat), written block by block. A block that is not
complete, because the process was killed while it was written, is measured again.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from draftgym.benchmark.runner import Block, Measurement, Sample
from draftgym.errors import ConfigurationError
from draftgym.state import RoundRecord
from draftgym.storage import dump_json

_RECORD_FIELDS = tuple(field.name for field in fields(RoundRecord))
_BESIDE = ("first_token_seconds", "gaps_seconds", "request_seconds", "joules", "peak_bytes")
_Blocks = dict[Block, dict[str, Sample]]  # samples by method


class SampleStore:
    """Samples of one plan in an append-only file.

    Args:
        path: The file; made when missing.
        key: Identity of everything that a figure depends on. Lines under another key are left
            alone and never read: samples of two configurations must not be mixed.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key

    def load(self, phase: str, methods: Iterable[str]) -> list[Sample]:
        """Samples of all complete blocks of a phase.

        Args:
            phase: Part of the plan, such as `test`.
            methods: Names that make a block complete; samples of others are left out.
        """
        wanted = set(methods)
        blocks: _Blocks = defaultdict(dict)
        for number, row in self._rows():
            try:
                if row["key"] == self._key and row["phase"] == phase and row["method"] in wanted:
                    sample = _read(row)
                    blocks[sample.repeat, sample.prompt_id][sample.method] = sample
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigurationError(
                    f"{self._path}, line {number}: not a sample of this program ({error!r}); "
                    "move the file away"
                ) from error
        return _of_complete(blocks, wanted)

    def append(self, phase: str, block: Sequence[Sample]) -> None:
        """Add the samples of one block in one write that reaches the disk."""
        lines = [dump_json({"key": self._key, "phase": phase, **_row(s)}) + "\n" for s in block]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b") as file:
            # A line torn by a crash must not swallow the next one.
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    lines.insert(0, "\n")
            file.write("".join(lines).encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())

    def _rows(self) -> Iterable[tuple[int, dict[str, Any]]]:
        return _rows(self._path) if self._path.exists() else ()


def load_timings(path: Path, phase: str = "test") -> list[Sample]:
    """Seconds and tokens of the newest plan in a file, whatever version of this program wrote it.

    Args:
        path: Of a `SampleStore`.
        phase: Part of the plan.

    Returns:
        Samples without outputs and rounds, of all complete blocks: those of every method of the
        plan. Of two lines for one run the last counts.

    Raises:
        ConfigurationError: Naming the file, and the line that is no sample.
    """
    plans: dict[str, _Blocks] = defaultdict(lambda: defaultdict(dict))
    newest = None
    for number, row in _rows(path):
        try:
            if row["phase"] == phase:
                newest = row["key"]
                measured = Measurement((), float(row["seconds"]), int(row["emitted"]))
                sample = Sample(row["method"], row["prompt"], row["repeat"], measured)
                plans[newest][sample.repeat, sample.prompt_id][sample.method] = sample
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{path}, line {number}: not a sample ({error!r})") from error
    if newest is None:
        raise ConfigurationError(f"{path}: no samples of the {phase} phase")
    blocks = plans[newest]
    return _of_complete(blocks, {method for block in blocks.values() for method in block})


def _of_complete(blocks: _Blocks, methods: Set[str]) -> list[Sample]:
    complete = [block for block in blocks.values() if block.keys() == methods]
    return [sample for block in complete for sample in block.values()]


def _rows(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error})") from error
    for number, line in enumerate(lines, 1):
        if not line.endswith("}"):
            continue  # torn by a crash
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # likewise: a line cut just after an inner brace
        yield number, row


def finished_blocks(samples: Sequence[Sample]) -> Set[Block]:
    """The blocks that samples belong to."""
    return {(sample.repeat, sample.prompt_id) for sample in samples}


def _row(sample: Sample) -> dict[str, Any]:
    measured = sample.measurement
    return {
        "method": sample.method,
        "prompt": sample.prompt_id,
        "repeat": sample.repeat,
        "seconds": measured.seconds,
        "emitted": measured.emitted,
        "output": measured.output,
        **{name: getattr(measured, name) for name in _BESIDE},
        "round_fields": _RECORD_FIELDS,
        "rounds": [astuple(record) for record in measured.records],
    }


def _read(row: dict[str, Any]) -> Sample:
    names = row["round_fields"]
    records = []
    for values in row["rounds"]:
        record = dict(zip(names, values, strict=True))
        record["tokens"] = tuple(record["tokens"])
        record["pass_seconds"] = tuple(record["pass_seconds"])
        records.append(RoundRecord(**record))
    measured = Measurement(
        tuple(row["output"]),
        float(row["seconds"]),
        int(row["emitted"]),
        tuple(records),
        **{name: row[name] for name in _BESIDE} | {"gaps_seconds": tuple(row["gaps_seconds"])},
    )
    return Sample(row["method"], row["prompt"], row["repeat"], measured)
