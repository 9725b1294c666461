"""Latency of pairs in their true shapes with random weights: no text, no acceptance, only time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from draftgym.clock import WallClock
from draftgym.decoder.controllers import FixedController, PlainController
from draftgym.decoder.session import DecoderSession
from draftgym.state import RoundRecord
from tests.gpu.pairs import CONTEXT_TOKENS, Shapes, random_pair

PROMPT_TOKENS = 512
CELLS = ((1, 4), (4, 16), (8, 32))
WARM_ROUNDS = 3


def latency(
    shapes: Shapes,
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    rounds: int = 20,
    prompt_tokens: int = PROMPT_TOKENS,
) -> dict[str, Any]:
    """Median milliseconds of a plain step, of draft passes and of verification.

    Args:
        shapes: Which pair.
        device: Where it runs.
        dtype: Of weights and activations.
        rounds: Measured, for each cell, after a few that are not.
        prompt_tokens: Random ids.
    """
    pair = random_pair(shapes, device, dtype)
    session = DecoderSession(
        pair, pair.new_drafter(), clock=WallClock(device), max_depth=8, max_size=32
    )
    generator = torch.Generator().manual_seed(0)
    vocabulary = pair.target.vocab_size
    prompt = torch.randint(0, vocabulary, (prompt_tokens,), generator=generator).tolist()

    def measure(depth: int, size: int) -> list[RoundRecord]:
        session.start(prompt, CONTEXT_TOKENS - prompt_tokens)
        controller = FixedController(depth, size) if depth else PlainController()
        return [session.step(controller) for _ in range(WARM_ROUNDS + rounds)][WARM_ROUNDS:]

    plain = measure(0, 0)
    step = median(record.seconds for record in plain)
    report: dict[str, Any] = {
        "shapes": shapes.name,
        "label": "latency only: random weights, so nothing drafted is accepted",
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
        "prompt_tokens": prompt_tokens,
        "rounds": rounds,
        "plain_step_ms": _ms([step]),
        "weights_gb_per_second": pair.target.weight_bytes / step / 1e9,
        "cells": [],
    }
    for depth, size in CELLS:
        records = measure(depth, size)
        report["cells"].append(
            {
                "depth": depth,
                "size": size,
                "first_pass_ms": _ms([record.pass_seconds[0] for record in records]),
                "later_pass_ms": _ms([s for record in records for s in record.pass_seconds[1:]]),
                "verify_ms": _ms([record.verify_seconds for record in records]),
                "commit_ms": _ms([record.commit_seconds for record in records]),
                "round_ms": _ms([record.seconds for record in records]),
                "round_over_plain": median(record.seconds for record in records) / step,
            }
        )
    if device.type == "cuda":
        report["peak_memory_gb"] = torch.cuda.max_memory_allocated(device) / 1e9
        torch.cuda.reset_peak_memory_stats(device)
    return report


def _ms(seconds: Sequence[float]) -> float | None:
    return round(1e3 * median(seconds), 4) if seconds else None
