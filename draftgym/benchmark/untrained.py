"""A policy of the default size that nobody trained: its decisions cost what trained ones do.

What it decides is chance: some seeds never draft, others draft eight levels for nothing, and the
share of a round that decisions take follows that. So its answers are paid for, but not heeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from draftgym.features import FeatureLayout
from draftgym.runtime import ExportedController, ExportedPolicy, Normaliser, PolicyHead
from draftgym.state import Controller, RoundRecord, RoundState

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


class Unheeded:
    """Asks a policy for every decision of a round, and does what a fixed cell says.

    Args:
        policy: Whose decisions are paid for.
        depth: Draft passes of the cell.
        size: Drafted tokens that it verifies.
    """

    def __init__(self, policy: Controller, depth: int, size: int) -> None:
        self._policy, self._depth, self._size = policy, depth, size

    @property
    def free(self) -> bool:
        return self._policy.free

    def reset(self) -> None:
        self._policy.reset()

    def draft_again(self, state: RoundState) -> bool:
        self._policy.draft_again(state)
        return state.depth < self._depth

    def choose_size(self, state: RoundState) -> int:
        self._policy.choose_size(state)
        return self._size

    def observe(self, record: RoundRecord) -> None:
        self._policy.observe(record)


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
