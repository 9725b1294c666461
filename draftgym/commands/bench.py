"""Measure the decoding loop: against Transformers, with speculation, and its overheads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from draftgym.benchmark.bench import Bench
from draftgym.benchmark.cell_race import BenchPlan
from draftgym.benchmark.config import check_comparable, depths
from draftgym.benchmark.reference import reference_of
from draftgym.benchmark.runner import encode, other_load, pinned_threads
from draftgym.benchmark.untrained import untrained_controller
from draftgym.clock import WallClock
from draftgym.configuration import load_yaml
from draftgym.console import print_result, say
from draftgym.decoder.config import PairConfig
from draftgym.decoder.pair import load_pair
from draftgym.errors import ConfigurationError
from draftgym.prompts import PromptSource, load_prompts
from draftgym.provenance import hardware, provenance
from draftgym.runtime import LearnedController, load_controller

SCHEMA = "draftgym.bench/1"


@dataclass(frozen=True)
class Arguments:
    """Plain decoding, the best fixed cell, Transformers and a policy, side by side.

    The best cell is chosen on validation prompts and measured on test prompts, interleaved
    with everything else. Time per token is Σ seconds / Σ tokens of decoding rounds; for
    Transformers from the end of prefill to the last token. Exits with 1 if an output differs
    from plain decoding other than at a near-tie of the target.
    """

    prompts: Annotated[int, tyro.conf.arg(help="Test prompts.")] = 12
    tokens: Annotated[int, tyro.conf.arg(help="New tokens per test prompt.")] = 64
    repeats: Annotated[int, tyro.conf.arg(help="Measurements per prompt and method.")] = 2
    tune_prompts: Annotated[int, tyro.conf.arg(help="Validation prompts for tuning.")] = 6
    drafter: Annotated[
        str | None, tyro.conf.arg(help="Drafter in place of the pair's: hybrid, eagle3, lm, ngram.")
    ] = None
    temperatures: Annotated[
        str, tyro.conf.arg(help="Comma-separated: coupled sampling too, each with its own cell.")
    ] = ""
    policy: Annotated[
        str | None, tyro.conf.arg(help="Policy folder or table file; untrained if absent.")
    ] = None
    pair: Annotated[
        str | None, tyro.conf.arg(help="YAML file of a model pair; the default pair if absent.")
    ] = None
    seed: Annotated[int, tyro.conf.arg(help="Of prompts, orders and intervals.")] = 0


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym bench")
    for name, least in (("prompts", 2), ("tokens", 2), ("repeats", 1), ("tune_prompts", 1)):
        value = getattr(arguments, name)
        if value < least:
            option = name.replace("_", "-")
            raise ConfigurationError(f"--{option}: must be at least {least}, got {value}")
    config = PairConfig() if arguments.pair is None else load_yaml(arguments.pair, PairConfig)
    if arguments.drafter is not None:
        config = _with_drafter(config, arguments.drafter)
    temperatures = _temperatures(arguments.temperatures)
    try:
        check_comparable(config)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    if config.drafter.kind == "none":
        raise ConfigurationError(
            "drafter.kind: the benchmark needs one; accepted: hybrid, eagle3, lm, ngram"
        )
    sources = [PromptSource()]
    validation = load_prompts(sources, "validation", arguments.tune_prompts, arguments.seed)
    test = load_prompts(sources, "test", arguments.prompts, arguments.seed)
    load = other_load()
    if arguments.policy is not None:
        load_controller(arguments.policy)  # a wrong path is refused before a model is loaded
    pair = load_pair(config)
    say(f"{pair.device}, {pair.dtype}; {pair.generation.describe()}")
    if arguments.policy is None:
        deepest = max(1, depths(config.drafter)[-1])
        controller: LearnedController = untrained_controller(
            deepest, config.drafter.beam_width, seed=arguments.seed
        )
        say(
            "no --policy: an untrained network of the default size is timed, in rounds as the best "
            "fixed cell has them"
        )
    else:
        controller = load_controller(
            arguments.policy, pair.fingerprint(), hardware(pair.device, pair.dtype)
        )
    plan = BenchPlan(
        arguments.tokens, arguments.repeats, seed=arguments.seed, temperatures=temperatures
    )
    with pinned_threads(config.threads):
        bench = Bench(
            pair,
            config.drafter,
            controller,
            reference_of(pair),
            WallClock(pair.device),
            plan,
            heeded=arguments.policy is not None,
        )
        result = bench.run(encode(validation, pair.encode_prompt), encode(test, pair.encode_prompt))
        extra = {"pair": pair.fingerprint(), "load_per_core_before": load}
        origin = provenance(pair.device, pair.dtype, extra)
    for entry in result.faults:
        say(
            f"DIFFERS: {entry.method} on {entry.prompt_id} at token {entry.position}, "
            f"top-2 gap {entry.top2_gap:.3g}"
        )
    print_result(SCHEMA, {**result.payload, "provenance": origin})
    return 1 if result.faults else 0


def _with_drafter(config: PairConfig, kind: str) -> PairConfig:
    """The pair with another kind of drafter."""
    accepted = ("hybrid", "eagle3", "lm", "ngram")
    if kind not in accepted:
        raise ConfigurationError(f"--drafter: unknown {kind!r}; accepted: {', '.join(accepted)}")
    return config.model_copy(update={"drafter": config.drafter.model_copy(update={"kind": kind})})


def _temperatures(text: str) -> tuple[float, ...]:
    """The temperatures of a comma-separated list."""
    try:
        values = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigurationError(f"--temperatures: {error}") from error
    if text and not values:
        raise ConfigurationError(f"--temperatures: no number in {text!r}")
    for value in values:
        if not 0.001 <= value < 1e3:
            raise ConfigurationError(f"--temperatures: each above 0 and finite, got {value:g}")
    return values
