"""Rules that stop when the draft law is too spread: SVIP and AdaEDL."""

from __future__ import annotations

import math
from collections.abc import Sequence

from draftgym.controllers.base import Fitted, Rule, Settings, Space
from draftgym.controllers.stopping import StoppingController, combinations, drafted_and_kept
from draftgym.state import Controller, RoundRecord, RoundState

ROOTS = (0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
"""SVIP chose 0.3 from 0.2 to 0.5; small heads are less sure."""

BOUNDS = (0.2, 0.4, 0.6)
ACCEPTANCES = (0.5, 0.9)
GAMMA = 0.2
RATE_MEMORY, BOUND_MEMORY, STEP = 0.5, 0.9, 0.01


class SvipController(StoppingController):
    """Stops when √H > h.

    Args:
        size: Drafted tokens verified.
        look_up: See `StoppingController`.
        threshold: h, in √nats.
    """

    def __init__(self, size: int, look_up: float, threshold: float) -> None:
        super().__init__(size, look_up)
        self._threshold = threshold

    def stop(self, state: RoundState) -> bool:
        return math.sqrt(max(0.0, state.read_confidence().entropy)) > self._threshold


class SvipRule(Rule):
    """Draft Model Knows When to Stop: A Self-Verification Length Policy (Zhang et al., 2024).

    arXiv 2411.18462, equation 7 and algorithm 1: acceptance is at least 1 - √(cH), so drafting
    stops after the token whose law has √H > h. Adapted: H is that of the law at the best expanded
    node of a pass, the size a setting.
    """

    name = "svip"
    title = "SVIP: entropy of the draft law"
    short = "SVIP"
    source = "Zhang et al. 2024, arXiv 2411.18462"

    def grid(self, space: Space) -> Sequence[Settings]:
        return combinations(space, threshold=ROOTS)

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        return SvipController.tuned(settings, threshold=settings["threshold"])


class AdaEdlController(StoppingController):
    """Stops when 1 - √(γH) < λ; λ rises while acceptance stays below its aim, and falls above.

    Args:
        size: Drafted tokens verified.
        look_up: See `StoppingController`.
        bound: λ at the start of every request.
        acceptance: Share of drafted tokens to be accepted.
    """

    def __init__(self, size: int, look_up: float, bound: float, acceptance: float) -> None:
        super().__init__(size, look_up)
        self._first, self._aim = bound, acceptance
        self.reset()

    def reset(self) -> None:
        self.bound = self._first
        self._rate: float | None = None

    def stop(self, state: RoundState) -> bool:
        entropy = max(0.0, state.read_confidence().entropy)
        return 1.0 - math.sqrt(GAMMA * entropy) < self.bound

    def observe(self, record: RoundRecord) -> None:
        drafted, kept = drafted_and_kept(record)
        if not drafted:
            return
        rate = kept / drafted
        before = rate if self._rate is None else self._rate
        self._rate = RATE_MEMORY * before + (1.0 - RATE_MEMORY) * rate
        moved = self.bound + (STEP if self._rate < self._aim else -STEP)
        self.bound = BOUND_MEMORY * self.bound + (1.0 - BOUND_MEMORY) * moved


class AdaEdlRule(Rule):
    """AdaEDL: Early Draft Stopping via an Entropy-based Lower Bound (Agrawal et al., 2024).

    arXiv 2410.18351, with its γ = 0.2. λ follows a moving average of acceptance as the threshold
    of Draft & Verify does (Zhang et al., 2023, arXiv 2309.08168), with that method's constants:
    aim 0.9, memories 0.5 and 0.9, step 0.01. λ at the start and a second aim are tuned. Adapted: H
    is that of the law at the best expanded node of a pass, the size a setting.
    """

    name = "adaedl"
    title = "AdaEDL: entropy bound on acceptance"
    short = "AdaEDL"
    source = "Agrawal et al. 2024, arXiv 2410.18351"

    def grid(self, space: Space) -> Sequence[Settings]:
        return combinations(space, acceptance=ACCEPTANCES, bound=BOUNDS)

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        return AdaEdlController.tuned(
            settings, bound=settings["bound"], acceptance=settings["acceptance"]
        )
