"""Learn both policies from a trace and a latency table, without a live decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from draftgym.clock import WallClock
from draftgym.commands._inputs import POLICY_TRACE, TABLE
from draftgym.commands._traced import Learning, open_learning
from draftgym.console import print_result, progress, say
from draftgym.errors import ConfigurationError
from draftgym.locking import exclusive
from draftgym.provenance import provenance
from draftgym.runtime import ExportedPolicy, save_policy, save_table
from draftgym.storage import write_text

SCHEMA = "draftgym.learn/1"
STEPS = 600


@dataclass(frozen=True)
class Arguments:
    """Learn depth and size from every action of a traced round, and export them.

    Held-out prompts say how many steps to make; then all prompts are learned from. Judge the
    policy live, with `bench --policy` or `evaluate --policy`. `--as-published` learns a rival
    instead, Learning to Draft as its paper does, to be measured by `evaluate --beside`.
    """

    trace: Annotated[str | None, POLICY_TRACE] = None
    table: Annotated[str | None, TABLE] = None
    output: Annotated[
        str | None,
        tyro.conf.arg(
            help="Folder; the policy goes to OUTPUT/policy. Absent: runs/learned, or "
            "runs/learning-to-draft as published."
        ),
    ] = None
    as_published: Annotated[
        bool, tyro.conf.arg(help="PPO as in Learning to Draft, as long as the paper's.")
    ] = False
    steps: Annotated[int, tyro.conf.arg(help="Most gradient steps; not of the paper's PPO.")] = (
        STEPS
    )
    seed: Annotated[int, tyro.conf.arg(help="Of networks, prompts and decisions.")] = 0
    table_rows: Annotated[
        int, tyro.conf.arg(help="Rows of a readable table to learn as well; 0: none.")
    ] = 0


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned and where it lies.

    Attributes:
        policy: Folder of both networks.
        table: File of the threshold table, if one was asked for.
        held_out: Of the networks, on prompts held out.
        seconds: That learning the networks took.
    """

    policy: Path
    table: str | None
    held_out: Any
    seconds: float


def main(argv: Sequence[str]) -> int:
    """Learn and export; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym learn")
    if not 0 <= arguments.table_rows <= 64:
        raise ConfigurationError(f"--table-rows: must be 0 to 64, got {arguments.table_rows}")
    if arguments.steps < 1:
        raise ConfigurationError(f"--steps: must be at least 1, got {arguments.steps}")
    known = open_learning(arguments.trace, arguments.table)
    usual = "runs/learning-to-draft" if arguments.as_published else "runs/learned"
    found = learn(
        known,
        Path(arguments.output or usual),
        steps=arguments.steps,
        seed=arguments.seed,
        table_rows=arguments.table_rows,
        as_published=arguments.as_published,
    )
    say(f"policy: {found.policy}")
    print_result(
        SCHEMA,
        {
            "policy": str(found.policy),
            "seconds": found.seconds,
            "held_out": found.held_out,
            "table": found.table,
            "provenance": provenance(),
        },
    )
    return 0


def learn(
    known: Learning,
    folder: Path,
    *,
    steps: int = STEPS,
    seed: int = 0,
    table_rows: int = 0,
    as_published: bool = False,
) -> Learned:
    """Learn both networks, and a table if asked for, and write them.

    Args:
        known: Trace, costs and layout.
        folder: The policy goes to its `policy/`, a table to its `table.json`.
        steps: Most gradient steps.
        seed: Of networks, prompts and decisions.
        table_rows: Most rows of the table; 0: none.
        as_published: By PPO as in Learning to Draft, instead of from all actions.

    Raises:
        ConfigurationError: The trace is too small to learn from.
    """
    clock = WallClock()
    with exclusive(folder):
        begin = clock.boundary()
        try:
            if as_published:
                policy, held_out = _published(known, seed)
            else:
                policy, held_out = _all_actions(known, steps, seed)
        except ValueError as error:
            raise ConfigurationError(f"{known.folder}: {error}") from error
        seconds = clock.boundary() - begin
        path = save_policy(folder / "policy", policy)
        table = _table(known, table_rows, folder) if table_rows else None
    return Learned(path, table, held_out, seconds)


def _all_actions(
    known: Learning, steps: int, seed: int
) -> tuple[ExportedPolicy, Mapping[str, Any]]:
    """From every action of every round."""
    from policies.all_action import AllActionConfig
    from policies.pretraining import pretrain

    config = AllActionConfig(steps=steps, seed=seed)
    with progress("learn", config.steps) as bar:
        learned = pretrain(
            known.trace, known.table, known.layout, known.costs, config, known.card, bar=bar
        )
    return learned.policy, learned.held_out


def _published(known: Learning, seed: int) -> tuple[ExportedPolicy, Mapping[str, Any]]:
    """By PPO, as Learning to Draft does."""
    from draftgym.commands._published import published
    from policies.learning_to_draft import TURNS

    with progress("learn", TURNS) as bar:
        return published(known, seed, bar)


def _table(known: Learning, rows: int, folder: Path) -> str:
    """Learn a table, write it for programs and for readers; the path of the former."""
    from policies.table import learn_table

    table = learn_table(
        known.trace, known.table, known.layout, known.costs, rows=rows, card=known.card
    )
    say(table.text())
    write_text(folder / "table.txt", table.text() + "\n")
    return str(save_table(folder / "table.json", table))
