"""DISCO: a classifier says after each drafted token whether to draft on.

"Dynamic Speculation Lookahead Accelerates Speculative Decoding of Large Language Models",
arXiv 2405.04304: a small network is trained to tell from the draft model's law and the token's
position whether the token will be accepted, and drafting stops where it doubts that.

Adapted: after a pass our classifier is told the scores of the frontier, entropy and margin of the
law at the best expanded node, and the depth, and asked whether the tree still holds the text; a
round always makes its first pass, as the paper's does. The paper verifies the chain that it has
drafted; of a tree a tuned number of nodes is verified. Training positions are those at which
rounds of the best fixed cell start.
"""

from __future__ import annotations

from collections.abc import Sequence

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


class DiscoRule(Rule):
    """Stop drafting where a classifier doubts what has been drafted."""

    name = "disco"
    title = "DISCO: classifier of drafted tokens"
    short = "DISCO"
    source = "Mamou et al. 2024, arXiv 2405.04304"

    def fit(self, trace: Trace, times: Times, space: Space, seed: int) -> Fitted:
        rows, depths, weights, inputs = passes(trace, times)
        if not len(rows):
            return {}
        right = right_so_far(trace, rows, depths)
        return fit_classifier(inputs, right, weights, seed)

    def grid(self, space: Space) -> Sequence[Settings]:
        return combinations(space, threshold=(0.35, 0.5, 0.65, 0.8, 0.9, 0.97))

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        return DiscoController.tuned(
            settings, threshold=settings["threshold"], width=space.beam_width, fitted=fitted
        )


class DiscoController(StoppingController):
    """Drafts on while the classifier believes in the draft.

    Args:
        size: Drafted tokens verified.
        look_up: See `StoppingController`.
        threshold: Of the probability that the draft is right.
        width: Frontier nodes.
        fitted: The classifier; empty where no pass was seen.
    """

    def __init__(
        self, size: int, look_up: float, threshold: float, width: int, fitted: Fitted
    ) -> None:
        super().__init__(size, look_up)
        self._threshold, self._width = threshold, width
        self._classifier = Classifier(fitted) if fitted else None

    def stop(self, state: RoundState) -> bool:
        if self._classifier is None:
            return True
        inputs = pass_inputs(state.read_confidence(), state.depth, self._width)
        return self._classifier(inputs) < self._threshold
