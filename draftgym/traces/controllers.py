"""Controllers of many rounds at once that need no measurement: fixed and random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftgym.batch_state import BoolArray, IntArray, RoundBatch


class FixedBatch:
    """The same depth and size in every round.

    Args:
        depth: Draft passes, `D >= 0`.
        size: Drafted tokens verified, `V >= 0`.

    Raises:
        ValueError: If one is negative.
    """

    free = True

    def __init__(self, depth: int, size: int) -> None:
        if depth < 0 or size < 0:
            raise ValueError(f"depth and size must not be negative, got {depth} and {size}")
        self.depth, self.size = depth, size
        self.deepest = depth

    def draft_again(self, rounds: RoundBatch) -> BoolArray:
        """Whether a round is still short of the depth."""
        return rounds.depth < self.depth

    def choose_size(self, rounds: RoundBatch) -> IntArray:
        """The size, for every round."""
        return np.full(len(rounds), self.size)


class RandomBatch:
    """Uniformly random depth and size in every round.

    The depth is not drawn beforehand: of the depths 0 to D that are left at depth d, all but one
    go on, so that going on with probability (D - d) / (D - d + 1) stops at each equally often.

    Args:
        seed: Of its stream; fresh entropy when None.
        max_depth: Depths 0 to this are drawn.
        size_grid: Sizes drawn from.
    """

    free = True

    def __init__(self, seed: int | None, max_depth: int, size_grid: Sequence[int]) -> None:
        self.deepest, self._grid = max_depth, np.array(size_grid, np.int64)
        self._random = np.random.default_rng(seed)

    def reseed(self, seed: int) -> None:
        """Restart the stream."""
        self._random = np.random.default_rng(seed)

    def draft_again(self, rounds: RoundBatch) -> BoolArray:
        """Whether a round goes on, drawn for each."""
        left = self.deepest - rounds.depth
        goes_on: BoolArray = self._random.random(len(rounds)) * (left + 1) < left
        return goes_on

    def choose_size(self, rounds: RoundBatch) -> IntArray:
        """A size of the grid, drawn for each round."""
        return self._grid[self._random.integers(len(self._grid), size=len(rounds))]
