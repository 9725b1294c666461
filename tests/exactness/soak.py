"""Many tokens under controllers that mean harm, compared with plain decoding of the same pair.

    python -m tests.exactness.soak --tokens 1000000 --seed 0

Every drafter and rule keeps one session for all its sequences, with stale memory poisoned after
every round and prompts read in chunks of any size. Greedy and coupled text must equal plain text
token for token; under rejection, whose law is tested elsewhere, the counts must add up and every
number be finite. Where the target's two best scores lie within `NEAR_TIE`, rounding may decide:
such a divergence is listed, not counted.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from draftgym.clock import FakeClock, WallClock
from draftgym.console import print_result, progress, say
from draftgym.decoder import session as session_module
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.controllers import PlainController
from draftgym.decoder.drafters import eagle3, lm
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.rules import new_rule
from draftgym.decoder.session import DecoderSession
from tests.exactness.adversary import MOODS, Adversary
from tests.exactness.near_tie import NEAR_TIE, top2_gap
from tests.exactness.worlds import (
    DRAFTER_NAMES,
    DRAWABLE,
    WORLDS,
    World,
    build_pair,
    new_session,
)

SCHEMA = "draftgym.soak/1"
LONGEST = 80
RULE_WEIGHTS = {"greedy": 4, "coupled": 4, "rejection": 1}
CHAIN_WEIGHT = 3


@dataclass(slots=True)
class Tally:
    """What one drafter did under one rule.

    Attributes:
        tokens: Emitted and compared (under rejection: checked).
        rounds: Rounds.
        accepted: Drafted tokens kept; 0 would mean that nothing was tested.
        sequences: Sequences.
        wrong: Sequences that differ from plain decoding other than at a near-tie.
    """

    tokens: int = 0
    rounds: int = 0
    accepted: int = 0
    sequences: int = 0
    wrong: int = 0


@dataclass(slots=True)
class Result:
    """A whole soak; `faults` and `near_ties` name the sequence that shows them again."""

    cells: dict[str, Tally] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    near_ties: list[dict[str, Any]] = field(default_factory=list)

    def total(self, name: str) -> int:
        """Sum of one field of the tallies."""
        return sum(getattr(tally, name) for tally in self.cells.values())


class _Place:
    """A world with its sessions, which live as long as the soak."""

    def __init__(self, world: World) -> None:
        self.world, self.pair = world, build_pair(world)
        self.plain = DecoderSession(self.pair, None, clock=FakeClock())
        self._sessions: dict[str, DecoderSession] = {}

    def session(self, drafter: str, log_probs: bool) -> DecoderSession:
        name = f"{drafter}/{log_probs}"
        if name not in self._sessions:
            self._sessions[name] = new_session(self.pair, self.world, drafter, log_probs=log_probs)
        return self._sessions[name]


def soak(
    tokens: int, seed: int, worlds: Sequence[World] = WORLDS, result: Result | None = None
) -> Result:
    """Decode until `tokens` were emitted.

    Args:
        tokens: At least this many.
        seed: Of prompts, budgets, stops, settings and controllers.
        worlds: Pairs to decode with.
        result: Filled as it goes; what it holds when a soak is stopped counts.
    """
    result = Result() if result is None else result
    places = [_Place(world) for world in worlds]
    index, done = 0, 0
    try:
        with progress("soak", tokens) as bar:
            while done < tokens:
                _one_prompt(result, places[index % len(places)], f"{seed}/{index}")
                now, index = result.total("tokens"), index + 1
                bar.advance(now - done)
                done = now
    finally:
        _set_chunks(512, 512)
    return result


def _one_prompt(result: Result, place: _Place, key: str) -> None:
    """One prompt and one setting, with every drafter."""
    choices, world = random.Random(key), place.world
    weights = RULE_WEIGHTS | ({"chain_rejection": CHAIN_WEIGHT} if world.width == 1 else {})
    rule = choices.choices(list(weights), list(weights.values()))[0]
    sampling = _sampling(choices, rule)
    longest = min(LONGEST, world.context - 1)
    length = choices.choice((choices.randint(1, longest), choices.randint(1, 6), longest))
    prompt = [choices.randrange(world.vocab) for _ in range(length)]
    sequence = choices.randrange(1000)
    plain = _plain_text(place, sampling, prompt, sequence) if rule in ("greedy", "coupled") else []
    for drafter in DRAWABLE if rule == "chain_rejection" else DRAFTER_NAMES:
        session = place.session(drafter, log_probs=choices.random() < 0.5)
        session.rule = new_rule(sampling)
        _set_chunks(choices.choice((7, 32, 512)), choices.choice((5, 24, 512)))
        eos = frozenset(choices.sample(range(world.vocab), choices.choice((0, 0, 0, 0, 1, 3))))
        _set_eos(place.pair, eos)
        budget = choices.choice(
            (choices.randint(1, 5), choices.randint(1, LONGEST), *[LONGEST] * 2)
        )
        mood = choices.choice(MOODS)
        where = f"{key}: {drafter}, {rule}, {mood}, {len(prompt)} + {budget} tokens"
        try:
            session.start(prompt, budget, sequence)
            session.run(Adversary(choices, mood))
        except Exception as error:
            error.add_note(where)
            raise
        tally = result.cells.setdefault(f"{drafter}/{rule}", Tally())
        _check_counts(session, budget, where)
        if plain:
            wanted = _cut(plain, eos, budget)
            _compare(result, tally, place.pair, session, prompt, wanted, sequence, where)
        tally.tokens += len(session.tokens)
        tally.rounds += len(session.records)
        tally.accepted += sum(record.accepted for record in session.records)
        tally.sequences += 1


def _sampling(choices: random.Random, rule: str) -> SamplingConfig:
    if rule == "greedy":
        return SamplingConfig()
    truncation: dict[str, Any] = choices.choice(
        (
            {},
            {"top_k": choices.choice((1, 2, 3, 10))},
            {"top_p": choices.choice((0.2, 0.6, 0.95))},
            {"top_k": 5, "top_p": 0.8, "min_p": 0.05},
        )
    )
    return SamplingConfig(
        temperature=round(choices.uniform(0.3, 1.3), 2),
        seed=choices.randrange(1000),
        rule="coupled" if rule == "coupled" else "rejection",
        proposals="drawn" if rule == "chain_rejection" else "best",
        **truncation,
    )


def _plain_text(
    place: _Place, sampling: SamplingConfig, prompt: list[int], sequence: int
) -> list[int]:
    """Plain text without stops, as long as any budget; what a drafted run shows of it is a cut."""
    _set_eos(place.pair, frozenset())
    _set_chunks(512, 512)
    place.plain.rule = new_rule(sampling)
    place.plain.start(prompt, LONGEST, sequence)
    place.plain.run(PlainController())
    return list(place.plain.tokens)


def _set_chunks(prefill: int, ingestion: int) -> None:
    """Long prompts are read in chunks; small ones show it on short prompts."""
    session_module.PREFILL_CHUNK_TOKENS = prefill
    eagle3.INGEST_CHUNK_TOKENS = lm.INGEST_CHUNK_TOKENS = ingestion


def _set_eos(pair: ModelPair, eos: frozenset[int]) -> None:
    settings = pair.generation
    pair.generation = type(settings)(eos, settings.context_limit_tokens, settings.ignored)


def _cut(tokens: list[int], eos: frozenset[int], budget: int) -> list[int]:
    tokens = tokens[:budget]
    end = next((i + 1 for i, token in enumerate(tokens) if token in eos), len(tokens))
    return tokens[:end]


def _check_counts(session: DecoderSession, budget: int, where: str) -> None:
    records, tokens = session.records, session.tokens
    assert 1 <= len(tokens) <= budget, where
    assert 1 + sum(record.emitted for record in records) == len(tokens), where
    assert all(r.accepted <= r.size and r.accepted <= r.emitted <= r.accepted + 1 for r in records)
    assert tokens[1:] == [token for record in records for token in record.tokens], where
    assert all(0 <= token < session.pair.target.vocab_size for token in tokens), where
    full = len(session._committed.ids) == session.context_limit
    stopped = tokens[-1] in session.pair.generation.eos_token_ids
    reason = "eos" if stopped else "budget" if len(tokens) == budget else "context"
    assert session.stop_reason == reason and (reason != "context" or full), where
    if session._keeps_log_probs:
        assert len(session.log_probs) == len(tokens), where
        assert all(math.isfinite(value) and value <= 1e-6 for value in session.log_probs), where


def _compare(
    result: Result,
    tally: Tally,
    pair: ModelPair,
    session: DecoderSession,
    prompt: list[int],
    wanted: list[int],
    sequence: int,
    where: str,
) -> None:
    got = session.tokens
    if got == wanted:
        return
    shared = min(len(got), len(wanted))
    first = next((i for i in range(shared) if got[i] != wanted[i]), shared)
    gap = math.inf
    if first < shared:
        before = prompt + wanted[:first]
        gap = top2_gap(pair.target, before, session.rule, sequence)
    entry = {"where": where, "token": first, "expected": wanted[first:][:1], "got": got[first:][:1]}
    if gap < NEAR_TIE:
        result.near_ties.append({**entry, "gap": gap})
    else:
        tally.wrong += 1
        result.faults.append({**entry, "gap": gap if math.isfinite(gap) else None})


def summary(result: Result, seed: int, seconds: float) -> dict[str, Any]:
    """The result line."""
    tokens = result.total("tokens")
    return {
        "seed": seed,
        "tokens": tokens,
        "rounds": result.total("rounds"),
        "sequences": result.total("sequences"),
        "wrong": result.total("wrong"),
        "near_ties": len(result.near_ties),
        "seconds": round(seconds, 1),
        "tokens_per_second": round(tokens / seconds, 1),
        "cells": {name: asdict(tally) for name, tally in sorted(result.cells.items())},
        "faults": result.faults[:20],
        "near_tie_list": result.near_ties,
    }


def main(argv: Sequence[str]) -> int:
    """Run a soak, or what there is of it at Ctrl-C; returns 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.exactness.soak", description=__doc__)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="emitted tokens, at least")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is random")
    arguments = parser.parse_args(argv)
    clock = WallClock()
    begin = clock.boundary()
    result = Result()
    try:
        soak(arguments.tokens, arguments.seed, result=result)
    except KeyboardInterrupt:
        say("stopped; this is what was decoded")
    print_result(SCHEMA, summary(result, arguments.seed, clock.boundary() - begin))
    return 1 if result.total("wrong") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
