"""The one clock. Nothing else in the project reads the time.

Round boundaries synchronise the device and then read a monotonic host clock. Inside a
round a mark is a host reading on a CPU and a recorded event on CUDA, so that timing a draft
pass never makes the host wait for the device; the events are read after the boundary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

Mark = Any
"""Opaque: a host reading in seconds, or a CUDA event."""


class Clock(Protocol):
    """Source of time for sessions, environments and benchmarks."""

    def boundary(self) -> float:
        """Synchronise the device, then return monotonic host seconds."""

    def mark(self) -> Mark:
        """Mark a point inside a round without waiting for the device."""

    def seconds(self, start: Mark, end: Mark) -> float:
        """Seconds between two marks; call it only after the next `boundary`."""

    def note(self, work: str, units: int = 1) -> None:
        """Say what was just done; only a simulated clock listens."""


class WallClock:
    """Host clock on a CPU; CUDA events with host boundaries on CUDA.

    Args:
        device: Device whose work is timed.
        synchronise: Replaces the device's synchronisation (tests record it).
    """

    def __init__(
        self, device: torch.device | str = "cpu", synchronise: Callable[[], None] | None = None
    ) -> None:
        self._cuda = str(device).startswith("cuda")
        self._device = device
        self._synchronise = synchronise
        if self._cuda and synchronise is None:
            import torch

            self._synchronise = lambda: torch.cuda.synchronize(device)

    def boundary(self) -> float:
        if self._synchronise is not None:
            self._synchronise()
        return time.perf_counter()

    def mark(self) -> Mark:
        if not self._cuda:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(torch.device(self._device)))
        return event

    def seconds(self, start: Mark, end: Mark) -> float:
        if not self._cuda:
            return float(end - start)
        return float(start.elapsed_time(end)) * 1e-3

    def note(self, work: str, units: int = 1) -> None:
        pass


class FakeClock:
    """Deterministic time: it advances only when work is noted.

    It advances by whole ticks of a power of two, so that sums and differences are exact and the
    same work takes the same seconds at any time of day.

    Args:
        fixed_seconds: Seconds per occurrence of a kind of work.
        unit_seconds: Seconds per unit of a kind of work (tokens ingested, nodes verified).
    """

    FIXED: Mapping[str, float] = {
        "draft": 2e-3,
        "verify": 30e-3,
        "commit": 1e-4,
        "prefill": 5e-2,
        "decide": 2e-5,
    }
    UNITS: Mapping[str, float] = {"draft": 5e-5, "verify": 5e-4}
    TICKS_PER_SECOND = 2**36

    def __init__(
        self,
        fixed_seconds: Mapping[str, float] = FIXED,
        unit_seconds: Mapping[str, float] = UNITS,
    ) -> None:
        self._fixed = dict(fixed_seconds)
        self._unit = dict(unit_seconds)
        self._now = 0.0

    def boundary(self) -> float:
        return self._now

    def mark(self) -> Mark:
        return self._now

    def seconds(self, start: Mark, end: Mark) -> float:
        return float(end - start)

    def set_to(self, seconds: float) -> None:
        """Show the time at which an interrupted run stopped, so that a resumed one equals it."""
        self._now = seconds

    def note(self, work: str, units: int = 1) -> None:
        seconds = self._fixed.get(work, 0.0) + units * self._unit.get(work, 0.0)
        self._now += round(seconds * self.TICKS_PER_SECOND) / self.TICKS_PER_SECOND


def witness_of(clock: Clock) -> Callable[[], float]:
    """A second opinion on durations: the calendar's seconds; a simulated clock is its own.

    Never a result, because the calendar may be set; only to notice a clock that is wrong.
    """
    return time.time if isinstance(clock, WallClock) else clock.boundary


def utc_now() -> str:
    """Calendar time for records (never for measuring): UTC, ISO 8601, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
