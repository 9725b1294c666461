"""Measure what every part of a round costs on this machine: the latency table and its plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from draftgym.benchmark.runner import other_load, pinned_threads
from draftgym.benchmark.untrained import untrained_controller
from draftgym.clock import Clock, WallClock
from draftgym.commands._live import load_requests, open_session
from draftgym.commands.train import DEFAULT_CONFIG
from draftgym.configuration import load_yaml
from draftgym.console import print_result, progress, say
from draftgym.costs.fingerprint import fingerprint
from draftgym.costs.measure import (
    Run,
    cost_table,
    measure_rounds,
    pause_runs,
    reading_seconds,
    spread_by_length,
)
from draftgym.costs.plot import latency_plot
from draftgym.costs.table import LatencyTable
from draftgym.decoder.pair import ModelPair, load_pair
from draftgym.errors import ConfigurationError
from draftgym.provenance import provenance
from draftgym.runtime import DecisionSeconds, decision_seconds
from draftgym.storage import write_bytes
from policies.config import TrainConfig

SCHEMA = "draftgym.calibrate/1"
ROUNDS_PER_CYCLE = 5
"""Rounds of each setting for every long pause."""


@dataclass(frozen=True)
class Arguments:
    """Measure draft passes, verification and the rest of a round, interleaved in one session.

    Prompts of all lengths are decoded while every verification size takes its turn, with pauses
    in drafting, so that contexts and the tokens that a first pass reads vary. Decisions are
    those of an untrained network of the configured size.
    """

    config: Annotated[Path, tyro.conf.Positional] = DEFAULT_CONFIG
    """Training configuration, a YAML file: pair, layout, prompts."""
    output: Path = Path("runs/calibration")
    """Folder of `latency.json` and `latency.png`."""
    rounds: int = 60
    """Rounds per verification size, roughly: those that open or end a request do not count."""
    prompts: int = 12
    """Prompts of the policy split, spread over their lengths."""


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym calibrate")
    for name, least in (("rounds", 2), ("prompts", 1)):
        value = getattr(arguments, name)
        if value < least:
            raise ConfigurationError(f"--{name}: must be at least {least}, got {value}")
    config = load_yaml(arguments.config, TrainConfig)
    payload = calibrate(
        config, arguments.output, rounds=arguments.rounds, prompts=arguments.prompts
    )
    print_result(SCHEMA, payload)
    return 0


def calibrate(
    config: TrainConfig,
    folder: Path,
    *,
    rounds: int,
    prompts: int,
    pair: ModelPair | None = None,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Measure, write `latency.json` and `latency.png`.

    Args:
        config: Pair, layout, prompts.
        folder: Where the files go.
        rounds: Per setting, roughly.
        prompts: Prompts to decode.
        pair: Loaded from the configuration when None.
        clock: Wall clock of the pair's device when None.

    Returns:
        The result line, without its schema name.

    Raises:
        DraftGymError: If the prompts end too early to measure anything.
    """
    load = other_load()
    pair = load_pair(config.pair) if pair is None else pair
    clock = WallClock(pair.device) if clock is None else clock
    with pinned_threads(config.pair.threads) as threads:
        table = _measure(config, pair, clock, rounds, prompts, threads)
        origin = provenance(pair.device, pair.dtype, {"load_per_core_before": load})
    file = table.save(folder / "latency.json")
    plot = write_bytes(folder / "latency.png", latency_plot(table))
    return {
        "table": file,
        "plot": plot,
        "milliseconds": {
            kind: {
                bucket.name: [*(1e3 * value for value in bucket.quartiles), len(bucket.seconds)]
                for bucket in table.buckets(kind)
            }
            for kind in table.kinds
        },
        "provenance": origin,
    }


def _measure(
    config: TrainConfig, pair: ModelPair, clock: Clock, rounds: int, prompts: int, threads: int
) -> LatencyTable:
    session = open_session(config, pair, clock)
    requests = spread_by_length(load_requests(config, pair, "policy", None), prompts)
    settings = cost_table(pair.config.drafter, config.layout.size_grid)
    # Long pauses are few, or most rounds would be plain steps.
    singles: list[Run] = [(setting,) for setting in settings for _ in range(ROUNDS_PER_CYCLE)]
    runs = singles + pause_runs(pair.config.drafter)
    cycles = math.ceil(rounds / ROUNDS_PER_CYCLE)
    with progress("calibrate", cycles * sum(map(len, runs))) as bar:
        measured = measure_rounds(
            session,
            requests,
            runs,
            repeats=cycles,
            max_new_tokens=config.max_new_tokens,
            seed=config.seed,
            bar=bar,
        )
    reading = reading_seconds(session, requests)
    table = LatencyTable.from_records(
        measured.records,
        fingerprint(pair.fingerprint(), pair.device, pair.dtype, threads),
        _decisions(config, clock, reading),
        openings=measured.openings,
    )
    seen = {bucket.units for bucket in table.buckets("verify")}
    missing = sorted({size for _, size in settings} - seen)
    if missing:
        say(
            f"hardly any tree had {', '.join(map(str, missing))} nodes: taken from their neighbours"
        )
    return table


def _decisions(config: TrainConfig, clock: Clock, reading: float) -> DecisionSeconds:
    """One decision of each kind, with reading the confidence."""
    layout = config.layout.features()

    def of(hidden: Sequence[int]) -> DecisionSeconds:
        controller = untrained_controller(layout.max_depth, layout.beam_width, hidden=hidden)
        return decision_seconds(controller, layout, clock)

    depth, size = of(config.depth_ppo.hidden_sizes), of(config.size_ppo.hidden_sizes)
    # A size chosen right after a "stop" finds the tree read; charging it again errs against
    # the policy.
    return DecisionSeconds(depth.depth + reading, size.size + reading)
