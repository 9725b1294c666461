"""Compare plain decoding, published rules, learned policies and Transformers; writes a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from draftgym.benchmark.config import NEWEST, EvaluateConfig
from draftgym.benchmark.evaluate import SCHEMA, Evaluation, evaluate
from draftgym.commands._dashboard import log_evaluation
from draftgym.commands._inputs import Inputs
from draftgym.commands._newest import with_newest, with_published
from draftgym.commands._rules import tuning_of, with_paths
from draftgym.commands._settled import forget, settle, settled
from draftgym.configuration import read_yaml, validate
from draftgym.console import print_result, say
from draftgym.locking import exclusive
from policies.config import WandbConfig
from policies.logging import wandb_mode


@dataclass(frozen=True)
class Arguments:
    """What is tuned is tuned on validation prompts, and all is judged on test prompts.

    Blocks that a stopped run finished are kept: the same command goes on. Exits with 1 if an
    output differs from plain decoding other than at a near-tie of the target.
    """

    config: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(help="YAML file, as in configs/evaluate/.")
    ] = "configs/evaluate/quick.yaml"
    policy: Annotated[
        str | None, tyro.conf.arg(help="Folder of an exported policy; overrides the file.")
    ] = None
    beside: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(help="A further policy or table, measured beside it; repeatable."),
    ] = ()
    output: Annotated[
        str | None, tyro.conf.arg(help="Folder of the report; overrides the file.")
    ] = None
    wandb: Annotated[
        Literal["auto", "offline", "online", "disabled"],
        tyro.conf.arg(help="Also shown in Weights & Biases; auto is online with a key."),
    ] = "auto"


def main(argv: Sequence[str]) -> int:
    """Run an evaluation; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym evaluate")
    data = read_yaml(arguments.config)
    for name in ("policy", "output"):
        value = getattr(arguments, name)
        if value is not None:
            data[name] = value
    if arguments.beside:
        data["beside"] = list(arguments.beside)
    config = validate(data, EvaluateConfig, arguments.config)
    settings = WandbConfig(mode=arguments.wandb)
    wandb_mode(settings)  # online without a key is refused before anything is measured
    result = _evaluate(config)
    for entry in result.faults:
        say(
            f"DIFFERS: {entry.method} on {entry.prompt_id} at token {entry.position}, "
            f"top-2 gap {entry.top2_gap:.3g}"
        )
    log_evaluation(result.folder, result.payload, result.details, settings)
    print_result(SCHEMA, result.payload)
    return 1 if result.faults else 0


def _evaluate(asked: EvaluateConfig) -> Evaluation:
    """Tune and learn on traces what is not given, then measure."""
    if not (asked.rules or asked.policy == NEWEST or asked.learning_to_draft):
        return evaluate(asked)
    folder = Path(asked.output)
    with exclusive(folder):
        config = settled(asked, folder)
        inputs = Inputs(config=config.pair, prompts=config.prompts)
        tuning = tuning_of(config, folder, inputs) if config.rules else None
        if tuning is not None:
            config = with_paths(config, tuning)
        if config.policy == NEWEST:
            config = with_newest(config, folder, inputs)
        if config.learning_to_draft:
            config = with_published(config, folder, inputs)
        settle(asked, config, folder)
    found = evaluate(config, pair=inputs.pair(config.pair), tuning=tuning)
    forget(folder)
    return found
