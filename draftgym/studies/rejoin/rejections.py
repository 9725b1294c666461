"""Rejections with what came after them, from logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftgym.studies.rejoin.log import LoggedRound, LoggedText


@dataclass(frozen=True, slots=True)
class Rejection:
    """One rejection with what came after it.

    Attributes:
        text: The text that it is of.
        index: Of its round among those of the text.
        round: That round.
        following: The next round, whose draft starts after the correction: the fresh redraft.
        correction: The target's token in place of the rejected one.
        continuation: Committed tokens after the correction.
    """

    text: LoggedText
    index: int
    round: LoggedRound
    following: LoggedRound
    correction: int
    continuation: tuple[int, ...]

    @property
    def cluster(self) -> str:
        """Rejections of one request are not independent of each other."""
        return self.text.request_id

    @property
    def escrow(self) -> tuple[int, ...]:
        """The rejected tail, the rejected token left out."""
        return self.round.escrow

    @property
    def fresh(self) -> int:
        """Accepted tokens of the fresh redraft."""
        return self.following.accepted


def rejections(texts: Sequence[LoggedText], slack: int) -> list[Rejection]:
    """Rejections of whole blocks whose continuation is known far enough.

    Near the end of a text nothing can be found in what was never written: those are left out.

    Args:
        texts: Of any blocks.
        slack: Continuation tokens needed beyond the block.
    """
    found = []
    for text in texts:
        for index, (entry, following) in enumerate(zip(text.rounds, text.rounds[1:], strict=False)):
            place = entry.root + entry.accepted + 1  # of the correction
            continuation = text.tokens[place + 1 :]
            if not entry.rejected or len(entry.drafted) < text.block:
                continue
            if len(continuation) < text.block + slack or len(following.drafted) < text.block:
                continue
            found.append(Rejection(text, index, entry, following, text.tokens[place], continuation))
    return found
