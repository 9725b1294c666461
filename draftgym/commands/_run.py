"""The stages of a training run, from costs to evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftgym.benchmark.config import EvaluateConfig, depths
from draftgym.benchmark.evaluate import evaluate
from draftgym.benchmark.reference import Reference
from draftgym.benchmark.runner import Request
from draftgym.clock import Clock
from draftgym.commands._calibration import Calibration, run_table
from draftgym.commands._dashboard import log_evaluation
from draftgym.commands._live import LiveBench, load_requests, open_session
from draftgym.commands._pretrain import ROOM, TABLE, pretrained, run_pretraining, run_trace
from draftgym.commands._run_folder import write_settings
from draftgym.console import say
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.session import DecoderSession
from draftgym.runtime import ExportedPolicy, save_policy
from policies.config import TrainConfig
from policies.logging import MetricsLog, open_tracker
from policies.training import LATEST, Trainer


class Run:
    """One run; each stage leaves files from which the next, or a resumed run, goes on.

    Args:
        config: Of the run.
        folder: Of the run.
        pair: Made from the configuration.
        clock: Times everything.
    """

    def __init__(self, config: TrainConfig, folder: Path, pair: ModelPair, clock: Clock) -> None:
        self._config, self._folder, self._pair, self._clock = config, folder, pair, clock
        self._seconds: dict[str, float] = {}  # by stage, of this process

    def train(
        self, mode: str, plan: EvaluateConfig | None, reference: Reference | None
    ) -> dict[str, Any]:
        """Go through all stages.

        Args:
            mode: Of W&B, resolved.
            plan: Evaluation at the end; none when None.
            reference: The target in Transformers, for the evaluation; the pair's when None.

        Returns:
            The result line, without its schema name.

        Raises:
            DraftGymError: Anything that the configuration asks for and this machine cannot do.
        """
        config, folder = self._config, self._folder
        training = load_requests(config, self._pair, "policy", None)
        validation = load_requests(config, self._pair, "validation", config.validation.prompts)
        # From here on it is a run: whatever the configuration names has been found.
        write_settings(config, folder)
        with self._timed("calibrate"):
            table = run_table(config, folder, self._pair, self._clock)
        lengths = [len(request.tokens) for request in training]
        passes = depths(self._pair.config.drafter)[-1]
        calibration = Calibration.of(table, config.layout.size_grid, lengths, passes)
        say(f"costs: {calibration.describe()}")
        start = self._pretrain(calibration)
        bench = self._bench(calibration, training, validation)
        settings = config.model_dump(mode="json")
        tracker = open_tracker(config.wandb, mode, folder, config.run, settings)
        log = MetricsLog(folder / "metrics.jsonl", tracker)
        try:
            trainer = self._trainer(bench, log, calibration, start)
            trainer.run()
            policy = save_policy(folder / "policy", trainer.best_policy())
            say(f"policy: {policy}")
            log.policy(policy, trainer.summary())
            with self._timed("evaluate"):
                evaluation = self._evaluate(plan, policy, reference)
            if evaluation is not None:
                log.log("evaluation", sum(trainer.steps.values()), _headline(evaluation))
        finally:
            log.close()
        readable = ", table.json" if (folder / TABLE).is_file() else ""
        say(f"results: {folder}/ (policy/{readable}, evaluation/, metrics.jsonl)")
        self._seconds["train"] = trainer.position.train_seconds
        self._seconds["validate"] = trainer.position.validate_seconds
        stages = ("calibrate", "trace", "pretrain", "train", "validate", "evaluate")
        return {
            "run": config.run,
            "policy": str(policy),
            "steps": trainer.steps,
            "seconds": {stage: self._seconds.get(stage, 0.0) for stage in stages},
            "room": self._room(),
            "evaluation": evaluation,
        }

    def _room(self) -> dict[str, Any] | None:
        """What could be gained on held-out prompts of the trace; None where nothing is traced."""
        file = self._folder / ROOM
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = self._clock.boundary()
        yield
        self._seconds[stage] = self._clock.boundary() - start

    def _pretrain(self, calibration: Calibration) -> ExportedPolicy | None:
        """What the trace teaches, in the run's folder; None where nothing is traced."""
        config, folder = self._config, self._folder
        if not config.pretrains:
            return None
        if pretrained(folder) is None:
            with self._timed("trace"):
                trace = run_trace(config, folder, self._pair, self._clock)
            with self._timed("pretrain"):
                run_pretraining(config, folder, trace, calibration)
        # Read back also when it was just written, as the calibration is.
        return pretrained(folder)

    def _bench(
        self, calibration: Calibration, training: Sequence[Request], validation: Sequence[Request]
    ) -> LiveBench:
        config, pair, clock = self._config, self._pair, self._clock
        session = open_session(config, pair, clock)
        session.costs = calibration.costs
        return LiveBench(
            config,
            session,
            plain=DecoderSession(pair, None, clock=clock, ignore_eos=config.ignore_eos),
            training=training,
            validation=validation,
            pace_seconds_per_token=calibration.plain_seconds,
        )

    def _trainer(
        self,
        bench: LiveBench,
        log: MetricsLog,
        calibration: Calibration,
        start: ExportedPolicy | None,
    ) -> Trainer:
        """A trainer, gone on to its last checkpoint if there is one."""
        config, checkpoints = self._config, self._folder / "checkpoints"
        trainer = Trainer(
            config,
            bench,
            config.layout.features(),
            checkpoints,
            log,
            calibration.plain_seconds,
            calibration.card,
            start,
        )
        if (checkpoints / LATEST).is_file():
            trainer.resume()
            say(f"resuming after rollout {trainer.position.rollouts}")
        else:
            log.rewind(0)  # what came before no checkpoint holds
        return trainer

    def _evaluate(
        self, plan: EvaluateConfig | None, policy: Path, reference: Reference | None
    ) -> dict[str, Any] | None:
        if plan is None:
            return None
        table, output = self._folder / TABLE, str(self._folder / "evaluation")
        beside = (str(table),) if table.is_file() else ()
        fitted = plan.for_run(self._config.pair, str(policy), output, beside)
        found = evaluate(fitted, pair=self._pair, reference=reference, clock=self._clock)
        log_evaluation(
            found.folder, found.payload, found.details, self._config.wandb, group=self._config.run
        )
        return found.payload


def _headline(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"identical_outputs": evaluation["identical_outputs"]}
    for key in ("policy_vs_best_fixed", "policy_vs_plain"):
        if evaluation[key] is not None:
            row |= {f"{key}_{name}": evaluation[key][name] for name in ("ratio", "verdict")}
    return row
