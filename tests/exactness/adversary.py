"""Controllers that try to make a session lose its place."""

from __future__ import annotations

import math
import random

import numpy as np

from draftgym.state import RoundRecord, RoundState

MOODS = (
    "random",  # any depth and size
    "plain then deep",  # a burst of plain rounds, then as deep as it goes
    "always most",  # every pass, every node
    "alternate",  # plain and deepest by turns
    "drafted for nothing",  # passes whose nodes are never verified
    "one node",  # deep trees, a single node verified
    "never a pass",  # free proposals only
)

LOOKS = 0.1
"""How often a decision reads the device."""


class Adversary:
    """Changes its mind in every round.

    Args:
        choices: Its own generator.
        mood: One of `MOODS`.
    """

    free = True

    def __init__(self, choices: random.Random, mood: str) -> None:
        self._random, self._mood = choices, mood
        self._rounds, self._burst = 0, 0
        self._next()

    def reset(self) -> None:
        """A controller lives for one sequence."""

    def _next(self) -> None:
        draw = self._random
        most = 1 << 10
        self._depth, self._size = {
            "random": lambda: (draw.randint(0, 9), draw.choice((0, 1, 2, 3, 5, 8, 13, 40, most))),
            "plain then deep": self._burst_cell,
            "always most": lambda: (most, most),
            "alternate": lambda: (most, most) if self._rounds % 2 else (0, 0),
            "drafted for nothing": lambda: (draw.randint(1, 9), draw.choice((0, 0, 0, most))),
            "one node": lambda: (draw.randint(1, 9), 1),
            "never a pass": lambda: (0, most),
        }[self._mood]()

    def _burst_cell(self) -> tuple[int, int]:
        if self._burst == 0:
            self._burst = self._random.randint(1, 12)
            return 1 << 10, 1 << 10
        self._burst -= 1
        return 0, 0

    def draft_again(self, state: RoundState) -> bool:
        self._maybe_look(state)
        return state.depth < self._depth

    def choose_size(self, state: RoundState) -> int:
        self._maybe_look(state)
        return self._size

    def _maybe_look(self, state: RoundState) -> None:
        """Reading what the drafter believes must show no stale number and change nothing."""
        if self._random.random() > LOOKS:
            return
        seen = state.read_confidence()
        assert not np.isnan(seen.node_scores).any() and not np.isnan(seen.frontier_scores).any()
        assert len(seen.node_scores) == state.nodes
        assert math.isfinite(seen.entropy) and 0 <= seen.margin <= 1.001

    def observe(self, record: RoundRecord) -> None:
        self._rounds += 1
        self._next()
