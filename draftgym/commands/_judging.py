"""The study of the statistics: experiments of known truth from recorded timings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from draftgym.benchmark.judge_study import (
    POWER,
    Experiments,
    JudgeStudyError,
    Pool,
    judge_statistics,
    opposite_verdicts,
    pool_of,
)
from draftgym.benchmark.samples import load_timings
from draftgym.console import progress, say
from draftgym.errors import ConfigurationError
from draftgym.prompts import PromptSource, load_prompts
from draftgym.provenance import provenance


def judging(
    files: Sequence[str], prompts: int | None, repeats: int | None, trials: int
) -> dict[str, Any]:
    """Judge the statistics on each run's timings, and runs against each other.

    Args:
        files: `samples.jsonl` of finished evaluations.
        prompts: Prompts of an experiment; as many as were recorded when None.
        repeats: Repeats of an experiment; as many as were recorded when None.
        trials: Experiments of each kind.

    Raises:
        ConfigurationError: A count below its least value, or a file that is not of an evaluation.
        JudgeStudyError: Too few timings; names the file.
    """
    for name, value, least in (
        ("prompts", prompts, 2),
        ("repeats", repeats, 1),
        ("trials", trials, 1),
    ):
        if value is not None and value < least:
            raise ConfigurationError(f"--{name}: must be {least} or more, got {value}")
    runs = [load_timings(Path(file)) for file in files]
    domains: dict[str, str] = {}
    rows = []
    for file, samples in zip(files, runs, strict=True):
        mine = _domains(Path(file).parent / "config.json")
        domains |= mine
        if len({sample.repeat for sample in samples}) == 1 and len(files) > 1:
            say(f"{file}: one repeat says nothing of noise; only compared with the other runs")
            continue
        try:
            pool = pool_of(samples, mine)
        except JudgeStudyError as error:
            raise JudgeStudyError(f"{file}: {error}") from error
        sizes = (prompts or len(pool.prompt_ids), repeats or pool.noise.shape[2])
        with progress(file, 3 * trials) as bar:
            row = judge_statistics(Experiments(pool, *sizes), trials=trials, bar=bar)
        rows.append({"samples": file, **_described(pool), "prompts": sizes[0],
                     "repeats": sizes[1], **row})  # fmt: skip
        say(
            f"{file}: intervals hold the truth in {row['same_method']['coverage']:.1%} (a method "
            f"against itself) and {row['two_methods']['coverage']:.1%} (two methods); a slowdown "
            f"of {row['planted']['slowdown'] - 1:.0%} is found in {row['planted']['found']:.1%}, "
            f"one of {row['planted']['smallest_found'] - 1:.1%} in {POWER:.0%}"
        )
    opposite = opposite_verdicts(runs, domains) if len(runs) > 1 else None
    checks = [row[name]["ok"] for row in rows for name in ("same_method", "two_methods", "planted")]
    return {
        "runs": rows,
        "across_runs": opposite,
        "ok": all(checks) and (opposite is None or opposite["ok"]),
        "provenance": provenance(),
    }


def _described(pool: Pool) -> dict[str, Any]:
    return {
        "methods": list(pool.methods),
        "recorded_prompts": len(pool.prompt_ids),
        "recorded_repeats": pool.noise.shape[2],
        "noise_sd_log": float(pool.noise.std()),
    }


def _domains(config: Path) -> dict[str, str]:
    """Domain by prompt id, from the configuration beside the samples; none without one."""
    if not config.is_file():
        say(f"{config}: not there, so prompts are one stratum")
        return {}
    try:
        sources = json.loads(config.read_text(encoding="utf-8"))["prompts"]
        chosen = [PromptSource.model_validate(source) for source in sources]
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise ConfigurationError(
            f"{config}: not an evaluation's configuration ({error})"
        ) from error
    return {prompt.id: prompt.domain for prompt in load_prompts(chosen, "test")}
