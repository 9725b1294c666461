"""The order of an observation's entries: of numbers for one round, of columns for many.

How the values are found is in `draftgym.round_reader` and `draftgym.batch_features`; their names
and bounds, in the same order, in `draftgym.feature_list`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from draftgym.batch_state import BatchConfidence, RoundBatch
    from draftgym.state import Confidence, RoundState

Entry = TypeVar("Entry")


def acceptance_entries(
    rounds: Iterable[Entry], seen: Entry, means: Iterable[Entry], fully_accepted: Entry
) -> list[Entry]:
    """The unscaled history block in the order of `depth_features`: numbers, or columns of rounds.

    Args:
        rounds: Accepted, drafted and verified tokens, each newest first.
        seen: Rounds that these hold.
        means: Of the three.
        fully_accepted: Whether the last round kept all it could, 0 or 1.
    """
    return [*rounds, seen, *means, fully_accepted]


def round_entries(
    state: RoundState | RoundBatch,
    confidence: Confidence | BatchConfidence,
    known: Entry,
    frontier: Iterable[Entry],
    best: Entry,
    expected: Entry,
    remaining_fraction: Entry,
    doublings: Entry,
) -> list[Entry]:
    """The unscaled entries of the running round, in the order of `depth_features`.

    Args:
        state: One round or a batch.
        confidence: Of the same.
        known: Whether there is a law behind the frontier, 0 or 1.
        frontier: Scores by slot, -inf where there is none.
        best: Probability of the best path.
        expected: Accepted tokens that the whole tree promises.
        remaining_fraction: Remaining tokens over the budget.
        doublings: log2(1 + tokens not yet ingested).
    """
    entries: list[Any] = [
        known, *frontier, best, expected,
        confidence.margin, confidence.entropy,
        state.depth, state.max_depth, state.max_size,
        state.context_tokens / max(state.context_limit, 1),
        remaining_fraction,
        state.remaining_tokens,
        doublings,
        state.costs.draft_pass_over_plain, state.costs.verify_slope_over_plain,
    ]  # fmt: skip
    return entries


def size_entries(shared: Iterable[Entry], nodes: Entry, expected: Iterable[Entry]) -> list[Entry]:
    """The unscaled size observation, in the order of `size_features`.

    Args:
        shared: The depth observation's entries.
        nodes: Drafted tokens in the tree.
        expected: Accepted tokens that the best V nodes promise, by grid V above 0.
    """
    return [*shared, nodes, *expected]
