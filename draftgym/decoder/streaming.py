"""Turns token ids into text as they come, never printing half a character."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftgym.decoder.stopping import first_stop, held_back

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Collects ids and writes the text that can no longer change.

    Args:
        decode: Token ids to text.
        write: Receives each new piece of text.
        stop_strings: The text ends before the first of them; an end of the text that may become
            one is held back.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        write: Callable[[str], object],
        stop_strings: Sequence[str] = (),
    ) -> None:
        self._decode, self._write, self._stops = decode, write, tuple(stop_strings)
        self._ids: list[int] = []
        self._start = 0  # ids before this belong to finished words
        self._written = ""
        self._stopped = False

    def push(self, tokens: Sequence[int]) -> None:
        """Add ids of one round; writes nothing while the last character is incomplete."""
        self._ids.extend(tokens)
        text = self._decode(self._ids[self._start :])
        if text.endswith(UNFINISHED):
            return
        self._emit(text, final=False)
        if text.endswith("\n") and self._written == text:
            self._start, self._written = len(self._ids), ""  # keeps what is decoded again short

    def close(self) -> None:
        """Write what is left, incomplete characters included."""
        self._emit(self._decode(self._ids[self._start :]), final=True)

    def _emit(self, text: str, final: bool) -> None:
        if self._stopped:
            return
        place = first_stop(text, self._stops)
        if place is not None:
            text, self._stopped = text[:place], True
        elif not final:
            text = text[: len(text) - held_back(text, self._stops)]
        if len(text) > len(self._written):
            self._write(text[len(self._written) :])
            self._written = text
