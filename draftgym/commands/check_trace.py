"""Check a trace against the live decoder, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import tyro

from draftgym.benchmark.runner import pinned_threads
from draftgym.clock import WallClock
from draftgym.commands._inputs import TEST_TRACE, Inputs
from draftgym.commands._traced import open_traced, spread_cells
from draftgym.console import print_result, progress, say
from draftgym.errors import ConfigurationError
from draftgym.provenance import provenance
from draftgym.traces.verify import compare_with_live

SCHEMA = "draftgym.check_trace/1"
SHOWN = 10


@dataclass(frozen=True)
class Arguments:
    """Decode traced prompts live with fixed cells: text, nodes and accepted tokens must agree.

    Exits with 1 if a round differs other than where two draft scores are nearly tied.
    """

    trace: Annotated[tyro.conf.Positional[str | None], TEST_TRACE] = None
    prompts: Annotated[int, tyro.conf.arg(help="Traced prompts to decode.")] = 10
    cells: Annotated[int, tyro.conf.arg(help="Fixed cells, spread over depths and sizes.")] = 12


def main(argv: Sequence[str]) -> int:
    """Run the check; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym check-trace")
    for name in ("prompts", "cells"):
        if getattr(arguments, name) < 1:
            raise ConfigurationError(f"--{name}: must be at least 1")
    inputs = Inputs()
    traced = open_traced(inputs.trace(arguments.trace, "test"))
    config = traced.config
    cells = spread_cells(config.pair.drafter, config.size_grid, arguments.cells)
    pair = inputs.pair(config.pair)
    session = traced.session(pair, WallClock(pair.device))
    requests = traced.requests(pair, arguments.prompts)
    say(f"{pair.device}, {pair.dtype}; {config.pair.sampling.describe()}; {len(cells)} cells")
    with pinned_threads(config.pair.threads), progress("check", len(requests) * len(cells)) as bar:
        tokens = [request.tokens for request in requests]
        found = compare_with_live(traced.trace, session, tokens, cells, bar)
    for entry in found.mismatches[:SHOWN]:
        word = "near-tie, not counted" if entry.near_tie else "DIFFERS"
        say(
            f"{word}: {entry.prompt_id}, {entry.cell}, after {entry.emitted} tokens: nodes and "
            f"accepted {entry.traced} by the trace, {entry.live} live; gap {entry.gap:.3g}"
        )
    for text in found.other_texts[:SHOWN]:
        say(f"DIFFERS: {text}: the text is another")
    payload: dict[str, Any] = {
        "rounds": found.rounds,
        "accepted": found.accepted,
        "cells": [cell.name for cell in cells],
        "prompts": len(requests),
        "other_texts": found.other_texts,
        "mismatches": [{**asdict(entry), "near_tie": entry.near_tie} for entry in found.mismatches],
        "ok": found.ok,
        "provenance": provenance(pair.device, pair.dtype),
    }
    print_result(SCHEMA, payload)
    return 0 if found.ok else 1
