"""SpecDec++: stop where a rejection among the drafted tokens has become likely.

"SpecDec++: Boosting Speculative Decoding via Adaptive Candidate Lengths", arXiv 2405.19715: the
best policy of a Markov decision process is a threshold on the probability that at least one drafted
token is rejected. A head on the draft model predicts each token's acceptance given that all before
it are accepted; it is trained with a cross-entropy in which rejections weigh more.

Adapted: traces hold no hidden states, so our head is a small network on what the drafter believes
after each pass (frontier, entropy, margin, depth), and "token" reads "level of the tree". A round
always makes its first pass. Of a tree a tuned number of nodes is verified, where the paper verifies
its chain. Training positions are those at which rounds of the best fixed cell start.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftgym.controllers.base import Fitted, Rule, Settings, Space
from draftgym.controllers.classifier import (
    Classifier,
    fit_classifier,
    pass_inputs,
    passes,
    right_so_far,
)
from draftgym.controllers.stopping import StoppingController, combinations
from draftgym.costs.times import Times
from draftgym.state import Controller, RoundState
from draftgym.traces.trace import Trace

REJECTION_WEIGHT = 6.0
"""Of a rejection in the cross-entropy, an acceptance being 1."""


class SpecDecRule(Rule):
    """Stop drafting where some drafted token has probably been rejected."""

    name = "specdecpp"
    title = "SpecDec++: probability of a rejection"
    short = "SpecDec++"
    source = "Huang et al. 2025, arXiv 2405.19715"

    def fit(self, trace: Trace, times: Times, space: Space, seed: int) -> Fitted:
        rows, depths, weights, inputs = passes(trace, times)
        reached = right_so_far(trace, rows, depths - 1)
        if not reached.any():
            return {}
        right = right_so_far(trace, rows, depths)
        weights = weights * np.where(right, 1.0, REJECTION_WEIGHT)
        return fit_classifier(inputs[reached], right[reached], weights[reached], seed)

    def grid(self, space: Space) -> Sequence[Settings]:
        return combinations(space, threshold=(0.1, 0.2, 0.3, 0.5, 0.7, 0.9))

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        return SpecDecController.tuned(
            settings, threshold=settings["threshold"], width=space.beam_width, fitted=fitted
        )


class SpecDecController(StoppingController):
    """Multiplies the levels' predicted acceptances, pass by pass.

    Args:
        size: Drafted tokens verified.
        look_up: See `StoppingController`.
        threshold: Of the probability of a rejection.
        width: Frontier nodes.
        fitted: The head; empty where no pass was seen.
    """

    def __init__(
        self, size: int, look_up: float, threshold: float, width: int, fitted: Fitted
    ) -> None:
        super().__init__(size, look_up)
        self._threshold, self._width = threshold, width
        self._head = Classifier(fitted) if fitted else None
        self._accepted = 1.0

    def stop(self, state: RoundState) -> bool:
        if self._head is None:
            return True
        if state.depth == 1:
            self._accepted = 1.0
        self._accepted *= self._head(pass_inputs(state.read_confidence(), state.depth, self._width))
        return 1.0 - self._accepted > self._threshold
