"""What a (depth, size) brings that is held for some rounds, at every position of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from draftgym.costs.times import Float64Array, Times
from draftgym.theory.rounds import Positions, play
from draftgym.theory.to_go import TimeToGo
from draftgym.traces.trace import IntArray, Trace

_ROWS_AT_A_TIME = 4096


@dataclass(frozen=True, eq=False)
class HeldCells:
    """Rounds of every cell from every row, until the count of rounds or the text is over.

    Attributes:
        cells: Depth and size, [cells, 2].
        tokens: Emitted, [n, cells].
        seconds: Mean seconds without the very first draft pass, which hangs on unread tokens,
            [n, cells].
        drafts: Whether there is such a pass, [n, cells].
        unread: Tokens that the drafter has not seen afterwards, without those from before where
            nothing was drafted, [n, cells].
    """

    cells: IntArray
    tokens: IntArray
    seconds: Float64Array
    drafts: NDArray[np.bool_]
    unread: IntArray

    def saved(
        self, to_go: TimeToGo, rows: IntArray, unread: IntArray, seconds: Float64Array
    ) -> Float64Array:
        """What each cell saves until the texts end if a fixed one takes over, [m, cells].

        Args:
            to_go: Of the fixed cell.
            rows: Where rounds start, [m].
            unread: Committed tokens that the drafter has not seen, [m].
            seconds: Of the rounds, from `outcome`, [m, cells].
        """
        later = self.unread[rows] + np.where(self.drafts[rows], 0, unread[:, None])
        after = to_go.after(rows[:, None], self.tokens[rows], later)
        return to_go(rows, unread)[:, None] - seconds - after

    def outcome(
        self, rows: IntArray, times: Times, unread: IntArray, context: IntArray
    ) -> tuple[Float64Array, Float64Array]:
        """Tokens and mean seconds of every cell where rounds start, [m, cells] each.

        Args:
            rows: Of the trace, [m].
            times: Mean seconds of first passes.
            unread: Committed tokens that the drafter has not seen, [m].
            context: Committed tokens, [m].
        """
        first = times.mean("first", unread, context)[:, None]
        seconds = self.seconds[rows] + np.where(self.drafts[rows], first, 0.0)
        return self.tokens[rows].astype(np.float64), seconds


def all_cells(trace: Trace) -> IntArray:
    """Every depth and size of a trace, [cells, 2]."""
    return np.array(list(product(range(trace.shape.max_depth + 1), trace.shape.size_grid)))


def held_cells(trace: Trace, times: Times, rounds: int = 1) -> HeldCells:
    """Work out every cell at every position.

    Args:
        trace: Positions and what each setting accepts there.
        times: Mean seconds of work; deciding costs nothing here.
        rounds: A cell is held for so many, at least 1.
    """
    cells, positions, count = all_cells(trace), Positions.of(trace), len(trace)
    blocks = [
        play(trace, positions, times, rows[:, None], cells[:, 0], cells[:, 1])
        for start in range(0, count, _ROWS_AT_A_TIME)
        for rows in [np.arange(start, min(start + _ROWS_AT_A_TIME, count))]
    ]
    emitted = np.concatenate([block.emitted for block in blocks])
    once = np.concatenate([block.seconds for block in blocks])
    drafts = np.concatenate([block.depth > 0 for block in blocks])
    tokens, seconds, unread = emitted, once, emitted
    if rounds > 1:
        goes_on = emitted < positions.left[:, None]
        ahead = np.minimum(np.arange(count)[:, None] + emitted, count - 1)
        column = np.arange(len(cells))
        # A pass has read everything, so the next one finds what this round emits. Where a cell
        # cannot draft it cannot later either: the room only shrinks.
        again = times.mean("first", emitted, positions.context[ahead])
        again = np.where(drafts[ahead, column], again, 0.0)
        for _ in range(rounds - 1):
            seconds = once + np.where(goes_on, again + seconds[ahead, column], 0.0)
            tokens = emitted + np.where(goes_on, tokens[ahead, column], 0)
            # A cell that does not draft leaves everything unread.
            last = np.where(goes_on, unread[ahead, column], emitted)
            unread = np.where(drafts, last, tokens)
    return HeldCells(cells, tokens, seconds, drafts, unread)
