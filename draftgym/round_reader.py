"""From a running round to the raw values of its observations, as plain numbers.

It runs right after a pass that emptied the caches, where every function not used a moment ago
costs microseconds: few calls, and nothing worked out twice for the same history or confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftgym.entries import acceptance_entries, round_entries, size_entries
from draftgym.state import NO_CONFIDENCE, Confidence, History, RoundState

if TYPE_CHECKING:
    from draftgym.features import FeatureLayout


class RoundReader:
    """Reads one round after another; not for concurrent use.

    Args:
        layout: What is read, in which order.
        law: Whether entropy and margin are read; they are 0 for a reader that ignores them.
    """

    def __init__(self, layout: FeatureLayout, law: bool = True) -> None:
        self._law = law
        self._rounds, self._width = layout.history, layout.beam_width
        self._sizes = layout.size_grid[1:]
        self._history: History | None = None
        self._rounds_read = 0
        self._acceptance: list[float] = []
        self._confidence: Confidence | None = None
        self._expected = [0.0]

    def depth(self, state: RoundState) -> list[float]:
        """Entries of the depth observation before scale and bounds, [n_depth].

        Args:
            state: The running round.
        """
        # A history grows by whole rounds only.
        history = state.history
        if history is not self._history or history.rounds != self._rounds_read:
            self._acceptance = self._read_history(history)
            self._history, self._rounds_read = history, history.rounds
        # Before anything is in the tree there is nothing to read from the device.
        confidence = state.read_confidence(self._law) if state.nodes else NO_CONFIDENCE
        if confidence is not self._confidence:  # one never changes
            self._expected = promised(confidence.node_scores)
            self._confidence = confidence
        frontier, waiting = confidence.frontier_scores, state.uningested_tokens
        known = best = 0.0
        if frontier:
            best = 1.0 if frontier[0] >= 0.0 else math.exp(frontier[0])
            # Free proposals have scores, but no law: entropy and margin are unknown.
            known = 1.0 if state.depth else 0.0
        # An absent slot reads as the least likely path.
        absent = (-math.inf,) * (self._width - len(frontier))
        budget = state.max_new_tokens
        running = round_entries(
            state,
            confidence,
            known,
            (*frontier[: self._width], *absent),
            best,
            self._expected[-1],
            state.remaining_tokens / (budget if budget > 1 else 1),
            math.log2(1 + waiting) if waiting > 0 else 0.0,
        )
        return self._acceptance + running

    def size(self, state: RoundState) -> list[float]:
        """Entries of the size observation before scale and bounds, [n_size].

        Args:
            state: The running round.
        """
        shared = self.depth(state)
        expected = self._expected
        deepest = len(expected) - 1
        return size_entries(
            shared,
            state.nodes,
            [expected[size if size < deepest else deepest] for size in self._sizes],
        )

    def _read_history(self, history: History) -> list[float]:
        """Unscaled entries of the history block."""
        count = self._rounds
        accepted = history.accepted[: -count - 1 : -1]  # newest first
        drafted = history.drafted[: -count - 1 : -1]
        verified = history.verified[: -count - 1 : -1]
        seen = len(accepted)
        full = 0.0
        if seen:
            deep, wide = drafted[0], verified[0]
            possible = deep if deep and deep < wide else wide
            full = 1.0 if 0 < possible <= accepted[0] else 0.0
        missing = (0.0,) * (count - seen)
        shown = seen or 1
        return acceptance_entries(
            (*accepted, *missing, *drafted, *missing, *verified, *missing),
            seen,
            (sum(accepted) / shown, sum(drafted) / shown, sum(verified) / shown),
            full,
        )


def promised(scores: Sequence[float]) -> list[float]:
    """Accepted tokens that the best 0, 1, 2 ... nodes promise: sums of path probabilities.

    Args:
        scores: Cumulative log-probabilities, best first; an unknown one counts as the least
            likely path.
    """
    exp, total = math.exp, 0.0
    sums = [total]
    for score in scores:
        if score < 0.0:
            total += exp(score)
        elif score >= 0.0:
            total += 1.0
        sums.append(total)
    return sums
