"""Decode once: the deepest draft tree at every position of many texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from draftgym.benchmark.runner import pinned_threads
from draftgym.clock import Clock, WallClock
from draftgym.configuration import load_yaml
from draftgym.console import print_result, say
from draftgym.decoder.pair import ModelPair, load_pair
from draftgym.locking import exclusive
from draftgym.prompts import load_prompts
from draftgym.provenance import provenance
from draftgym.traces.config import TraceConfig
from draftgym.traces.run import collect

SCHEMA = "draftgym.trace/1"


@dataclass(frozen=True)
class Arguments:
    """Trace the prompts of a configuration into a folder that replay and bounds read.

    A killed collection goes on when the same command is given again.
    """

    config: Annotated[
        tyro.conf.Positional[str | None], tyro.conf.arg(help="YAML file; defaults if absent.")
    ] = None
    output: Annotated[
        str | None, tyro.conf.arg(help="Folder of the trace instead of the configured one.")
    ] = None


def main(argv: Sequence[str]) -> int:
    """Collect a trace; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym trace")
    named = arguments.config
    config = TraceConfig() if named is None else load_yaml(named, TraceConfig)
    folder = Path(arguments.output or config.output)
    print_result(SCHEMA, trace(config, folder))
    return 0


def trace(
    config: TraceConfig, folder: Path, *, pair: ModelPair | None = None, clock: Clock | None = None
) -> dict[str, Any]:
    """Collect a trace, or go on with an interrupted one.

    Args:
        config: What is traced.
        folder: Of the trace.
        pair: Loaded from the configuration when None.
        clock: Wall clock of the pair's device when None.

    Returns:
        The result line, without its schema name.

    Raises:
        DraftGymError: The folder is taken, or the configuration asks for what cannot be traced.
    """
    prompts = load_prompts(config.prompts, config.split, config.count, config.seed)
    pair = load_pair(config.pair) if pair is None else pair
    clock = WallClock(pair.device) if clock is None else clock
    say(f"{pair.device}, {pair.dtype}; {pair.generation.describe()}")
    with exclusive(folder), pinned_threads(config.pair.threads):
        origin = provenance(pair.device, pair.dtype)
        summary = collect(config, pair, prompts, folder, clock, origin)
    say(f"trace: {folder}")
    return {"folder": str(folder), **summary, "provenance": origin}
