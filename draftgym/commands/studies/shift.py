"""Domains, languages, temperature: what cells and policies carry over from one to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from draftgym.clock import WallClock
from draftgym.commands._inputs import TABLE
from draftgym.commands.studies._shift_inputs import TEST, ShiftInputs, open_inputs, trace_config
from draftgym.commands.studies._shift_lines import gain_lines, matrix_lines, temperature_lines
from draftgym.commands.studies._shift_policies import PartPolicies, mean_seconds, planted_policy
from draftgym.configuration import load_yaml
from draftgym.console import print_result, progress, say
from draftgym.costs.times import Float64Array
from draftgym.decoder.config import PairConfig, SamplingConfig
from draftgym.errors import ConfigurationError, DraftGymError
from draftgym.locking import exclusive
from draftgym.provenance import provenance
from draftgym.storage import write_bytes, write_json
from draftgym.studies.known import Known, study_result, study_schema
from draftgym.studies.shift.acceptance import acceptance
from draftgym.studies.shift.cells import CellTimes
from draftgym.studies.shift.gains import OWN, carried_over, group_gains, matrix, speed
from draftgym.studies.shift.groups import (
    ALL,
    ONE_OF_EACH,
    Kind,
    by,
    everything,
    learning_parts,
    same_prompts,
)
from draftgym.studies.shift.plots import group_plot, matrix_plot, temperature_plot
from draftgym.studies.shift.temperatures import COLD, at_temperature
from draftgym.studies.shift.values import identities, planted_values

NAME = "shift"
KINDS: tuple[Kind, Kind] = ("domain", "language")


@dataclass(frozen=True)
class Arguments:
    """Acceptance, best cell and the learned policy's gain by domain, language and temperature.

    Texts are decoded and traced once per temperature, cells are tuned and policies learned on
    prompts of the policy split, and everything is judged on those of the test split, by mean
    measured costs, decisions charged. Finished traces are used again; a killed study goes on when
    the same command is given again.
    """

    temperatures: Annotated[
        tuple[float, ...], tyro.conf.arg(help="0, which tables by domain come from, and others.")
    ] = (0.0, 0.3, 0.7, 1.0, 1.3)
    prompts: Annotated[
        int, tyro.conf.arg(help="Of each split at temperatures above 0; all of them at 0.")
    ] = 48
    tokens: Annotated[int, tyro.conf.arg(help="Budget per prompt.")] = 96
    seeds: Annotated[int, tyro.conf.arg(help="Policies of each kind; times are their mean.")] = 3
    steps: Annotated[int, tyro.conf.arg(help="Most gradient steps of a policy.")] = 300
    pair: Annotated[
        str | None, tyro.conf.arg(help="YAML file of a pair that is traced; absent: the default.")
    ] = None
    table: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(
            help=f"{TABLE.help} Repeatable, one of each law; a temperature without one of its own "
            "takes the costs of temperature 0, and the result says so."
        ),
    ] = ()
    runs: Annotated[str, tyro.conf.arg(help="Folder where finished traces are looked for.")] = (
        "runs"
    )
    seed: Annotated[int, tyro.conf.arg(help="Of intervals.")] = 0
    output: Annotated[str, tyro.conf.arg(help=f"Folder; results go to OUTPUT/{NAME}.")] = (
        "runs/study"
    )


def main(argv: Sequence[str]) -> int:
    """Run the study; returns 1 when a known value is missed."""
    arguments = tyro.cli(Arguments, args=list(argv[1:]), prog=f"python -m draftgym study {NAME}")
    pair = checked_pair(arguments)
    folder, clock = Path(arguments.output) / NAME, WallClock()
    start = clock.boundary()
    with exclusive(folder):
        known = planted_values(planted_policy)
        inputs = open_inputs(
            pair,
            sorted(arguments.temperatures),
            arguments.prompts,
            arguments.tokens,
            arguments.table,
            Path(arguments.runs),
            folder / "traces",
        )
        try:
            more, measured = on_the_pair(arguments, inputs, folder)
        except DraftGymError:
            raise
        except ValueError as error:
            raise ConfigurationError(f"--prompts: {error}; trace more prompts") from error
        known += more
        for value in known:
            say(f"{value.name}: {value.got:.6g}, known {value.expected:g}")
        origin = provenance(extra={"trace": dict(inputs.learning[COLD].source)})
        result = study_result(NAME, known, measured, clock.boundary() - start, origin)
        write_json(folder / "result.json", {"schema": study_schema(NAME), **result})
    say(f"results: {folder}")
    print_result(study_schema(NAME), result)
    return 0 if result["ok"] else 1


def checked_pair(arguments: Arguments) -> PairConfig:
    """The pair of temperature 0.

    Raises:
        ConfigurationError: An option out of range, or a pair that samples by itself.
    """
    for name, least in (("prompts", 2), ("tokens", 16), ("seeds", 1), ("steps", 10), ("seed", 0)):
        if getattr(arguments, name) < least:
            raise ConfigurationError(
                f"--{name}: must be at least {least}, got {getattr(arguments, name)}"
            )
    given = arguments.temperatures
    told = {f"{temperature:g}" for temperature in given}
    if COLD not in given or len(told) < len(given) or not all(t >= 0 for t in given):
        raise ConfigurationError(
            f"--temperatures: must hold 0 and nothing twice or below, got {list(given)}"
        )
    named = arguments.pair
    pair = PairConfig() if named is None else load_yaml(named, PairConfig)
    if pair.sampling != SamplingConfig():
        raise ConfigurationError(f"--pair: {named}: sampling: temperatures are the study's own")
    for temperature in given:  # what cannot be traced is told before anything is
        trace_config(pair, temperature, TEST, arguments.prompts, arguments.tokens)
    return pair


def on_the_pair(
    arguments: Arguments, inputs: ShiftInputs, folder: Path
) -> tuple[list[Known], dict[str, Any]]:
    """Learn, judge and draw.

    Args:
        arguments: Extent.
        inputs: Traces and tables.
        folder: Of the results; gets the plots.

    Returns:
        Identities that must hold, and what was measured.

    Raises:
        ValueError: There are too few prompts to hold some out.
    """
    temperatures = sorted(inputs.learning)
    parts = learning_parts(inputs.learning[COLD])
    work = 1 + (len(parts) + len(temperatures)) * arguments.seeds
    with progress("policies", work) as bar:
        policies = PartPolicies(inputs, arguments.steps, arguments.seeds, folder, bar)
        ways = {
            name: policies.seconds(
                name, COLD, inputs.learning[COLD].select(mine.nonzero()[0]),
                {COLD: inputs.test[COLD]},
            )[COLD]
            for name, mine in parts.items()
        }  # fmt: skip
        known, kinds = by_kind(inputs, ways, folder, arguments.seed)
        warm = by_temperature(inputs, policies, folder, arguments.seed)
    shared = {
        "learning_steps": policies.length,
        "asked_before_passes": policies.deepest,
        "seeds": arguments.seeds,
        "tokens": arguments.tokens,
        "costs_of": {f"{t:g}": inputs.laws[t] for t in temperatures},
        "tables": {f"{t:g}": inputs.files[t] for t in temperatures},
    }
    return known, {**shared, **kinds, **warm}


def by_kind(
    inputs: ShiftInputs, runs: Mapping[str, list[Float64Array]], folder: Path, seed: int
) -> tuple[list[Known], dict[str, Any]]:
    """Domains and languages at temperature 0; writes `groups.png` and `KINDs.png`.

    Args:
        inputs: Traces and tables.
        runs: By what was learned from and seed, seconds of each test sequence.
        folder: Of the plots.
        seed: Of the intervals.
    """
    ours, test, times = inputs.learning[COLD], inputs.test[COLD], inputs.tables[COLD]
    tuned, cells = CellTimes.of(ours, times), CellTimes.of(test, times)
    parts, mixture = learning_parts(ours), tuned.best()
    ways = {name: mean_seconds(part) for name, part in runs.items()}
    own_cells = {name: cells[tuned.best(mine)] for name, mine in parts.items()}
    reference, spent = cells[mixture], float(cells[mixture].sum())
    accepted = {ALL: acceptance(test, mixture, everything(test), seed=seed)}
    measured: dict[str, Any] = {
        "policy_per_seed": {n: [spent / float(r.sum()) for r in part] for n, part in runs.items()}
    }
    whole = {ALL: everything(test)}
    gains = {ALL: group_gains(test, cells, tuned, parts, whole, ways, seed=seed)}
    for kind in KINDS:
        tested = by(test, kind)
        accepted |= {n: acceptance(test, mixture, mine, seed=seed) for n, mine in tested.items()}
        gains[kind] = group_gains(test, cells, tuned, parts, tested, ways, seed=seed)
        controls = [ONE_OF_EACH, *(f"all but {n}" for n in tested)] if kind == "domain" else []
        rows = [name for name in (*tested, *controls, ALL) if name in ways]
        found = {
            title: matrix(test, {n: way[n] for n in rows}, reference, tested, seed=seed)
            for title, way in (("cells", own_cells), ("policies", ways))
        }
        carried = {
            title: carried_over({n: way[n] for n in rows}, tested)
            for title, way in (("cells", own_cells), ("policies", ways))
        }
        carried_speeds = {
            title: {n: speed(test, reference, s, whole[ALL], seed=seed) for n, s in part.items()}
            for title, part in carried.items()
        }
        over_own = {
            title: {n: speed(test, part[OWN], s, whole[ALL], seed=seed) for n, s in part.items()}
            for title, part in carried.items()
        }
        write_bytes(folder / f"{kind}s.png", matrix_plot(found, kind))
        for line in (*gain_lines(gains[kind], accepted), *matrix_lines(found, carried_speeds)):
            say(line)
        measured[f"{kind}s"] = {
            "matrix": found,
            "carried_over": carried_speeds,
            "carried_over_own_kind": over_own,
        }
    write_bytes(folder / "groups.png", group_plot(gains, accepted))
    return identities(ours, times, tuned), {**measured, "gains": gains, "acceptance": accepted}


def by_temperature(
    inputs: ShiftInputs, policies: PartPolicies, folder: Path, seed: int
) -> dict[str, Any]:
    """Cells and policies of each temperature at every other; writes `temperatures.png`.

    Args:
        inputs: Traces and tables.
        policies: Learns on the prompts that were traced at every temperature.
        folder: Of the plot.
        seed: Of the intervals.

    Raises:
        ValueError: Temperature 0 lacks a prompt.
    """
    temperatures = sorted(inputs.learning)
    last = temperatures[-1]
    learning, test = (
        {t: same_prompts(traces[t], traces[last]) for t in temperatures}
        for traces in (inputs.learning, inputs.test)
    )
    count = len(learning[last].sequences)
    runs = {
        t: policies.seconds(f"temperature {t:g}, {count} prompts", t, learning[t], test)
        for t in temperatures
    }
    tuned = {t: CellTimes.of(learning[t], inputs.tables[t]).best() for t in temperatures}
    rows, found = [], {}
    for there in temperatures:
        cells = CellTimes.of(test[there], inputs.tables[there])
        ways = {here: mean_seconds(runs[here][there]) for here in temperatures}
        rows.append(at_temperature(there, test[there], cells, tuned, ways, seed=seed))
        own, mine = cells[tuned[there]], everything(test[there])
        found[f"{there:g}"] = {
            f"{here:g}": speed(test[there], own, ways[here], mine, seed=seed)
            for here in temperatures
        }
    for line in temperature_lines(rows):
        say(line)
    write_bytes(folder / "temperatures.png", temperature_plot(rows))
    return {
        "temperatures": rows,
        "policy_over_cell_tested_at_learned_at": found,
        "learning_prompts_at_each": count,
    }
