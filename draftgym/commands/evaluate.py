"""Compare plain decoding, tuned fixed cells and a policy; writes a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from draftgym.benchmark.config import EvaluateConfig
from draftgym.benchmark.evaluate import SCHEMA, evaluate
from draftgym.configuration import read_yaml, validate
from draftgym.console import print_result, say


@dataclass(frozen=True)
class Arguments:
    """Fixed cells are tuned on validation prompts and judged on test prompts.

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
    result = evaluate(config)
    for entry in result.faults:
        say(
            f"DIFFERS: {entry.method} on {entry.prompt_id} at token {entry.position}, "
            f"top-2 gap {entry.top2_gap:.3g}"
        )
    print_result(SCHEMA, result.payload)
    return 1 if result.faults else 0
