"""Small traces made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftgym.traces.trace import Trace, TracedSequence, TraceShape


def make_trace(
    ranks: Sequence[Sequence[Sequence[int]]],
    lengths: Sequence[int] | None = None,
    *,
    size_grid: tuple[int, ...] = (0, 1, 2, 4),
    beam_width: int = 2,
    prompt_tokens: int = 5,
    budget: int | None = None,
    seed: int = 0,
) -> Trace:
    """A trace with these ranks, [rows, levels, path]; beliefs are random but well-formed.

    Args:
        ranks: Of the true path's tokens.
        lengths: Tokens of each sequence; one sequence that fills the rows when None.
        size_grid: Of the partial sums.
        beam_width: Frontier nodes.
        prompt_tokens: Of every prompt.
        budget: Of every request; its length when None.
        seed: Of the beliefs.
    """
    rank = np.asarray(ranks, np.int16)
    rows, levels, path = rank.shape
    lengths = (rows + 1,) if lengths is None else lengths
    random = np.random.default_rng(seed)
    shape = TraceShape(levels - 1, beam_width, size_grid, path)
    sequences = tuple(
        TracedSequence(
            f"prompt-{i}", ("code", "chat")[i % 2], "en", prompt_tokens, (7,) * n, budget or n
        )
        for i, n in enumerate(lengths)
    )
    emitted = np.concatenate([np.arange(1, n) for n in lengths]).astype(np.int32)
    sequence = np.repeat(np.arange(len(lengths)), [n - 1 for n in lengths]).astype(np.int32)
    room = np.array([budget or n for n in lengths])[sequence] - emitted
    grown = beam_width + np.maximum(np.arange(levels) - 1, 0) * beam_width**2
    nodes = np.where(np.arange(levels) == 0, 2, 2 + grown)
    gains = random.uniform(0, 1, (rows, levels, len(size_grid)))
    gains[..., 0] = 0.0
    frontier = -np.sort(random.exponential(1.0, (rows, levels, beam_width)), axis=-1)
    return Trace(
        shape=shape,
        sequences=sequences,
        context_limit=2048,
        sequence=sequence,
        emitted=emitted,
        depth_limit=np.minimum(levels - 1, room - 1).astype(np.int16),
        nodes=np.broadcast_to(nodes, (rows, levels)).astype(np.int16),
        frontier=frontier.astype(np.float32),
        entropy=random.uniform(0, 5, (rows, levels)).astype(np.float32),
        margin=random.uniform(0, 1, (rows, levels)).astype(np.float32),
        partial=np.cumsum(gains, -1).astype(np.float32),
        total=(gains.sum(-1) + 0.5).astype(np.float32),
        rank=rank,
        source={},
    )
