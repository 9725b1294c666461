"""GammaTune: grow the draft fast while all of it is accepted, else follow a moving average."""

from __future__ import annotations

import math
from collections.abc import Sequence

from draftgym.controllers.base import Fitted, Rule, Settings, Space
from draftgym.controllers.stopping import (
    BestPath,
    StoppingController,
    combinations,
    drafted_and_kept,
)
from draftgym.state import Controller, RoundRecord, RoundState

STARTS = (1, 3)
THRESHOLDS = (0.0, 0.4, 0.7)
"""0 is GammaTune, the others GammaTune+."""

MEMORY, GROWTH = 0.3, 2


class GammaTuneController(StoppingController):
    """γ ← A + δ when all γ drafted tokens were accepted; else γ̄ ← (1 - η) γ̄ + ηA, γ ← ⌈γ̄⌉.

    Args:
        size: Drafted tokens verified.
        look_up: See `StoppingController`.
        most: Largest γ; the least is 1.
        start: γ and γ̄ at the start of every request.
        threshold: Token probability below which a draft ends early; 0 looks at none.
    """

    def __init__(self, size: int, look_up: float, most: int, start: int, threshold: float) -> None:
        super().__init__(size, look_up)
        self._most, self._start, self._threshold = most, start, threshold
        self.free = threshold == 0.0 and not self.looks_up
        self._path = BestPath()
        self.reset()

    def reset(self) -> None:
        self.length, self.average = self._start, float(self._start)

    def stop(self, state: RoundState) -> bool:
        if state.depth >= self.length:
            return True
        if self._threshold == 0.0:
            return False
        return self._path.newest(state.depth, state.read_confidence()) < self._threshold

    def observe(self, record: RoundRecord) -> None:
        drafted, kept = drafted_and_kept(record)
        if not drafted:
            return
        if kept == drafted:
            self.length = min(kept + GROWTH, self._most)
        else:
            average = (1.0 - MEMORY) * self.average + MEMORY * kept
            self.average = min(max(average, 1.0), float(self._most))
            self.length = math.ceil(self.average)


class GammaTuneRule(Rule):
    """Token-Driven GammaTune: Adaptive Calibration (Gautam et al., 2025).

    arXiv 2504.00030, algorithm 1; η = 0.3 and δ = 2 are those of a public reimplementation.
    GammaTune+ also ends a draft at a token less likely than a threshold. Adapted: γ counts passes,
    the accepted length does not count what look-ups add, and the size is a setting. Whether all was
    accepted is judged by the passes made, so that a draft ended early may grow as well.
    """

    name = "gammatune"
    title = "GammaTune and GammaTune+"
    short = "GammaTune"
    source = "Gautam et al. 2025, arXiv 2504.00030"

    def grid(self, space: Space) -> Sequence[Settings]:
        return combinations(space, threshold=THRESHOLDS, start=STARTS)

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        return GammaTuneController.tuned(
            settings,
            most=space.max_depth,
            start=int(settings["start"]),
            threshold=settings["threshold"],
        )
