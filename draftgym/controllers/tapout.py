"""TapOut: a bandit over stopping rules, one of them at work in each round."""

from __future__ import annotations

import math
from collections.abc import Sequence

from draftgym.controllers.bandits import Ucb
from draftgym.controllers.base import Fitted, Rule, Settings, Space
from draftgym.controllers.confidence import ConfidenceController
from draftgym.controllers.entropy import AdaEdlController, SvipController
from draftgym.controllers.stopping import StoppingController, combinations, drafted_and_kept
from draftgym.state import Controller, RoundRecord, RoundState

BLENDS = (0.0, 0.5, 1.0)
WIDTHS = (1.0, 0.3)


class MarginController(StoppingController):
    """Stops when the two likeliest tokens are less apart than a threshold.

    Args:
        size: Drafted tokens verified.
        look_up: See `StoppingController`.
        threshold: Of the difference of their probabilities.
    """

    def __init__(self, size: int, look_up: float, threshold: float) -> None:
        super().__init__(size, look_up)
        self._threshold = threshold

    def stop(self, state: RoundState) -> bool:
        return state.read_confidence().margin < self._threshold


class TapOutController(StoppingController):
    """UCB1 chooses the stopping rule of every round, and goes on over requests.

    Args:
        size: Drafted tokens verified.
        look_up: See `StoppingController`.
        most: Most passes of a round.
        blend: Weight of accepted tokens over most passes in the reward; the rest is the share of
            drafted tokens accepted.
        width: Factor of the radius √(2 log t / n).
    """

    def __init__(self, size: int, look_up: float, most: int, blend: float, width: float) -> None:
        super().__init__(size, look_up)
        self.arms: tuple[StoppingController, ...] = (
            ConfidenceController(size, look_up, 0.4, refit=False),
            SvipController(size, look_up, 0.3),
            AdaEdlController(size, look_up, 0.4, 0.9),
            MarginController(size, look_up, 0.2),
        )
        self.bandit = Ucb(len(self.arms), lambda n, t: width * math.sqrt(2 * math.log(t) / n))
        self._most, self._blend = most, blend
        self._arm: int | None = None

    def reset(self) -> None:
        """Rules forget the request; what the bandit learned of them stays."""
        self._arm = None
        for arm in self.arms:
            arm.reset()

    def stop(self, state: RoundState) -> bool:
        if self._arm is None:
            self._arm = self.bandit.choose()
        return self.arms[self._arm].stop(state)

    def observe(self, record: RoundRecord) -> None:
        drafted, kept = drafted_and_kept(record)
        if self._arm is not None and drafted:
            self.arms[self._arm].observe(record)
            reward = self._blend * kept / self._most + (1.0 - self._blend) * kept / drafted
            self.bandit.learn(self._arm, reward)
        self._arm = None


class TapOutRule(Rule):
    """TapOut: A Bandit-Based Approach to Dynamic Speculative Decoding (Sridhar et al., 2025).

    arXiv 2511.02017: UCB1 over training-free stopping rules, here with one rule at work in a whole
    draft (its sequence level) and its reward, a blend of accepted length and acceptance rate. The
    rules: Transformers' threshold and SVIP at their published values, AdaEDL from λ = 0.4 on, and
    the margin at 0.2 (both ours). Adapted: lengths are passes, the size is a setting; the blend and
    a factor of the radius are tuned, an even blend and 1 among them.
    """

    name = "tapout"
    title = "TapOut: bandit over stopping rules"
    short = "TapOut"
    source = "Sridhar et al. 2025, arXiv 2511.02017"

    def grid(self, space: Space) -> Sequence[Settings]:
        return combinations(space, blend=BLENDS, width=WIDTHS)

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        return TapOutController.tuned(
            settings,
            most=max(1, space.max_depth),
            blend=settings["blend"],
            width=settings["width"],
        )
