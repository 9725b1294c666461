"""How much room there was on held-out prompts of a trace, and how much of it was used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from draftgym.costs.times import Float64Array, Times
from draftgym.theory.bounds import (
    CLAIRVOYANT,
    FOLDS,
    HINDSIGHT,
    INFORMATION,
    PLAIN,
    TUNED,
    closed_gaps,
    tuned_cells,
)
from draftgym.theory.clairvoyant import clairvoyant
from draftgym.theory.fixed import best_fixed, fixed
from draftgym.theory.information import information_bound
from draftgym.traces.trace import Trace

LEAST_REQUESTS = 3
"""The information bound is cross-fitted over them."""


def room(
    ours: Trace,
    theirs: Trace,
    times: Times,
    learned: Mapping[str, Float64Array],
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """Speeds over the tuned cell by mean costs, and the shares of the gaps that are closed.

    Args:
        ours: What was learned from, and the cell tuned on.
        theirs: Held-out prompts.
        times: Mean seconds of work.
        learned: Seconds of each held-out sequence by what was learned, [sequences] each.
        seed: Of the information bound's networks.

    Returns:
        Plain data: `prompts`, `tuned_cell`, `over_tuned` by method, `captured` by method and bound.

    Raises:
        ValueError: If fewer than three requests are held out: the bound is cross-fitted.
    """
    cell = best_fixed(ours, times)
    requests = [entry.request_id or entry.prompt_id for entry in theirs.sequences]
    folds = np.unique(requests, return_inverse=True)[1] % FOLDS
    cells = tuned_cells(theirs, times, folds)
    seconds = {
        TUNED: fixed(theirs, times, *cell),
        PLAIN: cells.plain,
        HINDSIGHT: cells.hindsight,
        **learned,
        INFORMATION: information_bound(theirs, times, folds, more=ours, seed=seed),
        CLAIRVOYANT: clairvoyant(theirs, times).seconds,
    }
    spent = {name: float(part.sum()) for name, part in seconds.items()}
    return {
        "prompts": len(theirs.sequences),
        "tuned_cell": {"depth": cell[0], "size": cell[1]},
        "over_tuned": {name: spent[TUNED] / part for name, part in spent.items()},
        "captured": {name: closed_gaps(spent, name) for name in learned},
    }


def room_lines(found: Mapping[str, Any]) -> list[str]:
    """The room as text, one line per method."""
    cell, captured = found["tuned_cell"], found["captured"]
    lines = [
        f"{found['prompts']} held-out prompts of the trace, by mean measured costs; speed over the "
        f"tuned cell (D={cell['depth']}, V={cell['size']}):"
    ]
    for name, speed in found["over_tuned"].items():
        shares = [
            f"{share:.0%} of the gap to the {bound}"
            for bound, share in captured.get(name, {}).items()
            if share is not None
        ]
        lines.append(f"  {name:<36} {speed:.3f}" + (f" ({', '.join(shares)})" if shares else ""))
    return lines
