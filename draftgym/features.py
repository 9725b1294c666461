"""The one observation layout: environments and exported controllers both call this file.

It knows `RoundState` and numpy, and nothing of models, devices or learning. Every entry has a
name, a unit and bounds; whatever a state holds, an observation is float32, finite and inside
them: a NaN becomes the entry's lower bound, everything else is clipped.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from draftgym.feature_list import (
    Block,
    Feature,
    history_features,
    round_features,
    size_features,
)
from draftgym.round_reader import RoundReader
from draftgym.state import Float32Array, RoundState

LAYOUT_SCHEMA = "draftgym.features/1"
"""Bump the number when an entry changes meaning without changing name, bounds or unit."""

DEFAULT_SIZE_GRID = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

MOST = 1024
"""Bound of every shape: a layout may come from a downloaded file."""


@dataclass(frozen=True)
class FeatureLayout:
    """Observations of the depth and of the size decision, in the order of their names.

    The history block follows the acceptance history that adaptive drafting rules read; the
    cumulative scores are those of EAGLE-2's dynamic tree (arXiv:2406.16858), whose exponentials
    sum to an estimate of the accepted tokens.

    Args:
        max_depth: Draft passes that a round may make at most.
        beam_width: Frontier nodes per pass.
        history: Rounds of acceptance history.
        size_grid: Verification sizes that a policy may choose, strictly increasing from 0.

    Raises:
        ValueError: If a field is out of range, naming it.

    Examples:
        >>> layout = FeatureLayout(max_depth=2, beam_width=1, history=1, size_grid=(0, 2))
        >>> layout.size_names[-2:]
        ('nodes', 'expected_accepted_2')
    """

    max_depth: int = 8
    beam_width: int = 4
    history: int = 8
    size_grid: tuple[int, ...] = DEFAULT_SIZE_GRID

    def __post_init__(self) -> None:
        for name in ("max_depth", "beam_width", "history"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= MOST:
                raise ValueError(f"{name}: must be an integer from 1 to {MOST}, got {value!r:.40}")
        if not all(isinstance(size, int) and size <= MOST for size in self.size_grid):
            raise ValueError(f"size_grid: must hold integers up to {MOST}")
        grid = tuple(self.size_grid)
        if len(grid) < 2 or grid[0] != 0 or any(a >= b for a, b in itertools.pairwise(grid)):
            raise ValueError(f"size_grid: must be strictly increasing from 0, got {grid}")
        object.__setattr__(self, "size_grid", grid)

    @property
    def max_size(self) -> int:
        """Largest verification size of the grid."""
        return self.size_grid[-1]

    @cached_property
    def depth_features(self) -> tuple[Feature, ...]:
        """Entries of the observation before each draft pass."""
        return (*history_features(self), *round_features(self))

    @cached_property
    def size_features(self) -> tuple[Feature, ...]:
        """Entries of the observation before verification."""
        return (*self.depth_features, *size_features(self))

    @cached_property
    def depth_names(self) -> tuple[str, ...]:
        """Names of the depth observation's entries, in order."""
        return tuple(feature.name for feature in self.depth_features)

    @cached_property
    def size_names(self) -> tuple[str, ...]:
        """Names of the size observation's entries, in order."""
        return tuple(feature.name for feature in self.size_features)

    @property
    def depth_low(self) -> Float32Array:
        """Lower bounds of the depth observation, shape [n_depth]."""
        return self._depth_block.low.copy()

    @property
    def depth_high(self) -> Float32Array:
        """Upper bounds of the depth observation, shape [n_depth]."""
        return self._depth_block.high.copy()

    @property
    def size_low(self) -> Float32Array:
        """Lower bounds of the size observation, shape [n_size]."""
        return self._size_block.low.copy()

    @property
    def size_high(self) -> Float32Array:
        """Upper bounds of the size observation, shape [n_size]."""
        return self._size_block.high.copy()

    def schema(self) -> dict[str, Any]:
        """Everything that gives an observation its meaning, as plain data."""
        return {
            "schema": LAYOUT_SCHEMA,
            "parameters": {
                "max_depth": self.max_depth,
                "beam_width": self.beam_width,
                "history": self.history,
                "size_grid": list(self.size_grid),
            },
            "depth": [asdict(feature) for feature in self.depth_features],
            "size": [asdict(feature) for feature in self.size_features],
        }

    def hash(self) -> str:
        """sha256 of the schema's canonical JSON: changes with any name, bound, unit or scale."""
        text = json.dumps(self.schema(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def depth_observation(self, state: RoundState) -> Float32Array:
        """What a depth policy sees before a draft pass.

        Not for concurrent use: the layout remembers the round that it read last.

        Args:
            state: The running round.

        Returns:
            A fresh array, shape [n_depth].
        """
        return self._depth_block.bounded(self.depth_raw(state))

    def size_observation(self, state: RoundState) -> Float32Array:
        """What a size policy sees when drafting has stopped.

        Args:
            state: The running round.

        Returns:
            A fresh array, shape [n_size].
        """
        return self._size_block.bounded(self.size_raw(state))

    def depth_raw(self, state: RoundState) -> list[float]:
        """The depth observation before scale and bounds."""
        return self._reader.depth(state)

    def size_raw(self, state: RoundState) -> list[float]:
        """The size observation before scale and bounds."""
        return self._reader.size(state)

    @cached_property
    def _reader(self) -> RoundReader:
        return RoundReader(self)

    @cached_property
    def _depth_block(self) -> Block:
        return Block(self.depth_features)

    @cached_property
    def _size_block(self) -> Block:
        return Block(self.size_features)
