"""Traces of several drafters, restricted to the prompts that all of them hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftgym.traces.trace import Trace


def common_prompts(traces: Sequence[Trace]) -> list[Trace]:
    """The same prompts of every trace, in the first one's order.

    Args:
        traces: One or more.

    Raises:
        ValueError: If no prompt is in all of them, or its text differs: then another target or
            budget was traced.
    """
    places = [{entry.prompt_id: i for i, entry in enumerate(trace.sequences)} for trace in traces]
    kept = [name for name in places[0] if all(name in place for place in places)]
    if not kept:
        raise ValueError("no prompt is in every trace")
    chosen = [
        trace.select(np.array([place[name] for name in kept]))
        for trace, place in zip(traces, places, strict=True)
    ]
    for entries in zip(*(trace.sequences for trace in chosen), strict=True):
        if len({entry.tokens for entry in entries}) > 1:
            raise ValueError(f"the texts of {entries[0].prompt_id!r} differ")
    return chosen
