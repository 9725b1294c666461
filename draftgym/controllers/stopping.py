"""What rules that stop drafting share: a first pass, a fixed size, the best path's beliefs.

Papers draft chains and verify all of them. Here a pass grows a tree, so "the drafted token" of a
paper is the best frontier node of the newest pass, its entropy and margin are those of the law at
the best node that was expanded, and how many nodes are verified is a setting.

They know no look-ups either, whose likely continuations look like a draft worth going on with
although they are in the tree already. So it is tuned whether a likely look-up takes the place of
the passes, which is how SAM Decoding (Hu et al., 2024, arXiv 2411.10666) and SuffixDecoding (Oliaro
et al., 2024, arXiv 2411.04975) join look-ups to a drafter; without it rules are as published.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from draftgym.controllers.base import Settings, Space, product
from draftgym.decoder.controllers import FixedController
from draftgym.state import Confidence, RoundRecord, RoundState

SIZES = (4, 8, 16, 32)

LOOK_UPS = (0.5, 1.0)
"""A look-up likelier right than wrong takes the place of the passes, or none ever does."""


def sizes(space: Space) -> list[int]:
    """Those of `SIZES` that a round allows, or else its largest."""
    return [size for size in SIZES if size in space.sizes] or [space.sizes[-1]]


def combinations(space: Space, **values: Sequence[float]) -> list[dict[str, float]]:
    """A rule's values with what all rules that stop are tuned in, `look_up` and `size`."""
    look_ups = LOOK_UPS if space.free_proposals else LOOK_UPS[-1:]
    return product(**values, look_up=look_ups, size=sizes(space))


def drafted_and_kept(record: RoundRecord) -> tuple[int, int]:
    """A round as that of a chain: passes, and accepted tokens that they can account for.

    Look-ups may add more, which says nothing about the passes.
    """
    return record.depth, min(record.accepted, record.depth)


class StoppingController(FixedController, ABC):
    """A fixed cell of one pass that goes on until `stop`.

    Args:
        size: Drafted tokens verified.
        look_up: Estimated survival of a look-up's first token from which no pass is made; 1 looks
            at none.
    """

    free = False

    def __init__(self, size: int, look_up: float = 1.0) -> None:
        super().__init__(1, size)
        self._enough = math.log(look_up) if look_up < 1.0 else math.inf

    @classmethod
    def tuned(cls, settings: Settings, **values: Any) -> Self:
        """A controller of `combinations`: its values, size and look-up."""
        return cls(size=int(settings["size"]), look_up=settings["look_up"], **values)

    @property
    def looks_up(self) -> bool:
        """Whether look-ups are read before the first pass."""
        return self._enough < math.inf

    def draft_again(self, state: RoundState) -> bool:
        if state.depth == 0:
            known = self.looks_up and state.nodes > 0
            return not known or state.read_confidence().frontier_scores[0] < self._enough
        return state.nodes > 0 and not self.stop(state)

    @abstractmethod
    def stop(self, state: RoundState) -> bool:
        """Whether the passes made, at least one, are enough."""


class BestPath:
    """Probabilities of the newest token of the best path, pass by pass.

    The drafter tells cumulative scores; a token's own probability is what the best one lost.
    """

    def __init__(self) -> None:
        self._scores = [0.0]  # the root's, then the best frontier node's after every pass

    def newest(self, depth: int, known: Confidence) -> float:
        """Probability of the token that pass `depth`, at least the first, put at the front."""
        del self._scores[depth:]
        self._scores.append(max(known.frontier_scores, default=-math.inf))
        return math.exp(self._scores[depth] - self._scores[depth - 1])

    def take(self) -> list[float]:
        """All of the round, in order, and forget them."""
        scores, self._scores = self._scores, [0.0]
        return [math.exp(after - before) for before, after in itertools.pairwise(scores)]
