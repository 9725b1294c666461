"""Converted models in the user's cache: each made once, found again without a network.

A model is made in a scratch folder under a lock and moved into place whole, so a killed
process leaves nothing that could be taken for a model, and two processes do not work twice.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from draftgym.console import say
from draftgym.decoder.gguf import convert_gguf
from draftgym.decoder.memory import available_memory_bytes
from draftgym.errors import SourceError
from draftgym.storage import write_json

MANIFEST = "draftgym-source.json"


def default_cache() -> Path:
    """`$DRAFTGYM_CACHE`, else `draftgym` in `$XDG_CACHE_HOME`, else in `~/.cache`."""
    own = os.environ.get("DRAFTGYM_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "draftgym"


class ModelCache:
    """Converted models, one folder each, made once and moved into place whole.

    Args:
        root: The cache folder.
        memory_bytes: Memory free for a conversion; measured when None.
    """

    def __init__(self, root: Path, memory_bytes: int | None) -> None:
        self._models = root / "models"
        self._memory_bytes = memory_bytes

    def obtain(self, name: str, origin: str, fetch: Callable[[Path], Path]) -> Path:
        """The folder called `name`; `fetch` supplies the GGUF file if it must be made.

        Args:
            name: Folder name; it contains a digest of the content.
            origin: The source as the user would write it; recorded beside the model.
            fetch: Given a scratch folder, returns the GGUF file to convert.
        """
        destination = self._models / name
        if _is_whole(destination):
            return destination
        try:
            self._models.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SourceError(
                f"the cache folder {self._models} cannot be made ({error}); set DRAFTGYM_CACHE"
            ) from error
        with self._lock(name):
            # Whoever held the lock before may have made it.
            if not _is_whole(destination):
                self._make(destination, origin, fetch)
        return destination

    def _make(self, destination: Path, origin: str, fetch: Callable[[Path], Path]) -> None:
        # Under the lock no one else is at work, so what lies here was left by a killed run.
        for leftover in self._models.glob(f".{destination.name}.*.partial"):
            shutil.rmtree(leftover)
        scratch = Path(
            tempfile.mkdtemp(dir=self._models, prefix=f".{destination.name}.", suffix=".partial")
        )
        try:
            file = fetch(scratch)
            folder = scratch / "model"
            folder.mkdir()
            self._check_disk(file)
            memory = self._memory_bytes
            convert_gguf(file, folder, available_memory_bytes() if memory is None else memory)
            write_json(folder / MANIFEST, {"source": origin, "bytes": _sizes(folder)})
            if destination.exists():  # present but not whole
                shutil.rmtree(destination)
            os.replace(folder, destination)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        say(f"model kept in {destination}")

    def _check_disk(self, file: Path) -> None:
        # A 4-bit file grows eightfold as float32.
        needed = 8 * file.stat().st_size
        free = shutil.disk_usage(self._models).free
        if needed > free:
            raise SourceError(
                f"converting {file.name} may take {needed / 1e9:.2f} GB in {self._models}, "
                f"where {free / 1e9:.2f} GB is free; set DRAFTGYM_CACHE to a larger disk"
            )

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """One process at a time; the lock of a killed process frees itself."""
        from filelock import FileLock, Timeout

        lock = FileLock(self._models / f".{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say("another process is preparing this model; waiting for it")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


def _is_whole(folder: Path) -> bool:
    """Whether every file that the conversion wrote is there with its full size."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return False
    try:
        written = dict(json.loads(manifest.read_text(encoding="utf-8"))["bytes"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return False  # damaged: converted again
    present = _sizes(folder)
    return bool(written) and all(present.get(name) == size for name, size in written.items())


def _sizes(folder: Path) -> dict[str, int]:
    return {
        file.name: file.stat().st_size
        for file in sorted(folder.iterdir())
        if file.is_file() and file.name != MANIFEST
    }
