"""Loads whatever was learned: a policy folder, or a table's JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftgym.runtime.controller import ExportedController
from draftgym.runtime.folder import load
from draftgym.runtime.table import TableController, load_table

LearnedController = ExportedController | TableController


def load_controller(
    path: str | Path,
    pair_fingerprint: Mapping[str, Any] | None = None,
    hardware_fingerprint: Mapping[str, Any] | None = None,
) -> LearnedController:
    """Load a policy folder, or a threshold table where the path ends in `.json`.

    Args:
        path: Folder of a policy, or file of a table.
        pair_fingerprint: Of the model pair it will steer; another one is refused.
        hardware_fingerprint: Of this machine; a difference is warned about.

    Raises:
        PolicyError: As for `draftgym.runtime.load` and `load_table`.
    """
    if Path(path).suffix == ".json":
        return TableController(load_table(path, pair_fingerprint, hardware_fingerprint))
    return load(path, pair_fingerprint, hardware_fingerprint)
