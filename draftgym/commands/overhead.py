"""Measure what a policy's decisions cost: its rounds against the same rounds with known answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from draftgym.benchmark.overhead import measure_overhead
from draftgym.benchmark.runner import encode, other_load, pinned_threads
from draftgym.clock import WallClock
from draftgym.commands._live import DEFAULT_CONFIG, open_session
from draftgym.configuration import load_yaml
from draftgym.console import print_result, progress, say
from draftgym.decoder.pair import load_pair
from draftgym.errors import ConfigurationError
from draftgym.prompts import load_prompts
from draftgym.provenance import hardware, provenance
from draftgym.runtime import load_controller
from policies.config import TrainConfig

SCHEMA = "draftgym.overhead/1"


@dataclass(frozen=True)
class Arguments:
    """Decode test prompts again and again, asking the policy in half of the rounds.

    In the other half its recorded answers are replayed; both halves are the same rounds, so the
    difference is what deciding costs: features, networks, and whatever reading the device delays.
    """

    policy: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(help="Folder of a policy, or a table's file.")
    ]
    config: Annotated[
        str, tyro.conf.arg(help="Training configuration of its pair, layout and prompts.")
    ] = str(DEFAULT_CONFIG)
    prompts: Annotated[int, tyro.conf.arg(help="Prompts of the test split.")] = 12
    repeats: Annotated[int, tyro.conf.arg(help="Pairs of runs of each.")] = 4
    tokens: Annotated[int, tyro.conf.arg(help="New tokens per prompt.")] = 96


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym overhead")
    for name, least in (("prompts", 2), ("repeats", 1), ("tokens", 2)):
        if getattr(arguments, name) < least:
            raise ConfigurationError(f"--{name}: must be at least {least}")
    config = load_yaml(arguments.config, TrainConfig)
    load_before = other_load()
    pair = load_pair(config.pair)
    policy = load_controller(
        arguments.policy, pair.fingerprint(), hardware(pair.device, pair.dtype)
    )
    session = open_session(config, pair, WallClock(pair.device))
    session.costs = policy.costs
    prompts = load_prompts(config.prompts, "test", arguments.prompts, config.seed)
    requests = encode(prompts, pair.encode_prompt)
    runs = 2 * arguments.repeats * len(requests)
    with pinned_threads(config.pair.threads), progress("overhead", runs) as bar:
        found = measure_overhead(
            session,
            requests,
            policy,
            max_new_tokens=arguments.tokens,
            repeats=arguments.repeats,
            seed=config.seed,
            bar=bar,
        )
        origin = provenance(pair.device, pair.dtype, {"load_per_core_before": load_before})
    low, high = (100 * (limit - 1) for limit in found.ratio.limits)
    say(
        f"a round takes {1e3 * found.asked_seconds:.2f} ms when the policy is asked: "
        f"{100 * (found.ratio.estimate - 1):+.2f} % [{low:+.2f}, {high:+.2f}] over the same round "
        f"without; the clock charges {100 * found.charged_share:.2f} % to its decisions"
    )
    print_result(
        SCHEMA,
        {
            "overhead": found.ratio.estimate - 1,
            "ci95": [limit - 1 for limit in found.ratio.limits],
            "charged_share": found.charged_share,
            "milliseconds": {
                "asked": 1e3 * found.asked_seconds,
                "recalled": 1e3 * found.recalled_seconds,
            },
            "rounds": found.rounds,
            "prompts": len(requests),
            "provenance": origin,
        },
    )
    return 0
