"""Values that must come out before anything is said of a real pair."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from draftgym.costs.times import Float64Array, Times
from draftgym.studies.known import Known
from draftgym.studies.shift.acceptance import first_hits, tokens_per_round
from draftgym.studies.shift.cells import PLAIN, Cell, CellTimes
from draftgym.studies.shift.groups import by, everything
from draftgym.studies.shift.planted import DEEPEST, GUESSED, HARD, PASSES, TIMES, planted
from draftgym.theory.fixed import best_fixed
from draftgym.theory.requests import Mask
from draftgym.traces.trace import Trace

Learn = Callable[[Trace, Trace], Float64Array]
"""(learned from, tested on) to the seconds of each tested sequence under a learned policy, by
`draftgym.studies.shift.planted.TIMES`."""

EXACT = 1e-9
NEAR = 0.01
"""Of networks: one verified token too many in every round would cost more."""


def planted_values(learn: Learn) -> list[Known]:
    """What cells and policies gain and lose on planted traces.

    Args:
        learn: As policies are learned and judged on the real pair.
    """
    return _cells() + _policies(learn)


def _cells() -> list[Known]:
    trace = planted({GUESSED: 4, HARD: 4}, told=True)
    cells, parts = CellTimes.of(trace, TIMES), by(trace, "domain")
    guessed, hard = parts[GUESSED], parts[HARD]
    deep, mixture = cells.best(guessed), cells.best()

    def over(slow: Cell, fast: Cell, mine: Mask) -> float:
        return float(cells[slow][mine].sum() / cells[fast][mine].sum())

    own = np.where(guessed, cells[deep], cells[cells.best(hard)])
    tokens = float((trace.lengths - 1).sum())
    hits = first_hits(trace, deep) / (trace.lengths - 1)
    return [
        Known("guessed text: passes of the best cell", PASSES, deep[0], 0),
        Known("guessed text: size of the best cell", PASSES, deep[1], 0),
        Known("hard text: passes and size of the best cell", 0, sum(cells.best(hard)), 0),
        Known("mixture: passes of the best cell", PASSES, mixture[0], 0),
        Known("guessed text: its cell over plain", 1 / DEEPEST, over(PLAIN, deep, guessed), EXACT),
        Known("hard text: the guessed text's cell over plain", 1 / (4 * DEEPEST),
              over(PLAIN, deep, hard), EXACT),
        Known("mixture: own cells over the mixture's", _best_gain(),
              float(cells[mixture].sum() / own.sum()), EXACT),
        Known("mixture: steps per token of own cells", (DEEPEST + 1) / 2,
              float(own.sum() / tokens), EXACT),
        Known("guessed text: first token accepted", 1, float(hits[guessed].min()), EXACT),
        Known("hard text: first token accepted", 0, float(hits[hard].max()), EXACT),
        Known("guessed text: tokens per round", PASSES + 1,
              tokens_per_round(trace, deep, guessed).estimate, EXACT),
        Known("hard text: tokens per round", 1,
              tokens_per_round(trace, deep, hard).estimate, EXACT),
    ]  # fmt: skip


def _policies(learn: Learn) -> list[Known]:
    mixed = planted({GUESSED: 4, HARD: 4}, told=True)
    cells = CellTimes.of(mixed, TIMES)
    tuned = cells[cells.best()].sum()
    guessed, hard = (planted({kind: 4}, told=False) for kind in (GUESSED, HARD))
    own = CellTimes.of(guessed, TIMES)
    best = own[own.best()].sum()
    return [
        Known("policy of the mixture over its cell", _best_gain(),
              float(tuned / learn(mixed, mixed).sum()), NEAR),
        Known("policy of guessed text over its cell", 1,
              float(best / learn(guessed, guessed).sum()), NEAR),
        Known("policy of hard text, on guessed text, over its cell", DEEPEST,
              float(best / learn(hard, guessed).sum()), NEAR * DEEPEST),
    ]  # fmt: skip


def _best_gain() -> float:
    """Of knowing which text it is, over the deepest cell, on as many tokens of either."""
    mixture = (DEEPEST + (PASSES + 1) * DEEPEST) / 2
    return mixture / ((DEEPEST + 1) / 2)


def identities(trace: Trace, times: Times, cells: CellTimes) -> list[Known]:
    """What must hold on any trace, here on the one that the cells are tuned on.

    Args:
        trace: Of the learning prompts.
        times: Mean seconds.
        cells: Of both.
    """
    everywhere = {"all": everything(trace), **by(trace, "domain")}
    other = sum(
        cells.best(mine) != best_fixed(trace.select(np.flatnonzero(mine)), times)
        for mine in everywhere.values()
    )
    cell = cells.best()
    sequence = int(trace.lengths.argmax())
    by_hand = seconds_by_hand(trace, times, cell, sequence)
    return [
        Known("parts whose cell is not that of the part alone", 0, float(other), 0),
        Known("seconds of a sequence under the tuned cell over the sum by hand", 1,
              float(cells[cell][sequence] / by_hand), EXACT),
    ]  # fmt: skip


def seconds_by_hand(trace: Trace, times: Times, cell: Cell, sequence: int) -> float:
    """A fixed cell round by round, without any code that the study's numbers come from.

    Args:
        trace: Positions.
        times: Mean seconds.
        cell: Depth and size.
        sequence: Which one.
    """
    entry = trace.sequences[sequence]
    allowed = min(entry.max_new_tokens, trace.context_limit - entry.prompt_tokens)
    emitted, unread, seconds = 1, entry.prompt_tokens, 0.0
    while emitted < len(entry.tokens):
        row = int(trace.first[sequence]) + emitted - 1
        context, room = entry.prompt_tokens + emitted, allowed - emitted
        depth = min(cell[0], int(trace.depth_limit[row])) if room > 1 else 0
        size = min(cell[1], int(trace.nodes[row, depth])) if room > 1 else 0
        kept = 0
        for rank in trace.rank[row, depth]:
            if rank >= size:
                break
            kept += 1
        seconds += float(times.mean("propose", 0, context)) + float(
            times.mean("commit", 0, context)
        )
        seconds += float(times.mean("verify", size, context))
        if depth:
            seconds += float(times.mean("first", unread, context))
        if depth > 1:
            seconds += (depth - 1) * float(times.mean("later", 0, context))
        step = min(kept + 1, len(entry.tokens) - emitted)
        unread = (0 if depth else unread) + step
        emitted += step
    return seconds
