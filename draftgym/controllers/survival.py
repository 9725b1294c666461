"""Survival times cost: what the drafter promises, calibrated, against measured seconds.

The rule behind OPT-Tree ("OPT-Tree: Speculative Decoding with Adaptive Draft Tree Structure",
arXiv 2406.17276: the tree with the largest expected accepted length, grown until a level adds less
than a threshold), Sequoia ("Sequoia: Scalable, Robust, and Hardware-aware Speculative Decoding",
arXiv 2402.12374: the size with the best expected length over measured time) and goodput in serving
("TurboSpec: Closed-loop Speculation Control System for Optimizing LLM Serving Goodput",
arXiv 2406.14066). Each round takes the size with the most expected tokens per second, and makes
another pass where that is expected to be more afterwards.

Adapted: probabilities of nodes are calibrated by isotonic regression for each depth of the tree,
apart for trees with and without look-ups: before the first pass they are all that there is, later
they cannot be told from the head's nodes. What a pass adds at each size is learned from the mass of
the frontier that it expands. Positions count as often as rounds of the best fixed cell start there.
Prices of passes and verification, and tokens credited to every round, are tuned; the credit is
ours: it makes rounds careful where promises are large.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from draftgym.controllers.base import Fitted, Rule, Settings, Space, product
from draftgym.controllers.calibration import curve, isotonic, round_starts
from draftgym.costs.times import Float64Array, Times
from draftgym.state import Controller, RoundRecord, RoundState
from draftgym.theory.fixed import best_fixed
from draftgym.traces.trace import IntArray, Trace

Steps = tuple[list[float], list[float]]
"""Where steps begin, and their heights."""

Gains = tuple[list[float], list[list[float]]]
"""Edges of bins, and a row of sizes for each bin."""

NODE_STEPS, GAIN_BINS = 60, 12
LEAST_PROMISE = 1e-30
"""Of a node that adds nothing to the sum of its grid cell."""


class SurvivalRule(Rule):
    """Most expected tokens per second, by calibrated survival and measured costs."""

    name = "survival"
    title = "calibrated survival x cost"
    short = "calibrated survival"
    source = "OPT-Tree, arXiv 2406.17276; Sequoia, arXiv 2402.12374; TurboSpec, arXiv 2406.14066"

    def fit(self, trace: Trace, times: Times, space: Space, seed: int) -> Fitted:
        weights = round_starts(trace, *best_fixed(trace, times))
        kept = trace.accepted_by_size(np.array(space.size_grid)).astype(np.float64)
        copied = trace.nodes[:, 0] > 0
        nodes, gains = {}, {}
        for look_ups in (False, True):
            for depth in range(space.max_depth + 1):
                seen = (copied == look_ups) & (trace.depth_limit >= depth) & (weights > 0.0)
                rows, key = np.flatnonzero(seen), _key(look_ups, depth)
                known = rows[trace.nodes[rows, depth] > 0]
                if len(known):
                    nodes[key] = _node_curve(trace, kept, known, depth, weights)
                deeper = rows[trace.depth_limit[rows] > depth]
                if len(deeper):
                    gains[key] = _gain_table(trace, kept, deeper, depth, weights)
        return {"nodes": nodes, "gains": gains}

    def grid(self, space: Space) -> Sequence[Settings]:
        return product(
            pass_price=(0.8, 1.0, 1.25),
            verify_price=(0.9, 1.0, 1.1),
            credit_tokens=(0.0, 0.25, 0.5, 0.75, 1.0),
        )

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        return SurvivalController(space, settings, fitted["nodes"], fitted["gains"])


class SurvivalController:
    """Asks before every pass whether one more raises the expected tokens per second.

    Args:
        space: Sizes and mean seconds.
        settings: `pass_price`, `verify_price`: factors of these seconds; `credit_tokens`: added to
            the tokens of every round.
        nodes: By look-ups (0: none in the tree) and depth: where steps of a node's score begin, and
            the acceptance there.
        gains: By look-ups and depth: edges of bins of the frontier's mass, and the accepted tokens
            that a pass adds at each size of the grid, by bin.
    """

    free = False

    def __init__(
        self,
        space: Space,
        settings: Settings,
        nodes: Mapping[str, Steps],
        gains: Mapping[str, Gains],
    ) -> None:
        costs = space.costs
        self._grid, self._credit = space.size_grid, 1.0 + settings["credit_tokens"]
        self._verify = [settings["verify_price"] * seconds for seconds in costs.verify]
        later, first = (
            settings["pass_price"] * cost for cost in (costs.draft_pass, costs.first_pass)
        )
        self._drafted = [costs.rest]  # seconds beside verification, by depth
        self._drafted += [costs.rest + first + later * more for more in range(space.max_depth)]
        self._nodes, self._gains = nodes, gains
        self._look_ups = False

    def reset(self) -> None:
        """Nothing to forget."""

    def draft_again(self, state: RoundState) -> bool:
        depth = state.depth
        expected = self._expected(state)
        table = self._gains.get(_key(self._look_ups, depth))
        if table is None or depth + 1 >= len(self._drafted):
            return False
        edges, rows = table
        gains = rows[bisect_right(edges, _mass(state))]
        room, seconds = state.remaining_tokens - 1, self._drafted[depth + 1]
        after = max(
            (self._credit + min(now + gain, room)) / (seconds + self._verify[size])
            for now, gain, size in zip(expected, gains, self._grid, strict=True)
        )
        return after > max(self._rates(state, expected))

    def choose_size(self, state: RoundState) -> int:
        if not state.nodes:
            return 0
        rates = self._rates(state, self._expected(state))
        return self._grid[rates.index(max(rates))]

    def observe(self, record: RoundRecord) -> None:
        """Nothing to learn."""

    def _expected(self, state: RoundState) -> list[float]:
        """Accepted tokens of the best nodes, for every size of the grid."""
        confidence = state.read_confidence() if state.nodes else None
        if state.depth == 0:  # look-ups alone: nothing else is in the tree
            self._look_ups = confidence is not None
        steps = self._nodes.get(_key(self._look_ups, state.depth))
        if confidence is None or steps is None:
            return [0.0] * len(self._grid)
        begins, heights = steps
        sums, total = [0.0], 0.0
        for score in confidence.node_scores[: self._grid[-1]]:
            place = bisect_right(begins, score)
            total += heights[place - 1 if place else 0]
            sums.append(total)
        count, room = len(sums) - 1, max(state.remaining_tokens - 1.0, 0.0)
        return [min(sums[size if size < count else count], room) for size in self._grid]

    def _rates(self, state: RoundState, expected: Sequence[float]) -> list[float]:
        """Expected tokens per second of stopping here, for every size of the grid."""
        seconds, most = self._drafted[state.depth], min(state.nodes, state.max_size)
        return [
            (self._credit + tokens) / (seconds + self._verify[size if size < most else most])
            for tokens, size in zip(expected, self._grid, strict=True)
        ]


def _key(look_ups: bool, depth: int) -> str:
    return f"{int(look_ups)}/{depth}"


def _mass(state: RoundState) -> float:
    """Promised probability that the text goes on below the frontier; before the first pass,
    tokens that the look-ups promise."""
    if not state.nodes:
        return 0.0
    known = state.read_confidence()
    return sum(map(math.exp, known.frontier_scores if state.depth else known.node_scores))


def _node_curve(
    trace: Trace, kept: Float64Array, rows: IntArray, depth: int, weights: Float64Array
) -> Steps:
    """Acceptance of a node by its score, from the nodes between sizes of the grid."""
    grid = np.array(trace.shape.size_grid)
    width = np.diff(np.minimum(grid, trace.nodes[rows, depth][:, None]), axis=1)
    some = width > 0
    promised = np.diff(trace.partial[rows, depth].astype(np.float64), axis=1)[some] / width[some]
    observed = np.diff(kept[rows, depth], axis=1)[some] / width[some]
    scores = np.log(np.maximum(promised, LEAST_PROMISE))
    return curve(scores, observed, (width * weights[rows][:, None])[some], NODE_STEPS)


def _gain_table(
    trace: Trace, kept: Float64Array, rows: IntArray, depth: int, weights: Float64Array
) -> Gains:
    """What a pass adds at every size, by the mass of the frontier."""
    below = np.exp(trace.frontier[rows, depth].astype(np.float64)).sum(1)
    mass = below if depth else trace.total[rows, 0].astype(np.float64)
    edges = np.unique(np.quantile(mass, np.linspace(0, 1, GAIN_BINS + 1)[1:-1]))
    place, w = np.searchsorted(edges, mass, side="right"), weights[rows]
    count = len(edges) + 1
    filled = np.maximum(np.bincount(place, w, count), 1e-12)
    gained = kept[rows, depth + 1] - kept[rows, depth]
    columns = [np.bincount(place, w * gain, count) / filled for gain in gained.T]
    if depth:  # the more survives the more is added; of strong look-ups that is not so
        columns = [isotonic(column, filled) for column in columns]
    return edges.tolist(), np.stack(columns, axis=1).tolist()
