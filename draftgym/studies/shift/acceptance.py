"""What a drafter's proposals are worth in some part of a trace, whatever rounds cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftgym.benchmark.statistics import Interval, PromptTotals, time_per_token
from draftgym.costs.times import Float64Array
from draftgym.studies.shift.cells import Cell
from draftgym.theory.fixed import fixed
from draftgym.theory.landscape import LinearTimes
from draftgym.theory.requests import Mask, request_domains, request_totals
from draftgym.traces.trace import Trace

ROUNDS = LinearTimes(draft=0.0, slope=0.0)
"""Every round costs one: the seconds of a cell are then its rounds."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance with 95% intervals over requests.

    Attributes:
        prompts: Traced prompts.
        requests: What they ask, translations counted once.
        tokens: Emitted after the first token of each.
        prompt_tokens: Mean length of a prompt.
        first: Share of positions whose next token is among the verified nodes of the cell.
        tau: Tokens per round of the cell, bonus counted.
        look_up: The same of look-ups alone: no pass, the largest size.
        deepest: The same of the most passes and the largest size.
    """

    prompts: int
    requests: int
    tokens: int
    prompt_tokens: float
    first: Interval
    tau: Interval
    look_up: Interval
    deepest: Interval


def acceptance(trace: Trace, cell: Cell, mine: Mask, *, seed: int = 0) -> Acceptance:
    """Acceptance in a part of a trace.

    Args:
        trace: Positions.
        cell: Depth and size that are the same wherever parts are compared.
        mine: The part, [sequences].
        seed: Of the intervals.

    Raises:
        StatisticsError: The part holds fewer than two requests.
    """
    used = mine & (trace.lengths > 1)
    deepest, widest = trace.shape.max_depth, trace.shape.size_grid[-1]
    strata = request_domains(trace)
    hits = request_totals(trace, first_hits(trace, cell), mine)
    return Acceptance(
        prompts=int(used.sum()),
        requests=len(hits.prompt_ids),
        tokens=int(hits.tokens.sum()),
        prompt_tokens=float(np.array([e.prompt_tokens for e in trace.sequences])[used].mean()),
        first=_share(hits, strata, seed),
        tau=tokens_per_round(trace, cell, mine, seed=seed),
        look_up=tokens_per_round(trace, (0, widest), mine, seed=seed),
        deepest=tokens_per_round(trace, (deepest, widest), mine, seed=seed),
    )


def tokens_per_round(trace: Trace, cell: Cell, mine: Mask, *, seed: int = 0) -> Interval:
    """Tokens over rounds of a cell; arguments as for `acceptance`."""
    rounds = request_totals(trace, fixed(trace, ROUNDS, *cell), mine)
    found = time_per_token(rounds, request_domains(trace), seed=seed)  # rounds per token
    return Interval(1 / found.estimate, 1 / found.high, 1 / found.low)


def first_hits(trace: Trace, cell: Cell) -> Float64Array:
    """Positions whose next token is among the nodes that the cell verifies, [sequences].

    Args:
        trace: Positions.
        cell: Depth and size.
    """
    depth, size = cell
    hit = trace.rank[:, depth, 0] < size
    return np.bincount(trace.sequence, hit, len(trace.sequences)).astype(np.float64)


def _share(hits: PromptTotals, strata: dict[str, str], seed: int) -> Interval:
    found = time_per_token(hits, strata, seed=seed)
    return Interval(found.estimate, max(0.0, found.low), min(1.0, found.high))
