"""Observations of many rounds at once: the layout's own entries over columns of numbers.

What an entry is, its order, scale and bounds are in `draftgym.features`; only the arithmetic
over columns is here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftgym.batch_state import BatchConfidence, BatchHistory, BoolArray, RoundBatch
from draftgym.entries import acceptance_entries, round_entries, size_entries
from draftgym.feature_list import Block, Float64Array
from draftgym.features import FeatureLayout
from draftgym.state import Float32Array

Column = NDArray[np.generic] | float
"""Values of one entry, [m], of k entries in a row, [k, m], or one value for all rounds."""


class BatchFeatures:
    """Observations of a layout for m rounds at once.

    Equal to `FeatureLayout.depth_observation` and `size_observation` of each round; exponentials
    and sums that arrive in float32 may move an entry by one unit in the last place.

    Args:
        layout: Entries, scales and bounds.
    """

    def __init__(self, layout: FeatureLayout) -> None:
        self.layout = layout
        self._depth = Block(layout.depth_features)
        self._size = Block(layout.size_features)

    def depth_observation(self, rounds: RoundBatch) -> Float32Array:
        """What a depth policy sees; a fresh array, [m, n_depth]."""
        return self._depth.bounded(self.depth_raw(rounds))

    def size_observation(self, rounds: RoundBatch) -> Float32Array:
        """What a size policy sees; a fresh array, [m, n_size]."""
        return self._size.bounded(self.size_raw(rounds))

    def depth_raw(self, rounds: RoundBatch) -> Float64Array:
        """The depth observations before scale and bounds, [m, n_depth]."""
        running, _ = self._running(rounds)
        entries = [*self._acceptance(rounds.read_history()), *running]
        return _stack(entries, len(self._depth), len(rounds))

    def size_raw(self, rounds: RoundBatch) -> Float64Array:
        """The size observations before scale and bounds, [m, n_size].

        Raises:
            ValueError: If the confidence was gathered for another size grid.
        """
        running, confidence = self._running(rounds)
        if confidence.sizes != self.layout.size_grid[1:]:
            raise ValueError(
                f"layout.size_grid: {list(self.layout.size_grid[1:])} above 0, but the rounds "
                f"tell of {list(confidence.sizes)}"
            )
        acceptance = self._acceptance(rounds.read_history())
        # An empty tree promises nothing.
        partial = np.where(rounds.nodes[:, None] > 0, confidence.read_partial(), 0.0)
        entries = size_entries([*acceptance, *running], rounds.nodes, [partial.T])
        return _stack(entries, len(self._size), len(rounds))

    def _acceptance(self, history: BatchHistory) -> list[Column]:
        """Unscaled columns of the history block."""
        kinds = (history.accepted, history.drafted, history.verified)
        newest, drafted, verified = (kind[:, 0] for kind in kinds)
        possible = np.minimum(np.where(drafted > 0, drafted, verified), verified)
        shown = np.maximum(history.seen, 1)
        return acceptance_entries(
            [kind.T for kind in kinds],
            history.seen,
            [kind.sum(1) / shown for kind in kinds],
            (possible > 0) & (possible <= newest),
        )

    def _running(self, rounds: RoundBatch) -> tuple[list[Column], BatchConfidence]:
        """Unscaled columns of the running round, and the confidence behind them."""
        confidence = rounds.read_confidence()
        empty = rounds.nodes == 0
        if empty.any():
            confidence = _nothing_where(empty, confidence)
        frontier = confidence.frontier_scores.T[: self.layout.beam_width]  # [W, m]
        absent = [-np.inf] * (self.layout.beam_width - len(frontier))
        # Free proposals have scores, but no law behind them: entropy and margin are unknown.
        known = (rounds.depth > 0) & ~empty
        running = round_entries(
            rounds,
            confidence,
            known,
            [frontier, *absent],
            np.exp(np.minimum(frontier[0], 0.0, dtype=np.float64)),
            confidence.total,
            rounds.remaining_tokens / np.maximum(rounds.max_new_tokens, 1),
            np.log2(1 + np.maximum(rounds.uningested_tokens, 0)),
        )
        return running, confidence


def _nothing_where(empty: BoolArray, known: BatchConfidence) -> BatchConfidence:
    """The confidence, with `NO_CONFIDENCE` in some rounds."""
    return BatchConfidence(
        np.where(empty[:, None], -np.inf, known.frontier_scores),
        np.where(empty, 0.0, known.entropy),
        np.where(empty, 0.0, known.margin),
        known.sizes,
        np.where(empty, 0.0, known.total),
        known.read_partial,
    )


def _stack(columns: list[Column], entries: int, rounds: int) -> Float64Array:
    """Columns side by side, [m, entries], each contiguous in memory."""
    raw = np.empty((entries, rounds), np.float64)
    row = 0
    for column in columns:
        end = row + (len(column) if isinstance(column, np.ndarray) and column.ndim == 2 else 1)
        raw[row:end] = column
        row = end
    if row != entries:
        raise ValueError(f"columns: {row}, but the layout has {entries} entries")
    return raw.T
