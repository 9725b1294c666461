"""Finds a latency table that was measured before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftgym.costs.samples import LatencyError
from draftgym.costs.table import TABLE, LatencyTable


def newest_table(runs: Path, fingerprint: Mapping[str, Any]) -> Path | None:
    """The newest latency table that holds for a pair on this machine.

    Args:
        runs: Folder of all runs, `calibrate`'s among them.
        fingerprint: From `draftgym.costs.fingerprint`; every field must agree.

    Returns:
        The file, or None.
    """
    files = sorted(runs.glob(f"*/{TABLE}"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files:
        try:
            LatencyTable.load(file, fingerprint)
        except LatencyError:
            continue  # damaged, or measured elsewhere
        return file
    return None
