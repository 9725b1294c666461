"""A run's folder: taken or free, and the configuration that a resumed run must keep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from draftgym.configuration import read_yaml
from draftgym.errors import ConfigurationError, DraftGymError
from draftgym.locking import LOCK_FILE
from draftgym.storage import write_text
from policies.config import TrainConfig

SETTINGS = "config.yaml"

# Where W&B keeps its copy changes nothing about the run, so it may change on resume.
_FREE_ON_RESUME = frozenset({"wandb"})


def check_run(config: TrainConfig, folder: Path, resume: bool) -> None:
    """Refuse a folder that is taken, or whose run cannot be gone on with.

    Args:
        config: Of the run.
        folder: Of the run.
        resume: Whether to go on with it.

    Raises:
        DraftGymError: The folder is taken, or holds no run to go on with.
        ConfigurationError: The configuration has changed since.
    """
    file = folder / SETTINGS
    if not resume:
        if folder.is_dir() and any(entry.name != LOCK_FILE for entry in folder.iterdir()):
            raise DraftGymError(
                f"{folder} exists: go on with it by --resume, or choose another name by --run"
            )
        return
    if not file.is_file():
        raise DraftGymError(f"{folder}: no run to resume ({SETTINGS} is missing)")
    before = read_yaml(file)
    if not before:
        raise DraftGymError(f"{file}: empty or damaged; this run cannot be resumed")
    changed = _first_change(before, config.model_dump(mode="json"), "")
    if changed is not None:
        raise ConfigurationError(
            f"{changed}: a resumed run keeps its configuration ({file}); start another by --run"
        )


def write_settings(config: TrainConfig, folder: Path) -> None:
    """Write the configuration of a new run, with every default."""
    if not (folder / SETTINGS).is_file():
        settings = config.model_dump(mode="json")
        write_text(folder / SETTINGS, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))


def _first_change(before: Any, now: Any, name: str) -> str | None:
    """Name of the first field in which two configurations differ, with both values."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            full = f"{name}.{key}" if name else str(key)
            if full not in _FREE_ON_RESUME:
                change = _first_change(before.get(key), now.get(key), full)
                if change is not None:
                    return change
        return None
    return None if before == now else f"{name} was {before!r}, now {now!r}"
