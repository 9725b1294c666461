"""Say within two minutes whether speculation pays here for a pair, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import tyro

from draftgym.benchmark.config import check_comparable
from draftgym.benchmark.runner import Request, other_load, pinned_threads
from draftgym.benchmark.summary import rounds_of
from draftgym.clock import Clock, WallClock
from draftgym.configuration import load_yaml
from draftgym.console import print_result, say
from draftgym.costs.fingerprint import fingerprint
from draftgym.costs.ratios import cost_ratios, plain_step_seconds
from draftgym.decoder.config import PairConfig
from draftgym.decoder.pair import ModelPair, load_pair
from draftgym.decoder.session import DecoderSession
from draftgym.doctor.cells import (
    Cells,
    acceptance_by_position,
    cost_error,
    measured_cells,
    traced_cells,
)
from draftgym.doctor.diagnosis import Diagnosis, Figures, diagnose
from draftgym.doctor.measure import (
    TOKENS,
    Costs,
    fitting_prompts,
    live_cells,
    measure_cells,
    measure_costs,
    short_trace,
)
from draftgym.errors import ConfigurationError, DraftGymError
from draftgym.prompts import Prompt, PromptSource, load_prompts
from draftgym.provenance import provenance
from draftgym.traces.config import why_untraced

SCHEMA = "draftgym.doctor/1"

COST_SHARE = 0.3
"""Of the time; the rest is for acceptance, which varies more."""

PREDICTION_ERROR = 0.05
"""Of a speedup predicted by costs and a trace: `fidelity` found 1.5 % in the median, 4.8 % at
worst."""


@dataclass(frozen=True)
class Arguments:
    """Costs, acceptance and the best fixed setting of a pair on this machine, in plain words.

    Rounds of every size are timed on validation prompts, then the deepest draft tree is grown at
    every position of a few texts, which tells what each setting would have kept. Drafters that
    cannot be traced (lm) are measured live at a few settings instead.
    """

    pair: Annotated[
        str | None, tyro.conf.arg(help="YAML file of a model pair; the default pair if absent.")
    ] = None
    seconds: Annotated[
        float, tyro.conf.arg(help="To measure for, roughly, once the models are loaded.")
    ] = 90.0
    seed: Annotated[int, tyro.conf.arg(help="Which prompts come first.")] = 0


def main(argv: Sequence[str]) -> int:
    """Examine a pair; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym doctor")
    if not 1 <= arguments.seconds < 86_400:
        raise ConfigurationError(
            f"--seconds: must be at least 1 and less than a day, got {arguments.seconds:g}"
        )
    if arguments.seed < 0:
        raise ConfigurationError(f"--seed: must not be negative, got {arguments.seed}")
    config = PairConfig() if arguments.pair is None else load_yaml(arguments.pair, PairConfig)
    print_result(SCHEMA, doctor(config, arguments.seconds, seed=arguments.seed))
    return 0


def doctor(
    config: PairConfig,
    seconds: float,
    *,
    seed: int = 0,
    pair: ModelPair | None = None,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Measure, say the answer, return it.

    Args:
        config: Of the pair.
        seconds: To measure for, roughly.
        seed: Which prompts come first.
        pair: Loaded from the configuration when None.
        clock: Wall clock of the pair's device when None.

    Returns:
        The result line, without its schema name.

    Raises:
        DraftGymError: A pair that has no drafter or draws another text when it drafts, or prompts
            that do not fit it.
    """
    if config.drafter.kind == "none":
        raise ConfigurationError(
            "drafter.kind: 'none' never speculates; accepted: hybrid, eagle3, lm, ngram"
        )
    try:
        check_comparable(config)
    except ValueError as problem:
        raise ConfigurationError(str(problem)) from problem
    prompts = load_prompts([PromptSource()], "validation", None, seed)
    load = other_load()
    whole = WallClock() if clock is None else clock
    begin = whole.boundary()
    pair = load_pair(config) if pair is None else pair
    clock = WallClock(pair.device) if clock is None else clock
    say(f"{pair.device}, {pair.dtype}; {pair.generation.describe()}")
    with pinned_threads(config.threads) as threads:
        known = fingerprint(
            pair.fingerprint(), pair.device, pair.dtype, threads, pair.config.sampling.law
        )
        figures, cells, error = _examine(pair, clock, prompts, seconds, known, load)
        extra = {"pair": pair.fingerprint(), "load_per_core_before": load}
        origin = provenance(pair.device, pair.dtype, extra)
    found = diagnose(cells, figures, error=error)
    for line in (found.summary, *(f"  - {line}" for line in found.why)):
        say(line)
    for line in ("What to do:", *(f"  - {line}" for line in found.advice)):
        say(line)
    spent = whole.boundary() - begin
    return {**_payload(found, figures, spent), "provenance": origin}


def _examine(
    pair: ModelPair,
    clock: Clock,
    prompts: Sequence[Prompt],
    seconds: float,
    known: dict[str, Any],
    load: float,
) -> tuple[Figures, Cells, float]:
    """Figures, cells, and the error that all requests share."""
    drafter = pair.config.drafter
    session = DecoderSession(
        pair,
        pair.new_drafter(),
        clock=clock,
        max_depth=drafter.max_depth,
        max_size=drafter.max_size,
    )
    chosen = fitting_prompts(session, prompts)
    requests = [request for _, request in chosen]
    start = clock.boundary()
    costs = measure_costs(session, requests, drafter, COST_SHARE * seconds, known)
    left = seconds - (clock.boundary() - start)
    context = int(np.median([len(request.tokens) for request in requests])) + TOKENS // 2
    if why_untraced(drafter) is None:
        trace = short_trace(session, chosen, left)
        try:
            cells = traced_cells(trace, costs.table)
        except ValueError as problem:
            raise DraftGymError(f"the bundled prompts do not fit this pair: {problem}") from problem
        acceptance = acceptance_by_position(trace, session.max_depth)
        chance = cost_error(trace, costs.parts, cells.cells[cells.best])
        error = float(np.hypot(chance, PREDICTION_ERROR))
    else:
        plain = plain_step_seconds(costs.table, context)
        cells, acceptance = _live(session, chosen, left, plain)
        error = 0.0  # measured side by side, so each request carries its own
    return _figures(costs, context, session.max_depth, acceptance, load), cells, error


def _live(
    session: DecoderSession,
    chosen: Sequence[tuple[Prompt, Request]],
    seconds: float,
    step_seconds: float,
) -> tuple[Cells, list[float]]:
    """A few cells, measured, and the acceptance of the deepest."""
    distinct = list({prompt.request_id: request for prompt, request in reversed(chosen)}.values())
    named = live_cells(session.pair.config.drafter)
    samples = measure_cells(session, distinct[::-1], named, seconds, step_seconds)
    domains = {request.prompt_id: request.domain for request in distinct}
    deepest = max(named, key=lambda name: named[name])
    records = rounds_of(samples, deepest)
    shares = [
        sum(record.accepted >= place for record in records) / len(records)
        for place in range(1, named[deepest][0] + 1)
    ]
    return measured_cells(samples, named, domains), shares


def _figures(
    costs: Costs, context: int, max_depth: int, acceptance: list[float], load: float
) -> Figures:
    table = costs.table
    plain = plain_step_seconds(table, context)
    still = plain - float(table.mean("verify", 0, context))
    return Figures(
        plain_seconds=plain,
        draft_pass_over_plain=cost_ratios(
            table, costs.sizes, context, max_depth=max_depth
        ).draft_pass_over_plain,
        verify_over_plain={
            size: (float(table.mean("verify", size, context)) + still) / plain
            for size in costs.sizes
            if size
        },
        acceptance_by_position=acceptance,
        unsteadiness=costs.unsteadiness,
        load=load,
    )


def _payload(found: Diagnosis, figures: Figures, spent: float) -> dict[str, Any]:
    depth, size = found.cell
    speedup = found.speedup
    return {
        "verdict": found.verdict,
        "expected_speedup": {
            "ratio": speedup.estimate,
            "low": speedup.low,
            "high": speedup.high,
        },
        "best_fixed": {"depth": depth, "size": size},
        "draft_pass_over_plain": figures.draft_pass_over_plain,
        "verify_over_plain": figures.verify_over_plain,
        "acceptance_by_position": figures.acceptance_by_position,
        "why": found.why,
        "advice": found.advice,
        "seconds": spent,
    }
