"""Check losslessness: speculative output against plain decoding and Transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Annotated, Any, Literal, get_args

import tyro

from draftgym.benchmark.divergence import Divergence
from draftgym.benchmark.exactness import (
    Candidate,
    CheckResult,
    CoveringController,
    Law,
    Setting,
    check_exactness,
)
from draftgym.benchmark.methods import HuggingFaceMethod, SessionMethod
from draftgym.benchmark.reference import Reference, reference_of
from draftgym.benchmark.runner import encode, pinned_threads
from draftgym.clock import Clock, WallClock
from draftgym.configuration import load_yaml
from draftgym.console import print_result, progress, say
from draftgym.decoder.config import DrafterConfig, PairConfig, SamplingConfig
from draftgym.decoder.controllers import PlainController
from draftgym.decoder.pair import ModelPair, load_pair
from draftgym.decoder.rules import IdenticalRule, new_rule
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError
from draftgym.features import DEFAULT_SIZE_GRID
from draftgym.prompts import Prompt, PromptSource, load_prompts

SCHEMA = "draftgym.check/1"
Drafter = Literal["ngram", "eagle3", "lm", "hybrid"]
Rule = Literal["greedy", "coupled"]
TEMPERATURES = (0.3, 0.7, 1.0, 1.3)
SHOWN = 10


@dataclass(frozen=True)
class Arguments:
    """Decode with a different depth and size in every round and compare token for token.

    Runs in float32 with end-of-sequence ignored. Greedy output is also compared with
    Transformers'; coupled sampling is compared with plain sampling of the same seed at four
    temperatures. The lm drafter is the target as its own drafter. Exits with 1 if anything
    differs other than at a near-tie of the target, if a drafter accepts nothing, or if a cell of
    the table of depths and sizes is never requested.
    """

    prompts: Annotated[int, tyro.conf.arg(help="Prompts of the test split.")] = 20
    tokens: Annotated[int, tyro.conf.arg(help="New tokens per prompt.")] = 128
    drafters: Annotated[str, tyro.conf.arg(help="Comma-separated: ngram, eagle3, lm, hybrid.")] = (
        "ngram,eagle3"
    )
    rules: Annotated[
        str, tyro.conf.arg(help="Comma-separated verification rules: greedy, coupled.")
    ] = "greedy"
    pair: Annotated[
        str | None, tyro.conf.arg(help="YAML file of a model pair; the default pair if absent.")
    ] = None
    seed: Annotated[int, tyro.conf.arg(help="Of prompts and of the order of cells.")] = 0


def main(argv: Sequence[str]) -> int:
    """Run the check; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym check")
    if arguments.prompts < 1:
        raise ConfigurationError(f"--prompts: must be at least 1, got {arguments.prompts}")
    if arguments.tokens < 2:
        raise ConfigurationError(f"--tokens: must be at least 2, got {arguments.tokens}")
    drafters = _choices("--drafters", arguments.drafters, get_args(Drafter))
    rules = _choices("--rules", arguments.rules, get_args(Rule))
    config = PairConfig() if arguments.pair is None else load_yaml(arguments.pair, PairConfig)
    # Load what is checked: a head only if a drafter needs it; the target is there anyway.
    head = next((name for name in drafters if name in ("eagle3", "hybrid")), "ngram")
    drafter = config.drafter.model_copy(update={"kind": head})
    config = config.model_copy(update={"dtype": "float32", "drafter": drafter})
    prompts = load_prompts([PromptSource()], "test", arguments.prompts, arguments.seed)
    pair = load_pair(config)
    say(f"{pair.device}, float32; {pair.generation.describe()}; end-of-sequence ignored")
    with pinned_threads(config.threads):
        result = check_pair(
            pair,
            config.drafter,
            reference_of(pair),
            prompts,
            tokens=arguments.tokens,
            drafters=drafters,
            rules=rules,
            seed=arguments.seed,
            clock=WallClock(pair.device),
        )
    return report(result)


def check_pair(
    pair: ModelPair,
    drafter: DrafterConfig,
    reference: Reference,
    prompts: Sequence[Prompt],
    *,
    tokens: int,
    drafters: Sequence[str],
    rules: Sequence[str],
    seed: int,
    clock: Clock,
) -> CheckResult:
    """Check every drafter under every rule on one pair.

    Args:
        pair: In float32.
        drafter: Limits of the table of cells.
        reference: The target in Transformers.
        prompts: Prompts to decode.
        tokens: New tokens per prompt.
        drafters: Names of drafters.
        rules: Names of verification rules.
        seed: Of the order of cells.
        clock: Source of time.
    """
    requests = encode(prompts, pair.encode_prompt)
    hugging_face = HuggingFaceMethod(reference.model, clock)
    laws = []
    for rule in rules:
        for temperature in TEMPERATURES if rule == "coupled" else (0.0,):
            sampling = SamplingConfig(temperature=temperature, seed=seed)
            theirs = hugging_face if rule == "greedy" else None
            laws.append(_law(pair, drafter, drafters, sampling, clock, seed, theirs))
    total = sum(1 + bool(law.reference) + len(law.candidates) for law in laws)
    with progress("check", len(requests) * total) as bar:
        return check_exactness(laws, requests, tokens, reference.judge, bar)


def cell_table(drafter: str, config: DrafterConfig) -> tuple[Setting, ...]:
    """Every depth and size that a drafter can be asked for; look-ups know depth 0 only."""
    depths = range(1) if drafter == "ngram" else range(config.max_depth + 1)
    sizes = [size for size in DEFAULT_SIZE_GRID if size <= config.max_size]
    return tuple(product(depths, sizes))


def report(result: CheckResult) -> int:
    """Print the result line, and on standard error what differs; returns the exit status."""
    for entry in result.faults[:SHOWN]:
        say(f"DIFFERS: {_described(entry)}")
    if len(result.faults) > SHOWN:
        say(f"... and {len(result.faults) - SHOWN} more")
    for entry in result.near_ties:
        say(f"near-tie, not counted: {_described(entry)}")
    for cell in result.cells:
        if cell.accepted == 0:
            say(f"{cell.drafter}: accepted nothing, so this run shows nothing about it")
        if cell.cells_visited < cell.cells_total:
            say(
                f"{cell.drafter}: {cell.rounds} rounds requested only {cell.cells_visited} of "
                f"{cell.cells_total} cells; use more prompts or tokens"
            )
    payload: dict[str, Any] = {
        "cells": [asdict(cell) for cell in result.cells],
        "differing_tokens": result.differing_tokens,
        "hf_differing_tokens": result.hf_differing_tokens,
        "near_ties": [asdict(entry) for entry in result.near_ties],
        "ok": result.ok,
    }
    print_result(SCHEMA, payload)
    return 0 if result.ok else 1


def _law(
    pair: ModelPair,
    config: DrafterConfig,
    drafters: Sequence[str],
    sampling: SamplingConfig,
    clock: Clock,
    seed: int,
    reference: HuggingFaceMethod | None,
) -> Law:
    """One law with all drafters; models are shared with `pair`."""

    def under(kind: str) -> ModelPair:
        # The target drafts for itself: a head's source is no language model.
        own = {"source": None, "layers": None} if kind == "lm" else {}
        drafter = config.model_copy(update={"kind": kind, **own})
        changes = {"drafter": drafter, "sampling": sampling}
        return replace(pair, config=pair.config.model_copy(update=changes))

    plain = DecoderSession(under("none"), None, clock=clock, ignore_eos=True)
    rule = new_rule(sampling)
    assert isinstance(rule, IdenticalRule)
    return Law(
        rule=rule,
        temperature=sampling.temperature,
        plain=SessionMethod("plain", plain, PlainController()),
        candidates=tuple(_candidate(under(name), config, name, clock, seed) for name in drafters),
        reference=reference,
    )


def _candidate(
    pair: ModelPair, config: DrafterConfig, name: str, clock: Clock, seed: int
) -> Candidate:
    table = cell_table(name, config)
    controller = CoveringController(table, seed)
    session = DecoderSession(
        pair,
        pair.new_drafter(),
        clock=clock,
        max_depth=config.max_depth,
        max_size=config.max_size,
        ignore_eos=True,
    )
    return Candidate(name, SessionMethod(name, session, controller), controller, table)


def _described(entry: Divergence) -> str:
    return (
        f"{entry.method} on {entry.prompt_id} at token {entry.position}: expected "
        f"{entry.expected}, got {entry.got}; top-2 gap {entry.top2_gap:.3g}"
    )


def _choices(option: str, text: str, accepted: Sequence[str]) -> list[str]:
    chosen = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in chosen:
        if name not in accepted:
            raise ConfigurationError(f"{option}: unknown {name!r}; accepted: {', '.join(accepted)}")
    if not chosen:
        raise ConfigurationError(f"{option}: empty; accepted: {', '.join(accepted)}")
    return chosen
