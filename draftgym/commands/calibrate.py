"""Measure what every part of a round costs on this machine: the latency table and its plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from draftgym.benchmark.runner import other_load, pinned_threads
from draftgym.clock import Clock, WallClock
from draftgym.commands._calibration import PLOT, PROMPTS, measure, save
from draftgym.commands._live import DEFAULT_CONFIG
from draftgym.configuration import load_yaml
from draftgym.console import print_result
from draftgym.costs.table import TABLE
from draftgym.decoder.pair import ModelPair, load_pair
from draftgym.errors import ConfigurationError
from draftgym.provenance import provenance
from policies.config import TrainConfig

SCHEMA = "draftgym.calibrate/1"


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
    prompts: int = PROMPTS
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
    rounds: int = Arguments.rounds,
    prompts: int = Arguments.prompts,
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
        table = measure(config, pair, clock, rounds, prompts, threads)
        origin = provenance(pair.device, pair.dtype, {"load_per_core_before": load})
    save(table, folder)
    return {
        "table": folder / TABLE,
        "plot": folder / PLOT,
        "milliseconds": {
            kind: {
                bucket.name: [*(1e3 * value for value in bucket.quartiles), len(bucket.seconds)]
                for bucket in table.buckets(kind)
            }
            for kind in table.kinds
        },
        "provenance": origin,
    }
