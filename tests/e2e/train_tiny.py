"""Runs the training command's own function on a tiny pair under a simulated clock.

A process of its own, so that the test can kill it: `train_tiny.py FOLDER [--resume]`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from draftgym.benchmark.config import EvaluateConfig
from draftgym.benchmark.reference import Reference
from draftgym.clock import FakeClock
from draftgym.commands.train import train
from draftgym.configuration import validate
from draftgym.decoder.pair import ModelPair
from policies.config import TrainConfig
from tests.tiny import VOCAB, tiny_model, tiny_pair

SMALL_PPO = {"rollout_steps": 32, "batch_size": 16, "epochs": 2, "hidden_sizes": [16]}
SETTINGS: dict[str, Any] = {
    "run": "tiny",
    "pair": {
        "target": "tiny",
        "drafter": {"kind": "eagle3"},
        "device": "cpu",
        "dtype": "float32",
        "context_limit_tokens": 256,
    },
    "max_new_tokens": 24,
    "ignore_eos": True,
    "size_ppo": SMALL_PPO,
    "depth_ppo": SMALL_PPO,
    "normaliser": {"warmup_steps": 16},
    "pretraining": {"prompts": 12, "steps": 20, "requests": 16},
    "schedule": [
        {"policy": "size", "other": "random", "steps": 64},
        {"policy": "depth", "other": "fixed", "steps": 64},
        {"policy": "size", "other": "policy", "steps": 64},
        {"policy": "depth", "other": "policy", "steps": 64},
    ],
    "validation": {"prompts": 2, "new_tokens": 16, "plain_new_tokens": 6, "per_phase": 2},
    "calibration_rounds": 2,
    "wandb": {"mode": "disabled"},
}
PLAN = {
    "cells": [{"depth": 1, "size": 2}, {"depth": 2, "size": 4}],
    "finalists": 1,
    "validation": {"prompts": 2, "max_new_tokens": 12},
    "test": {"prompts": 4, "max_new_tokens": 12},
    "warm_up_tokens": 4,
    "bootstrap_resamples": 100,
}


class LetterTokenizer:
    """Maps characters onto the tiny vocabulary; prompts are cut to leave room for an answer."""

    chat_template = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [2 + ord(letter) % (VOCAB - 2) for letter in text[:40]]}


def pair() -> ModelPair:
    """The tiny pair, able to read prompts."""
    made = tiny_pair(context=256)
    made.tokenizer = LetterTokenizer()
    return made


def run(
    folder: Path,
    *,
    resume: bool = False,
    changes: dict[str, Any] | None = None,
    plan: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One training run; fewer threads than cores keep tiny matrices quick."""
    torch.set_num_threads(1)
    config = validate({**SETTINGS, **(changes or {})}, TrainConfig, "tiny")
    evaluation = None if plan is None else validate(plan, EvaluateConfig, "plan")
    made = pair()
    return train(
        config,
        folder,
        plan=evaluation,
        resume=resume,
        pair=made,
        reference=Reference(tiny_model),
        clock=FakeClock(),
    )


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), resume="--resume" in sys.argv)))
