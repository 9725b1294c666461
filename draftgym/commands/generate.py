"""Answer one prompt, streamed, with an exported policy or a fixed depth and size."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from pydantic import ValidationError

from draftgym.clock import WallClock
from draftgym.configuration import load_yaml
from draftgym.console import print_result, say
from draftgym.decoder.config import PairConfig, SamplingConfig
from draftgym.decoder.controllers import FixedController
from draftgym.decoder.generate import GenerationResult, generate
from draftgym.decoder.pair import load_pair
from draftgym.decoder.session import DecoderSession
from draftgym.decoder.streaming import TextStream
from draftgym.errors import ConfigurationError
from draftgym.provenance import hardware
from draftgym.runtime import LearnedController, load_controller
from draftgym.state import Controller, MeasuredCosts

SCHEMA = "draftgym.generate/1"
DEFAULT_DEPTH, DEFAULT_SIZE = 1, 8
MOST = 1024


@dataclass(frozen=True)
class Arguments:
    """Stream an answer, then say how fast it was and how deep was drafted."""

    prompt: Annotated[str, tyro.conf.Positional]
    """What to ask; `-` reads standard input."""
    policy: str | None = None
    """Folder of an exported policy (RUN/policy), or file of a table (RUN/table.json)."""
    depth: int | None = None
    """Draft passes per round, without a policy (1 if absent); 0 with size 0 decodes plainly."""
    size: int | None = None
    """Drafted tokens verified per round, without a policy (8 if absent)."""
    max_new_tokens: int = 256
    """Budget."""
    temperature: float | None = None
    """Sample at this temperature; the pair's own setting (greedy) if absent."""
    seed: int | None = None
    """Of sampling: the same seed gives the same text under any policy."""
    stop: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Text that ends the answer; may be given several times."""
    pair: str | None = None
    """YAML file of a model pair; the default pair if absent."""


def main(argv: Sequence[str]) -> int:
    """Parse, answer, report; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym generate")
    prompt = _prompt(arguments.prompt)
    for name in ("depth", "size"):
        value = getattr(arguments, name)
        if value is not None and arguments.policy is not None:
            raise ConfigurationError(f"--{name}: the policy decides; leave it out with --policy")
        if value is not None and not 0 <= value <= MOST:
            raise ConfigurationError(f"--{name}: must be from 0 to {MOST}, got {value}")
    if arguments.max_new_tokens < 1:
        raise ConfigurationError("--max-new-tokens: must be at least 1")
    if not all(arguments.stop):
        raise ConfigurationError("--stop: must not be empty")
    config = PairConfig() if arguments.pair is None else load_yaml(arguments.pair, PairConfig)
    config = _sampled(config, arguments)
    policy = None if arguments.policy is None else load_controller(arguments.policy)
    pair = load_pair(config)
    if arguments.policy is not None:
        here = hardware(pair.device, pair.dtype)
        policy = load_controller(arguments.policy, pair.fingerprint(), here)
    for name, most in (("depth", config.drafter.max_depth), ("size", config.drafter.max_size)):
        if (getattr(arguments, name) or 0) > most:
            say(f"--{name}: the pair's drafter.max_{name} is {most}, so no round goes further")
    controller: Controller = policy or FixedController(
        DEFAULT_DEPTH if arguments.depth is None else arguments.depth,
        DEFAULT_SIZE if arguments.size is None else arguments.size,
    )
    session = DecoderSession(
        pair,
        pair.new_drafter(),
        clock=WallClock(pair.device),
        max_depth=config.drafter.max_depth,
        max_size=config.drafter.max_size,
        costs=policy.costs if isinstance(policy, LearnedController) else MeasuredCosts(),
    )
    tokens = pair.encode_prompt([prompt])
    if len(tokens) >= session.context_limit:
        raise ConfigurationError(
            f"the prompt has {len(tokens)} tokens, the context limit is {session.context_limit}"
        )
    stops = arguments.stop
    stream = TextStream(pair.decode, lambda text: print(text, end="", flush=True), stops)
    result = generate(session, tokens, arguments.max_new_tokens, controller, stream.push, stops)
    stream.close()
    print()
    say(describe(result))
    print_result(SCHEMA, summary(result))
    return 0


def _prompt(argument: str) -> str:
    """The prompt as text; `-` reads standard input."""
    try:
        prompt = sys.stdin.read() if argument == "-" else argument
        prompt.encode("utf-8")  # an argument that is no UTF-8 arrives as surrogates
    except UnicodeError as error:
        raise ConfigurationError(f"prompt: not valid UTF-8: {error}") from error
    if not prompt.strip():
        raise ConfigurationError("the prompt is empty")
    return prompt


def _sampled(config: PairConfig, arguments: Arguments) -> PairConfig:
    """The pair with the sampling options of the command line."""
    options = {"temperature": arguments.temperature, "seed": arguments.seed}
    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        return config
    try:
        sampling = SamplingConfig(**{**config.sampling.model_dump(), **given})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "temperature"
        raise ConfigurationError(f"--{name}: {first['msg']}") from error
    if sampling.greedy and arguments.seed is not None:
        say("--seed has no effect at temperature 0: greedy decoding draws nothing")
    return config.model_copy(update={"sampling": sampling})


def summary(result: GenerationResult) -> dict[str, object]:
    """Figures of one answer; time per token leaves out the prefill and its first token."""
    emitted = sum(record.emitted for record in result.records)
    depths = Counter(record.depth for record in result.records)
    sizes = Counter(record.size for record in result.records)
    return {
        "tokens": len(result.tokens),
        "rounds": len(result.records),
        "tokens_per_second": emitted / result.seconds if result.seconds else None,
        "tau_emitted": result.tau_emitted,
        "prefill_seconds": result.prefill_seconds,
        "decode_seconds": result.seconds,
        "depths": {str(depth): count for depth, count in sorted(depths.items())},
        "sizes": {str(size): count for size, count in sorted(sizes.items())},
        "stop_reason": result.stop_reason,
    }


def describe(result: GenerationResult) -> str:
    """The same for people, in one line."""
    figures = summary(result)
    speed = figures["tokens_per_second"]
    return (
        f"{figures['tokens']} tokens ({figures['stop_reason']}); "
        + (f"{speed:.1f} tokens/s, " if isinstance(speed, float) else "")
        + f"{result.tau_emitted:.2f} per round (bonus counted); "
        f"depths {figures['depths']}, sizes {figures['sizes']}; "
        f"first token after {1e3 * result.prefill_seconds:.0f} ms"
    )
