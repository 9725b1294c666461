"""Learns a run's policies from a trace before anything is learned live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftgym.benchmark.runner import pinned_threads
from draftgym.clock import Clock
from draftgym.commands._calibration import Calibration
from draftgym.console import progress, say
from draftgym.costs.table import LatencyTable
from draftgym.decoder.pair import ModelPair
from draftgym.errors import ConfigurationError
from draftgym.features import FeatureLayout
from draftgym.prompts import load_prompts
from draftgym.provenance import provenance
from draftgym.runtime import ExportedPolicy, read_policy, save_policy, save_table
from draftgym.runtime.folder import JSON_FILE
from draftgym.state import MeasuredCosts
from draftgym.storage import write_json, write_text
from draftgym.theory.room import LEAST_REQUESTS, room, room_lines
from draftgym.traces.config import TraceConfig
from draftgym.traces.find import fits, newest_trace
from draftgym.traces.judge import judge_rounds
from draftgym.traces.run import collect
from draftgym.traces.store import load_trace
from draftgym.traces.trace import Trace
from policies.all_action import AllActionConfig
from policies.config import TrainConfig
from policies.pretraining import Pretrained, hold_out, pretrain
from policies.table import TableChoice, learn_table

TRACE, PRETRAINED, TABLE, ROOM = "trace", "pretrained", "table.json", "room.json"
SHARD_PROMPTS = 4
"""Prompts lost at most by a kill: a run traces few."""


def trace_config(config: TrainConfig) -> TraceConfig:
    """The trace that a run learns from: of the policy split, with the run's own limits."""
    return TraceConfig(
        pair=config.pair,
        prompts=config.prompts,
        split="policy",
        count=config.pretraining.prompts,
        max_new_tokens=config.max_new_tokens,
        ignore_eos=config.ignore_eos,
        size_grid=config.layout.size_grid,
        shard_prompts=SHARD_PROMPTS,
        seed=config.seed,
    )


def run_trace(config: TrainConfig, folder: Path, pair: ModelPair, clock: Clock) -> Path:
    """The run's own trace, else the newest one of the same plan, else a new one.

    Args:
        config: Of the run.
        folder: Of the run; other traces are looked for beside it.
        pair: Made from the configuration.
        clock: Times the collection.

    Returns:
        Folder of a complete trace.

    Raises:
        DraftGymError: If something cannot be traced.
    """
    traced, own = trace_config(config), folder / TRACE
    plan = traced.plan(pair.fingerprint())
    if fits(own, plan):
        return own
    found = None if own.exists() else newest_trace(folder.parent, plan)
    if found is not None:
        say(f"trace: {found}, made before from the same plan")
        return found
    prompts = load_prompts(traced.prompts, traced.split, traced.count, traced.seed)
    with pinned_threads(config.pair.threads):
        collect(traced, pair, prompts, own, clock, provenance(pair.device, pair.dtype))
    return own


def run_pretraining(
    config: TrainConfig, folder: Path, trace: Path, calibration: Calibration
) -> None:
    """Learn from a trace: both networks into `pretrained/`, and a table to `table.json`.

    Args:
        config: Of the run.
        folder: Of the run.
        trace: Folder of a trace of the policy split.
        calibration: The run's own.

    Raises:
        ConfigurationError: The prompts are too few to hold some out.
    """
    chosen = AllActionConfig(
        steps=config.pretraining.steps,
        requests=config.pretraining.requests,
        learning_rate=config.pretraining.learning_rate,
        hidden=config.size_ppo.hidden_sizes,
        clip=config.normaliser.clip,
        minimum_variance=config.normaliser.minimum_variance,
        seed=config.seed,
    )
    known = load_trace(trace)
    shared = (calibration.table, config.layout.features(), calibration.costs)
    try:
        with progress("learn from the trace", chosen.steps) as bar:
            learned = pretrain(known, *shared, chosen, calibration.card, bar=bar)
        table = learn_table(known, *shared, card=calibration.card)
        found = _room(known, *shared, learned)
    except ValueError as error:
        raise ConfigurationError(f"pretraining.prompts: {trace}: {error}") from error
    write_text(folder / "table.txt", table.text() + "\n")
    save_table(folder / TABLE, table)
    if found is not None:
        write_json(folder / ROOM, found)
        for line in room_lines(found):
            say(line)
    say(f"table: {folder / TABLE}\n{table.text()}")
    save_policy(folder / PRETRAINED, learned.policy)  # last: it says that all this is done


def _room(
    trace: Trace, table: LatencyTable, layout: FeatureLayout, costs: MeasuredCosts,
    learned: Pretrained,
) -> dict[str, Any] | None:  # fmt: skip
    """Of the held-out prompts: not learned from, but they chose how long the networks learn."""
    ours, theirs = hold_out(trace)
    if len({entry.request_id or entry.prompt_id for entry in theirs.sequences}) < LEAST_REQUESTS:
        say("too few prompts are held out to tell how much there was to gain")
        return None
    say("working out how much there was to gain on the held-out prompts")
    choice = TableChoice(learn_table(ours, table, layout, costs))
    spent = {
        "networks": learned.held_out_seconds,
        "threshold table": judge_rounds(theirs, table, layout, choice, costs),
    }
    return room(ours, theirs, table, spent)


def pretrained(folder: Path) -> ExportedPolicy | None:
    """What a run has learned from its trace; None before it has."""
    if not (folder / PRETRAINED / JSON_FILE).is_file():
        return None
    return read_policy(folder / PRETRAINED)
