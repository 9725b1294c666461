"""What a request draws from the machine besides time: joules and memory.

Energy comes from counters that the hardware keeps. Where there is none, or it may not be read,
the answer is None, never an estimate from a nominal power.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class Drawn:
    """What one request drew; None: not measured.

    Attributes:
        joules: Of the whole device (CUDA) or all processor packages, other processes included.
        peak_bytes: Most device memory that torch held, weights and idle methods' caches
            included; on a CPU no figure belongs to one method.
    """

    joules: float | None
    peak_bytes: int | None


class Meter:
    """Brackets a request.

    Args:
        device: Where the models run.
        energy: Joules since some fixed moment; what `energy_counter` finds when absent.
    """

    def __init__(self, device: Any, energy: Callable[[], float] | None = None) -> None:
        self._device = device
        self._cuda = str(device).startswith("cuda")
        self._energy = energy_counter(device) if energy is None else energy
        self._begin = 0.0

    def start(self) -> None:
        """Just before a request."""
        if self._cuda:
            import torch

            torch.cuda.reset_peak_memory_stats(self._device)
        if self._energy is not None:
            self._begin = self._energy()

    def stop(self) -> Drawn:
        """Just after it."""
        joules = None if self._energy is None else self._energy() - self._begin
        if not self._cuda:
            return Drawn(joules, None)
        import torch

        return Drawn(joules, torch.cuda.max_memory_allocated(self._device))


def energy_counter(device: Any) -> Callable[[], float] | None:
    """A counter of joules for a device, or None.

    Args:
        device: CUDA reads NVML, where `pynvml` is installed; a CPU reads RAPL, where the system
            lets this user.
    """
    return _nvml(device) if str(device).startswith("cuda") else rapl(POWERCAP)


def rapl(root: Path) -> Callable[[], float] | None:
    """Joules of all processor packages from Linux's powercap files.

    Args:
        root: Holds `intel-rapl:0` and so on; their subzones are parts of them and not added.

    Returns:
        None where no package is there or readable.
    """
    try:
        packages = [
            (zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()))
            for zone in sorted(root.glob("intel-rapl:*"))
            if zone.name.count(":") == 1 and (zone / "name").read_text().startswith("package")
        ]
        last = [int(file.read_text()) for file, _ in packages]
    except (OSError, ValueError):
        return None
    if not packages:
        return None
    total = 0

    def joules() -> float:
        nonlocal total
        for index, (file, limit) in enumerate(packages):
            now = int(file.read_text())
            total += now - last[index] + (limit if now < last[index] else 0)  # it wraps around
            last[index] = now
        return total * 1e-6

    return joules


def _nvml(device: Any) -> Callable[[], float] | None:
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        return None
    import torch

    try:
        nvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except (nvml.NVMLError, AttributeError):
        return None
    return lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) * 1e-3
