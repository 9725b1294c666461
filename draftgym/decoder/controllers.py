"""Controllers that need no measurement: plain, fixed, random, and two halves joined."""

from __future__ import annotations

import random
from collections.abc import Sequence

from draftgym.state import Controller, RoundRecord, RoundState


class FixedController:
    """The same depth and size in every round; `FixedController(0, 0)` decodes plainly.

    Args:
        depth: Draft passes, `D >= 0`.
        size: Drafted tokens verified, `V >= 0`.
    """

    free = True

    def __init__(self, depth: int, size: int) -> None:
        if depth < 0 or size < 0:
            raise ValueError(f"depth and size must not be negative, got {depth} and {size}")
        self.depth, self.size = depth, size

    def reset(self) -> None:
        """Nothing to forget."""

    def draft_again(self, state: RoundState) -> bool:
        return state.depth < self.depth

    def choose_size(self, state: RoundState) -> int:
        return self.size

    def observe(self, record: RoundRecord) -> None:
        """Nothing to learn."""


class PlainController(FixedController):
    """Plain decoding: no draft pass, nothing verified."""

    def __init__(self) -> None:
        super().__init__(0, 0)


class RandomController:
    """Uniformly random depth and size, drawn anew for every round.

    Args:
        seed: Seed of its own generator; `reset` does not restart it.
        max_depth: Depths 0 to this are drawn.
        size_grid: Sizes drawn from.
    """

    free = True

    def __init__(self, seed: int, max_depth: int, size_grid: Sequence[int]) -> None:
        self._random = random.Random(seed)
        self._max_depth, self._grid = max_depth, tuple(size_grid)
        self._depth = 0

    def reset(self) -> None:
        """Keeps its stream: prompts see different draws."""

    def reseed(self, seed: int) -> None:
        """Restart the stream (a seeded reset of an environment does)."""
        self._random.seed(seed)

    def draft_again(self, state: RoundState) -> bool:
        if state.depth == 0:
            self._depth = self._random.randint(0, self._max_depth)
        return state.depth < self._depth

    def choose_size(self, state: RoundState) -> int:
        return self._random.choice(self._grid)

    def observe(self, record: RoundRecord) -> None:
        """Nothing to learn."""

    def state_dict(self) -> dict[str, object]:
        """Random state as plain data, for resuming."""
        version, internal, gauss = self._random.getstate()
        return {"version": version, "internal": list(internal), "gauss": gauss}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from `state_dict`."""
        internal = state["internal"]
        assert isinstance(internal, list)
        self._random.setstate((state["version"], tuple(internal), state["gauss"]))


class SplitController:
    """Depth from one controller, size from another.

    Args:
        depth_controller: Asked before every draft pass.
        size_controller: Asked for the verification size.
    """

    def __init__(self, depth_controller: Controller, size_controller: Controller) -> None:
        self._depth, self._size = depth_controller, size_controller

    @property
    def free(self) -> bool:
        return self._depth.free and self._size.free

    def reset(self) -> None:
        self._depth.reset()
        self._size.reset()

    def draft_again(self, state: RoundState) -> bool:
        return self._depth.draft_again(state)

    def choose_size(self, state: RoundState) -> int:
        return self._size.choose_size(state)

    def observe(self, record: RoundRecord) -> None:
        self._depth.observe(record)
        self._size.observe(record)
