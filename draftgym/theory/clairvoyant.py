"""The clairvoyant bound: the least mean seconds in which a traced text can be decoded.

Dynamic programming over (tokens emitted, tokens not yet ingested) with every accepted length
known in advance. Decisions cost nothing here. No policy can know what it knows; the bound says
how far any could go.

A draft pass ingests everything, so what a round costs hangs on the unread tokens through one
term alone, the first pass, and what follows a pass hangs on the tokens emitted alone:

    value(e, u) = min( first(u) + min_k passes(e, k) + value(e + k, k),
                       min_k plain(e, k) + value(e + k, u + k) )

with `passes(e, k)` and `plain(e, k)` the cheapest setting, with and without passes, that emits
k tokens at e.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftgym.costs.times import Float64Array, Times
from draftgym.theory.rounds import Positions, Rounds, play
from draftgym.traces.trace import IntArray, Trace

# Beyond so many unread tokens a state keeps their number, and a pass their price, which makes
# work and memory linear in the text. The optimum leaves so many unread only where drafting is
# useless for that long, and the price of one pass is then spread over as many tokens. Requests
# up to that length are exact, and so is a text of which the drafter has read nothing yet.
UNREAD_TOKENS = 512


@dataclass(frozen=True, eq=False)
class Schedule:
    """Rounds that decode the sequences of a trace.

    Attributes:
        seconds: Of all rounds of each sequence, [sequences].
        tokens: Emitted by them, prefill's first left out, [sequences].
        rows: Trace row of every round, in order, [rounds].
        depth: Draft passes of each round, [rounds].
        size: Drafted tokens verified in each, [rounds].
    """

    seconds: Float64Array
    tokens: IntArray
    rows: IntArray
    depth: IntArray
    size: IntArray

    @property
    def seconds_per_token(self) -> float:
        """Ratio of the sums."""
        return float(self.seconds.sum() / self.tokens.sum())


def clairvoyant(
    trace: Trace,
    times: Times,
    *,
    depths: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
) -> Schedule:
    """The cheapest schedule by mean seconds.

    Both decisions are free by default (joint bound). Depth only: one size. Size only: one depth.
    A request that a round cannot honour is clamped as live decoding does.

    Args:
        trace: Positions and what each setting accepts there.
        times: Mean seconds of work.
        depths: Draft passes to choose from in each round; 0 to the trace's deepest when None.
        sizes: Verification sizes to choose from; the trace's grid when None.

    Returns:
        The schedule.

    Raises:
        ValueError: If there is nothing to choose from, or a depth or size that cannot be.
    """
    depth_set = np.array(range(trace.shape.max_depth + 1) if depths is None else depths, np.int64)
    size_set = np.array(trace.shape.size_grid if sizes is None else sizes, np.int64)
    for name, values, limit in (
        ("depths", depth_set, trace.shape.max_depth),
        ("sizes", size_set, np.iinfo(np.int16).max),
    ):
        if not len(values) or values.min() < 0 or values.max() > limit:
            raise ValueError(f"{name}: must be some of 0 to {limit}, got {values.tolist()}")
    depth_set, size_set = np.repeat(depth_set, len(size_set)), np.tile(size_set, len(depth_set))
    lengths, first, positions = trace.lengths, trace.first, Positions.of(trace)
    seconds = np.zeros(len(lengths))
    chosen: list[IntArray] = [np.zeros((0, 3), np.int64)]
    for index in np.flatnonzero(lengths > 1):
        rows = np.arange(first[index], first[index + 1])
        rounds = play(trace, positions, times, rows[:, None], depth_set, size_set)
        solved = _Sequence(rows, rounds, positions.context[rows], times, trace.shape.path + 1)
        seconds[index], walked = solved.solve()
        chosen.append(walked)
    row, depth, size = np.concatenate(chosen).T
    return Schedule(seconds, np.maximum(lengths - 1, 0), row, depth, size)


class _Sequence:
    """One sequence of n rows and a settings.

    Column c of a value is c unread tokens, column 0 a drafter that has read nothing yet.

    Args:
        rows: Of the trace, [n].
        rounds: Every setting at every row, [n, a].
        context: Committed tokens, [n].
        times: Mean seconds of first passes.
        longest: Most tokens that a round emits, K.
    """

    def __init__(
        self, rows: IntArray, rounds: Rounds, context: IntArray, times: Times, longest: int
    ) -> None:
        self._rows, self._rounds, self._longest = rows, rounds, longest
        drafts = rounds.depth > 0
        self._plain = self._cheapest(~drafts)  # [n, K]
        self._passes = self._cheapest(drafts)
        columns = np.arange(1 + min(len(rows), UNREAD_TOKENS))
        unread = np.where(columns, columns, context[:, None] - 1)  # [n, c]
        self._first = (
            times.mean("first", unread, context[:, None])
            if drafts.any()
            else np.zeros(unread.shape)
        )
        steps = np.arange(1, self._longest + 1)
        # Where a round that emits k tokens leads: with passes k are unread, without u + k.
        self._after_passes = np.minimum(steps, columns[-1])  # [K]
        self._after_plain = np.where(
            columns, np.minimum(columns + steps[:, None], columns[-1]), 0
        )  # [K, c]

    def solve(self) -> tuple[float, IntArray]:
        """Least seconds, and (row, depth, size) of each round, [rounds, 3]."""
        count, longest = self._plain.shape
        # Rows past the end are never reached: no round emits more than is left.
        self._value = np.zeros((count + longest, self._first.shape[1]))
        for row in range(count)[::-1]:
            ahead = self._value[row + 1 : row + 1 + longest]  # [K, c]
            passes = (
                self._passes[row]
                + np.take_along_axis(ahead, self._after_passes[:, None], axis=1).ravel()
            )
            plain = self._plain[row][:, None] + np.take_along_axis(ahead, self._after_plain, axis=1)
            self._value[row] = np.minimum(self._first[row] + passes.min(), plain.min(0))
        return float(self._value[0, 0]), self._walk()

    def _walk(self) -> IntArray:
        """Follow the least values forwards."""
        chosen, row, column = [], 0, 0
        while row < len(self._rows):
            steps = np.arange(row + 1, row + 1 + self._longest)
            plain_columns = self._after_plain[:, column]
            plain = self._plain[row] + self._value[steps, plain_columns]
            passes = (
                self._first[row, column]
                + self._passes[row]
                + self._value[steps, self._after_passes]
            )
            drafts = passes.min() < plain.min()
            step = int((passes if drafts else plain).argmin())
            depth, size = self._rounds.depth[row], self._rounds.size[row]
            fits = (self._rounds.emitted[row] == step + 1) & ((depth > 0) == drafts)
            action = int(np.where(fits, self._rounds.seconds[row], np.inf).argmin())
            chosen.append((self._rows[row], depth[action], size[action]))
            column = int(self._after_passes[step] if drafts else plain_columns[step])
            row += step + 1
        return np.array(chosen, np.int64)

    def _cheapest(self, allowed: NDArray[np.bool_]) -> Float64Array:
        """Least cost of an allowed setting by emitted tokens, infinite where there is none."""
        rounds = self._rounds
        by_step = [
            np.where(allowed & (rounds.emitted == step), rounds.seconds, np.inf).min(1)
            for step in range(1, self._longest + 1)
        ]
        return np.stack(by_step, axis=1)
