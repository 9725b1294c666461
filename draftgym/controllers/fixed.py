"""The baselines: the same cell in every round, and a random one."""

from __future__ import annotations

from collections.abc import Sequence

from draftgym.controllers.base import GRID_LIMIT, Fitted, Rule, Settings, Space
from draftgym.decoder.controllers import FixedController, RandomController
from draftgym.state import Controller

DEPTHS = (0, 1, 2, 3, 4, 6)
SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32)


class FixedRule(Rule):
    """Fixed depth and size, the setting of most engines (Leviathan et al., 2023)."""

    name = "fixed"
    title = "fixed depth and size"
    short = "fixed setting"
    source = "Leviathan et al. 2023, arXiv 2211.17192"

    def grid(self, space: Space) -> Sequence[Settings]:
        cells = [
            {"depth": depth, "size": size}
            for depth in DEPTHS
            if (depth or space.free_proposals) and depth <= space.max_depth
            for size in space.cell_sizes(depth)
            if size in SIZES or size == 1
        ]
        # A single token only where there is room: with look-ups larger sizes deserve it more.
        return cells if len(cells) <= GRID_LIMIT else [c for c in cells if c["size"] > 1]

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        return FixedController(int(settings["depth"]), int(settings["size"]))


class RandomRule(Rule):
    """Uniformly random depth and size up to tuned limits, drawn anew for every round."""

    name = "random"
    title = "random depth and size"
    short = "random setting"
    source = "control"

    def grid(self, space: Space) -> Sequence[Settings]:
        depths = sorted({min(depth, space.max_depth) for depth in (1, 2, 4, 8)})
        sizes = [size for size in (4, 8, 16, 32) if size in space.sizes] or space.sizes[-1:]
        return [{"most_depth": depth, "most_size": size} for depth in depths for size in sizes]

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        sizes = [size for size in space.size_grid if size <= settings["most_size"]]
        return RandomController(seed, int(settings["most_depth"]), sizes)
