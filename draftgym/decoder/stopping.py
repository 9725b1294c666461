"""Stop strings: where a text ends, whatever the tokens that spell it.

A stop string may begin in one round and end in the next, or lie within one block of accepted
tokens; the sequence ends with the token that completes it, as plain decoding would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftgym.errors import ConfigurationError

StopCheck = Callable[[Sequence[int], Sequence[int]], int | None]
"""Given the tokens emitted so far and a new block: how many of the block are kept, the last of
which completes a stop; None where nothing stops. Asked more than once about the same block."""

_SPARE_TOKENS = 8


class StopStrings:
    """Finds the token that completes a stop string.

    Args:
        strings: Texts that end the answer.
        decode: Token ids to text.

    Raises:
        ConfigurationError: No string, or an empty one, which would stop everything.
    """

    def __init__(self, strings: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        if not strings or not all(strings):
            raise ConfigurationError("stop_strings: need at least one character in each")
        self._strings, self._decode = tuple(strings), decode
        # A character takes at most four tokens; older ones cannot be part of a new match.
        self._reach = 4 * max(map(len, strings)) + _SPARE_TOKENS

    def end(self, emitted: Sequence[int], block: Sequence[int]) -> int | None:
        """Tokens of `block` up to the one that completes a stop string.

        Args:
            emitted: Tokens of the answer so far, without a stop string.
            block: Tokens that follow.

        Returns:
            The count, or None where no stop string is completed.
        """
        earlier = list(emitted[-self._reach :])
        if not self._found([*earlier, *block]):
            return None
        counts = range(1, len(block) + 1)
        return next((n for n in counts if self._found([*earlier, *block[:n]])), None)

    def _found(self, tokens: list[int]) -> bool:
        return first_stop(self._decode(tokens), self._strings) is not None


def first_stop(text: str, strings: Sequence[str]) -> int | None:
    """Where the first stop string begins in a text; None where there is none."""
    places = [place for string in strings if (place := text.find(string)) >= 0]
    return min(places, default=None)


def held_back(text: str, strings: Sequence[str]) -> int:
    """Length of the longest end of a text that may become a stop string."""
    longest = max(map(len, strings), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(string.startswith(text[-length:]) for string in strings):
            return length
    return 0
