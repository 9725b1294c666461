"""Atomic file writes: a reader sees the old file or the new one, never half of one.

Data goes to a temporary file beside the destination, is flushed to the disk, and replaces
the destination in one step. A process killed in between leaves the old file untouched.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Replace `path` by `data` in one step; parent folders are made.

    Args:
        path: Destination.
        data: The whole content.

    Returns:
        The destination.
    """
    with writing(path) as file:
        file.write(data)
    return Path(path)


@contextmanager
def writing(path: str | Path) -> Iterator[BinaryIO]:
    """Write a file piece by piece; it replaces `path` in one step when the block ends well.

    Args:
        path: Destination; parent folders are made.
    """
    destination = Path(path)
    destination.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(
        dir=destination.parent, prefix=f".{destination.name}.", suffix=".tmp"
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; artifacts get the rights an ordinary open() would give.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, destination)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(destination.parent)


def write_text(path: str | Path, text: str) -> Path:
    """Replace `path` by UTF-8 `text` in one step."""
    return write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, obj: Any, *, indent: int | None = 2) -> Path:
    """Replace `path` by `obj` as strict JSON, in one step.

    Args:
        path: Destination.
        obj: Anything `plain` accepts; see there for what becomes of NaN.
        indent: Spaces per level; None for one line.
    """
    return write_text(path, dump_json(obj, indent=indent) + "\n")


def dump_json(obj: Any, *, indent: int | None = None) -> str:
    """`obj` as strict JSON text (never NaN or Infinity, which JSON does not have)."""
    return json.dumps(plain(obj), indent=indent, ensure_ascii=False, allow_nan=False)


def plain(obj: Any) -> Any:
    """Reduce `obj` to what JSON holds.

    Numpy and torch scalars and arrays become numbers and lists, dataclasses and pydantic
    models become objects, paths become text. A number that is not finite becomes null:
    JSON has no other word for "no value".

    Raises:
        TypeError: For an object with no such reading, naming its type.
    """
    if obj is None or isinstance(obj, bool | int | str):
        return obj
    if isinstance(obj, float):
        return float(obj) if math.isfinite(obj) else None
    if isinstance(obj, Path):
        return str(obj)
    if isinstance(obj, Mapping):
        return {str(key): plain(value) for key, value in obj.items()}
    if isinstance(obj, Set):
        return sorted(plain(item) for item in obj)
    if isinstance(obj, Sequence) and not isinstance(obj, bytes | bytearray):
        return [plain(item) for item in obj]
    if is_dataclass(obj) and not isinstance(obj, type):
        return plain(asdict(obj))
    for method in ("tolist", "model_dump"):  # numpy and torch; pydantic
        if not isinstance(obj, type) and callable(getattr(obj, method, None)):
            return plain(getattr(obj, method)())
    raise TypeError(f"cannot write {type(obj).__name__} as JSON")


def _umask() -> int:
    # The mask can only be read by setting it.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
