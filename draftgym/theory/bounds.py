"""Every bound of a trace beside plain decoding and fixed cells, in seconds per sequence."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from draftgym.costs.times import Float64Array, Times
from draftgym.theory.clairvoyant import clairvoyant
from draftgym.theory.fixed import fixed
from draftgym.theory.information import information_bound
from draftgym.traces.trace import IntArray, Trace

PLAIN = "plain"
TUNED = "best fixed, tuned on other prompts"
HINDSIGHT = "best fixed in hindsight"
PER_DOMAIN = "best fixed of each domain in hindsight"
INFORMATION = "information bound"
CLAIRVOYANT = "clairvoyant"
SIZE_ONLY = "clairvoyant size, fixed depth"
DEPTH_ONLY = "clairvoyant depth, fixed size"
FOLDS = 5


@dataclass(frozen=True, eq=False)
class Bounds:
    """What decoding the trace takes, by method.

    Attributes:
        seconds: Of all rounds of each sequence, [sequences].
        cell: Depth and size of the best fixed cell in hindsight.
        folds: Fold of each sequence; what is learned or tuned for it saw other folds only.
    """

    seconds: Mapping[str, Float64Array]
    cell: tuple[int, int]
    folds: IntArray


def bounds(trace: Trace, times: Times, *, more: Trace | None = None, seed: int = 0) -> Bounds:
    """Work out every bound.

    Args:
        trace: Positions and what each setting accepts there.
        times: Mean seconds of work; no method pays for deciding.
        more: Positions of other prompts that the information bound learns from as well.
        seed: Of the networks of the information bound.

    Raises:
        ValueError: If the prompts fall into fewer than three folds, or `more` is of another shape.
    """
    folds = fold_of(trace)
    cells = tuned_cells(trace, times, folds)
    depth, size = cells.best
    seconds = {
        PLAIN: cells.plain,
        TUNED: cells.tuned,
        HINDSIGHT: cells.hindsight,
        PER_DOMAIN: cells.by_domain,
        INFORMATION: information_bound(trace, times, folds, more=more, seed=seed),
        DEPTH_ONLY: clairvoyant(trace, times, sizes=(size,)).seconds,
        SIZE_ONLY: clairvoyant(trace, times, depths=(depth,)).seconds,
        CLAIRVOYANT: clairvoyant(trace, times).seconds,
    }
    return Bounds(seconds, cells.best, folds)


@dataclass(frozen=True, eq=False)
class FixedCells:
    """Seconds of fixed cells, [sequences] each.

    Attributes:
        plain: Plain decoding.
        tuned: The cell that is best on the sequences of other folds.
        own: The cell that is best on the sequences of other folds and the same domain; `tuned`
            where there are none.
        hindsight: The cell that is best on all sequences.
        by_domain: For each domain the cell that is best in it.
        best: Depth and size of the cell in hindsight.
        best_of: The same of each domain.
    """

    plain: Float64Array
    tuned: Float64Array
    own: Float64Array
    hindsight: Float64Array
    by_domain: Float64Array
    best: tuple[int, int]
    best_of: Mapping[str, tuple[int, int]]


def tuned_cells(trace: Trace, times: Times, folds: IntArray) -> FixedCells:
    """Every fixed cell of the trace's depths and sizes, and the best of them in five senses.

    Args:
        trace: Positions.
        times: Mean seconds of work.
        folds: Fold of each sequence.
    """
    cells = list(product(range(trace.shape.max_depth + 1), trace.shape.size_grid))
    table = np.stack([fixed(trace, times, *cell) for cell in cells])  # [cells, sequences]
    domains = np.array([entry.domain for entry in trace.sequences])

    def cheapest(mine: NDArray[np.bool_]) -> int:
        return int(table[:, mine].sum(1).argmin())

    best = cheapest(np.ones(len(folds), np.bool_))
    best_of = {str(domain): cheapest(domains == domain) for domain in np.unique(domains)}
    tuned, own, by_domain = np.zeros((3, len(folds)))
    for fold in np.unique(folds):
        here = folds == fold
        tuned[here] = table[cheapest(~here), here]
    for domain, cell in best_of.items():
        mine = domains == domain
        by_domain[mine] = table[cell, mine]
        for fold in np.unique(folds[mine]):
            here, others = mine & (folds == fold), mine & (folds != fold)
            own[here] = table[cheapest(others), here] if others.any() else tuned[here]
    return FixedCells(
        plain=table[cells.index((0, 0))],
        tuned=tuned,
        own=own,
        hindsight=table[best],
        by_domain=by_domain,
        best=cells[best],
        best_of={domain: cells[cell] for domain, cell in best_of.items()},
    )


def closed_gaps(seconds: Mapping[str, float], name: str) -> dict[str, float | None]:
    """Shares of the gaps from the tuned cell to both bounds that a method closes.

    Args:
        seconds: Of all methods, the tuned cell and the bounds among them.
        name: Of the method.

    Returns:
        By bound; None where there is no gap.
    """
    tuned = seconds[TUNED]
    gaps = {bound: tuned - seconds[bound] for bound in (INFORMATION, CLAIRVOYANT)}
    return {
        bound: (tuned - seconds[name]) / gap if gap > 0 else None for bound, gap in gaps.items()
    }


def fold_of(trace: Trace) -> IntArray:
    """Fold of each sequence: by prompt, with the translations of a request together."""
    return np.array(
        [
            int(hashlib.sha256((entry.request_id or entry.prompt_id).encode()).hexdigest(), 16)
            % FOLDS
            for entry in trace.sequences
        ],
        np.int64,
    )
