"""Runs a study: every variant with every seed, kept as soon as it is done, then summed up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from draftgym.benchmark.statistics import Interval, paired_ratio, time_per_token
from draftgym.console import progress
from draftgym.costs.times import Float64Array
from draftgym.errors import DraftGymError
from draftgym.runtime.folder import first_difference
from draftgym.storage import plain, write_json
from draftgym.theory.fixed import fixed
from draftgym.theory.requests import request_domains, request_totals
from draftgym.traces.trace import Trace
from policies.variants import Setting, Variant

PLAN = "plan.json"


class StudyError(DraftGymError, ValueError):
    """A folder of results cannot be gone on with; the message names the file and the field."""


def run_study(
    variants: Sequence[Variant],
    setting: Setting,
    seeds: int,
    folder: Path,
    plan: Mapping[str, Any],
) -> dict[str, list[Float64Array]]:
    """Learn and time what is not in the folder yet.

    Args:
        variants: Rows, the reference first.
        setting: What they share.
        seeds: Each learns with the seeds 0 to this.
        folder: Gets one file per variant and seed.
        plan: Everything else that the results hang on, plain data.

    Returns:
        Seconds of each test sequence by variant and seed, [sequences] each.

    Raises:
        StudyError: The folder holds results of another plan, or damaged ones.
    """
    _check_plan(folder, plan)
    work = [(variant, seed) for seed in range(seeds) for variant in variants]
    found: dict[str, list[Float64Array]] = {variant.name: [] for variant in variants}
    missing = [entry for entry in work if not _file(folder, *entry).is_file()]
    with progress(folder.name, len(missing) * setting.steps) as bar:
        for variant, seed in missing:
            bar.describe(f"{folder.name}: {variant.name}, seed {seed}")
            seconds = variant.seconds(setting, seed, bar)
            content = {"variant": variant.name, "seed": seed, "seconds": seconds}
            write_json(_file(folder, variant, seed), content, indent=None)
    for variant, seed in work:
        file = _file(folder, variant, seed)
        found[variant.name].append(_read(file, len(setting.test.sequences)))
    return found


def summary(
    seconds: Mapping[str, Sequence[Float64Array]], setting: Setting, *, seed: int = 0
) -> dict[str, Any]:
    """The result line of a study.

    Intervals are 95% from a bootstrap over requests, translations of one together, of the mean
    over seeds; what the seeds differ by is listed beside them.

    Args:
        seconds: Of each test sequence, by variant and seed; the reference first.
        setting: Of the study.
        seed: Of the intervals.
    """
    test = setting.test
    strata = request_domains(test)
    tuned_seconds = fixed(test, setting.times, *setting.cell)
    tuned = request_totals(test, tuned_seconds)
    totals = {name: request_totals(test, np.mean(runs, 0)) for name, runs in seconds.items()}
    reference = totals[next(iter(totals))]
    rows = []
    for name, total in totals.items():
        pace = time_per_token(total, strata, seed=seed)
        per_seed = [float(tuned_seconds.sum() / run.sum()) for run in seconds[name]]
        over_tuned = paired_ratio(tuned, total, strata, seed=seed)
        rows.append(
            {
                "name": name,
                "ms_per_token": 1e3 * pace.estimate,
                "ci95": [1e3 * value for value in pace.limits],
                "over_tuned": {**_plain(over_tuned), "per_seed": per_seed},
                "over_reference": _plain(paired_ratio(reference, total, strata, seed=seed)),
                "domains": _by_domain(test, np.mean(seconds[name], 0)),
            }
        )
    depth, size = setting.cell
    return {
        "variants": rows,
        "tuned": {
            "depth": depth,
            "size": size,
            "ms_per_token": 1e3 * tuned.time_per_token,
            "domains": _by_domain(test, tuned_seconds),
        },
        "seeds": len(next(iter(seconds.values()))),
        "prompts": int((test.lengths > 1).sum()),
        "requests": len(tuned.prompt_ids),
    }


def table_lines(result: Mapping[str, Any]) -> list[str]:
    """The summary as text, one line per variant."""
    tuned = result["tuned"]
    width = max(len(row["name"]) for row in result["variants"])
    lines = [
        f"tuned cell D={tuned['depth']}, V={tuned['size']}: {tuned['ms_per_token']:.2f} ms per "
        f"token; {result['seeds']} seeds, {result['prompts']} test prompts"
    ]
    for row in result["variants"]:
        over, beside = row["over_tuned"], row["over_reference"]
        lines.append(
            f"{row['name']:<{width}} {row['ms_per_token']:7.2f} ms, over tuned "
            f"{over['ratio']:.3f} [{over['ci95'][0]:.3f}, {over['ci95'][1]:.3f}] (seeds "
            f"{min(over['per_seed']):.3f} to {max(over['per_seed']):.3f}), over reference "
            f"{beside['ratio']:.3f} [{beside['ci95'][0]:.3f}, {beside['ci95'][1]:.3f}]"
        )
    return lines


def _by_domain(trace: Trace, seconds: Float64Array) -> dict[str, float]:
    """Milliseconds per token."""
    domains = np.array([entry.domain for entry in trace.sequences])
    tokens = trace.lengths - 1
    return {
        str(name): float(1e3 * seconds[domains == name].sum() / tokens[domains == name].sum())
        for name in np.unique(domains)
    }


def _plain(interval: Interval) -> dict[str, Any]:
    return {"ratio": interval.estimate, "ci95": interval.limits}


def _file(folder: Path, variant: Variant, seed: int) -> Path:
    name = "".join(letter if letter.isalnum() else "_" for letter in variant.name)
    return folder / f"{name}-{seed}.json"


def _check_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    file, wanted = folder / PLAN, plain(plan)
    if not file.is_file():
        write_json(file, wanted)
        return
    changed = first_difference(_read_json(file), wanted, "plan", "it")
    if changed is not None:
        raise StudyError(f"{folder}: holds another study ({changed}); choose a new folder")


def _read(file: Path, sequences: int) -> Float64Array:
    try:
        seconds = np.array(_read_json(file)["seconds"], np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise StudyError(f"{file}: seconds: damaged ({error}); remove it") from error
    if seconds.shape != (sequences,) or not np.isfinite(seconds).all():
        raise StudyError(f"{file}: seconds: expected {sequences} finite numbers; remove it")
    return seconds


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StudyError(f"{file}: damaged ({error}); remove it") from error
