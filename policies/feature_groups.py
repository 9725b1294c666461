"""Groups of observations, and which of them learning from a trace leaves out."""

from __future__ import annotations

from typing import Literal

from draftgym.features import FeatureLayout

Group = Literal["history", "confidence", "position", "costs"]

_HISTORY = ("accepted_", "drafted_", "verified_", "mean_", "rounds_seen", "last_fully_accepted")
_POSITION = (
    "depth", "depth_allowed", "size_allowed", "context_fraction", "remaining_fraction",
    "remaining_near", "uningested", "nodes",
)  # fmt: skip
_COSTS = ("draft_pass_over_plain", "verify_slope_over_plain")


TELLING = (
    "accepted_1", "accepted_2", "accepted_3", "mean_accepted", "mean_drafted", "mean_verified",
    "last_fully_accepted", "has_confidence", "frontier_score_1", "frontier_score_2",
    "best_path_probability", "expected_accepted", "depth", "depth_allowed", "context_fraction",
    "remaining_near", "uningested", "nodes",
)  # fmt: skip
"""What is learned from on traces, beside the expected tokens of each size: ten thousand positions
are too few for more. Rounds that are long past, and what other entries say already, help only to
remember single prompts, and one latency table holds the cost ratios constant. Margin and entropy
of the next-token law add nothing to the paths' probabilities, and reading them is the dearest part
of a decision (docs/log.md)."""


def untold(layout: FeatureLayout) -> tuple[str, ...]:
    """Names of both observations' entries that learning from a trace leaves out.

    Args:
        layout: The observations.
    """
    return tuple(
        name
        for name in layout.size_names
        if name not in TELLING and not name.startswith("expected_accepted_")
    )


def feature_groups(layout: FeatureLayout) -> dict[Group, tuple[str, ...]]:
    """Names of both observations' entries by group; every entry is in one.

    Args:
        layout: The observations.

    Returns:
        History of acceptance; confidence of the drafter; position in round and text (depth, nodes,
        context, budget, tokens not ingested); cost ratios.
    """
    found: dict[Group, list[str]] = {"history": [], "confidence": [], "position": [], "costs": []}
    for name in layout.size_names:
        found[_group(name)].append(name)
    return {group: tuple(names) for group, names in found.items()}


def _group(name: str) -> Group:
    if name.startswith(_HISTORY):
        return "history"
    if name in _POSITION:
        return "position"
    return "costs" if name in _COSTS else "confidence"
