"""What is left to decode costs, at every position of a trace, under a fixed cell.

Tokens are not worth the same everywhere: where a text repeats itself a round emits many, elsewhere
each takes a round of its own. With W the time to go, `W(before) - seconds - W(after)` is what a
round saves against going on with the fixed cell, whatever the text. Decisions that expect the most
of it, round by round, are never slower than the cell (one step of policy iteration).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftgym.costs.times import Float64Array, Times
from draftgym.theory.rounds import Positions, play
from draftgym.traces.trace import IntArray, Trace


class TimeToGo:
    """Mean seconds to the end of the text.

    Args:
        trace: Positions and what the cell accepts there.
        times: Mean seconds of work; deciding costs nothing here.
        depth: Draft passes of every round.
        size: Verification size of every round.
    """

    def __init__(self, trace: Trace, times: Times, depth: int, size: int) -> None:
        rows, positions = np.arange(len(trace)), Positions.of(trace)
        rounds = play(trace, positions, times, rows, np.array(depth), np.array(size))
        self._times, self._context, self._left = times, positions.context, positions.left
        self._drafts = rounds.depth > 0
        goes_on, ahead = self._ahead(rows, rounds.emitted)
        # Where the cell cannot draft it cannot later either, so a pass finds what the last round
        # emitted, or what the first one is told.
        first = self._first(ahead, rounds.emitted)
        self._seconds = rounds.seconds
        for _ in range(int(trace.lengths.max(initial=0))):
            self._seconds = rounds.seconds + np.where(goes_on, first + self._seconds[ahead], 0.0)

    def __call__(self, rows: IntArray, unread: IntArray) -> Float64Array:
        """Seconds from the start of rounds.

        Args:
            rows: Of the trace.
            unread: Committed tokens that the drafter has not seen there; broadcasts.

        Returns:
            In the broadcast shape.
        """
        return self._seconds[rows] + self._first(rows, unread)

    def after(self, rows: IntArray, tokens: IntArray, unread: IntArray) -> Float64Array:
        """Seconds from the end of rounds; none where the text has ended.

        Args:
            rows: Where the rounds started.
            tokens: Emitted by them; broadcasts.
            unread: Tokens that the drafter has not seen then; broadcasts.

        Returns:
            In the broadcast shape.
        """
        goes_on, ahead = self._ahead(rows, tokens)
        return np.where(goes_on, self(ahead, unread), 0.0)

    def _ahead(self, rows: IntArray, tokens: IntArray) -> tuple[NDArray[np.bool_], IntArray]:
        return tokens < self._left[rows], np.minimum(rows + tokens, len(self._left) - 1)

    def _first(self, rows: IntArray, unread: IntArray) -> Float64Array:
        if not self._drafts.any():  # the table may not know passes
            return np.zeros(np.broadcast_shapes(rows.shape, unread.shape))
        first = self._times.mean("first", unread, self._context[rows])
        return np.where(self._drafts[rows], first, 0.0)
