"""Dynamic depth decoding: stop growing a tree whose whole frontier has become unlikely."""

from __future__ import annotations

import math
from collections.abc import Sequence

from draftgym.controllers.base import Fitted, Rule, Settings, Space
from draftgym.controllers.stopping import StoppingController, combinations
from draftgym.state import Controller, RoundState

CHECKS = ((5, 2), (1, 1))
"""First pass looked after, and passes between looks: 5, 7, 9 as published, and after each."""

THRESHOLDS = (-0.3, -0.7, -1.5)


class DynamicDepthController(StoppingController):
    """Stops when log Σ p(frontier) < threshold; reads nothing between the checks.

    Args:
        size: Drafted tokens verified.
        look_up: See `StoppingController`.
        threshold: In nats, at most 0.
        first: Pass after which the frontier is looked at first.
        every: Passes from one look to the next.
    """

    def __init__(self, size: int, look_up: float, threshold: float, first: int, every: int) -> None:
        super().__init__(size, look_up)
        self._least = math.exp(threshold)
        self._first, self._every = first, every

    def stop(self, state: RoundState) -> bool:
        if state.depth < self._first or (state.depth - self._first) % self._every:
            return False
        return sum(map(math.exp, state.read_confidence().frontier_scores)) < self._least


class DynamicDepthRule(Rule):
    """Dynamic Depth Decoding: Faster Speculative Decoding for LLMs (Brown et al., 2024).

    arXiv 2409.00142: EAGLE-2 with a beam of 10, at most 11 passes, and checks of log Σ exp(scores
    of the beam) after passes 5, 7 and 9, few because each waits for the device. Adapted: our beam
    and most passes; checks after every pass too, since here the best depths are below 5; the
    threshold and the size are tuned.
    """

    name = "ddd"
    title = "DDD: probability of the beam"
    short = "DDD"
    source = "Brown et al. 2024, arXiv 2409.00142"

    def grid(self, space: Space) -> Sequence[Settings]:
        rest = combinations(space, threshold=THRESHOLDS)
        return [{"first": first, "every": every, **row} for first, every in CHECKS for row in rest]

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        return DynamicDepthController.tuned(
            settings,
            threshold=settings["threshold"],
            first=int(settings["first"]),
            every=int(settings["every"]),
        )
