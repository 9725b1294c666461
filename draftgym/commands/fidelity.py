"""Compare a trace with the latency table against the clock: predicted and live time per token."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import tyro

from draftgym.benchmark.config import Cell
from draftgym.benchmark.methods import SessionMethod
from draftgym.benchmark.runner import Plan, Sample, other_load, pinned_threads, run_blocks
from draftgym.benchmark.statistics import PromptTotals, paired_ratio
from draftgym.benchmark.summary import emitting_prompts
from draftgym.clock import WallClock
from draftgym.commands._inputs import TABLE, TEST_TRACE, Inputs
from draftgym.commands._traced import open_traced, spread_cells
from draftgym.console import print_result, progress, say
from draftgym.costs.fingerprint import fingerprint
from draftgym.costs.table import LatencyTable
from draftgym.costs.times import Times
from draftgym.decoder.controllers import FixedController
from draftgym.errors import ConfigurationError
from draftgym.provenance import provenance
from draftgym.theory.fixed import fixed
from draftgym.traces.trace import Trace

SCHEMA = "draftgym.fidelity/1"
PLAIN = "plain"
CELLS_PER_PLAIN = 3
"""Plain decoding is in every ratio, so it is measured more often than a cell."""


@dataclass(frozen=True)
class Arguments:
    """Fixed cells on traced prompts, predicted and measured live, interleaved with plain decoding.

    Both are speeds over plain decoding, so that a machine that is slower today does not count;
    the error is of their ratio. Many short requests meet a drifting machine more often, and so more
    evenly, than a few long ones.
    """

    trace: Annotated[str | None, TEST_TRACE] = None
    table: Annotated[str | None, TABLE] = None
    prompts: Annotated[int, tyro.conf.arg(help="Traced prompts to decode.")] = 24
    tokens: Annotated[int, tyro.conf.arg(help="Per prompt, where no trace is given.")] = 32
    cells: Annotated[int, tyro.conf.arg(help="Fixed cells, spread over depths and sizes.")] = 12
    repeats: Annotated[int, tyro.conf.arg(help="Measurements of each.")] = 1


def main(argv: Sequence[str]) -> int:
    """Run the comparison; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym fidelity")
    for name, least in (("prompts", 2), ("tokens", 2), ("cells", 1), ("repeats", 1)):
        if getattr(arguments, name) < least:
            raise ConfigurationError(f"--{name}: must be at least {least}")
    inputs = Inputs()
    folder = inputs.trace(
        arguments.trace, "test", count=arguments.prompts, max_new_tokens=arguments.tokens
    )
    traced = open_traced(folder)
    config = traced.config
    file = inputs.table(arguments.table, traced.trace)
    LatencyTable.load(file)  # a missing file is no reason to load a model
    load = other_load()
    pair = inputs.pair(config.pair)
    with pinned_threads(config.pair.threads) as threads:
        here = fingerprint(
            pair.fingerprint(), pair.device, pair.dtype, threads, pair.config.sampling.law
        )
        table = LatencyTable.load(file, here)
        session = traced.session(pair, WallClock(pair.device))
        cells = spread_cells(config.pair.drafter, config.size_grid, arguments.cells)
        plains = [f"{PLAIN} {turn}" for turn in range(-(-len(cells) // CELLS_PER_PLAIN))]
        methods = [
            *(SessionMethod(name, session, FixedController(0, 0)) for name in plains),
            *(
                SessionMethod(cell.name, session, FixedController(cell.depth, cell.size))
                for cell in cells
            ),
        ]
        requests = traced.requests(pair, arguments.prompts)
        plan = Plan(config.max_new_tokens, arguments.repeats, config.seed)
        with progress("live", len(methods) * len(requests) * arguments.repeats) as bar:
            samples = [
                replace(sample, method=PLAIN) if sample.method in plains else sample
                for sample in run_blocks(methods, requests, plan, bar=bar)
            ]
        origin = provenance(pair.device, pair.dtype, {"load_per_core_before": load})
    part = traced.trace.select(np.arange(len(requests)))
    payload = compare(part, table, samples, cells, config.seed)
    for row in payload["settings"]:
        say(
            f"{row['setting']:<18} predicted {row['predicted']:.3f}, live {row['live']:.3f} "
            f"[{row['ci95'][0]:.3f}, {row['ci95'][1]:.3f}] x plain: {row['error_pct']:+.1f} %"
        )
    print_result(SCHEMA, {**payload, "provenance": origin})
    return 0


def compare(
    trace: Trace, times: Times, samples: Sequence[Sample], cells: Sequence[Cell], seed: int
) -> dict[str, Any]:
    """Predicted against live speed over plain decoding, by cell.

    Args:
        trace: Of the prompts that were measured, and no others.
        times: Mean seconds of work.
        samples: Of plain decoding and every cell.
        cells: Fixed settings.
        seed: Of the intervals.

    Returns:
        `settings`, `median_abs_error_pct` and `worst_abs_error_pct`.
    """
    usable = emitting_prompts(samples)
    mine = np.array([entry.prompt_id in usable for entry in trace.sequences])
    plain = fixed(trace, times, 0, 0)[mine].sum()
    rows: list[dict[str, Any]] = []
    differences: list[float] = []
    for cell in cells:
        live = paired_ratio(
            _means(samples, PLAIN, usable), _means(samples, cell.name, usable), seed=seed
        )
        predicted = float(plain / fixed(trace, times, cell.depth, cell.size)[mine].sum())
        differences.append(100.0 * (predicted / live.estimate - 1.0))
        rows.append(
            {
                "setting": cell.name,
                "predicted": predicted,
                "live": live.estimate,
                "ci95": live.limits,
                "error_pct": differences[-1],
            }
        )
    errors = [abs(error) for error in differences]
    return {
        "settings": rows,
        "median_abs_error_pct": float(np.median(errors)),
        "worst_abs_error_pct": max(errors),
    }


def _means(samples: Sequence[Sample], method: str, usable: Set[str]) -> PromptTotals:
    """Mean over the measurements of each prompt.

    Medians would favour plain decoding, which has more of them, wherever delays are skewed.
    """
    mine = [sample for sample in samples if sample.method == method]
    ids = tuple(sorted(usable))
    seconds, tokens = (
        np.array([
            np.mean([getattr(s.measurement, field) for s in mine if s.prompt_id == prompt_id])
            for prompt_id in ids
        ])
        for field in ("seconds", "emitted")
    )  # fmt: skip
    return PromptTotals(ids, seconds, tokens)
