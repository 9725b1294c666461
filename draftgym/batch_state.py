"""What a controller of many rounds may look at: the fields of `draftgym.state` as columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from draftgym.state import MeasuredCosts

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class BatchConfidence:
    """What the drafter believes in m rounds; entries of a tree without nodes are not read.

    Attributes:
        frontier_scores: Cumulative log-probabilities of the frontier, descending, -inf where
            there is none, [m, W]; a tree with nodes has a frontier.
        entropy: Entropy (nats) of the next-token law at the best expanded node, [m].
        margin: Difference of its two largest probabilities, [m].
        sizes: Verification sizes V of the partial sums, increasing from above 0.
        total: Expected accepted tokens of all nodes, [m].
        read_partial: The same of the best V nodes, [m, sizes]; only gathered if called.
    """

    frontier_scores: Floats
    entropy: Floats
    margin: Floats
    sizes: tuple[int, ...]
    total: Floats
    read_partial: Callable[[], Floats]


@dataclass(frozen=True, slots=True)
class BatchHistory:
    """Acceptance of the last rounds, newest first, zero beyond `seen`.

    Attributes:
        accepted: Drafted tokens accepted, [m, H].
        drafted: Draft passes made, [m, H].
        verified: Drafted tokens verified, [m, H].
        seen: Rounds that the rows hold, at most H, [m].
    """

    accepted: IntArray
    drafted: IntArray
    verified: IntArray
    seen: IntArray


@dataclass(frozen=True, slots=True)
class RoundBatch:
    """m running rounds, field by field those of `draftgym.state.RoundState`.

    Attributes:
        depth: Draft passes made so far, [m].
        nodes: Nodes in the tree so far, [m].
        max_depth: Passes that the round may make, [m].
        max_size: Drafted tokens that it may verify, [m].
        context_tokens: Committed tokens, root included, [m].
        context_limit: Largest number of committed tokens allowed.
        remaining_tokens: Budget left, [m].
        max_new_tokens: Budget of the request, [m].
        uningested_tokens: Committed tokens the drafter has not seen, [m].
        costs: Cost ratios of the machine.
        read_history: Acceptance of earlier rounds.
        read_confidence: What the drafter believes; like the history, only gathered if called.
    """

    depth: IntArray
    nodes: IntArray
    max_depth: IntArray
    max_size: IntArray
    context_tokens: IntArray
    context_limit: int
    remaining_tokens: IntArray
    max_new_tokens: IntArray
    uningested_tokens: IntArray
    costs: MeasuredCosts
    read_history: Callable[[], BatchHistory]
    read_confidence: Callable[[], BatchConfidence]

    def __len__(self) -> int:
        return len(self.depth)


class BatchController(Protocol):
    """Decides draft depth and verification size of many rounds, each by its own row."""

    @property
    def free(self) -> bool:
        """True when decisions read nothing and are not charged."""

    @property
    def deepest(self) -> int:
        """Draft passes after which it is not asked, and not charged: it would answer no."""

    def draft_again(self, rounds: RoundBatch) -> BoolArray:
        """Whether each round makes (another) draft pass, [m]."""

    def choose_size(self, rounds: RoundBatch) -> IntArray:
        """Verification size of each round, [m]; clamped later."""
