"""Measure how often sampling keeps the first drafted token, rule by rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from draftgym.benchmark.acceptance import AcceptanceResult, measure
from draftgym.benchmark.runner import encode, pinned_threads
from draftgym.clock import WallClock
from draftgym.configuration import load_yaml
from draftgym.console import print_result, progress, say
from draftgym.decoder.config import PairConfig, SamplingConfig
from draftgym.decoder.pair import load_pair
from draftgym.decoder.sampling.settings import MIN_TEMPERATURE
from draftgym.errors import ConfigurationError
from draftgym.prompts import PromptSource, load_prompts
from draftgym.provenance import provenance

SCHEMA = "draftgym.acceptance/1"


@dataclass(frozen=True)
class Arguments:
    """Coupled and rejection sampling, chains and trees, beside the chain's optimum 1 - TV(p, q).

    Text is sampled from the target; at every position the drafter guesses one token. Figures are
    shares of positions with 95% intervals over prompts; `realised` ones are means over draws of
    noise, the others exact given p and q. Trees may exceed the chain's optimum.
    """

    prompts: Annotated[int, tyro.conf.arg(help="Test prompts.")] = 8
    tokens: Annotated[int, tyro.conf.arg(help="Positions per prompt, at most.")] = 32
    temperature: Annotated[float, tyro.conf.arg(help="Of target and drafter.")] = 1.0
    drafter: Annotated[Literal["eagle3", "lm"], tyro.conf.arg(help="What guesses.")] = "eagle3"
    draws: Annotated[int, tyro.conf.arg(help="Noise samples per position.")] = 16
    pair: Annotated[
        str | None, tyro.conf.arg(help="YAML file of a model pair; the default pair if absent.")
    ] = None
    seed: Annotated[int, tyro.conf.arg(help="Of prompts and noise.")] = 0


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym acceptance")
    for option, least in (("prompts", 2), ("tokens", 1), ("draws", 1)):
        if getattr(arguments, option) < least:
            raise ConfigurationError(
                f"--{option}: must be at least {least}, got {getattr(arguments, option)}"
            )
    if arguments.temperature < MIN_TEMPERATURE:
        raise ConfigurationError(
            f"--temperature: must be at least {MIN_TEMPERATURE}, got {arguments.temperature:g}"
        )
    config = PairConfig() if arguments.pair is None else load_yaml(arguments.pair, PairConfig)
    drafter = config.drafter.model_copy(update={"kind": arguments.drafter})
    config = config.model_copy(update={"drafter": drafter})
    sampling = SamplingConfig(temperature=arguments.temperature, seed=arguments.seed)
    prompts = load_prompts([PromptSource()], "test", arguments.prompts, arguments.seed)
    pair = load_pair(config)
    say(f"{pair.device}, {pair.dtype}; {sampling.describe()}; drafter {arguments.drafter}")
    with pinned_threads(config.threads), progress("acceptance", len(prompts)) as bar:
        result = measure(
            pair,
            arguments.drafter,
            sampling,
            encode(prompts, pair.encode_prompt),
            arguments.tokens,
            draws=arguments.draws,
            clock=WallClock(pair.device),
            bar=bar,
        )
    report(result, arguments, provenance(pair.device, pair.dtype))
    return 0


def report(result: AcceptanceResult, arguments: Arguments, origin: dict[str, Any]) -> None:
    """Print a line per method on standard error, and the result line."""
    for name, share in result.methods.items():
        say(f"{name:<26} {share.estimate:.3f} [{share.low:.3f}, {share.high:.3f}]")
    payload: dict[str, Any] = {
        "drafter": arguments.drafter,
        "temperature": arguments.temperature,
        "prompts": arguments.prompts,
        "tokens": arguments.tokens,
        "draws": arguments.draws,
        "seed": arguments.seed,
        "positions": result.positions,
        "methods": {
            name: {
                "share": share.estimate,
                "interval": share.limits,
                **(
                    {
                        "over_optimum": ratio.estimate,
                        "over_optimum_interval": ratio.limits,
                    }
                    if (ratio := result.over_optimum.get(name))
                    else {}
                ),
            }
            for name, share in result.methods.items()
        },
        "provenance": origin,
    }
    print_result(SCHEMA, payload)
