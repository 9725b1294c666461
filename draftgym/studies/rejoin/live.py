"""Rejoin raced live: plain decoding, chains, and chains whose rejected tails are proposed again.

All methods decode the same prompts with one target and one draft model, interleaved in blocks of
one prompt. This module says who competes and keeps what was measured; what the measurements say
is in `live_figures`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from draftgym.benchmark.config import check_comparable
from draftgym.benchmark.methods import SessionMethod
from draftgym.benchmark.reference import Reference, reference_of
from draftgym.benchmark.runner import (
    Plan,
    Request,
    encode,
    other_load,
    run_blocks,
    totals,
)
from draftgym.benchmark.summary import PLAIN, compare_outputs
from draftgym.clock import Clock
from draftgym.console import progress
from draftgym.decoder.config import REJOINING, DrafterConfig
from draftgym.decoder.controllers import FixedController, PlainController
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.rules import new_rule
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError
from draftgym.kept import keep, kept
from draftgym.prompts import Prompt
from draftgym.provenance import provenance
from draftgym.storage import dump_json
from draftgym.studies.rejoin.live_figures import race_figures
from draftgym.studies.rejoin.live_store import CarryingMethod, KeptRace

DEPTH = 8
TUNED_DEPTHS = (1, 2, 3, 4, 6)
TUNED = "tuned_depth.json"


@dataclass(frozen=True, slots=True)
class Contender:
    """A chain of one depth in every round, with or without its rejected tails.

    Attributes:
        name: In reports.
        depth: Draft passes.
        size: Drafted and carried tokens verified.
        rejoin: How rejected tails are proposed again; None: not at all.
    """

    name: str
    depth: int
    size: int
    rejoin: Literal["reattach", "candidates"] | None = None


def contenders(drafter: DrafterConfig, depth: int, short_depth: int) -> list[Contender]:
    """Chains and what rejoins, each with all it proposes verified, or no more than the chain.

    Args:
        drafter: Says how many candidates there are.
        depth: Of the long chain.
        short_depth: Of a chain that rejects less.
    """
    modes: tuple[Literal["reattach", "candidates"], ...] = ("reattach", "candidates")
    found = [chain_of(depth), chain_of(short_depth)]
    for mode in modes:
        chains = len(drafter.model_copy(update={"rejoin": mode}).carried_chains)
        most = depth + sum(max(0, depth - 1 - trimmed) for trimmed in range(chains))
        found.append(Contender(f"{mode} D={depth} V={most}", depth, most, mode))
        found.append(Contender(f"{mode} D={depth} V={depth}", depth, depth, mode))
    return found


def chain_of(depth: int) -> Contender:
    """A plain chain, verified whole."""
    return Contender(f"chain D={depth}", depth, depth)


def race(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    clock: Clock,
    *,
    depth: int = DEPTH,
    short_depth: int = 2,
    repeats: int = 1,
    seed: int = 0,
    folder: Path | None = None,
    reference: Reference | None = None,
) -> dict[str, Any]:
    """Time every contender beside plain decoding on the same prompts.

    Args:
        pair: Target and drafter under `greedy` or `coupled`; its `hybrid` drafter stands for the
            `eagle3` head inside.
        prompts: At least two requests; translations of one request are one cluster.
        max_new_tokens: Budget per prompt.
        clock: Source of time.
        depth: Of the long chain and of those that rejoin.
        short_depth: Of the short chain; tuned on other prompts (`tune_depth`).
        repeats: Measurements of each method on each prompt.
        seed: Of the order and of the bootstrap.
        folder: Keeps what was measured, so that a stopped race goes on; nothing is kept when None.
        reference: The target in Transformers, asked only where a text differs; from the pair's
            folder when None.

    Returns:
        See `live_figures.race_figures`; plain data.

    Raises:
        ConfigurationError: No drafter with a model, or a rule whose text is not plain decoding's.
    """
    _check(pair)
    entries = contenders(pair.config.drafter, depth, short_depth)
    methods = [_plain(pair, clock), *(_method(pair, entry, clock) for entry in entries)]
    requests = encode(prompts, pair.encode_prompt)
    plan = Plan(max_new_tokens, repeats, seed)
    kept = KeptRace(folder, _identity(pair, requests, plan, entries))
    load = other_load()
    samples = kept.measure(methods, requests, plan)
    divergences = compare_outputs(
        samples, requests, reference or reference_of(pair), new_rule(pair.config.sampling)
    )
    clusters = {prompt.id: prompt.request_id for prompt in prompts}
    figures = race_figures(samples, kept.counts, clusters, baseline=chain_of(depth).name, seed=seed)
    return {
        **figures,
        "dtype": str(pair.dtype).removeprefix("torch."),
        "max_new_tokens": max_new_tokens,
        "repeats": repeats,
        "load_per_core_before": load,
        "survival": list(pair.config.drafter.rejoin_survival),
        "next_survival": pair.config.drafter.rejoin_next_survival,
        "divergences": [asdict(entry) for entry in divergences],
        "faults": sum(not entry.near_tie for entry in divergences),
    }


def tune_depth(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    clock: Clock,
    depths: Sequence[int] = TUNED_DEPTHS,
    folder: Path | None = None,
) -> int:
    """Depth of the fastest chain, on prompts that judge nothing.

    Args:
        pair: As of `race`.
        prompts: Of the validation split.
        max_new_tokens: Budget per prompt.
        clock: Source of time.
        depths: Candidates.
        folder: Keeps the choice: a stopped race goes on with the same chain. None: nothing is kept.
    """
    _check(pair)
    requests, plan = encode(prompts, pair.encode_prompt), Plan(max_new_tokens)
    key = _identity(pair, requests, plan, [chain_of(depth) for depth in depths])
    known = None if folder is None else kept(folder / TUNED, key)
    if known is not None:
        return int(known)
    methods = {depth: _method(pair, chain_of(depth), clock) for depth in depths}
    with progress("rejoin: tune", len(methods) * len(requests)) as bar:
        samples = run_blocks([*methods.values()], requests, plan, bar=bar)
    pace = {d: totals(samples, method.name).time_per_token for d, method in methods.items()}
    best = min(pace, key=lambda depth: pace[depth])
    if folder is not None:
        keep(folder / TUNED, key, best)
    return best


def _check(pair: ModelPair) -> None:
    kind = pair.config.drafter.kind
    if kind not in (*REJOINING, "hybrid"):
        raise ConfigurationError(
            f"drafter.kind: {kind!r} drafts no chain; accepted: {', '.join(REJOINING)}, hybrid"
        )
    try:
        check_comparable(pair.config)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def _plain(pair: ModelPair, clock: Clock) -> SessionMethod:
    return SessionMethod(PLAIN, DecoderSession(pair, None, clock=clock), PlainController())


def _method(pair: ModelPair, entry: Contender, clock: Clock) -> SessionMethod:
    """A contender's own session; all share the pair's models."""
    settings = pair.config.drafter
    kind = "eagle3" if settings.kind == "hybrid" else settings.kind
    changes = {
        "kind": kind,
        "beam_width": 1,
        "max_depth": entry.depth,
        "max_size": entry.size,
        "rejoin": entry.rejoin,
    }
    drafter = settings.model_copy(update=changes)
    changed = replace(pair, config=pair.config.model_copy(update={"drafter": drafter}))
    session = DecoderSession(
        changed, changed.new_drafter(), clock=clock, max_depth=entry.depth, max_size=entry.size
    )
    cell = FixedController(entry.depth, entry.size)
    carries = entry.rejoin is not None
    return (CarryingMethod if carries else SessionMethod)(entry.name, session, cell)


def _identity(
    pair: ModelPair, requests: Sequence[Request], plan: Plan, entries: Sequence[Contender]
) -> str:
    """Hash of all that a figure depends on."""
    origin: Mapping[str, Any] = provenance(pair.device, pair.dtype)
    parts = {
        "pair": [pair.config.model_dump(mode="json"), pair.fingerprint()],
        "survival": [
            pair.config.drafter.rejoin_survival,
            pair.config.drafter.rejoin_next_survival,
        ],
        "requests": [[request.prompt_id, request.tokens] for request in requests],
        "plan": asdict(plan),
        "contenders": [asdict(entry) for entry in entries],
        "origin": {name: origin.get(name) for name in ("commit", "versions", "cpu", "threads",
                                                       "device", "dtype", "gpu")},
    }  # fmt: skip
    return hashlib.sha256(dump_json(parts).encode()).hexdigest()[:16]
