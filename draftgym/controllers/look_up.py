"""Look-ups where they are likely, passes of the drafter elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from draftgym.controllers.base import Fitted, Rule, Settings, Space, product
from draftgym.controllers.stopping import StoppingController, sizes
from draftgym.state import Controller, RoundState

LOOK_UPS = (0.3, 0.5, 0.7, 0.9)
DEPTHS = (1, 2, 4)


class LookUpController(StoppingController):
    """A fixed cell, but no pass where a look-up is likely.

    Args:
        size: Drafted tokens verified.
        look_up: See `StoppingController`.
        depth: Passes elsewhere.
    """

    def __init__(self, size: int, look_up: float, depth: int) -> None:
        super().__init__(size, look_up)
        self.depth = depth

    def stop(self, state: RoundState) -> bool:
        return state.depth >= self.depth


class LookUpRule(Rule):
    """SuffixDecoding and SAM Decoding beside a drafter (Oliaro et al.; Hu et al., 2024).

    arXiv 2411.04975 and 2411.10666: a look-up is used alone where its score, or the length of its
    match, passes a threshold; elsewhere the drafter is. Adapted: the score is the look-up's
    estimated survival, and what it proposed stays in the tree beside the drafter's nodes.
    """

    name = "look_up"
    title = "look-ups first, else fixed depth"
    short = "look-ups first"
    source = "Oliaro et al. 2024, arXiv 2411.04975; Hu et al. 2024, arXiv 2411.10666"

    def grid(self, space: Space) -> Sequence[Settings]:
        depths = [depth for depth in DEPTHS if depth <= space.max_depth] or [0]
        look_ups = LOOK_UPS if space.free_proposals else (1.0,)
        return product(look_up=look_ups, depth=depths, size=sizes(space))

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        return LookUpController.tuned(settings, depth=int(settings["depth"]))
