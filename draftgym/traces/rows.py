"""One tree and the text that followed, into one row of a trace; numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgym.state import Confidence, Float32Array
from draftgym.traces.trace import ABSENT, IntArray, TraceShape


@dataclass(frozen=True, slots=True)
class Level:
    """A tree after some passes.

    Attributes:
        scores: Cumulative log-probabilities of its nodes in order of insertion, [nodes].
        belief: What a controller reads there.
    """

    scores: Float32Array
    belief: Confidence


@dataclass(frozen=True, slots=True)
class GrownTree:
    """The deepest tree at one position; node i of `tokens`, `parents` and `depths` is node i.

    Attributes:
        tokens: Token ids, the root first, [nodes + 1].
        parents: Nodes, [nodes + 1].
        depths: Of each node, the root's is 0, [nodes + 1].
        levels: After 0, 1, ... passes.
    """

    tokens: IntArray
    parents: IntArray
    depths: IntArray
    levels: Sequence[Level]


def row(tree: GrownTree, text: Sequence[int], shape: TraceShape) -> dict[str, NDArray[Any]]:
    """The columns that the tree fills.

    Args:
        tree: The tree.
        text: Tokens that followed its root; no more than are ever read.
        shape: Sizes of the columns.
    """
    made = len(tree.levels)
    nodes = len(tree.tokens) - 1
    scores = np.full((made, nodes), np.nan, np.float32)  # NaN: not in the tree yet, sorts last
    for level, known in zip(scores, tree.levels, strict=True):
        level[: len(known.scores)] = known.scores
    by_depth = np.argsort(tree.depths[1:], kind="stable")
    order = by_depth[np.argsort(-scores[:, by_depth], axis=1, kind="stable")]  # [levels, nodes]
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(nodes)[None], axis=1)
    path = true_path(tree, text[: shape.path])
    rank = np.full((made, shape.path), ABSENT, np.int16)
    counts = np.array([len(level.scores) for level in tree.levels])
    rank[:, : len(path)] = np.where(path < counts[:, None], ranks[:, path], ABSENT)
    survival = np.exp(np.minimum(np.take_along_axis(scores, order, axis=1), 0.0), dtype=np.float64)
    sums = np.cumsum(np.nan_to_num(survival, nan=0.0), axis=1)
    sums = np.concatenate((np.zeros((made, 1)), sums), axis=1)  # of the best V nodes
    frontier = np.full((made, shape.beam_width), -np.inf, np.float32)
    for slots, known in zip(frontier, tree.levels, strict=True):
        seen = known.belief.frontier_scores[: shape.beam_width]
        slots[: len(seen)] = seen
    columns = {
        "nodes": counts,
        "frontier": frontier,
        "entropy": np.array([level.belief.entropy for level in tree.levels]),
        "margin": np.array([level.belief.margin for level in tree.levels]),
        "partial": sums[:, np.minimum(shape.size_grid, nodes)],
        "total": sums[:, -1],
        "rank": rank,
    }
    # A round that asks for more passes than it may make gets the deepest tree there is.
    last = np.minimum(np.arange(shape.max_depth + 1), made - 1)
    kinds = shape.columns()
    return {name: column[last].astype(kinds[name][0]) for name, column in columns.items()}


def true_path(tree: GrownTree, text: Sequence[int]) -> IntArray:
    """Nodes, counted from 0 without the root, along which the tree holds the text."""
    path, current = [], 0
    for token in text:
        children = np.flatnonzero((tree.parents == current) & (tree.tokens == token))
        children = children[children > current]  # the root is its own parent
        if not len(children):
            break
        current = int(children[0])
        path.append(current - 1)
    return np.array(path, np.int64)
