"""One process at a time in a folder of results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftgym.errors import DraftGymError

LOCK_FILE = ".lock"


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold a folder while its results are written; the lock of a killed process frees itself.

    Args:
        folder: Made if missing.

    Raises:
        DraftGymError: Another process holds it.
    """
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise DraftGymError(f"{folder}: another process is writing there; wait for it") from None
    try:
        yield
    finally:
        lock.release()
