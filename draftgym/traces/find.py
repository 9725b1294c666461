"""Finds a trace that was made before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftgym.storage import plain
from draftgym.traces.store import MANIFEST, SCHEMA


def newest_trace(runs: Path, plan: Mapping[str, Any]) -> Path | None:
    """The newest complete trace whose plan agrees.

    Args:
        runs: Folder of all runs; a trace lies in it or is a run's `trace/`.
        plan: Fields that must be as given; others may differ.

    Returns:
        Its folder, or None.
    """
    manifests = [*runs.glob(f"*/{MANIFEST}"), *runs.glob(f"*/trace/{MANIFEST}")]
    fitting = [file for file in manifests if fits(file.parent, plan)]
    newest = max(fitting, key=lambda file: file.stat().st_mtime, default=None)
    return None if newest is None else newest.parent


def fits(folder: Path, plan: Mapping[str, Any]) -> bool:
    """Whether a folder holds a complete trace whose plan agrees.

    Args:
        folder: Perhaps of a trace.
        plan: Fields that must be as given; others may differ.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        known = manifest["plan"]
        return (
            manifest["schema"] == SCHEMA
            and bool(manifest["complete"])
            and all(known.get(name) == value for name, value in plain(plan).items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # no manifest of a trace that can be read
