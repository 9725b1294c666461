"""The learned controller of a decoder: features and networks in numpy, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftgym.features import FeatureLayout
from draftgym.round_reader import RoundReader
from draftgym.runtime.network import Network
from draftgym.runtime.policy import ExportedPolicy
from draftgym.state import MeasuredCosts, RoundRecord, RoundState


def known_costs(training: Mapping[str, Any]) -> MeasuredCosts:
    """Cost ratios in the summary of a training, zeros where it tells none."""
    known = training.get("costs", {})
    return MeasuredCosts(
        draft_pass_over_plain=float(known.get("draft_pass_over_plain", 0.0)),
        verify_slope_over_plain=float(known.get("verify_slope_over_plain", 0.0)),
    )


def _reads_law(policy: ExportedPolicy) -> bool:
    """Whether entropy or margin of the next-token law has a weight in a network."""
    pairs = ((policy.depth, policy.layout.depth_names), (policy.size, policy.layout.size_names))
    return any(
        head.weights[0][:, [names.index("margin"), names.index("entropy")]].any()
        for head, names in pairs
        if head is not None
    )


class ExportedController:
    """Runs an exported policy deterministically; implements `draftgym.state.Controller`.

    It asks no network when only one answer is left (deepest draft of the round or of the policy
    reached, empty tree): the training environments do not ask, and do not charge, those decisions
    either.

    Args:
        policy: Checked policy, from `draftgym.runtime.load` or straight from training.
    """

    free = False

    def __init__(self, policy: ExportedPolicy) -> None:
        self.policy = policy
        layout, depth, size = policy.layout, policy.depth, policy.size
        self._layout, self._grid = layout, layout.size_grid
        self._reader = RoundReader(layout, law=_reads_law(policy))
        self._depth = None if depth is None else Network(depth, layout.depth_features)
        self._size = None if size is None else Network(size, layout.size_features)
        self.deepest = policy.most_passes
        self._fixed_depth = policy.fallback.get("depth", 0)
        self._fixed_size = policy.fallback.get("size", 0)

    @property
    def layout(self) -> FeatureLayout:
        """Observations and actions."""
        return self._layout

    @property
    def training(self) -> Mapping[str, Any]:
        """How it was learned, plain data."""
        return self.policy.training

    @property
    def costs(self) -> MeasuredCosts:
        """Cost ratios seen in training, for a session that has not measured this machine."""
        return known_costs(self.policy.training)

    def reset(self) -> None:
        """Nothing to forget: the session keeps the history."""

    def draft_again(self, state: RoundState) -> bool:
        """Whether to make another draft pass."""
        if state.depth >= state.max_depth or state.depth >= self.deepest:
            return False
        if self._depth is None:
            return state.depth < self._fixed_depth
        return self._depth.act(self._reader.depth(state)) == 1

    def choose_size(self, state: RoundState) -> int:
        """Verification size from the grid; the session clamps it to the tree."""
        if not state.nodes:
            return 0
        if self._size is None:
            return self._fixed_size
        return self._grid[self._size.act(self._reader.size(state))]

    def observe(self, record: RoundRecord) -> None:
        """Nothing to learn: the session keeps the history."""
