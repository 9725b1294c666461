"""What a trace holds: plain numpy columns, one row per position at which a round may start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

ABSENT = np.int16(2**15 - 1)
"""Rank of a token of the true path that the tree does not hold."""

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TraceShape:
    """Sizes of the columns.

    Attributes:
        max_depth: Deepest draft of the trace, `D`; 0 for drafters without passes.
        beam_width: Frontier nodes, `W`.
        size_grid: Verification sizes of the partial sums, increasing from 0.
        path: Longest accepted path that a tree can hold, `P`.
    """

    max_depth: int
    beam_width: int
    size_grid: tuple[int, ...]
    path: int

    def columns(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Number type and shape of one row of every column."""
        levels = self.max_depth + 1
        return {
            "sequence": ("int32", ()),
            "emitted": ("int32", ()),
            "depth_limit": ("int16", ()),
            "nodes": ("int16", (levels,)),
            "frontier": ("float32", (levels, self.beam_width)),
            "entropy": ("float32", (levels,)),
            "margin": ("float32", (levels,)),
            "partial": ("float32", (levels, len(self.size_grid))),
            "total": ("float32", (levels,)),
            "rank": ("int16", (levels, self.path)),
        }

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return sum(
            np.dtype(kind).itemsize * int(np.prod(shape)) for kind, shape in self.columns().values()
        )


@dataclass(frozen=True, slots=True)
class TracedSequence:
    """One request whose positions were traced.

    Attributes:
        prompt_id: Id of the prompt.
        domain: Its domain.
        language: Its language.
        prompt_tokens: Tokens of the prompt.
        tokens: Emitted token ids, the first (which prefill makes) included.
        max_new_tokens: Budget of the request, at least `len(tokens)`.
        sequence: Keys the noise of sampling, as in a live session.
        request_id: What is asked, shared by translations; empty if it has no name of its own.
    """

    prompt_id: str
    domain: str
    language: str
    prompt_tokens: int
    tokens: tuple[int, ...]
    max_new_tokens: int
    sequence: int = 0
    request_id: str = ""


@dataclass(frozen=True)
class Trace:
    """Rows of all sequences, in order; a sequence of n tokens has n - 1 rows.

    Row `first[s] + e - 1` of sequence `s` is the round that starts when `e` of its tokens are
    emitted; the e-th is the root. Level d of a column describes the tree after d passes, d = 0
    being free proposals alone; levels beyond `depth_limit` repeat the last allowed one, which is
    what a round that asks for more gets.

    Attributes:
        shape: Sizes.
        sequences: The requests.
        context_limit: Committed tokens that the decoder takes.
        sequence: Index into `sequences`, [n].
        emitted: Tokens emitted when the round starts, [n].
        depth_limit: Passes that the round allows (budget, context), [n].
        nodes: Nodes in the tree, [n, D + 1].
        frontier: Cumulative log-probabilities of the frontier, descending, -inf where there is
            none, [n, D + 1, W]; at level 0 the best free proposal's.
        entropy: Of the next-token law at the best expanded node, nats, [n, D + 1].
        margin: Difference of its two largest probabilities, [n, D + 1].
        partial: Expected accepted tokens of the best V nodes, [n, D + 1, len(size_grid)]; the
            first is 0.
        total: The same of all nodes, [n, D + 1].
        rank: Rank, from 0, of the j-th token of the text after the root in the total order of
            the tree's nodes, `ABSENT` if the tree or the text lacks it, [n, D + 1, P].
        source: Where it came from: pair, drafter, rule, code, command; plain data.
    """

    shape: TraceShape
    sequences: tuple[TracedSequence, ...]
    context_limit: int
    sequence: NDArray[np.int32]
    emitted: NDArray[np.int32]
    depth_limit: NDArray[np.int16]
    nodes: NDArray[np.int16]
    frontier: NDArray[np.float32]
    entropy: NDArray[np.float32]
    margin: NDArray[np.float32]
    partial: NDArray[np.float32]
    total: NDArray[np.float32]
    rank: NDArray[np.int16]
    source: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name, (kind, shape) in self.shape.columns().items():
            column = getattr(self, name)
            if column.dtype != kind or column.shape != (len(self), *shape):
                raise ValueError(
                    f"{name}: {column.dtype} {list(column.shape)}, "
                    f"expected {kind} {[len(self), *shape]}"
                )

    def __len__(self) -> int:
        return len(self.sequence)

    @property
    def lengths(self) -> IntArray:
        """Tokens of each sequence, [sequences]."""
        return np.array([len(entry.tokens) for entry in self.sequences], np.int64)

    @property
    def first(self) -> IntArray:
        """Row at which each sequence starts, and the number of rows, [sequences + 1]."""
        return np.concatenate(([0], np.cumsum(np.maximum(self.lengths - 1, 0))))

    def accepted(self, rows: IntArray, depth: IntArray, size: IntArray) -> IntArray:
        """Drafted tokens that a round keeps.

        Args:
            rows: Positions, [m].
            depth: Draft passes, at most `D`, [m].
            size: Verification sizes, [m]; 0 keeps nothing.

        Returns:
            int64 [m].
        """
        kept = self.rank[rows, depth] < np.asarray(size)[:, None]
        prefix: IntArray = np.logical_and.accumulate(kept, axis=1).sum(1, dtype=np.int64)
        return prefix

    def accepted_by_size(self, sizes: IntArray) -> NDArray[np.int16]:
        """Drafted tokens that a round keeps, for every position, depth and size at once.

        Args:
            sizes: Verification sizes, [k].

        Returns:
            [n, D + 1, k].
        """
        kept = np.empty((*self.rank.shape[:2], len(sizes)), np.int16)
        for index, size in enumerate(sizes):
            kept[:, :, index] = np.logical_and.accumulate(self.rank < size, axis=2).sum(2)
        return kept

    def select(self, sequences: IntArray) -> Trace:
        """The rows of some sequences, copied, in the order asked for."""
        first = self.first
        rows = np.concatenate([np.arange(first[s], first[s + 1]) for s in sequences])
        changes = {
            entry.name: getattr(self, entry.name)[rows]
            for entry in fields(self)
            if entry.name in self.shape.columns()
        }
        lengths = (first[1:] - first[:-1])[sequences]
        changes["sequence"] = np.repeat(np.arange(len(sequences), dtype=np.int32), lengths)
        return Trace(
            shape=self.shape,
            sequences=tuple(self.sequences[int(s)] for s in sequences),
            context_limit=self.context_limit,
            source=self.source,
            **changes,
        )

    def joined(self, other: Trace) -> Trace:
        """The rows of both, this one's first; where they came from is this one's word.

        Args:
            other: Of the same shape and context limit.

        Raises:
            ValueError: It is not; names the field.
        """
        for name in ("shape", "context_limit"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"{name}: {getattr(other, name)}, expected {getattr(self, name)}")
        changes = {
            name: np.concatenate((getattr(self, name), getattr(other, name)))
            for name in self.shape.columns()
        }
        changes["sequence"] = np.concatenate(
            (self.sequence, other.sequence + np.int32(len(self.sequences)))
        )
        return Trace(
            shape=self.shape,
            sequences=self.sequences + other.sequences,
            context_limit=self.context_limit,
            source=self.source,
            **changes,
        )
