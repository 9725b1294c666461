"""Correcting is not resampling: exact laws, counted trials, and every sampling rule on the pair."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Literal

import tyro

from draftgym.benchmark.runner import Request, encode, pinned_threads
from draftgym.clock import Clock, WallClock
from draftgym.configuration import load_yaml
from draftgym.console import Bar, print_result, progress, say
from draftgym.decoder.config import PairConfig, SamplingConfig
from draftgym.decoder.pair import ModelPair, load_pair
from draftgym.decoder.sampling.settings import MIN_TEMPERATURE
from draftgym.errors import ConfigurationError
from draftgym.kept import keep, kept
from draftgym.locking import exclusive
from draftgym.prompts import PromptSource, load_prompts
from draftgym.provenance import git_state, provenance
from draftgym.storage import plain, write_bytes, write_json
from draftgym.studies.exactness.chi_square import ChiSquare
from draftgym.studies.exactness.pair import RULES, Cell, measure_cell
from draftgym.studies.exactness.plots import laws_plot, pair_plot
from draftgym.studies.exactness.trials import SEED, TRIALS, P, known_values, laws_drawn
from draftgym.studies.known import Known, study_result, study_schema

NAME = "exactness"
LAWS = "exactness-laws"
"""Folder without the pair: it must not replace what was measured."""


@dataclass(frozen=True)
class Arguments:
    """Hold the laws of speculative sampling against theory, in small and on a model pair.

    First the exact laws of the right correction and of two mistakes, and trials of them through
    the acceptance code of the session. Then the pair decodes test prompts under each rule at each
    temperature, in float32: acceptance against its computed probability, and chi-square of the
    next token's law, of the text and of draws repeated at single positions. A killed study goes
    on when the same command is given again. Exits with 1 if a known value is missed.
    """

    prompts: Annotated[int, tyro.conf.arg(help="Test prompts; 0 leaves the pair out.")] = 16
    tokens: Annotated[int, tyro.conf.arg(help="New tokens per prompt, at most.")] = 32
    temperatures: Annotated[tuple[float, ...], tyro.conf.arg(help="Of target and drafter.")] = (
        0.3, 0.7, 1.0, 1.3,
    )  # fmt: skip
    depth: Annotated[int, tyro.conf.arg(help="Proposals of a round, a chain.")] = 2
    repeats: Annotated[int, tyro.conf.arg(help="Draws repeated at one position.")] = 250
    moments: Annotated[int, tyro.conf.arg(help="Positions with repeated draws.")] = 4
    drafter: Annotated[Literal["eagle3", "lm"], tyro.conf.arg(help="What proposes.")] = "eagle3"
    pair: Annotated[
        str | None, tyro.conf.arg(help="YAML file of a model pair; the default pair if absent.")
    ] = None
    trials: Annotated[int, tyro.conf.arg(help="Of each counted law.")] = TRIALS
    seed: Annotated[int, tyro.conf.arg(help="Of trials, prompts and noise.")] = SEED
    output: Annotated[
        Path,
        tyro.conf.arg(help=f"Results go to OUTPUT/{NAME}, laws without a pair to OUTPUT/{LAWS}."),
    ] = Path("runs/study")


def main(argv: Sequence[str]) -> int:
    """Run the study; returns the exit status.

    Args:
        argv: Its name and its options.
    """
    prog = f"python -m draftgym study {NAME}"
    arguments = tyro.cli(Arguments, args=list(argv[1:]), prog=prog)
    check(arguments)
    clock, folder = WallClock(), arguments.output / (NAME if arguments.prompts else LAWS)
    begin = clock.boundary()
    with exclusive(folder):
        known = known_values(arguments.trials, arguments.seed)
        say_known(known)
        figures = [write_bytes(folder / "laws.png", laws_plot(laws_drawn(known), P))]
        cells: list[Cell] = []
        origin = provenance()
        if arguments.prompts:
            config = pair_config(arguments)
            for temperature in arguments.temperatures:
                for rule in RULES:
                    sampled(arguments, rule, temperature)  # told before anything is loaded
            pair = load_pair(config)
            origin = provenance(pair.device, pair.dtype)
            with pinned_threads(pair.config.threads):
                cells = pair_cells(arguments, pair, folder / "cells")
            figures.append(write_bytes(folder / "pair.png", pair_plot(cells)))
        measured = {
            "settings": asdict(arguments),
            **tests_together(cells),
            "cells": [reported(cell) for cell in cells],
            "figures": figures,
        }
        result = study_result(NAME, known, measured, clock.boundary() - begin, origin)
        write_json(folder / "result.json", {"schema": study_schema(NAME), **result})
        shutil.rmtree(folder / "cells", ignore_errors=True)
    say(f"results: {folder}")
    print_result(study_schema(NAME), result)
    return 0 if result["ok"] else 1


def check(arguments: Arguments) -> None:
    """Refuse settings that nothing can be learned from.

    Raises:
        ConfigurationError: Names the option.
    """
    least = {"tokens": 3, "depth": 1, "repeats": 1, "moments": 0, "trials": 1000, "seed": 0}
    for option, value in least.items():
        if getattr(arguments, option) < value:
            raise ConfigurationError(
                f"--{option}: must be at least {value}, got {getattr(arguments, option)}"
            )
    if arguments.prompts < 0 or arguments.prompts == 1:
        raise ConfigurationError(
            f"--prompts: must be 0, or at least 2 for an interval, got {arguments.prompts}"
        )
    temperatures = arguments.temperatures
    if not temperatures or not all(t >= MIN_TEMPERATURE for t in temperatures):
        raise ConfigurationError(
            f"--temperatures: must be at least {MIN_TEMPERATURE}, got {temperatures}"
        )
    if len({f"{temperature:g}" for temperature in temperatures}) < len(temperatures):
        raise ConfigurationError(f"--temperatures: must differ, got {temperatures}")


def pair_config(arguments: Arguments) -> PairConfig:
    """The pair in float32, its drafts chains of the asked depth."""
    config = PairConfig() if arguments.pair is None else load_yaml(arguments.pair, PairConfig)
    if config.drafter.rejoin is not None:
        raise ConfigurationError(f"--pair: {arguments.pair}: drafter.rejoin: drafts here are fresh")
    drafter = config.drafter.model_copy(
        update={"kind": arguments.drafter, "beam_width": 1, "max_depth": arguments.depth}
    )
    return config.model_copy(update={"drafter": drafter, "dtype": "float32"})


def pair_cells(arguments: Arguments, pair: ModelPair, folder: Path) -> list[Cell]:
    """Every rule at every temperature; those that an unfinished run left are not measured again.

    Args:
        arguments: Extent.
        pair: Loaded.
        folder: Of finished cells.
    """
    prompts = load_prompts([PromptSource()], "test", arguments.prompts, arguments.seed)
    clusters = {prompt.id: prompt.request_id for prompt in prompts}
    if len(set(clusters.values())) < 2:
        raise ConfigurationError("--prompts: translations of one request; an interval needs two")
    requests = encode(prompts, pair.encode_prompt)
    plan = plain({**asdict(arguments), "pair": pair.config, "commit": git_state()[0]})
    combinations = [(rule, t) for t in arguments.temperatures for rule in RULES]
    say(f"{pair.device}, {pair.dtype}; drafter {arguments.drafter}, {len(requests)} prompts")
    cells, clock = [], WallClock(pair.device)
    with progress("pair", len(combinations) * len(requests)) as bar:
        for rule, temperature in combinations:
            file = folder / f"{rule}-{temperature:g}.json"
            cell = stored(file, [plan, rule, temperature])
            if cell is None:
                shared = (requests, clusters, clock, bar)
                cell = measured_cell(arguments, pair, rule, temperature, *shared)
                keep(file, [plan, rule, temperature], cell)
            else:
                bar.advance(len(requests))
            cells.append(cell)
            say_cell(cell)
    return cells


def measured_cell(
    arguments: Arguments,
    pair: ModelPair,
    rule: str,
    temperature: float,
    requests: Sequence[Request],
    clusters: Mapping[str, str],
    clock: Clock,
    bar: Bar,
) -> Cell:
    """One rule at one temperature; arguments as of `pair_cells` and `measure_cell`."""
    return measure_cell(
        pair,
        rule,
        sampled(arguments, rule, temperature),
        requests,
        clusters,
        arguments.tokens,
        depth=arguments.depth,
        repeats=arguments.repeats,
        moments=arguments.moments,
        clock=clock,
        bar=bar,
    )


def sampled(arguments: Arguments, rule: str, temperature: float) -> SamplingConfig:
    """How a rule samples at a temperature."""
    return SamplingConfig(temperature=temperature, seed=arguments.seed, **RULES[rule])


def stored(file: Path, plan: Any) -> Cell | None:
    """A finished cell of the same plan, or None.

    Args:
        file: Where it would be.
        plan: Everything that its values depend on.

    Raises:
        DraftGymError: The file is damaged; names it.
    """
    found = kept(file, plan)
    if found is None:
        return None
    tests = {
        name: None if found[name] is None else ChiSquare(**found[name])
        for name in ("text", "restarted", "repeated")
    }
    return Cell(**{**found, **tests})


def reported(cell: Cell) -> dict[str, Any]:
    """A cell as the result line tells it."""
    share, ratio = cell.measured_share, cell.over_computed
    return {
        "rule": cell.rule,
        "temperature": cell.temperature,
        "positions": sum(cell.positions),
        "accepted": sum(cell.accepted),
        "requests": len(set(cell.clusters)),
        "measured": share.estimate,
        "interval": share.limits,
        "computed": cell.computed_share,
        "over_computed": ratio.estimate,
        "over_computed_interval": ratio.limits,
        "standard_errors": cell.deviation,
        "restart_distance": cell.restart_distance,
        "chi_square": {
            name: None if test is None else {**asdict(test), "p_value": test.p_value}
            for name, test in (
                ("text", cell.text), ("repeated", cell.repeated), ("restarted", cell.restarted),
            )
        },
    }  # fmt: skip


def tests_together(cells: Sequence[Cell]) -> dict[str, Any]:
    """All tests of one kind as one: the smallest p-value, times their number (Bonferroni)."""
    kinds = {
        "acceptance": [2 * NormalDist().cdf(-abs(cell.deviation)) for cell in cells],
        "text": [cell.text.p_value for cell in cells],
        "repeated": [cell.repeated.p_value for cell in cells],
        "restarted": [cell.restarted.p_value for cell in cells if cell.restarted],
    }
    return {
        "tests": {
            kind: {
                "count": len(values),
                "smallest": min(values),
                "adjusted": min(1.0, len(values) * min(values)),
                "below_5_percent": sum(value < 0.05 for value in values),
            }
            for kind, values in kinds.items()
            if values
        }
    }


def say_known(known: Sequence[Known]) -> None:
    """A line per known value on standard error."""
    for value in known:
        verdict = "" if value.ok else "  MISSED"
        say(f"{value.name:<34} expected {value.expected:.6f}, got {value.got:.6f}{verdict}")


def say_cell(cell: Cell) -> None:
    """A line on standard error."""
    share = cell.measured_share
    wrong = (
        f", restarted (TV {cell.restart_distance:.3f}) p {cell.restarted.p_value:.2g}"
        if cell.restarted
        else ""
    )
    say(
        f"T {cell.temperature:<4g} {cell.rule:<16} kept {share.estimate:.3f} [{share.low:.3f}, "
        f"{share.high:.3f}], computed {cell.computed_share:.3f} ({cell.deviation:+.1f} s.e., "
        f"{sum(cell.positions)} positions); law: text p {cell.text.p_value:.2g}, repeated p "
        f"{cell.repeated.p_value:.2g}{wrong}"
    )
