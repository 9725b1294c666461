"""Learn both policies from a trace and a latency table, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from draftgym.clock import WallClock
from draftgym.commands._traced import check_same_pair
from draftgym.console import print_result, say
from draftgym.costs.ratios import cost_ratios
from draftgym.costs.table import LatencyTable
from draftgym.errors import ConfigurationError
from draftgym.features import FeatureLayout
from draftgym.locking import exclusive
from draftgym.provenance import HARDWARE, provenance
from draftgym.runtime import save_policy
from draftgym.traces.store import load_trace

SCHEMA = "draftgym.learn/1"


@dataclass(frozen=True)
class Arguments:
    """Learn depth and size from every action of a traced round, and export them.

    A share of the prompts is held out and says when to stop. Judge the policy live, with
    `bench --policy` or `evaluate --policy`.
    """

    trace: Annotated[str, tyro.conf.arg(help="Folder of a trace of the policy split.")] = (
        "runs/trace"
    )
    table: Annotated[str, tyro.conf.arg(help="Latency table, from `calibrate`.")] = (
        "runs/calibration/latency.json"
    )
    output: Annotated[str, tyro.conf.arg(help="Folder; the policy goes to OUTPUT/policy.")] = (
        "runs/learned"
    )
    steps: Annotated[int, tyro.conf.arg(help="Gradient steps.")] = 1500
    seed: Annotated[int, tyro.conf.arg(help="Of networks, prompts and decisions.")] = 0


def main(argv: Sequence[str]) -> int:
    """Learn and export; returns the exit status."""
    from policies.all_action import AllActionConfig
    from policies.pretraining import pretrain

    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym learn")
    if arguments.steps < 1:
        raise ConfigurationError(f"--steps: must be at least 1, got {arguments.steps}")
    trace, table = load_trace(Path(arguments.trace)), LatencyTable.load(arguments.table)
    split = trace.source["plan"]["split"]
    if split != "policy":
        raise ConfigurationError(
            f"{arguments.trace}: made of the {split} split; policies learn from the policy split"
        )
    check_same_pair(trace, table, arguments.trace, arguments.table)
    shape = trace.shape
    if shape.max_depth == 0:
        raise ConfigurationError(f"{arguments.trace}: its drafter makes no passes to decide about")
    layout = FeatureLayout(
        max_depth=shape.max_depth, beam_width=shape.beam_width, size_grid=shape.size_grid
    )
    context = int(np.median([entry.prompt_tokens for entry in trace.sequences]))
    costs = cost_ratios(table, shape.size_grid, context, passes=True)
    card = {
        "pair": table.fingerprint["pair"],
        "hardware": {name: table.fingerprint[name] for name in HARDWARE},
    }
    folder, clock = Path(arguments.output), WallClock()
    config = AllActionConfig(steps=arguments.steps, seed=arguments.seed)
    with exclusive(folder):
        begin = clock.boundary()
        try:
            learned = pretrain(trace, table, layout, costs, config, card)
        except ValueError as error:
            raise ConfigurationError(f"{arguments.trace}: {error}") from error
        seconds = clock.boundary() - begin
        path = save_policy(folder / "policy", learned.policy)
    say(f"policy: {path}")
    print_result(
        SCHEMA,
        {
            "policy": str(path),
            "seconds": seconds,
            "held_out": learned.held_out,
            "provenance": provenance(),
        },
    )
    return 0
