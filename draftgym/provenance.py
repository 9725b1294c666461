"""Where a number came from: command, code, versions, hardware, date.

Every result file and result line carries this. It holds no user or host names and no paths
beyond those the user typed.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from draftgym import __version__
from draftgym.clock import utc_now

PACKAGES = (
    "torch",
    "transformers",
    "numpy",
    "safetensors",
    "gymnasium",
    "stable-baselines3",
)


HARDWARE = ("cpu", "cores", "threads", "device", "dtype")
"""What measured costs hang on; a policy carries that of the machine it was trained on."""


def provenance(
    device: object = None, dtype: object = None, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Describe the running process for a result file.

    Args:
        device: Device the models run on (text or `torch.device`).
        dtype: Number type the models run in (text or `torch.dtype`).
        extra: Further entries; they may not replace the standard ones.

    Returns:
        Plain data: `command`, `commit` (None outside a clone), `uncommitted_changes`,
        `versions`, `python`, `platform`, `cpu`, `cores`, `threads`, `device`, `dtype`,
        `date` (UTC, ISO 8601) and the entries of `extra`; `gpu` when `device` is CUDA.

    Raises:
        ValueError: If `extra` names a standard entry.
    """
    commit, changed = git_state()
    entries: dict[str, Any] = {
        "command": command_line(),
        "commit": commit,
        "uncommitted_changes": changed,
        "versions": versions(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "threads": _threads(),
        "device": None if device is None else str(device),
        "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
        "date": utc_now(),
    }
    if device is not None and str(device).startswith("cuda"):
        entries["gpu"] = _gpu(str(device))
    clash = sorted(entries.keys() & (extra or {}).keys())
    if clash:
        raise ValueError(f"extra provenance may not replace {', '.join(clash)}")
    return {**entries, **(extra or {})}


def hardware(device: object, dtype: object) -> dict[str, Any]:
    """The entries of `HARDWARE` for this process.

    Args:
        device: Device the models run on.
        dtype: Number type they run in.
    """
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "threads": _threads(),
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
    }


def command_line() -> str:
    """The command as typed, with the interpreter's own path left out."""
    return shlex.join(["python", *sys.orig_argv[1:]])


def versions() -> dict[str, str]:
    """Installed versions of the packages that can change a result."""
    found = {"draftgym": __version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


@cache
def git_state() -> tuple[str | None, bool | None]:
    """Commit of the clone this package runs from, and whether tracked files differ from it.

    Returns:
        (None, None) when the package is not at the top of a clone: installed into some
        other project's environment, that project's commit would be a lie.
    """
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else bool(changes)


@cache
def cpu_model() -> str:
    """The processor's name, or its architecture where the system does not tell."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores this process may use (a container's limit counts, not the machine's)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _threads() -> int | None:
    """Torch's thread count; None in a process that never loaded torch."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _gpu(device: str) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(torch.device(device))
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
    }


def _git(root: Path, *arguments: str) -> str | None:
    """Output of one git command; None where git is missing or refuses."""
    try:
        finished = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return finished.stdout.strip() if finished.returncode == 0 else None
