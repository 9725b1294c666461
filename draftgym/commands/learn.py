"""Learn both policies from a trace and a latency table, without a live decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from draftgym.clock import WallClock
from draftgym.commands._calibration import Calibration
from draftgym.commands._inputs import POLICY_TRACE, TABLE, Inputs
from draftgym.commands._traced import check_same_pair
from draftgym.console import print_result, say
from draftgym.costs.table import LatencyTable
from draftgym.errors import ConfigurationError
from draftgym.features import FeatureLayout
from draftgym.locking import exclusive
from draftgym.provenance import provenance
from draftgym.runtime import save_policy
from draftgym.traces.store import load_trace

SCHEMA = "draftgym.learn/1"


@dataclass(frozen=True)
class Arguments:
    """Learn depth and size from every action of a traced round, and export them.

    A share of the prompts is held out and says when to stop. Judge the policy live, with
    `bench --policy` or `evaluate --policy`.
    """

    trace: Annotated[str | None, POLICY_TRACE] = None
    table: Annotated[str | None, TABLE] = None
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
    inputs = Inputs()
    source = inputs.trace(arguments.trace, "policy")
    trace = load_trace(Path(source))
    split = trace.source["plan"]["split"]
    if split != "policy":
        raise ConfigurationError(
            f"{source}: made of the {split} split; policies learn from the policy split"
        )
    shape = trace.shape
    if shape.max_depth == 0:
        raise ConfigurationError(f"{source}: its drafter makes no passes to decide about")
    layout = FeatureLayout(
        max_depth=shape.max_depth, beam_width=shape.beam_width, size_grid=shape.size_grid
    )
    file = inputs.table(arguments.table, trace)
    table = LatencyTable.load(file)
    check_same_pair(trace, table, source, file)
    lengths = [entry.prompt_tokens for entry in trace.sequences]
    known = Calibration.of(table, shape.size_grid, lengths, shape.max_depth)
    folder, clock = Path(arguments.output), WallClock()
    config = AllActionConfig(steps=arguments.steps, seed=arguments.seed)
    with exclusive(folder):
        begin = clock.boundary()
        try:
            learned = pretrain(trace, table, layout, known.costs, config, known.card)
        except ValueError as error:
            raise ConfigurationError(f"{source}: {error}") from error
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
