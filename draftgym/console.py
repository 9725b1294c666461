"""What the user sees: progress on standard error, one JSON object last on standard output.

It does not know what is being measured or trained. On a terminal progress is a live bar with
the time left; elsewhere (a log file, CI) it is one quiet line per tenth of the work.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from draftgym.clock import WallClock
from draftgym.storage import dump_json

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")


class Bar(Protocol):
    """A running progress display."""

    def advance(self, amount: float = 1) -> None:
        """Say that `amount` more units of the total are done."""

    def describe(self, description: str) -> None:
        """Replace the text beside the bar."""


def print_result(schema: str, payload: Mapping[str, Any]) -> None:
    """Print the command's result as the last line of standard output.

    Args:
        schema: Name and version of the payload's layout, such as `draftgym.bench/1`.
        payload: Reduced by `draftgym.storage.plain`; numbers that are not finite become null.

    Raises:
        ValueError: If the payload brings a different `schema` of its own.
    """
    if payload.get("schema", schema) != schema:
        raise ValueError(f"payload has schema {payload['schema']!r}, expected {schema!r}")
    sys.stderr.flush()
    sys.stdout.write(dump_json({"schema": schema, **payload}) + "\n")
    sys.stdout.flush()


def say(message: str) -> None:
    """Print one line on standard error, above a running bar if there is one."""
    _console().print(message, markup=False, highlight=False, soft_wrap=True)


def track(iterable: Iterable[T], description: str = "", total: float | None = None) -> Iterator[T]:
    """Yield from `iterable` under a progress display.

    Args:
        iterable: Anything; its length is the total when it has one.
        description: Text beside the bar.
        total: Number of items, when `iterable` does not tell.
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    with progress(description, total) as bar:
        for item in iterable:
            yield item
            bar.advance()


@contextmanager
def progress(description: str, total: float | None = None) -> Iterator[Bar]:
    """Show progress on standard error; use the yielded bar's `advance`.

    Args:
        description: Text beside the bar.
        total: Units of work; None when unknown.
    """
    if not sys.stderr.isatty():
        yield QuietBar(description, total)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_console()) as display:
        yield _RichBar(display, display.add_task(description, total=total))


class QuietBar:
    """One line per tenth of the work, with the time left at the pace so far.

    Args:
        description: Start of each line.
        total: Units of work; None prints the start only.
    """

    def __init__(self, description: str, total: float | None) -> None:
        self._description = description
        self._total = total
        self._clock = WallClock()
        self._start = self._clock.boundary()
        self._done = 0.0
        self._tenths = 0
        if total is None:
            say(f"{description} ...")

    def advance(self, amount: float = 1) -> None:
        self._done += amount
        if not self._total:
            return
        # The margin keeps ten advances of 0.1 from counting as nine tenths.
        tenths = min(10, int(10 * self._done / self._total + 1e-9))
        if tenths <= self._tenths:
            return
        self._tenths = tenths
        elapsed = self._clock.boundary() - self._start
        left = elapsed * max(0.0, self._total - self._done) / self._done
        ending = f"{_span(left)} left" if tenths < 10 else f"done in {_span(elapsed)}"
        count = f"{self._done:g}/{self._total:g}"
        say(f"{self._description}: {round(100 * self._done / self._total)}% ({count}), {ending}")

    def describe(self, description: str) -> None:
        self._description = description


class _RichBar:
    def __init__(self, display: Any, task: Any) -> None:
        self._display = display
        self._task = task

    def advance(self, amount: float = 1) -> None:
        self._display.advance(self._task, amount)

    def describe(self, description: str) -> None:
        self._display.update(self._task, description=description)


@cache
def _console() -> Console:
    # One console, because nested bars must share it; it looks up sys.stderr at each write.
    from rich.console import Console

    return Console(stderr=True)


def _span(seconds: float) -> str:
    """Seconds as `4.2 s` or `3:07 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min"
