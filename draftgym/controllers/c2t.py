"""C2T: a classifier of single nodes prunes the tree.

"C2T: A Classifier-Based Tree Construction Method in Speculative Decoding", arXiv 2502.13652: a
two-layer network scores each drafted token by its joint probability, the entropy of the law it is
drawn from and its depth; tokens below a threshold are neither expanded nor verified.

Adapted: controllers are told the joint probabilities of all nodes, but entropy only at the best
expanded node and no node's own depth, so all nodes of a tree share its newest entropy and its
depth. Drafting goes on while the best node of the frontier passes, up to a tuned depth; the first
pass is always made, and a round verifies as many nodes, best first, as pass. Training positions
are those at which rounds of the best fixed cell start, and nodes between two sizes of a trace's
grid share their joint probability and their fate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftgym.controllers.base import Fitted, Rule, Settings, Space, product
from draftgym.controllers.calibration import round_starts
from draftgym.controllers.classifier import LEAST_SCORE, Classifier, fit_classifier
from draftgym.costs.times import Times
from draftgym.state import Confidence, Controller, RoundRecord, RoundState
from draftgym.theory.fixed import best_fixed
from draftgym.traces.trace import Trace


class C2TRule(Rule):
    """Verify the nodes that a classifier believes in."""

    name = "c2t"
    title = "C2T: classifier of tree nodes"
    short = "C2T"
    source = "Huo et al. 2025, arXiv 2502.13652"

    def fit(self, trace: Trace, times: Times, space: Space, seed: int) -> Fitted:
        weights = round_starts(trace, *best_fixed(trace, times))
        sizes = np.array(trace.shape.size_grid)
        nodes = np.minimum(sizes, trace.nodes[..., None])
        width = np.diff(nodes, axis=-1) * (weights > 0)[:, None, None]  # [n, D + 1, blocks]
        within = np.arange(trace.shape.max_depth + 1) <= trace.depth_limit[:, None]
        some = (width > 0) & within[..., None]
        if not some.any():
            return {}
        rows, depths, _ = np.nonzero(some)
        promised = np.diff(trace.partial.astype(np.float64), axis=-1)[some] / width[some]
        right = np.diff(trace.accepted_by_size(sizes), axis=-1)[some] / width[some]
        scores = np.log(np.maximum(promised, np.exp(LEAST_SCORE)))
        inputs = np.column_stack((scores, trace.entropy[rows, depths], depths))
        return fit_classifier(inputs, right, width[some] * weights[rows], seed)

    def grid(self, space: Space) -> Sequence[Settings]:
        thresholds = (0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65)
        depths = sorted({min(depth, space.max_depth) for depth in (1, 2, 4, 8)})
        return product(threshold=thresholds, most_depth=depths)

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        return C2TController(space.size_grid[-1], settings, fitted)


class C2TController:
    """Counts the nodes that pass.

    Args:
        most: Largest size.
        settings: `threshold` of a node's probability, `most_depth` of a round.
        fitted: The classifier; empty where no node was seen, and then nothing is verified.
    """

    free = False

    def __init__(self, most: int, settings: Settings, fitted: Fitted) -> None:
        self._most, self._threshold = most, settings["threshold"]
        self._depth = settings["most_depth"]
        self._classifier = Classifier(fitted) if fitted else None

    def reset(self) -> None:
        """Nothing to forget."""

    def draft_again(self, state: RoundState) -> bool:
        if state.depth >= self._depth or self._classifier is None:
            return False
        if state.depth == 0:
            return True
        if not state.nodes:
            return False
        known = state.read_confidence()
        best = known.frontier_scores[0] if known.frontier_scores else LEAST_SCORE
        return self._passes(best, known, state.depth)

    def choose_size(self, state: RoundState) -> int:
        if not state.nodes or self._classifier is None:
            return 0
        known = state.read_confidence()
        low, high = 0, min(len(known.node_scores), self._most)
        while low < high:  # better nodes come first, so the last that passes is found by halving
            middle = (low + high) // 2
            if self._passes(known.node_scores[middle], known, state.depth):
                low = middle + 1
            else:
                high = middle
        return low

    def observe(self, record: RoundRecord) -> None:
        """Nothing to learn."""

    def _passes(self, score: float, known: Confidence, depth: int) -> bool:
        assert self._classifier is not None  # there would be nothing to ask
        inputs = (max(score, LEAST_SCORE), known.entropy, float(depth))
        return self._classifier(inputs) >= self._threshold
