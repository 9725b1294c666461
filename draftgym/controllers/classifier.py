"""A small classifier for rules that learn one: fitted with torch, asked in plain Python.

One hidden layer on standardised inputs; stored as plain data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgym.controllers.calibration import round_starts
from draftgym.costs.times import Float64Array, Times
from draftgym.state import Confidence
from draftgym.theory.fixed import best_fixed
from draftgym.traces.trace import IntArray, Trace

HIDDEN, STEPS, BATCH, LEARNING_RATE = 16, 600, 1024, 1e-2
LEAST_SCORE = -16.0
"""Nats; scores below, and absent ones, are told as this."""


class Classifier:
    """Probability of an event, from a few numbers.

    Args:
        data: From `fit_classifier`.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._mean, self._scale = data["mean"], data["scale"]
        self._hidden = [
            (row, bias) for row, bias in zip(data["weights"], data["biases"], strict=True)
        ]
        self._out, self._bias = data["out"], data["out_bias"]

    def __call__(self, inputs: Sequence[float]) -> float:
        """Probability.

        Args:
            inputs: As in fitting.
        """
        scaled = [
            (value - mean) * scale
            for value, mean, scale in zip(inputs, self._mean, self._scale, strict=True)
        ]
        logit = self._bias
        for (row, bias), out in zip(self._hidden, self._out, strict=True):
            unit = bias + sum(map(mul, row, scaled))
            if unit > 0.0:
                logit += out * unit
        return 1.0 / (1.0 + math.exp(-min(max(logit, -50.0), 50.0)))


def fit_classifier(
    inputs: Float64Array, targets: NDArray[Any], weights: NDArray[Any], seed: int
) -> dict[str, Any]:
    """Least weighted cross-entropy, by Adam on batches drawn by weight.

    Args:
        inputs: At least one row, [n, features].
        targets: Probabilities to be met, [n].
        weights: Of the rows, at least 0, not all 0, [n].
        seed: Of weights and batches.

    Returns:
        Plain data for `Classifier`.
    """
    import torch

    share = weights / weights.sum()
    mean = share @ inputs
    scale = 1.0 / (np.sqrt(share @ (inputs - mean) ** 2) + 1e-3)
    generator = torch.Generator().manual_seed(seed)
    x = torch.from_numpy((inputs - mean) * scale).float()  # [n, features]
    y = torch.from_numpy(np.asarray(targets, np.float32))
    hidden, out = torch.nn.Linear(x.shape[1], HIDDEN), torch.nn.Linear(HIDDEN, 1)
    network = torch.nn.Sequential(hidden, torch.nn.ReLU(), out)
    for layer in (hidden, out):
        torch.nn.init.xavier_uniform_(layer.weight, generator=generator)
        torch.nn.init.zeros_(layer.bias)
    optimiser = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, STEPS)
    drawn = np.random.default_rng(seed).choice(len(x), (STEPS, BATCH), p=share)
    for rows in torch.from_numpy(drawn):
        logits = network(x[rows])[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return {
        "mean": mean.tolist(),
        "scale": scale.tolist(),
        "weights": hidden.weight.tolist(),
        "biases": hidden.bias.tolist(),
        "out": out.weight[0].tolist(),
        "out_bias": out.bias.item(),
    }


def pass_inputs(known: Confidence, depth: int, width: int) -> list[float]:
    """What a classifier is told after a pass: scores of the frontier, entropy, margin, depth.

    Args:
        known: What the drafter believes.
        depth: Passes made.
        width: Frontier nodes.
    """
    scores = [max(score, LEAST_SCORE) for score in known.frontier_scores[:width]]
    absent = [LEAST_SCORE] * (width - len(scores))
    return [*scores, *absent, known.entropy, known.margin, float(depth)]


def passes(trace: Trace, times: Times) -> tuple[IntArray, IntArray, Float64Array, Float64Array]:
    """Every pass of a trace, for classifiers.

    Args:
        trace: Positions.
        times: Mean seconds; positions count as often as rounds of the best fixed cell start there.

    Returns:
        Row and depth (from 1) of each pass, [m]; weights, [m]; inputs as `pass_inputs`, [m, W + 3].
    """
    weights = round_starts(trace, *best_fixed(trace, times))
    rows, depths = np.nonzero(
        (np.arange(1, trace.shape.max_depth + 1) <= trace.depth_limit[:, None])
        & (weights > 0.0)[:, None]
    )
    depths = depths + 1
    scores = np.maximum(trace.frontier[rows, depths].astype(np.float64), LEAST_SCORE)
    told = (scores, trace.entropy[rows, depths], trace.margin[rows, depths], depths)
    return rows, depths, weights[rows], np.column_stack(told)


def right_so_far(trace: Trace, rows: IntArray, depths: IntArray) -> NDArray[np.bool_]:
    """Whether the tree holds the text's next tokens, as many as there were passes, [m].

    Args:
        trace: Positions.
        rows: Of the trace, [m].
        depths: Passes, [m]; 0 is always right.
    """
    everything = np.full(len(rows), int(trace.nodes.max(initial=0)))
    found: NDArray[np.bool_] = trace.accepted(rows, depths, everything) >= depths
    return found
