"""Turns token ids into text as they come, never printing half a character."""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Collects ids and writes the text that can no longer change.

    Args:
        decode: Token ids to text.
        write: Receives each new piece of text.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], write: Callable[[str], object]
    ) -> None:
        self._decode, self._write = decode, write
        self._ids: list[int] = []
        self._start = 0  # ids before this belong to finished words
        self._written = ""

    def push(self, tokens: Sequence[int]) -> None:
        """Add ids of one round; writes nothing while the last character is incomplete."""
        self._ids.extend(tokens)
        text = self._decode(self._ids[self._start :])
        if text.endswith(UNFINISHED):
            return
        self._emit(text)
        if text.endswith("\n"):  # keeps the text decoded again and again short
            self._start, self._written = len(self._ids), ""

    def close(self) -> None:
        """Write what is left, incomplete characters included."""
        self._emit(self._decode(self._ids[self._start :]))

    def _emit(self, text: str) -> None:
        if len(text) > len(self._written):
            self._write(text[len(self._written) :])
            self._written = text
