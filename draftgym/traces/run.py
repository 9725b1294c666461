"""The collection of a trace: requests into shards, with progress, resumable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftgym.benchmark.runner import Request, encode
from draftgym.clock import Clock
from draftgym.console import progress, say
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.session import DecoderSession
from draftgym.prompts import Prompt
from draftgym.traces.collect import Columns, Tracer
from draftgym.traces.config import TraceConfig
from draftgym.traces.store import TraceWriter
from draftgym.traces.trace import TracedSequence


@dataclass(slots=True)
class Spent:
    """Seconds of this process: decoding the texts, growing the trees."""

    positions: int = 0
    text: float = 0.0
    trees: float = 0.0


def collect(
    config: TraceConfig,
    pair: ModelPair,
    prompts: Sequence[Prompt],
    folder: Path,
    clock: Clock,
    origin: Mapping[str, Any],
) -> dict[str, Any]:
    """Trace every prompt; goes on where an interrupted collection stopped.

    Args:
        config: What is traced.
        pair: Made from `config.pair`.
        prompts: Of the configured split.
        folder: Of the trace.
        clock: Times the collection.
        origin: Provenance, kept in the manifest.

    Returns:
        Positions, sequences and bytes of the trace, and the milliseconds per position that this
        process spent (None when it only joined the shards).

    Raises:
        TraceError: The folder holds another trace, or this one already.
        ConfigurationError: A rule, drafter or budget that cannot be traced.
    """
    drafter = config.pair.drafter
    session = DecoderSession(
        pair,
        pair.new_drafter(),
        clock=clock,
        max_depth=drafter.max_depth,
        max_size=config.size_grid[-1],
        ignore_eos=config.ignore_eos,
    )
    tracer = Tracer(session, pair.new_drafter(), config.size_grid)
    writer = TraceWriter(folder, tracer.shape, config.plan(pair.fingerprint()))
    requests = encode(prompts, pair.encode_prompt)
    groups = [
        list(zip(prompts, requests, strict=True))[start : start + config.shard_prompts]
        for start in range(0, len(prompts), config.shard_prompts)
    ]
    left = groups[writer.shards :]
    most = len(prompts) * (config.max_new_tokens - 1)
    say(
        f"trace: {len(prompts)} prompts, at most {most} positions of "
        f"{tracer.shape.row_bytes} bytes, {most * tracer.shape.row_bytes / 2**20:.0f} MiB"
    )
    if writer.shards:
        say(f"going on after {writer.shards} of {len(groups)} shards")
    spent = Spent()
    with progress("trace", sum(map(len, left))) as bar:
        for group in left:
            traced = []
            for prompt, request in group:
                traced.append(
                    trace_request(tracer, prompt, request, config.max_new_tokens, clock, spent)
                )
                if spent.positions and len(traced) == 1 and group is left[0]:
                    pace = (spent.text + spent.trees) / spent.positions
                    say(f"trace: about {pace * most / 60:.1f} min for all, by the first prompt")
                bar.advance()
            writer.add([entry for entry, _ in traced], stack_rows([rows for _, rows in traced]))
    positions = writer.finish({"context_limit": session.context_limit, "provenance": origin})
    return {
        "sequences": len(prompts),
        "positions": positions,
        "bytes": positions * tracer.shape.row_bytes,
        "text_ms_per_position": _ms(spent.text, spent.positions),
        "trees_ms_per_position": _ms(spent.trees, spent.positions),
    }


def trace_request(
    tracer: Tracer,
    prompt: Prompt,
    request: Request,
    budget: int,
    clock: Clock,
    spent: Spent,
) -> tuple[TracedSequence, Columns]:
    """Trace one prompt.

    Args:
        tracer: Decodes and grows.
        prompt: Names it.
        request: The same, encoded.
        budget: Tokens.
        clock: Times the work.
        spent: What it took is added here.

    Returns:
        The request and its rows.
    """
    start = clock.boundary()
    tokens = tracer.decode(request.tokens, budget, request.sequence)
    middle = clock.boundary()
    columns = tracer.columns()
    spent.text += middle - start
    spent.trees += clock.boundary() - middle
    spent.positions += len(tokens) - 1
    entry = TracedSequence(
        prompt_id=prompt.id,
        domain=prompt.domain,
        language=prompt.language,
        prompt_tokens=len(request.tokens),
        tokens=tuple(tokens),
        max_new_tokens=budget,
        sequence=request.sequence,
        request_id=prompt.request_id,
    )
    return entry, columns


def stack_rows(rows: Sequence[Columns]) -> Columns:
    """Columns of a shard; `sequence` counts within it."""
    counts = [len(columns["emitted"]) for columns in rows]
    joined = {name: np.concatenate([columns[name] for columns in rows]) for name in rows[0]}
    joined["sequence"] = np.repeat(np.arange(len(rows), dtype=np.int32), counts)
    return joined


def _ms(seconds: float, positions: int) -> float | None:
    return 1e3 * seconds / positions if positions else None
