"""Train both policies on traces and on the real decoder, export the best pair, evaluate it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
import yaml

from draftgym.benchmark.config import EvaluateConfig, check_comparable
from draftgym.benchmark.reference import Reference
from draftgym.clock import Clock, WallClock
from draftgym.commands._live import DEFAULT_CONFIG
from draftgym.commands._run import Run
from draftgym.commands._run_folder import check_run
from draftgym.configuration import load_yaml, read_yaml, validate
from draftgym.console import print_result, say
from draftgym.decoder.pair import ModelPair, load_pair, resolve_device
from draftgym.errors import ConfigurationError
from draftgym.locking import exclusive
from draftgym.storage import dump_json
from policies.config import TrainConfig
from policies.logging import wandb_mode

SCHEMA = "draftgym.train/1"


@dataclass(frozen=True)
class Arguments:
    """Train both policies, export the best pair and evaluate it.

    Where the drafter can be traced, both are learned from a trace first and fine-tuned live.
    """

    config: Annotated[Path, tyro.conf.Positional] = DEFAULT_CONFIG
    """Training configuration, a YAML file."""
    run: str | None = None
    """Name of the run, instead of the configuration's."""
    resume: bool = False
    """Go on with an existing run from whatever it finished."""
    runs: Path = Path("runs")
    """Folder of all runs."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Override one field, such as `--set pair.device=cuda`; may be repeated."""


def main(argv: Sequence[str]) -> int:
    """Parse, run, print the result line.

    Args:
        argv: Command line without the verb.

    Returns:
        0, or 130 after Ctrl-C.
    """
    arguments = tyro.cli(Arguments, args=list(argv), prog="train.py")
    config = read_config(arguments)
    folder = arguments.runs / config.run
    elsewhere = "" if arguments.runs == Arguments.runs else f" --runs {arguments.runs}"
    try:
        payload = train(
            config, folder, plan=read_plan(config, arguments.config), resume=arguments.resume
        )
    except KeyboardInterrupt:
        say(
            f"stopped; what is finished is saved. Go on with: "
            f"python train.py {arguments.config} --run {config.run} --resume{elsewhere}"
        )
        return 130
    print_result(SCHEMA, payload)
    return 0


def read_config(arguments: Arguments) -> TrainConfig:
    """The configuration file with the command line's overrides.

    Raises:
        ConfigurationError: Naming the file and every rejected field.
    """
    data = read_yaml(arguments.config)
    for item in arguments.set:
        _override(data, item)
    if arguments.run is not None:
        data["run"] = arguments.run
    return validate(data, TrainConfig, origin=str(arguments.config))


def read_plan(config: TrainConfig, file: Path) -> EvaluateConfig | None:
    """The evaluation that the configuration names, relative to its own file."""
    if config.evaluate is None:
        return None
    try:
        check_comparable(config.pair)  # now, not after training
    except ValueError as error:
        raise ConfigurationError(f"{file}: evaluate: {error}") from error
    try:
        plan = load_yaml(file.parent / config.evaluate, EvaluateConfig)
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: evaluate: {error}") from error
    if plan.rules or plan.policy is not None or plan.learning_to_draft:
        raise ConfigurationError(
            f"{file}: evaluate: {config.evaluate} compares more than a run can; name one that "
            "races `cells`, and give this one to `python evaluate.py` when the run has ended"
        )
    return plan


def train(
    config: TrainConfig,
    folder: Path,
    *,
    plan: EvaluateConfig | None = None,
    resume: bool = False,
    pair: ModelPair | None = None,
    reference: Reference | None = None,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Calibrate, trace, learn, fine-tune live, export the best pair of policies, evaluate it.

    Args:
        config: The run.
        folder: Where everything goes: `config.yaml`, `latency.json`, `trace/`, `pretrained/`,
            `metrics.jsonl`, `checkpoints/`, `policy/`, `evaluation/`.
        plan: Evaluation at the end; none when None.
        resume: Go on with what is in `folder`.
        pair: Loaded from the configuration when None.
        reference: The target in Transformers, for the evaluation; the pair's when None.
        clock: Wall clock of the pair's device when None.

    Returns:
        The result line, without its schema name.

    Raises:
        DraftGymError: An existing run without `resume`, a changed configuration with it, or
            anything that the configuration asks for and this machine cannot do.
    """
    mode = wandb_mode(config.wandb)
    # Before the folder is made: a refused start leaves nothing behind.
    check_run(config, folder, resume)
    _check_device(config)
    with exclusive(folder):
        check_run(config, folder, resume)
        pair = load_pair(config.pair) if pair is None else pair
        clock = WallClock(pair.device) if clock is None else clock
        say(f"pair: {dump_json(pair.fingerprint())} on {pair.device}")
        return Run(config, folder, pair, clock).train(mode, plan, reference)


def _check_device(config: TrainConfig) -> None:
    try:
        resolve_device(config.device)
    except ConfigurationError as error:
        raise ConfigurationError(f"device (of the small networks): {error}") from error


def _override(data: dict[str, Any], item: str) -> None:
    """Put one `field.sub=value` into plain configuration data; the value is YAML."""
    path, equals, text = item.partition("=")
    names = path.split(".")
    if not equals or not all(names):
        raise ConfigurationError(f"--set {item}: must look like field.sub=value")
    for name in names[:-1]:
        nested = data.setdefault(name, {})
        if not isinstance(nested, dict):
            raise ConfigurationError(f"--set {item}: {name} holds no fields")
        data = nested
    try:
        data[names[-1]] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"--set {item}: not valid YAML: {error}") from error
