"""What a finished training run exported, after how many decisions and seconds; reads files only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftgym.errors import DraftGymError
from draftgym.features import FeatureLayout
from draftgym.runtime import ExportedPolicy, read_policy
from draftgym.runtime.folder import JSON_FILE, first_difference
from draftgym.storage import plain
from policies.checkpoint import CheckpointError, load_checkpoint
from policies.training import LATEST


class RunError(DraftGymError, ValueError):
    """A folder holds no finished run that can be compared; the message names file and field."""


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """One run of `train.py`.

    Attributes:
        policy: The pair that validated best.
        pretrained: Whether it was learned from a trace first.
        decisions: Learned from live, of both policies together.
        seconds: Of live rollouts and updates; calibration, trace, validation left out.
        best_decisions: Made when the exported pair validated best; 0 is the pre-trained pair.
    """

    policy: ExportedPolicy
    pretrained: bool
    decisions: int
    seconds: float
    best_decisions: int | None


def read_run(folder: Path, layout: FeatureLayout, pair: Mapping[str, Any]) -> FinishedRun:
    """Read the folder of a finished run.

    Args:
        folder: Of the run.
        layout: That its policy must have been learned with.
        pair: Fingerprint of the model pair that it must have been learned on.

    Raises:
        RunError: No finished run, or one of another layout or pair.
        PolicyError: A damaged policy.
    """
    file = folder / "policy" / JSON_FILE
    if not file.is_file():
        raise RunError(f"{file}: missing; {folder} is no finished run of train.py")
    policy = read_policy(file.parent)
    for name, mine, wanted in (
        ("layout", policy.layout.schema()["parameters"], layout.schema()["parameters"]),
        ("pair", policy.pair, plain(pair)),
    ):
        difference = first_difference(mine, wanted, name, "the run")
        if difference is not None:
            raise RunError(f"{file}: not comparable: {difference}")
    training, checkpoint = policy.training, folder / "checkpoints" / LATEST
    try:
        seconds = float(load_checkpoint(checkpoint).state["position"]["train_seconds"])
    except (CheckpointError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{checkpoint}: position.train_seconds: {error}") from error
    steps = training.get("steps")
    if not isinstance(steps, dict) or not all(type(count) is int for count in steps.values()):
        raise RunError(f"{file}: training.steps: must count decisions by policy, found {steps!r}")
    return FinishedRun(
        policy, "pretraining" in training, sum(steps.values()), seconds, training.get("best_step")
    )
