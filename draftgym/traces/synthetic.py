"""A made-up trace and made-up seconds: for timing replays, never for judging a policy."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from draftgym.costs.times import Float64Array, Work
from draftgym.features import FeatureLayout
from draftgym.runtime import DecisionSeconds
from draftgym.traces.trace import ABSENT, Trace, TracedSequence, TraceShape

_FREE_TOKENS = 8
_CONTEXT_LIMIT = 2048


class SyntheticTimes:
    """Seconds of a small pair on a CPU, in round numbers, with a spread of a few percent.

    Args:
        samples: Factors that are drawn from, as many as a measured bucket might hold.
    """

    decision_seconds = DecisionSeconds(1e-4, 1e-4)

    def __init__(self, samples: int = 256) -> None:
        spread = np.random.default_rng(0).lognormal(0.0, 0.05, samples)
        self._factors = spread / spread.mean()

    def mean(self, kind: Work, units: ArrayLike, context: ArrayLike) -> Float64Array:
        """Affine in the units, slowly growing with the context."""
        fixed, unit = {
            "propose": (1e-4, 0.0),
            "first": (2e-3, 5e-5),
            "later": (2e-3, 0.0),
            "verify": (3e-2, 1e-3),
            "commit": (2e-4, 0.0),
        }[kind]
        units, context = np.asarray(units), np.asarray(context)
        seconds: Float64Array = (fixed + unit * units) * (1.0 + context / 8192)
        return seconds

    def draw(
        self, kind: Work, units: ArrayLike, context: ArrayLike, rng: np.random.Generator
    ) -> Float64Array:
        """The mean, times a factor drawn for each."""
        seconds = self.mean(kind, units, context)
        picks = rng.random(seconds.shape) * len(self._factors)  # quicker than integers
        drawn: Float64Array = seconds * self._factors.take(picks.astype(np.int64))
        return drawn


def synthetic_trace(
    layout: FeatureLayout, *, sequences: int = 200, tokens: int = 96, seed: int = 0
) -> Trace:
    """A trace with the shapes and the rough statistics of a real one.

    A token of the text is drafted with a probability of the position's own; ranks, scores and
    sums are drawn apart from each other, so nothing can be learned from it.

    Args:
        layout: Depth, width and sizes.
        sequences: Requests.
        tokens: Of each, at least 2.
        seed: Of everything.
    """
    random = np.random.default_rng(seed)
    depth, width, grid = layout.max_depth, layout.beam_width, layout.size_grid
    shape = TraceShape(depth, width, grid, max(depth, _FREE_TOKENS))
    rows, levels = sequences * (tokens - 1), np.arange(depth + 1)
    emitted = np.tile(np.arange(1, tokens, dtype=np.int32), sequences)
    free = random.binomial(_FREE_TOKENS, 0.3, (rows, 1)) * (random.random((rows, 1)) < 0.4)
    grown = np.where(levels > 0, width + (levels - 1) * width**2, 0)
    nodes = free + grown  # [rows, levels]
    place = np.arange(shape.path)
    reached = random.geometric(1 - random.beta(3, 2, (rows, 1)), (rows, 1)) - 1
    drafted = (place < reached)[:, None] & (place < np.maximum(free, levels)[:, :, None])
    rank = np.cumsum(random.geometric(0.6, (rows, shape.path)), 1) - 1  # [rows, path]
    rank = np.where(drafted, rank[:, None], ABSENT)
    rank = np.where(rank < nodes[:, :, None], rank, ABSENT)
    scores = -np.cumsum(random.exponential(0.7, (rows, depth + 1, width)), -1)
    scores[:, 0] = np.where(np.arange(width) == 0, scores[:, 0], -np.inf)
    most = (0.8 * levels * random.random((rows, 1)))[:, :, None]
    partial = most * (1 - np.exp(-np.minimum(grid, nodes[:, :, None]) / 3.0))
    return Trace(
        shape=shape,
        sequences=tuple(
            TracedSequence(f"synthetic-{index}", "synthetic", "none", 64, (0,) * tokens, tokens)
            for index in range(sequences)
        ),
        context_limit=_CONTEXT_LIMIT,
        sequence=np.repeat(np.arange(sequences, dtype=np.int32), tokens - 1),
        emitted=emitted,
        depth_limit=np.minimum(depth, tokens - emitted - 1).astype(np.int16),
        nodes=nodes.astype(np.int16),
        frontier=scores.astype(np.float32),
        entropy=random.gamma(2.0, 0.8, (rows, depth + 1)).astype(np.float32),
        margin=random.random((rows, depth + 1)).astype(np.float32),
        partial=partial.astype(np.float32),
        total=most[:, :, 0].astype(np.float32),
        rank=rank.astype(np.int16),
        source={"synthetic": True, "seed": seed},
    )
