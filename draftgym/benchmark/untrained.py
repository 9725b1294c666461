"""A policy of the default size that nobody trained: its decisions cost what trained ones do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from draftgym.features import FeatureLayout
from draftgym.runtime import ExportedController, ExportedPolicy, Normaliser, PolicyHead

HIDDEN = (64, 64)
"""Widths of the hidden layers that training uses by default."""


def untrained_controller(
    max_depth: int, beam_width: int, *, hidden: Sequence[int] = HIDDEN, seed: int = 0
) -> ExportedController:
    """Build a controller with random weights, both heads normalised, in memory.

    Args:
        max_depth: Draft passes that a round may make at most.
        beam_width: Frontier nodes per pass.
        hidden: Widths of the hidden layers.
        seed: Of the weights.
    """
    layout = FeatureLayout(max_depth=max_depth, beam_width=beam_width)
    generator = np.random.default_rng(seed)
    depth = _head(len(layout.depth_names), hidden, 2, generator)
    size = _head(len(layout.size_names), hidden, len(layout.size_grid), generator)
    return ExportedController(ExportedPolicy(layout=layout, depth=depth, size=size))


def _head(
    inputs: int, hidden: Sequence[int], actions: int, generator: np.random.Generator
) -> PolicyHead:
    widths = [inputs, *hidden, actions]
    weights = tuple(
        (generator.standard_normal((out, width)) / np.sqrt(width)).astype(np.float32)
        for width, out in pairwise(widths)
    )
    biases = tuple(np.zeros(out, np.float32) for out in widths[1:])
    # Statistics that change nothing, so that normalising is done and its cost is in the figure.
    normaliser = Normaliser(np.zeros(inputs, np.float32), np.ones(inputs, np.float32), clip=10.0)
    return PolicyHead(weights, biases, normaliser)
