"""The learned controller over many rounds at once, for replays."""

from __future__ import annotations

import numpy as np

from draftgym.batch_features import BatchFeatures
from draftgym.batch_state import BoolArray, IntArray, RoundBatch
from draftgym.runtime.network import BatchNetwork
from draftgym.runtime.policy import ExportedPolicy


class ExportedBatch:
    """Decides as `ExportedController` does, row by row; implements `BatchController`.

    Args:
        policy: Checked policy.
    """

    free = False

    def __init__(self, policy: ExportedPolicy) -> None:
        layout, depth, size = policy.layout, policy.depth, policy.size
        self._features = BatchFeatures(layout)
        self._grid = np.array(layout.size_grid, np.int64)
        self._depth = None if depth is None else BatchNetwork(depth, layout.depth_features)
        self._size = None if size is None else BatchNetwork(size, layout.size_features)
        self.deepest = policy.most_passes
        self._fixed_depth = policy.fallback.get("depth", 0)
        self._fixed_size = policy.fallback.get("size", 0)

    def draft_again(self, rounds: RoundBatch) -> BoolArray:
        """Whether each round makes another draft pass; none does at its deepest."""
        if self._depth is None:
            wanted: BoolArray = rounds.depth < self._fixed_depth
        else:
            wanted = self._depth.act(self._features.depth_raw(rounds)) == 1
        return wanted & (rounds.depth < np.minimum(rounds.max_depth, self.deepest))

    def choose_size(self, rounds: RoundBatch) -> IntArray:
        """A size of the grid for each round, 0 for an empty tree."""
        if self._size is None:
            wanted = np.full(len(rounds), self._fixed_size)
        else:
            wanted = self._grid[self._size.act(self._features.size_raw(rounds))]
        return np.where(rounds.nodes > 0, wanted, 0)
