"""How much memory this process may still take, the container's limit included."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_memory_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """The smaller of the machine's available memory and the container's remaining limit.

    Args:
        meminfo: The kernel's memory table.
        cgroup: The container's control group (version 2).

    Returns:
        Bytes; None on a system that tells neither.
    """
    known = [value for value in (_machine(meminfo), _container(cgroup)) if value is not None]
    return min(known, default=None)


def free_device_bytes(device: torch.device) -> int | None:
    """What a device has free for this process.

    Args:
        device: A CPU or CUDA device.

    Returns:
        Bytes; None where the system does not tell.
    """
    if device.type != "cuda":
        return available_memory_bytes()
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


def _machine(meminfo: Path) -> int | None:
    if not meminfo.is_file():
        return None
    for line in meminfo.read_text(encoding="ascii").splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    return None


def _container(cgroup: Path) -> int | None:
    limit, usage, detail = (
        cgroup / "memory.max",
        cgroup / "memory.current",
        cgroup / "memory.stat",
    )
    if not (limit.is_file() and usage.is_file()):
        return None
    allowed = limit.read_text(encoding="ascii").strip()
    if allowed == "max":
        return None
    used = int(usage.read_text(encoding="ascii"))
    # Cached file pages count as used but are given back on demand.
    if detail.is_file():
        for line in detail.read_text(encoding="ascii").splitlines():
            if line.startswith("inactive_file "):
                used -= int(line.split()[1])
    return max(0, int(allowed) - used)
