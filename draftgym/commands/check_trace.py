"""Check a trace against the live decoder, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from draftgym.benchmark.config import Cell, depths, largest_size
from draftgym.benchmark.runner import encode, pinned_threads
from draftgym.clock import WallClock
from draftgym.configuration import validate
from draftgym.console import print_result, progress, say
from draftgym.decoder.config import DrafterConfig
from draftgym.decoder.pair import load_pair
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError
from draftgym.prompts import load_prompts
from draftgym.provenance import provenance
from draftgym.traces.config import TraceConfig
from draftgym.traces.store import load_trace
from draftgym.traces.trace import Trace
from draftgym.traces.verify import compare_with_live

SCHEMA = "draftgym.check_trace/1"
SHOWN = 10


@dataclass(frozen=True)
class Arguments:
    """Decode traced prompts live with fixed cells: text, nodes and accepted tokens must agree.

    Exits with 1 if a round differs other than where two draft scores are nearly tied.
    """

    trace: Annotated[tyro.conf.Positional[str], tyro.conf.arg(help="Folder of a trace.")] = (
        "runs/trace"
    )
    prompts: Annotated[int, tyro.conf.arg(help="Traced prompts to decode.")] = 10
    cells: Annotated[int, tyro.conf.arg(help="Fixed cells, spread over depths and sizes.")] = 12


def main(argv: Sequence[str]) -> int:
    """Run the check; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym check-trace")
    for name in ("prompts", "cells"):
        if getattr(arguments, name) < 1:
            raise ConfigurationError(f"--{name}: must be at least 1")
    trace = load_trace(Path(arguments.trace))
    config = _config(trace, arguments.trace)
    prompts = load_prompts(config.prompts, config.split, config.count, config.seed)
    _same_prompts(trace, [prompt.id for prompt in prompts], arguments.trace)
    cells = spread_cells(config.pair.drafter, config.size_grid, arguments.cells)
    pair = load_pair(config.pair)
    session = DecoderSession(
        pair,
        pair.new_drafter(),
        clock=WallClock(pair.device),
        max_depth=config.pair.drafter.max_depth,
        max_size=config.size_grid[-1],
        ignore_eos=config.ignore_eos,
    )
    requests = encode(prompts, pair.encode_prompt)[: arguments.prompts]
    say(f"{pair.device}, {pair.dtype}; {config.pair.sampling.describe()}; {len(cells)} cells")
    with pinned_threads(config.pair.threads), progress("check", len(requests) * len(cells)) as bar:
        tokens = [request.tokens for request in requests]
        found = compare_with_live(trace, session, tokens, cells, bar)
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


def spread_cells(drafter: DrafterConfig, size_grid: Sequence[int], count: int) -> list[Cell]:
    """Fixed cells spread over the table of depths and sizes that the drafter can fill."""
    table = [
        Cell(depth=depth, size=size)
        for depth in depths(drafter)
        for size in size_grid
        if 0 < size <= largest_size(drafter, depth)
    ]
    chosen = np.linspace(0, len(table) - 1, min(count, len(table))).round().astype(int)
    return [table[i] for i in dict.fromkeys(chosen.tolist())]


def _config(trace: Trace, folder: str) -> TraceConfig:
    plan = {name: value for name, value in trace.source["plan"].items() if name != "fingerprint"}
    return validate(plan, TraceConfig, f"{folder}/manifest.json: plan")


def _same_prompts(trace: Trace, ids: Sequence[str], folder: str) -> None:
    if [entry.prompt_id for entry in trace.sequences] != list(ids):
        raise ConfigurationError(
            f"{folder}: the prompts that it was made from have changed; make it anew"
        )
