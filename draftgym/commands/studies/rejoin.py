"""Is the rejected tail of a draft worth keeping? Logs of greedy chains, hindsight, bars, gates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from draftgym.benchmark.runner import Request, other_load, pinned_threads
from draftgym.clock import Clock, WallClock
from draftgym.configuration import load_yaml, read_yaml, validate
from draftgym.console import print_result, say
from draftgym.decoder.pair import ModelPair, load_pair
from draftgym.errors import DraftGymError
from draftgym.locking import exclusive
from draftgym.prompts import load_prompts
from draftgym.provenance import git_state, provenance
from draftgym.runtime.folder import first_difference
from draftgym.storage import plain, write_bytes, write_json
from draftgym.studies.known import Known, study_result, study_schema
from draftgym.studies.rejoin.clusters import clustered, share
from draftgym.studies.rejoin.collect import (
    CHOOSING,
    CODE,
    CODE_PREFIXED,
    JUDGING,
    REASONING,
    Logged,
    chain_times,
    collect,
    reach_of,
    tasks,
)
from draftgym.studies.rejoin.config import RejoinConfig
from draftgym.studies.rejoin.findings import prices_of, survival, value
from draftgym.studies.rejoin.formats import format_shares
from draftgym.studies.rejoin.live import race, tune_depth
from draftgym.studies.rejoin.planted import known_values
from draftgym.studies.rejoin.plots import approaches_plot, gates_plot, survival_plot

NAME = "rejoin"
PLAN = "plan.json"
DATA_WEIGHTS = {"validation": 0.3, "test": 0.7}


@dataclass(frozen=True)
class Arguments:
    """What became of the tokens after the first rejected one, had they been kept?

    Texts are decoded with greedy chains of the pair's drafter; the committed text is the target's
    own continuation, so logs tell. Thresholds are chosen on validation prompts, all else is
    reported of test prompts. A killed study goes on when the same command is given again.
    """

    config: Annotated[
        str | None, tyro.conf.arg(help="YAML file of the study; the default pair if absent.")
    ] = None
    prompts: Annotated[int | None, tyro.conf.arg(help="Test prompts; 16 if absent.")] = None
    choosing: Annotated[
        int | None, tyro.conf.arg(help="Validation prompts, which choose thresholds; 10 if absent.")
    ] = None
    tokens: Annotated[int | None, tyro.conf.arg(help="Budget per prompt; 128 if absent.")] = None
    code: Annotated[
        int | None, tyro.conf.arg(help="Code prompts, with and without prefix; 6 if absent.")
    ] = None
    reasoning: Annotated[
        int | None, tyro.conf.arg(help="Maths prompts with long answers; 4 if absent.")
    ] = None
    data: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(help="JSONL file of prompts, used instead of the bundled ones; repeatable."),
    ] = ()
    drafter: Annotated[
        Literal["eagle3", "lm"] | None, tyro.conf.arg(help="What drafts; the configuration's.")
    ] = None
    layers: Annotated[
        int | None, tyro.conf.arg(help="With `lm`: the target's first layers draft for it.")
    ] = None
    live: Annotated[bool, tyro.conf.arg(help="Time the two options that run live.")] = True
    seed: Annotated[int | None, tyro.conf.arg(help="Of prompts, wrong texts, intervals.")] = None
    output: Annotated[str, tyro.conf.arg(help=f"Folder; results go to OUTPUT/{NAME}.")] = (
        "runs/study"
    )


def main(argv: Sequence[str]) -> int:
    """Run the study; returns 1 when a known value is missed."""
    arguments = tyro.cli(Arguments, args=list(argv[1:]), prog=f"python -m draftgym study {NAME}")
    config = configured(arguments)
    folder = Path(arguments.output) / NAME
    clock = WallClock()
    start = clock.boundary()
    with exclusive(folder):
        known = known_values()
        missed = [value.name for value in known if not value.ok]
        say(f"{len(known) - len(missed)} of {len(known)} planted values found")
        other_load()
        pair = load_pair(config.pair)
        say(f"{pair.device}, {pair.dtype}; {config.pair.drafter.kind} chains of {config.blocks}")
        tasks(config, pair)  # prompts that lack are told before the folder is claimed
        check_plan(config, pair, folder)
        with pinned_threads(config.pair.threads):
            measured = on_the_pair(config, pair, folder, arguments.live)
        if measured["live"] is not None:
            known = [
                *known,
                Known("live texts with a wrong token", 0, measured["live"]["faults"], 0),
            ]
        origin = provenance(pair.device, pair.dtype)
        result = study_result(NAME, known, measured, clock.boundary() - start, origin)
        write_json(folder / "result.json", {"schema": study_schema(NAME), **result})
    say(f"results: {folder}")
    print_result(study_schema(NAME), result)
    return 0 if result["ok"] else 1


def configured(arguments: Arguments) -> RejoinConfig:
    """The study's configuration with the options given on the command line.

    Raises:
        ConfigurationError: A field out of range, or fields that do not go together.
    """
    named = arguments.config
    if named is not None:
        load_yaml(named, RejoinConfig)  # mistakes of the file are told by its own name
    given: dict[str, Any] = {} if named is None else read_yaml(named)
    options = {
        "judged": arguments.prompts,
        "choosing": arguments.choosing,
        "max_new_tokens": arguments.tokens,
        "code": arguments.code,
        "reasoning": arguments.reasoning,
        "seed": arguments.seed,
    }
    given |= {name: option for name, option in options.items() if option is not None}
    if arguments.data:
        given["prompts"] = [{"source": path, "weights": DATA_WEIGHTS} for path in arguments.data]
    if arguments.drafter is not None or arguments.layers is not None:
        pair = plain(RejoinConfig().pair if named is None else load_yaml(named, RejoinConfig).pair)
        drafter = pair["drafter"] | {"layers": arguments.layers}
        if arguments.drafter is not None and arguments.drafter != drafter["kind"]:
            drafter |= {"kind": arguments.drafter, "source": None}
        given["pair"] = pair | {"drafter": drafter}
    return validate(given, RejoinConfig, origin="options" if named is None else named)


def check_plan(config: RejoinConfig, pair: ModelPair, folder: Path) -> None:
    """Refuse logs of another configuration, pair, number type or commit.

    Raises:
        DraftGymError: Names what differs.
    """
    plan = plain(
        {
            "config": config,
            "pair": pair.fingerprint(),
            "device": str(pair.device),
            "dtype": str(pair.dtype),
            "commit": git_state()[0],
        }
    )
    file = folder / PLAN
    if not file.is_file():
        write_json(file, plan)
        return
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DraftGymError(f"{file}: damaged ({error}); remove it") from error
    changed = first_difference(before, plan, "plan", "it")
    if changed is not None:
        raise DraftGymError(f"{folder}: holds another study ({changed}); choose another --output")


def on_the_pair(config: RejoinConfig, pair: ModelPair, folder: Path, live: bool) -> dict[str, Any]:
    """Everything that is found on the pair; writes the figures.

    Args:
        config: What to decode.
        pair: The pair.
        folder: Of logs, table and figures.
        live: Time the options that run live, too.
    """
    clock = WallClock(pair.device)
    logs = collect(config, pair, folder / "log", clock)
    requests = [
        Request(log.text.prompt_id, log.text.domain, log.task.request.tokens)
        for log in logs
        if log.task.group == CHOOSING and log.text.block == config.blocks[0]
    ]
    times = chain_times(config, pair, requests, folder, clock)
    reach, seed = reach_of(config), config.seed
    tails, values = {}, {}
    for block in config.blocks:
        judging = _texts(logs, JUDGING, block)
        tails[f"block {block}"] = survival(judging, reach, config.wrong_draws, seed)
        contexts = [len(log.task.request.tokens) for log in _logs(logs, JUDGING, block)]
        prices = prices_of(judging, times, contexts)
        values[f"block {block}"] = value(
            _texts(logs, CHOOSING, block), judging, prices, reach, seed
        )
    for block in (
        config.blocks
        if len({log.text.request_id for log in _logs(logs, REASONING, config.blocks[0])}) > 1
        else ()
    ):
        name = f"long reasoning, block {block}"
        tails[name] = survival(_texts(logs, REASONING, block), reach, config.wrong_draws, seed)
    figures = {
        "survival.png": survival_plot(tails),
        "approaches.png": approaches_plot(values),
        "gates.png": gates_plot(
            "candidate tree, beside",
            values[f"block {max(config.blocks)}"]["gates"]["candidate tree, beside"],
        ),
    }
    for name, content in figures.items():
        write_bytes(folder / name, content)
    for line in lines(tails, values):
        say(line)
    return {
        "config": config,
        "survival": tails,
        "format": formats(config, pair, logs),
        "value": values,
        "live": raced(config, pair, folder, clock) if live and config.live else None,
        "figures": sorted(str(folder / name) for name in figures),
    }


def _logs(logs: Sequence[Logged], group: str, block: int) -> list[Logged]:
    return [log for log in logs if log.task.group == group and log.text.block == block]


def _texts(logs: Sequence[Logged], group: str, block: int) -> list[Any]:
    return [log.text for log in _logs(logs, group, block)]


def formats(config: RejoinConfig, pair: ModelPair, logs: Sequence[Logged]) -> dict[str, Any]:
    """Share of rejections that are a matter of format, by group of texts."""
    found = {}
    for group in (JUDGING, REASONING, CODE, CODE_PREFIXED):
        values, clusters = format_shares(_texts(logs, group, config.blocks[0]), pair.decode)
        if values:
            part = share(clustered(clusters, config.seed), values)
            found[group] = {"rejections": len(values), "share": part}
            say(f"{group}: {_shown(part)} of {len(values)} rejections are pure format")
    return found


def raced(config: RejoinConfig, pair: ModelPair, folder: Path, clock: Clock) -> dict[str, Any]:
    """The two options that run live, timed."""
    budget, seed = config.live_new_tokens, config.seed
    tuning = load_prompts(config.prompts, "validation", config.live_tuning, seed)
    short = tune_depth(pair, tuning, budget, clock, folder=folder)
    prompts = load_prompts(config.prompts, "test", config.live, seed)
    found: dict[str, Any] = race(
        pair, prompts, budget, clock, short_depth=short, seed=seed, folder=folder
    )
    for name, row in found["methods"].items():
        say(f"live, {name}: {row['ms_per_token']['estimate']:.1f} ms per token")
    return found


def lines(tails: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """What was found, for people."""
    told = []
    for name, found in tails.items():
        runs = ", ".join(
            f"{length}+ {_shown(run['share'])} (other texts {_shown(run['wrong'])})"
            for length, run in found["runs"].items()
            if run["rejections"]
        )
        told.append(
            f"{name}: {found['rejections']} rejections; direct {_shown(found['direct'])}, fresh "
            f"{_shown(found['fresh'])}, delta {_shown(found['delta'])}; runs {runs}; "
            f"{_shown(found['both_sides']['share'])} of runs need slack on both sides; longest run "
            f"{_shown(found['fraction']['longest'])} of the tail"
        )
    for name, found in values.items():
        for row in found["approaches"]:
            told.append(
                f"{name}, {row['approach']}{'' if row['live'] else ' (hindsight)'}: recovered "
                f"{_shown(row['recovered'])}; beside a fresh draft bar {row['beside_bar']:.2f}, "
                f"net {_shown(row['beside_net'])}, winnable {_shown(row['beside_winnable'])}, "
                f"oracle {row['beside_oracle_speed']:+.1%}"
            )
        for action, gates in found["gates"].items():
            told.append(
                f"{name}, {action}: {len(gates['clearing'])} of {len(gates['gates'])} signals "
                f"clear the bar ({gates['expected_by_chance']:.1f} by chance), "
                f"{len(gates['clearing_all'])} with all of them allowed for"
            )
    return told


def _shown(value: Any) -> str:
    return f"{value.estimate:.3g} [{value.low:.3g}, {value.high:.3g}]"
