"""The alternating trainer: phases, rollouts, validation, checkpoints, resume.

Follows Learning to Draft (size policy with random depth, depth policy with a fixed size, then
alternating rounds with the other policy frozen). A checkpoint is written after every completed
rollout; what a killed process did after it is done again on resume.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftgym.benchmark.runner import quiet_process
from draftgym.console import Bar, progress, say
from draftgym.decoder.controllers import FixedController, RandomController, SplitController
from draftgym.features import FeatureLayout
from draftgym.runtime import DecisionSeconds, ExportedController, ExportedPolicy, decision_seconds
from draftgym.state import Controller
from policies.checkpoint import (
    Checkpoint,
    load_checkpoint,
    random_states,
    restore_random_states,
    save_checkpoint,
)
from policies.config import PhaseConfig, PolicyName, TrainConfig
from policies.export import PolicyCard, export_policy
from policies.learner import Learner
from policies.logging import MetricsLog
from policies.rollout import RolloutStatistics
from policies.schedule import phase_done, phase_limit, policy_progress
from policies.validation import Validation, validate
from policies.workbench import Workbench

LATEST = "latest.safetensors"
BEST = "best.safetensors"
NAMES: tuple[PolicyName, PolicyName] = ("size", "depth")


@dataclass(slots=True)
class Position:
    """Where training stands; plain data.

    Attributes:
        phase: Index of the running phase; the schedule's length when training is over.
        phase_steps: Decisions made in it.
        phase_seconds: Seconds spent in it, validation left out.
        validations: Validations made in it.
        rollouts: Completed rollouts of all phases.
        train_seconds: Seconds of all rollouts and updates.
        validate_seconds: Seconds of all validations.
        best_speedup: Over plain decoding, on the validation prompts; None before the first.
        best_step: Decisions made when it was measured.
    """

    phase: int = 0
    phase_steps: int = 0
    phase_seconds: float = 0.0
    validations: int = 0
    rollouts: int = 0
    train_seconds: float = 0.0
    validate_seconds: float = 0.0
    best_speedup: float | None = None
    best_step: int | None = None


class Trainer:
    """Trains both policies and keeps the best pair.

    Args:
        config: The run's configuration.
        bench: Environments, decoding and time.
        layout: Observations and actions.
        folder: The run's `checkpoints/` folder.
        log: Where metrics go.
        plain_seconds: One plain decoding step; the unit of PPO's rewards.
        card: What the exported policy says about its origin.
        start: Learned from a trace; both policies go on from it. None starts as configured.
    """

    def __init__(
        self,
        config: TrainConfig,
        bench: Workbench,
        layout: FeatureLayout,
        folder: Path,
        log: MetricsLog,
        plain_seconds: float,
        card: PolicyCard,
        start: ExportedPolicy | None = None,
    ) -> None:
        self._config = config
        self._bench = bench
        self._layout = layout
        self._folder = folder
        self._log = log
        self._card = card
        scale = reward_scale(config.reward.kind, plain_seconds)
        self.learners = {name: Learner(name, config, layout, scale) for name in NAMES}
        self._start = start
        for name, learner in self.learners.items():
            head = None if start is None else start.head(name)
            if head is not None:
                learner.start_from(head)
        self.position = Position()
        self._decision_seconds: DecisionSeconds | None = None
        self._best: dict[str, torch.Tensor] = {}

    @property
    def steps(self) -> dict[str, int]:
        """Decisions learned from, by policy."""
        return {name: learner.steps for name, learner in self.learners.items()}

    def resume(self) -> None:
        """Go on from the last completed rollout.

        Raises:
            CheckpointError: If there is none, or it does not fit.
        """
        checkpoint = load_checkpoint(self._folder / LATEST)
        state = checkpoint.state
        for name, learner in self.learners.items():
            learner.load(checkpoint.part(name), state["learners"][name])
        self.position = Position(**state["position"])
        self._decision_seconds = DecisionSeconds(**state["decision_seconds"])
        self._best = checkpoint.part("best")
        restore_random_states(checkpoint.part("random"), state["random"])
        self._bench.load_state(state["bench"])
        self._log.rewind(state["metrics_rows"])

    def run(self) -> None:
        """Train until the schedule is over; safe to call again after an interruption."""
        schedule = self._config.schedule
        if self._start is not None and self.position.best_speedup is None:
            # Fine-tuning has to beat what the trace taught.
            self._validate()
            self._checkpoint()
        total = sum(map(phase_limit, schedule))
        done = sum(map(phase_limit, schedule[: self.position.phase]))
        # What an earlier process did is left out: it would spoil the estimate of the time left.
        with progress("train", total - done - self._phase_done()) as bar:
            while self.position.phase < len(schedule):
                self._phase(schedule[self.position.phase], bar)
                self.position.phase += 1
                self.position.phase_steps = self.position.validations = 0
                self.position.phase_seconds = 0.0
                self._checkpoint()

    def best_policy(self) -> ExportedPolicy:
        """The best validated pair of policies, or the present one if none was validated."""
        present = {name: learner.tensors() for name, learner in self.learners.items()}
        tensors = {
            name: {
                key.removeprefix(f"{name}."): value
                for key, value in self._best.items()
                if key.startswith(f"{name}.")
            }
            if self._best
            else present[name]
            for name in NAMES
        }
        return self._export(tensors, self.summary())

    def _phase(self, phase: PhaseConfig, bar: Bar) -> None:
        learner = self.learners[phase.policy]
        limit = phase_limit(phase)
        while self._phase_done() < limit:
            bar.describe(f"train {phase.policy} (phase {self.position.phase + 1})")
            self._rollout(phase, learner, bar)
            due = int(self._phase_done() / limit * self._config.validation.per_phase + 1e-9)
            if due > self.position.validations:
                self.position.validations = due
                self._validate()
            self._checkpoint()

    def _rollout(self, phase: PhaseConfig, learner: Learner, bar: Bar) -> None:
        position, clock = self.position, self._bench.clock
        seed = rollout_seed(self._config.seed, position.rollouts)
        environment = self._bench.environment(
            phase.policy, self._other(phase, seed), self._decision_cost(), self._deepest
        )
        start = clock.boundary()
        steps_before = position.phase_steps
        seconds_before = position.phase_seconds
        shown = self._phase_done()

        def on_step() -> None:
            nonlocal shown
            position.phase_steps += 1
            position.phase_seconds = seconds_before + clock.boundary() - start
            bar.advance(self._phase_done() - shown)
            shown = self._phase_done()

        try:
            with quiet_process():
                statistics, metrics = learner.rollout(
                    environment, seed, lambda: self._progress(phase.policy), on_step
                )
        except BaseException:
            # An unfinished rollout never happened: the checkpoint on disk stays the truth.
            position.phase_steps, position.phase_seconds = steps_before, seconds_before
            raise
        spent = clock.boundary() - start
        position.phase_seconds = seconds_before + spent
        position.train_seconds += spent
        position.rollouts += 1
        bar.advance(self._phase_done() - shown)
        self._report(phase, statistics, metrics, spent)

    def _report(
        self,
        phase: PhaseConfig,
        statistics: RolloutStatistics,
        metrics: Mapping[str, float],
        spent: float,
    ) -> None:
        learner = self.learners[phase.policy]
        row = statistics.metrics()
        self._log.log(
            "rollout",
            sum(self.steps.values()),
            {
                "policy": phase.policy,
                "phase": self.position.phase,
                "round": self._round(phase.policy),
                "rollout": self.position.rollouts,
                "policy_steps": learner.steps,
                "wall_seconds": spent,
                "learning_rate": learner.model.policy.optimizer.param_groups[0]["lr"],
                **row,
                **metrics,
            },
        )
        say(
            f"rollout {self.position.rollouts} {phase.policy}: "
            f"{1e3 * row['seconds_per_token']:.1f} ms/token, tau {row['tau_emitted']:.2f}, "
            f"depth {row['depth_mean']:.1f}, size {row['size_mean']:.1f}, "
            f"reward {1e3 * row['reward_per_round']:.2f}e-3, "
            f"kl {metrics['approx_kl']:.3f}, ev {metrics['explained_variance']:.2f}"
        )

    def _validate(self) -> None:
        """Time the exported pair on validation prompts; keep it if it surely is the best so far."""
        clock = self._bench.clock
        start = clock.boundary()
        # A pair counts only once both have learned something.
        whole = all(self.learners[name].knows for name in self._config.learned)
        kept = ExportedController(self.best_policy()) if whole and self._best else None
        with quiet_process():
            result = validate(
                self._bench, self._config.validation, self._validation_controller(), kept
            )
        self.position.validate_seconds += clock.boundary() - start
        keep = whole and (result.gain is None or result.gain.certain)
        if keep:
            self._keep_best(result)
        step = sum(self.steps.values())
        row = {**result.metrics(), "whole_policy": whole, "kept": keep}
        self._log.log("validation", step, row)
        beside = "" if result.gain is None else f", {row['over_kept']:.3f} of the kept pair's speed"
        say(
            f"validation at {step} decisions: {1e3 * result.seconds_per_token:.1f} ms/token, "
            f"{result.speedup:.2f} x plain{beside}, tau {result.tau_emitted:.2f}"
            f"{'; kept' if keep else ''}"
        )

    def _keep_best(self, result: Validation) -> None:
        self.position.best_speedup = result.speedup
        self.position.best_step = sum(self.steps.values())
        self._best = {
            f"{name}.{key}": value.detach().clone()
            for name, learner in self.learners.items()
            for key, value in learner.tensors().items()
            if not key.startswith("optimiser.")
        }
        save_checkpoint(self._folder / BEST, Checkpoint(self._best, {"best": result.metrics()}))

    def _checkpoint(self) -> None:
        random_tensors, random_plain = random_states()
        parts: dict[str, dict[str, torch.Tensor]] = {}
        parts |= {name: learner.tensors() for name, learner in self.learners.items()}
        parts |= {"random": random_tensors, "best": self._best}
        tensors = {f"{part}.{k}": v for part, named in parts.items() for k, v in named.items()}
        state = {
            "position": asdict(self.position),
            "learners": {name: learner.state() for name, learner in self.learners.items()},
            "decision_seconds": asdict(self._decision_cost()),
            "random": random_plain,
            "bench": dict(self._bench.state()),
            "metrics_rows": self._log.rows,
        }
        save_checkpoint(self._folder / LATEST, Checkpoint(tensors, state))

    def _other(self, phase: PhaseConfig, seed: int) -> Controller:
        """Whatever takes the decision that this phase does not train."""
        if phase.other == "random":
            # The grid's 0 would make every draft of a random size pointless to learn depth from,
            # but it is an action like any other.
            return RandomController(
                seed=seed, max_depth=self._layout.max_depth, size_grid=self._layout.size_grid
            )
        if phase.other == "fixed":
            return FixedController(self._config.fixed_depth, self._config.fixed_size)
        return self._controller()

    def _controller(self) -> ExportedController:
        """The present pair as a decoder would run it."""
        tensors = {name: learner.tensors() for name, learner in self.learners.items()}
        return ExportedController(self._export(tensors, {}))

    def _validation_controller(self) -> Controller:
        present = self._controller()
        fixed = FixedController(self._config.fixed_depth, self._config.fixed_size)
        size, depth = (self.learners[name].knows for name in NAMES)
        if size and depth:
            return present
        return SplitController(present if depth else fixed, present if size else fixed)

    def _export(
        self, tensors: Mapping[PolicyName, Mapping[str, torch.Tensor]], summary: Mapping[str, Any]
    ) -> ExportedPolicy:
        return export_policy(
            self._layout, self._config, tensors, self._card, summary, self._deepest
        )

    @property
    def _deepest(self) -> int | None:
        """Draft passes after which the trace taught not to ask."""
        return None if self._start is None else self._start.deepest

    def _decision_cost(self) -> DecisionSeconds:
        """Measured once per run: the cost hangs on the networks' shapes, not on their weights."""
        if self._decision_seconds is None:
            self._decision_seconds = decision_seconds(
                self._controller(), self._layout, self._bench.clock
            )
        return self._decision_seconds

    def _round(self, policy: PolicyName) -> int:
        """How many times this policy's turn has come: the round of co-adaptation, from 1."""
        turns = self._config.schedule[: self.position.phase + 1]
        return sum(phase.policy == policy for phase in turns)

    def _progress(self, policy: PolicyName) -> float:
        return policy_progress(
            self._config.schedule, policy, self.position.phase, self._phase_done()
        )

    def _phase_done(self) -> float:
        if self.position.phase >= len(self._config.schedule):
            return 0.0
        phase = self._config.schedule[self.position.phase]
        return phase_done(phase, self.position.phase_steps, self.position.phase_seconds)

    def summary(self) -> dict[str, Any]:
        """What the exported policy says about its training; no dates."""
        taught = {} if self._start is None else {"pretraining": dict(self._start.training)}
        return {
            **taught,
            "steps": self.steps,
            "rollouts": self.position.rollouts,
            "seed": self._config.seed,
            "best_step": self.position.best_step,
            "validation_speedup": self.position.best_speedup,
            "decision_seconds": asdict(self._decision_cost()),
        }


def reward_scale(kind: str, plain_seconds: float) -> float:
    """What brings a reward kind to order one: rewards are counted in plain decoding steps."""
    if kind == "emitted":
        return 1.0
    return plain_seconds if kind == "throughput" else 1.0 / plain_seconds


def rollout_seed(seed: int, rollout: int) -> int:
    """Seed of one rollout; runs with neighbouring seeds share none."""
    return int(np.random.SeedSequence([seed, rollout]).generate_state(1)[0] >> 1)


__all__ = ["BEST", "LATEST", "NAMES", "Position", "Trainer", "reward_scale", "rollout_seed"]
