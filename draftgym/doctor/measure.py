"""The live part: costs, then a short trace or a few measured cells, within a time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftgym.benchmark.config import depths, largest_size
from draftgym.benchmark.methods import SessionMethod
from draftgym.benchmark.runner import Plan, Request, Sample, encode, run_blocks
from draftgym.benchmark.summary import PLAIN
from draftgym.console import progress
from draftgym.costs.drift import slowness
from draftgym.costs.measure import Run, cost_table, measure_rounds, pause_runs, spread_by_length
from draftgym.costs.table import LatencyTable
from draftgym.decoder.config import DrafterConfig
from draftgym.decoder.controllers import FixedController, PlainController
from draftgym.decoder.session import DecoderSession
from draftgym.doctor.cells import Setting
from draftgym.errors import ConfigurationError
from draftgym.features import DEFAULT_SIZE_GRID
from draftgym.prompts import Prompt
from draftgym.runtime.timing import DecisionSeconds
from draftgym.traces.collect import Columns, Tracer
from draftgym.traces.run import Spent, stack_rows, trace_request
from draftgym.traces.trace import Trace, TracedSequence

TOKENS = 64
"""Per prompt, as in the evaluation."""

LEAST_PROMPTS = 6
"""Fewer tell nothing about how different texts are; decoded even if they take longer."""

SIZES = (0, 1, 2, 4, 8, 16, 32)
"""Measured; what lies between follows from them."""

PARTS = 4
"""Of the cost measurement, compared with each other to learn its error."""

LIVE_CELLS: tuple[Setting, ...] = ((1, 1), (1, 4), (2, 4), (4, 8))
"""Measured where nothing can be traced."""

_PAUSES = (2, 8)
_ROUNDS_PER_CYCLE = 2
_MOST_CYCLES = 30


@dataclass(frozen=True, eq=False)
class Costs:
    """What a round's work takes.

    Attributes:
        table: Of all measured rounds.
        parts: Of separate quarters of them.
        sizes: Verified sizes that were measured.
        unsteadiness: The machine's 90th percentile of slowness over its 10th.
    """

    table: LatencyTable
    parts: tuple[LatencyTable, ...]
    sizes: tuple[int, ...]
    unsteadiness: float


def fitting_prompts(
    session: DecoderSession, prompts: Sequence[Prompt]
) -> list[tuple[Prompt, Request]]:
    """Prompts that leave room for an answer, another request each before any translation.

    Args:
        session: Gives the context that target and drafter can follow.
        prompts: In balanced order.

    Raises:
        ConfigurationError: Too few of them fit.
    """
    drafter = session.drafter
    limit = min(session.context_limit, drafter.context_limit if drafter else session.context_limit)
    encoded = zip(prompts, encode(prompts, session.pair.encode_prompt), strict=True)
    fitting = [entry for entry in encoded if len(entry[1].tokens) + TOKENS <= limit]
    if len(fitting) < LEAST_PROMPTS:
        raise ConfigurationError(
            f"pair.context_limit_tokens: {len(fitting)} bundled prompts leave room for {TOKENS} "
            f"tokens in {limit}; {LEAST_PROMPTS} are needed"
        )
    seen: Counter[str] = Counter()
    turns = []
    for prompt, _ in fitting:
        turns.append(seen[prompt.request_id])
        seen[prompt.request_id] += 1
    order = sorted(range(len(fitting)), key=turns.__getitem__)  # stable
    return [fitting[i] for i in order]


def measure_costs(
    session: DecoderSession,
    requests: Sequence[Request],
    drafter: DrafterConfig,
    seconds: float,
    known: Mapping[str, Any],
) -> Costs:
    """Time every kind of work, interleaved.

    Args:
        session: With a drafter.
        requests: Prompts; some of all lengths are used.
        drafter: Its configuration.
        seconds: To spend, roughly; less or more where the least cycles take more.
        known: Fingerprint of pair and machine.

    Raises:
        DraftGymError: The prompts end before anything can be measured.
    """
    settings = cost_table(drafter, [size for size in SIZES if size <= drafter.max_size])
    runs: list[Run] = [(setting,) for setting in settings for _ in range(_ROUNDS_PER_CYCLE)]
    runs += pause_runs(drafter, _PAUSES)
    chosen = spread_by_length(requests, LEAST_PROMPTS)
    start = session.clock.boundary()
    with progress("warm-up", sum(map(len, runs))) as bar:  # also says how long a cycle takes
        measure_rounds(session, chosen, runs, repeats=1, max_new_tokens=TOKENS, bar=bar)
    cycle = session.clock.boundary() - start
    cycles = int(np.clip(seconds / cycle - 1, PARTS, _MOST_CYCLES))
    with progress("costs", cycles * sum(map(len, runs))) as bar:
        found = measure_rounds(
            session, chosen, runs, repeats=cycles, max_new_tokens=TOKENS, bar=bar
        )
    bounds = [len(found.records) * part // PARTS for part in range(PARTS + 1)]
    groups = [found.records, *(found.records[a:b] for a, b in itertools.pairwise(bounds))]
    table, *parts = (
        LatencyTable.from_records(group, known, DecisionSeconds(), openings=found.openings)
        for group in groups
    )
    low, high = np.quantile(slowness(found.records), (0.1, 0.9))
    sizes = tuple(sorted({bucket.units for bucket in table.buckets("verify")}))
    return Costs(table, tuple(parts), sizes, float(high / low))


def short_trace(
    session: DecoderSession,
    prompts: Sequence[tuple[Prompt, Request]],
    seconds: float,
) -> Trace:
    """The deepest tree at every position of as many prompts as fit into a time.

    Args:
        session: Decodes the texts; its pair makes the drafter that grows the trees.
        prompts: In this order.
        seconds: To spend; the least prompts are traced even if they take longer.

    Raises:
        ConfigurationError: A rule or drafter that cannot be traced.
    """
    grid = tuple(size for size in DEFAULT_SIZE_GRID if size <= session.max_size)
    tracer = Tracer(session, session.pair.new_drafter(), grid)
    clock, spent = session.clock, Spent()
    found: list[tuple[TracedSequence, Columns]] = []
    start = clock.boundary()
    shown, total = 0, max(1, round(seconds))
    with progress("trace, seconds", total) as bar:
        for prompt, request in prompts:
            before = clock.boundary()
            if len(found) >= LEAST_PROMPTS and before - start >= seconds:
                break
            found.append(trace_request(tracer, prompt, request, TOKENS, clock, spent))
            now = min(round(clock.boundary() - start), total)  # the least may take longer
            bar.advance(now - shown)
            shown = now
    return Trace(
        shape=tracer.shape,
        sequences=tuple(entry for entry, _ in found),
        context_limit=session.context_limit,
        source={},
        **stack_rows([rows for _, rows in found]),
    )


def live_cells(drafter: DrafterConfig) -> dict[str, Setting]:
    """A few cells of a drafter, by method name.

    Args:
        drafter: Its configuration.
    """
    fitting = dict.fromkeys(
        (depth, min(size, largest_size(drafter, depth)))
        for depth, size in LIVE_CELLS
        if depth in depths(drafter)
    )
    return {f"fixed D={depth} V={size}": (depth, size) for depth, size in fitting}


def measure_cells(
    session: DecoderSession,
    requests: Sequence[Request],
    cells: Mapping[str, Setting],
    seconds: float,
    step_seconds: float,
) -> list[Sample]:
    """Measure cells beside plain decoding.

    Args:
        session: With a drafter.
        requests: Another question each, in this order.
        cells: By method name.
        seconds: To spend, roughly; the least prompts are decoded even if they take longer.
        step_seconds: One plain decoding step.
    """
    methods = [
        SessionMethod(
            PLAIN, DecoderSession(session.pair, None, clock=session.clock), PlainController()
        ),
        *(SessionMethod(name, session, FixedController(*cell)) for name, cell in cells.items()),
    ]
    # Prefill and dear rounds on one side, accepted tokens on the other: about a step a token.
    block = len(methods) * TOKENS * step_seconds
    count = int(np.clip(seconds / block, LEAST_PROMPTS, len(requests)))
    with progress("fixed cells", len(methods) * count) as bar:
        return run_blocks(methods, requests[:count], Plan(TOKENS), bar=bar)
