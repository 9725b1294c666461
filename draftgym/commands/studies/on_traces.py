"""Study what is worth learning, how true confidence is, how far bounds scale, how statistics do."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from draftgym.benchmark.study_plots import reliability_plot, scaling_plot
from draftgym.clock import WallClock
from draftgym.commands._traced import Learning, check_same_pair, open_learning
from draftgym.console import print_result, progress, say
from draftgym.errors import ConfigurationError, DraftGymError
from draftgym.features import FeatureLayout
from draftgym.locking import exclusive
from draftgym.provenance import git_state, provenance
from draftgym.storage import dump_json, write_bytes, write_json
from draftgym.theory.fixed import best_fixed
from draftgym.theory.reliability import Reliability, by_cell, by_pass
from draftgym.theory.scaling import exponent, scaling
from draftgym.traces.store import load_trace
from draftgym.traces.trace import Trace

if TYPE_CHECKING:
    from policies.variants import Setting

SCHEMA = "draftgym.study/1"
JUDGE_SCHEMA = "draftgym.study_judge/1"

What = Literal[
    "objectives", "observations", "networks", "deciding", "learning", "calibration", "scaling",
    "judge",
]  # fmt: skip


@dataclass(frozen=True)
class Arguments:
    """Learn variants on a trace of the policy split and time them on one of the test split.

    Every variant learns with several seeds, without a model; times are mean measured costs,
    decisions charged. A killed study goes on when the same command is given again. `learning`
    compares ways to learn, finished runs of `train.py` among them; `calibration` compares promised
    with accepted tokens on a trace; `scaling` needs no trace; `judge` redraws experiments of known
    truth from the timings of finished evaluations and counts what the statistics say of them.
    """

    what: tyro.conf.Positional[What]
    """What varies, or what is measured."""
    trace: str = "runs/trace"
    """Folder of a trace; of the policy split where variants learn."""
    test_trace: str = "runs/trace-test"
    """Folder of a trace of other prompts."""
    table: str = "runs/calibration/latency.json"
    """Latency table, from `calibrate`."""
    seeds: int = 5
    """Seeds of each variant."""
    steps: int = 600
    """Most gradient steps of each; what takes decisions one by one gets about as much time."""
    runs: Annotated[tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction] = ()
    """Folders of finished runs, for `learning`; may be repeated."""
    positions: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    """Lengths of synthetic traces, for `scaling`; a million take some 5 GB of memory."""
    information_up_to: int = 0
    """Longest synthetic trace that the slow information bound is timed on."""
    samples: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A finished evaluation's `samples.jsonl`, for `judge`; may be repeated."""
    prompts: int | None = None
    """Prompts of an experiment, for `judge`; as many as were recorded when absent."""
    repeats: int | None = None
    """Repeats of an experiment, for `judge`; as many as were recorded when absent."""
    trials: int = 200
    """Experiments of each kind, for `judge`."""
    output: str = "runs/study"
    """Folder; results go to OUTPUT/WHAT."""


def main(argv: Sequence[str]) -> int:
    """Run a study; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym study")
    for name in ("seeds", "steps"):
        if getattr(arguments, name) < 1:
            raise ConfigurationError(f"--{name}: must be 1 or more, got {getattr(arguments, name)}")
    folder = Path(arguments.output) / arguments.what
    if not arguments.positions or min(arguments.positions) < 1:
        raise ConfigurationError(f"--positions: must be 1 or more, got {arguments.positions}")
    if arguments.runs and arguments.what != "learning":
        raise ConfigurationError(f"--runs: only for `learning`, not for `{arguments.what}`")
    if bool(arguments.samples) != (arguments.what == "judge"):
        raise ConfigurationError("--samples: needed by `judge`, and by no other study")
    run = {
        "calibration": calibration,
        "scaling": scaled,
        "learning": ways_to_learn,
        "judge": judged,
    }.get(arguments.what, learned_variants)
    schema = JUDGE_SCHEMA if arguments.what == "judge" else SCHEMA
    with exclusive(folder):
        payload = run(arguments, folder)
        result = {"study": arguments.what, **payload}
        write_json(folder / "result.json", {"schema": schema, **result})
    print_result(schema, result)
    return 0


def learned_variants(arguments: Arguments, folder: Path) -> dict[str, Any]:
    """The studies whose variants learn.

    Args:
        arguments: Traces, table and extent.
        folder: Of the results.

    Raises:
        ConfigurationError: Traces or a table that do not belong together.
    """
    from policies.study import run_study, summary, table_lines
    from policies.variants import STUDIES

    setting, plan, _ = _opened(arguments)
    try:
        seconds = run_study(
            STUDIES[arguments.what](setting), setting, arguments.seeds, folder, plan
        )
    except ValueError as error:
        raise ConfigurationError(f"{arguments.trace}: {error}") from error
    result = summary(seconds, setting)
    for line in table_lines(result):
        say(line)
    return _with_origin(result, setting, arguments)


def ways_to_learn(arguments: Arguments, folder: Path) -> dict[str, Any]:
    """The study of how to learn.

    Args:
        arguments: Traces, table, extent and finished runs.
        folder: Of the results.

    Raises:
        ConfigurationError: Traces or a table that do not belong together.
        RunError: A folder of `--runs` holds no finished run that can be compared.
    """
    from draftgym.commands._learning import learning

    setting, plan, pair = _opened(arguments)
    runs = [run for given in arguments.runs for run in given]
    try:
        result = learning(setting, arguments.seeds, folder, plan, runs, pair)
    except DraftGymError:
        raise
    except ValueError as error:
        raise ConfigurationError(f"{arguments.trace}: {error}") from error
    return _with_origin(result, setting, arguments)


def calibration(arguments: Arguments, folder: Path) -> dict[str, Any]:
    """Promised against accepted tokens, by pass and by cell; writes `calibration.png`.

    Args:
        arguments: The trace.
        folder: Of the results.

    Raises:
        ConfigurationError: Its texts are too short.
    """
    trace = load_trace(Path(arguments.trace))
    passes, cells = by_pass(trace), by_cell(trace)
    if not passes:
        raise ConfigurationError(f"{arguments.trace}: no text is longer than the tree's paths")
    for depth, found in passes.items():
        promised, accepted = found.means
        say(
            f"{'free proposals' if depth == 0 else f'pass {depth}':<14} promised {promised:.3f}, "
            f"accepted {accepted:.3f} tokens, calibration error {found.error:.3f}, "
            f"{found.count.sum()} positions"
        )
    plot = write_bytes(folder / "calibration.png", reliability_plot(passes))
    return {
        "passes": [{"depth": depth, **_diagram(found)} for depth, found in passes.items()],
        "cells": [
            {"depth": depth, "size": size, **_diagram(found)}
            for (depth, size), found in cells.items()
        ],
        "plot": str(plot),
        "provenance": provenance(extra={"trace": dict(trace.source)}),
    }


def scaled(arguments: Arguments, folder: Path) -> dict[str, Any]:
    """Time and memory of bounds and replays on synthetic traces; writes `scaling.png`.

    Args:
        arguments: Lengths.
        folder: Of the results.
    """
    with progress("scaling", sum(arguments.positions)) as bar:
        loads = scaling(
            arguments.positions, FeatureLayout(), WallClock(), bar,
            information_up_to=arguments.information_up_to,
        )  # fmt: skip
    rows = []
    for name, entries in loads.items():
        slope = exponent(entries)
        rows.append({"name": name, "exponent": slope, "loads": [asdict(load) for load in entries]})
        last = entries[-1]
        say(
            f"{name:<18} {last.seconds:.3g} s and {last.peak_bytes / 1e6:.0f} MB at "
            f"{last.positions} positions"
            + ("" if slope is None else f"; time grows with the power {slope:.2f}")
        )
    plot = write_bytes(folder / "scaling.png", scaling_plot(loads))
    return {
        "synthetic": True,
        "computations": rows,
        "plot": str(plot),
        "provenance": provenance(),
    }


def judged(arguments: Arguments, folder: Path) -> dict[str, Any]:
    """What the statistics say where the truth is known.

    Args:
        arguments: Samples and the extent of experiments.
        folder: Of the results; not used.

    Raises:
        ConfigurationError: Samples that cannot be read or redrawn from.
    """
    from draftgym.commands._judging import judging

    return judging(arguments.samples, arguments.prompts, arguments.repeats, arguments.trials)


def _opened(arguments: Arguments) -> tuple[Setting, dict[str, Any], Mapping[str, Any]]:
    """What variants share, what their results hang on, and the model pair's fingerprint."""
    from policies.variants import Setting

    learning = open_learning(arguments.trace, arguments.table)
    test = load_trace(Path(arguments.test_trace))
    check_same_pair(test, learning.table, arguments.test_trace, arguments.table)
    _check_other_prompts(learning, test, arguments)
    setting = Setting(
        trace=learning.trace,
        test=test,
        times=learning.table,
        layout=learning.layout,
        costs=learning.costs,
        card=learning.card,
        steps=arguments.steps,
        cell=best_fixed(learning.trace, learning.table),
    )
    plan = {
        "study": arguments.what,
        "steps": arguments.steps,
        "commit": git_state()[0],
        "trace": _digest(dump_json(learning.trace.source).encode()),
        "test_trace": _digest(dump_json(test.source).encode()),
        "table": _digest(Path(arguments.table).read_bytes()),
    }
    return setting, plan, learning.table.fingerprint["pair"]


def _with_origin(
    result: Mapping[str, Any], setting: Setting, arguments: Arguments
) -> dict[str, Any]:
    extra = {"trace": dict(setting.trace.source), "test_trace": dict(setting.test.source)}
    return {**result, "steps": arguments.steps, "provenance": provenance(extra=extra)}


def _diagram(found: Reliability) -> dict[str, Any]:
    promised, accepted = found.means
    return {
        "promised": promised,
        "accepted": accepted,
        "error": found.error,
        "bins": asdict(found),
    }


def _check_other_prompts(learning: Learning, test: Trace, arguments: Arguments) -> None:
    if test.shape != learning.trace.shape:
        raise ConfigurationError(
            f"{arguments.test_trace}: {test.shape}, but {arguments.trace} has "
            f"{learning.trace.shape}; trace both with the same limits"
        )
    known = {entry.request_id or entry.prompt_id for entry in learning.trace.sequences}
    for entry in test.sequences:
        if (entry.request_id or entry.prompt_id) in known:
            raise ConfigurationError(
                f"{arguments.test_trace}: prompt {entry.prompt_id!r} is in {arguments.trace} too; "
                "variants are timed on prompts that they did not learn from"
            )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
