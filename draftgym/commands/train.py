"""Train both policies on the real decoder, export the best pair and evaluate it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
import yaml

from draftgym.benchmark.config import EvaluateConfig, check_comparable
from draftgym.benchmark.costs import CostCurve, measure_costs
from draftgym.benchmark.evaluate import evaluate
from draftgym.benchmark.reference import Reference
from draftgym.clock import Clock, WallClock
from draftgym.commands._live import LiveBench, load_requests, open_session
from draftgym.configuration import load_yaml, read_yaml, validate
from draftgym.console import print_result, progress, say
from draftgym.costs.measure import cost_table
from draftgym.decoder.pair import ModelPair, load_pair, resolve_device
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError, DraftGymError
from draftgym.locking import LOCK_FILE, exclusive
from draftgym.provenance import hardware
from draftgym.runtime import save_policy
from draftgym.state import MeasuredCosts
from draftgym.storage import dump_json, write_json, write_text
from policies.config import TrainConfig
from policies.export import PolicyCard
from policies.logging import MetricsLog, open_tracker, wandb_mode
from policies.training import LATEST, Trainer

SCHEMA = "draftgym.train/1"
SETTINGS = "config.yaml"
DEFAULT_CONFIG = Path(__file__).resolve().parents[2] / "configs" / "train" / "default.yaml"
CALIBRATION_PROMPTS = 4

# Where W&B keeps its copy changes nothing about the run, so it may change on resume.
_FREE_ON_RESUME = frozenset({"wandb"})


@dataclass(frozen=True)
class Arguments:
    """Train both policies, export the best pair and evaluate it."""

    config: Annotated[Path, tyro.conf.Positional] = DEFAULT_CONFIG
    """Training configuration, a YAML file."""
    run: str | None = None
    """Name of the run, instead of the configuration's."""
    resume: bool = False
    """Go on with an existing run from its last completed rollout."""
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
            f"stopped; every completed rollout is saved. Go on with: "
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
        return load_yaml(file.parent / config.evaluate, EvaluateConfig)
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: evaluate: {error}") from error


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
    """Calibrate, train, validate, export the best pair of policies, evaluate it.

    Args:
        config: The run.
        folder: Where everything goes: `config.yaml`, `calibration.json`, `metrics.jsonl`,
            `checkpoints/`, `policy/`, `evaluation/`.
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
    _check_run(config, folder, resume)
    _check_device(config)
    with exclusive(folder):
        return _train(config, folder, mode, plan, resume, pair, reference, clock)


def _check_device(config: TrainConfig) -> None:
    try:
        resolve_device(config.device)
    except ConfigurationError as error:
        raise ConfigurationError(f"device (of the small networks): {error}") from error


def _train(
    config: TrainConfig,
    folder: Path,
    mode: str,
    plan: EvaluateConfig | None,
    resume: bool,
    pair: ModelPair | None,
    reference: Reference | None,
    clock: Clock | None,
) -> dict[str, Any]:
    _check_run(config, folder, resume)
    pair = load_pair(config.pair) if pair is None else pair
    clock = WallClock(pair.device) if clock is None else clock
    say(f"pair: {dump_json(pair.fingerprint())} on {pair.device}")
    session = open_session(config, pair, clock)
    training = load_requests(config, pair, "policy", None)
    validation = load_requests(config, pair, "validation", config.validation.prompts)
    # From here on it is a run: whatever the configuration names has been found.
    _write_settings(config, folder)
    start = clock.boundary()
    calibration = _calibrate(config, folder / "calibration.json", pair, session)
    calibrate_seconds = clock.boundary() - start
    session.costs = calibration.costs
    bench = LiveBench(
        config,
        session,
        plain=DecoderSession(pair, None, clock=clock, ignore_eos=config.ignore_eos),
        training=training,
        validation=validation,
        pace_seconds_per_token=calibration.plain_seconds,
    )
    tracker = open_tracker(config.wandb, mode, folder, config.run, config.model_dump(mode="json"))
    log = MetricsLog(folder / "metrics.jsonl", tracker)
    try:
        trainer = _trainer(config, folder, bench, log, pair, calibration)
        if not (folder / "checkpoints" / LATEST).is_file():
            log.rewind(0)  # what came before no checkpoint holds
        elif resume:
            trainer.resume()
            say(f"resuming after rollout {trainer.position.rollouts}")
        trainer.run()
        policy_folder = save_policy(folder / "policy", trainer.best_policy())
        say(f"policy: {policy_folder}")
        log.policy(policy_folder, trainer.summary())
        start = clock.boundary()
        evaluation = None
        if plan is not None:
            fitted = plan.for_run(config.pair, str(policy_folder), str(folder / "evaluation"))
            evaluation = evaluate(fitted, pair=pair, reference=reference, clock=clock).payload
        evaluate_seconds = clock.boundary() - start
        if evaluation is not None:
            log.log("evaluation", sum(trainer.steps.values()), _headline(evaluation))
    finally:
        log.close()
    say(f"results: {folder}/ (policy/, evaluation/, metrics.jsonl)")
    return {
        "run": config.run,
        "policy": str(policy_folder),
        "steps": trainer.steps,
        "seconds": {
            "calibrate": calibrate_seconds,
            "train": trainer.position.train_seconds,
            "validate": trainer.position.validate_seconds,
            "evaluate": evaluate_seconds,
        },
        "evaluation": evaluation,
    }


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured before training.

    Attributes:
        plain_seconds: One plain decoding step.
        costs: Ratios shown to the policies.
    """

    plain_seconds: float
    costs: MeasuredCosts


def _check_run(config: TrainConfig, folder: Path, resume: bool) -> None:
    """Refuse a folder that is taken, or whose run cannot be gone on with."""
    file = folder / SETTINGS
    if not resume:
        if folder.is_dir() and any(entry.name != LOCK_FILE for entry in folder.iterdir()):
            raise DraftGymError(
                f"{folder} exists: go on with it by --resume, or choose another name by --run"
            )
        return
    if not file.is_file():
        raise DraftGymError(f"{folder}: no run to resume ({SETTINGS} is missing)")
    before = read_yaml(file)
    if not before:
        raise DraftGymError(f"{file}: empty or damaged; this run cannot be resumed")
    changed = _first_change(before, config.model_dump(mode="json"), "")
    if changed is not None:
        raise ConfigurationError(
            f"{changed}: a resumed run keeps its configuration ({file}); start another by --run"
        )


def _write_settings(config: TrainConfig, folder: Path) -> None:
    """Write the configuration of a new run, with every default."""
    if not (folder / SETTINGS).is_file():
        settings = config.model_dump(mode="json")
        write_text(folder / SETTINGS, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))


def _first_change(before: Any, now: Any, name: str) -> str | None:
    """Name of the first field in which two configurations differ, with both values."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            full = f"{name}.{key}" if name else str(key)
            if full not in _FREE_ON_RESUME:
                change = _first_change(before.get(key), now.get(key), full)
                if change is not None:
                    return change
        return None
    return None if before == now else f"{name} was {before!r}, now {now!r}"


def _calibrate(
    config: TrainConfig, file: Path, pair: ModelPair, session: DecoderSession
) -> Calibration:
    """Measure what a plain step, a draft pass and a verified token cost; once per run."""
    if not file.is_file():
        table = cost_table(pair.config.drafter, config.layout.size_grid)
        requests = load_requests(config, pair, "policy", CALIBRATION_PROMPTS)
        with progress("calibrate", config.calibration_rounds * len(table)) as bar:
            curve = measure_costs(
                session,
                requests,
                table,
                rounds_per_setting=config.calibration_rounds,
                max_new_tokens=config.max_new_tokens,
                seed=config.seed,
                bar=bar,
            )
        _say_costs(curve)
        write_json(file, {"plain_seconds": curve.plain_seconds, **asdict(curve.measured)})
    # Read back also when it was just written: the numbers are then the same after a resume.
    try:
        known = {name: float(value) for name, value in read_yaml(file).items()}
        return Calibration(known.pop("plain_seconds"), MeasuredCosts(**known))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{file}: damaged ({error}); remove it to measure again"
        ) from error


def _say_costs(curve: CostCurve) -> None:
    ratios = ", ".join(f"V={size}: {ratio:.2f}" for size, ratio in curve.verify_over_plain.items())
    say(
        f"plain step {1e3 * curve.plain_seconds:.1f} ms; one draft pass "
        f"{curve.draft_pass_over_plain:.3f} of it; target pass over plain, {ratios}"
    )


def _trainer(
    config: TrainConfig,
    folder: Path,
    bench: LiveBench,
    log: MetricsLog,
    pair: ModelPair,
    calibration: Calibration,
) -> Trainer:
    card = PolicyCard(
        pair.fingerprint(),
        hardware(pair.device, pair.dtype),
        {"plain_seconds": calibration.plain_seconds, **asdict(calibration.costs)},
    )
    return Trainer(
        config,
        bench,
        config.layout.features(),
        folder / "checkpoints",
        log,
        calibration.plain_seconds,
        card,
    )


def _headline(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"identical_outputs": evaluation["identical_outputs"]}
    for key in ("policy_vs_best_fixed", "policy_vs_plain"):
        if evaluation[key] is not None:
            row |= {f"{key}_{name}": evaluation[key][name] for name in ("ratio", "verdict")}
    return row


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
