"""The training loop of a head: batches in a fixed order, checkpoints, measurements.

Everything a step does follows from its number, so a run that was killed and resumed makes the
same head as one that was not.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftgym.clock import WallClock
from draftgym.console import progress, say
from draftgym.decoder.drafters.eagle3_head import Eagle3Head, save_head
from draftgym.drafter_training.batches import make_batch, schedule
from draftgym.drafter_training.config import OptimisationConfig
from draftgym.drafter_training.data import TokenRow, group_by_length, shared_prefix_tokens
from draftgym.drafter_training.features import FeatureCache
from draftgym.drafter_training.gradients import GradientPool
from draftgym.drafter_training.held_out import HeldOutResult, measure
from draftgym.drafter_training.optimiser import HeadOptimiser
from draftgym.storage import dump_json

CHECKPOINT = "checkpoint.pt"
METRICS = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What a head is trained and measured on.

    Attributes:
        cache: Features of every row.
        embedding: The target's embedding matrix, ``[target_vocab, H]``.
        train: Rows to train on.
        held_out: Rows never trained on.
    """

    cache: FeatureCache
    embedding: Tensor
    train: Sequence[TokenRow]
    held_out: Sequence[TokenRow]

    def __post_init__(self) -> None:
        shared = {row.request_id for row in self.train} & {row.request_id for row in self.held_out}
        if shared:
            raise ValueError(f"held-out request {min(shared)!r} is also trained on")


@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """What a finished run did.

    Attributes:
        steps: Optimiser steps.
        trained_tokens: Tokens visited, every epoch counted.
        seconds: Seconds of this process's part of the run, measurements included.
        loss: Training loss of the last steps, smoothed.
        held_out: Acceptance of the averaged weights on held-out answers.
    """

    steps: int
    trained_tokens: int
    seconds: float
    loss: float
    held_out: HeldOutResult


class HeadTrainer:
    """Trains one head; construct, then ``run``.

    Args:
        head: The head; trained in place, left with the averaged weights.
        data: Rows and their features.
        config: Loop settings.
        folder: Checkpoint, metrics and the latest averaged head (``head/``); a checkpoint found
            there is continued.
        workers: Threads, each on one core.
    """

    def __init__(
        self,
        head: Eagle3Head,
        data: TrainingData,
        config: OptimisationConfig,
        folder: Path,
        workers: int,
    ) -> None:
        self.head, self.data, self.config, self.folder = head, data, config, folder
        self.batches = schedule(data.train, config.batch_tokens, config.seed, config.epochs)
        self.gradients = GradientPool(
            head,
            data.embedding,
            load=lambda rows: make_batch(data.cache, rows, self.skip_tokens),
            steps=config.test_steps,
            decay=config.step_decay,
            workers=workers,
        )
        self.optimiser = HeadOptimiser(
            head,
            parallel_map=self.gradients.pool.map,
            kind=config.optimiser,
            peak_lr=config.peak_learning_rate,
            weight_decay=config.weight_decay,
            warmup_steps=config.warmup_steps,
            total_steps=len(self.batches),
            final_fraction=config.final_rate_fraction,
        )
        self.average = WeightAverage(head, config.average_decay)
        self.skip_tokens = shared_prefix_tokens(data.train)
        self.step = 0
        self.loss = 0.0
        self._clock = WallClock()
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / CHECKPOINT).exists():
            self._restore()

    def run(self) -> TrainingSummary:
        """Train to the end of the schedule.

        Returns:
            What was done; the head then holds the averaged weights.
        """
        config, started = self.config, self._clock.boundary()
        with progress(f"training ({len(self.batches)} steps)", len(self.batches)) as bar:
            bar.advance(self.step)
            while self.step < len(self.batches):
                self._train_step(self.batches[self.step])
                self.step += 1
                bar.advance()
                last = self.step == len(self.batches)
                if self.step % config.evaluate_every_steps == 0 and not last:
                    self._measure()
                    self._publish()
                if self.step % config.checkpoint_every_steps == 0 or last:
                    self._checkpoint()
        result = self._measure()
        self._publish()
        self.average.load_into(self.head)
        self.gradients.close()
        return TrainingSummary(
            steps=self.step,
            trained_tokens=sum(len(row.tokens) for batch in self.batches for row in batch),
            seconds=self._clock.boundary() - started,
            loss=self.loss,
            held_out=result,
        )

    def _train_step(self, rows: Sequence[TokenRow]) -> None:
        started = self._clock.boundary()
        micro_batches = group_by_length(rows, self.config.micro_batch_tokens)
        # Longest first, so that no worker starts a long one when the other has finished.
        statistics = self.gradients.accumulate(micro_batches[::-1])
        norm = nn.utils.clip_grad_norm_(self.gradients.trained, self.config.gradient_clip)
        rate = self.optimiser.step(self.step)
        self.average.update(self.step)
        past = statistics.loss if self.step == 0 else self.loss
        self.loss = 0.95 * past + 0.05 * statistics.loss
        tokens = sum(len(row.tokens) for row in rows)
        self._log(
            {
                "step": self.step,
                "loss": statistics.loss,
                "loss_smoothed": self.loss,
                "accuracy": statistics.accuracy,
                "gradient_norm": float(norm),
                "learning_rate": rate,
                "tokens_per_second": tokens / (self._clock.boundary() - started),
            }
        )

    def _measure(self) -> HeldOutResult:
        with self.average.applied_to(self.head):
            result = measure(
                self.head,
                self.data.embedding,
                self.data.cache,
                self.data.held_out,
                self.config.evaluation_steps,
                parallel_map=self.gradients.pool.map,
            )
        shares = "/".join(f"{share:.3f}" for share in result.acceptance)
        say(
            f"step {self.step}/{len(self.batches)}: loss {self.loss:.3f}, held-out acceptance "
            f"{shares}, chain tau {result.chain_tau:.3f}"
        )
        self._log({"step": self.step, "held_out": asdict(result)})
        return result

    def _publish(self) -> None:
        """Keep the averaged head where it can be tried before the run ends."""
        with self.average.applied_to(self.head):
            save_head(self.head, self.folder / "head")

    def _log(self, entry: dict[str, Any]) -> None:
        with (self.folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(dump_json(entry) + "\n")

    def _checkpoint(self) -> None:
        state = {
            "run": self._run_name(),
            "step": self.step,
            "loss": self.loss,
            "head": self.head.state_dict(),
            "average": self.average.values,
            "optimiser": self.optimiser.state_dict(),
        }
        partial = self.folder / f"{CHECKPOINT}.partial"
        torch.save(state, partial)
        os.replace(partial, self.folder / CHECKPOINT)

    def _restore(self) -> None:
        path = self.folder / CHECKPOINT
        state = torch.load(path, weights_only=True)
        if state["run"] != self._run_name():
            raise ValueError(
                f"{path}: belongs to a run with other settings or rows; remove it or choose "
                "another work folder"
            )
        self.step, self.loss = state["step"], state["loss"]
        self.head.load_state_dict(state["head"])
        self.average.values = state["average"]
        self.optimiser.load_state_dict(state["optimiser"])
        say(f"resuming at step {self.step}/{len(self.batches)}")

    def _run_name(self) -> str:
        """Identify what decides the order and rate of every step."""
        rows = [row.digest for batch in self.batches for row in batch]
        return json.dumps([self.config.model_dump(), len(rows), rows[:32], rows[-32:]])


class WeightAverage:
    """Exponential average of the trained weights, which needs no final decay to be good.

    Args:
        head: Parameters with ``requires_grad`` are averaged.
        decay: Weight of the past per step, once warm.
    """

    def __init__(self, head: nn.Module, decay: float) -> None:
        self._head, self._decay = head, decay
        self.values = {name: tensor.clone() for name, tensor in self._trained(head)}

    def update(self, step: int) -> None:
        """Take in the weights after a step; early steps are forgotten faster."""
        decay = min(self._decay, (1 + step) / (10 + step))
        for name, tensor in self._trained(self._head):
            self.values[name].lerp_(tensor, 1 - decay)

    def load_into(self, head: nn.Module) -> None:
        """Replace a head's weights by their average."""
        for name, tensor in self._trained(head):
            tensor.copy_(self.values[name])

    def applied_to(self, head: nn.Module) -> "_Swapped":
        """Use the averaged weights within a ``with`` block."""
        return _Swapped(self, head)

    def _trained(self, head: nn.Module) -> list[tuple[str, Tensor]]:
        return [(name, p.detach()) for name, p in head.named_parameters() if p.requires_grad]


class _Swapped:
    def __init__(self, average: WeightAverage, head: nn.Module) -> None:
        self._average, self._head = average, head
        self._live: dict[str, Tensor] = {}

    def __enter__(self) -> None:
        self._live = {name: t.detach().clone() for name, t in self._head.named_parameters()}
        self._average.load_into(self._head)

    def __exit__(self, *_: object) -> None:
        for name, tensor in self._head.named_parameters():
            tensor.detach().copy_(self._live[name])
