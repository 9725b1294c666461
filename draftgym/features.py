"""The one observation layout: environments and exported controllers both call this file.

It knows `RoundState` and numpy, and nothing of models, devices or learning. Every entry has a
name, a unit and bounds; whatever a state holds, an observation is float32, finite and inside
them: a NaN becomes the entry's lower bound, everything else is clipped.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftgym.state import NO_CONFIDENCE, Confidence, Float32Array, History, RoundState

if TYPE_CHECKING:
    from draftgym.batch_state import BatchConfidence, RoundBatch

Float64Array = NDArray[np.float64]
Entry = TypeVar("Entry")

LAYOUT_SCHEMA = "draftgym.features/1"
"""Bump the number when an entry changes meaning without changing name, bounds or unit."""

DEFAULT_SIZE_GRID = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

# Scores are divided by this many nats: a whole frontier that deep holds no usable probability.
_SCORE_NATS = 16.0
_ENTROPY_NATS = 10.0
# log2(1 + tokens) / 12: a long prompt before the first pass, a handful of tokens afterwards.
_UNINGESTED_DOUBLINGS = 12.0
_NEAR_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Feature:
    """One entry of an observation.

    Attributes:
        name: Unique within its observation.
        unit: What the raw value counts, and what it is divided by.
        low: Smallest value after scaling.
        high: Largest value after scaling.
        scale: Factor from the raw value to the observation.
    """

    name: str
    unit: str
    low: float
    high: float
    scale: float = 1.0


MOST = 1024
"""Bound of every shape: a layout may come from a downloaded file."""


@dataclass(frozen=True)
class FeatureLayout:
    """Observations of the depth and of the size decision, in the order of their names.

    The history block follows the acceptance history that adaptive drafting rules read; the
    cumulative scores are those of EAGLE-2's dynamic tree (arXiv:2406.16858), whose exponentials
    sum to an estimate of the accepted tokens.

    Args:
        max_depth: Draft passes that a round may make at most.
        beam_width: Frontier nodes per pass.
        history: Rounds of acceptance history.
        size_grid: Verification sizes that a policy may choose, strictly increasing from 0.

    Raises:
        ValueError: If a field is out of range, naming it.

    Examples:
        >>> layout = FeatureLayout(max_depth=2, beam_width=1, history=1, size_grid=(0, 2))
        >>> layout.size_names[-2:]
        ('nodes', 'expected_accepted_2')
    """

    max_depth: int = 8
    beam_width: int = 4
    history: int = 8
    size_grid: tuple[int, ...] = DEFAULT_SIZE_GRID

    def __post_init__(self) -> None:
        for name in ("max_depth", "beam_width", "history"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= MOST:
                raise ValueError(f"{name}: must be an integer from 1 to {MOST}, got {value!r:.40}")
        if not all(isinstance(size, int) and size <= MOST for size in self.size_grid):
            raise ValueError(f"size_grid: must hold integers up to {MOST}")
        grid = tuple(self.size_grid)
        if len(grid) < 2 or grid[0] != 0 or any(a >= b for a, b in itertools.pairwise(grid)):
            raise ValueError(f"size_grid: must be strictly increasing from 0, got {grid}")
        object.__setattr__(self, "size_grid", grid)

    @property
    def max_size(self) -> int:
        """Largest verification size of the grid."""
        return self.size_grid[-1]

    @cached_property
    def depth_features(self) -> tuple[Feature, ...]:
        """Entries of the observation before each draft pass."""
        return (*_history_features(self), *_round_features(self))

    @cached_property
    def size_features(self) -> tuple[Feature, ...]:
        """Entries of the observation before verification."""
        most_nodes = self.beam_width + (self.max_depth - 1) * self.beam_width**2
        return (
            *self.depth_features,
            Feature("nodes", f"drafted tokens / {most_nodes}", 0.0, 1.0, 1.0 / most_nodes),
            *(
                Feature(
                    f"expected_accepted_{size}", f"tokens / {self.max_depth}",
                    0.0, _most_tokens(self), 1.0 / self.max_depth,
                )
                for size in self.size_grid[1:]
            ),
        )  # fmt: skip

    @cached_property
    def depth_names(self) -> tuple[str, ...]:
        """Names of the depth observation's entries, in order."""
        return tuple(feature.name for feature in self.depth_features)

    @cached_property
    def size_names(self) -> tuple[str, ...]:
        """Names of the size observation's entries, in order."""
        return tuple(feature.name for feature in self.size_features)

    @property
    def depth_low(self) -> Float32Array:
        """Lower bounds of the depth observation, shape [n_depth]."""
        return _bounds(self.depth_features)[0]

    @property
    def depth_high(self) -> Float32Array:
        """Upper bounds of the depth observation, shape [n_depth]."""
        return _bounds(self.depth_features)[1]

    @property
    def size_low(self) -> Float32Array:
        """Lower bounds of the size observation, shape [n_size]."""
        return _bounds(self.size_features)[0]

    @property
    def size_high(self) -> Float32Array:
        """Upper bounds of the size observation, shape [n_size]."""
        return _bounds(self.size_features)[1]

    def schema(self) -> dict[str, Any]:
        """Everything that gives an observation its meaning, as plain data."""
        return {
            "schema": LAYOUT_SCHEMA,
            "parameters": {
                "max_depth": self.max_depth,
                "beam_width": self.beam_width,
                "history": self.history,
                "size_grid": list(self.size_grid),
            },
            "depth": [asdict(feature) for feature in self.depth_features],
            "size": [asdict(feature) for feature in self.size_features],
        }

    def hash(self) -> str:
        """sha256 of the schema's canonical JSON: changes with any name, bound, unit or scale."""
        text = json.dumps(self.schema(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def depth_observation(self, state: RoundState) -> Float32Array:
        """What a depth policy sees before a draft pass.

        Not for concurrent use: a scratch buffer belongs to the layout.

        Args:
            state: The running round.

        Returns:
            A fresh array, shape [n_depth].
        """
        return self._depth_block.bounded(self.depth_raw(state))

    def size_observation(self, state: RoundState) -> Float32Array:
        """What a size policy sees when drafting has stopped.

        Args:
            state: The running round.

        Returns:
            A fresh array, shape [n_size].
        """
        return self._size_block.bounded(self.size_raw(state))

    def depth_raw(self, state: RoundState) -> Float64Array:
        """The depth observation before scale and bounds, in memory that the next call reuses."""
        scratch = self._depth_block.scratch
        confidence = _confidence(state)
        expected = sum(_survival(confidence.node_scores))
        scratch[:] = [*self._acceptance(state.history), *self._round(state, confidence, expected)]
        return scratch

    def size_raw(self, state: RoundState) -> Float64Array:
        """The size observation before scale and bounds, in memory that the next call reuses."""
        scratch = self._size_block.scratch
        confidence = _confidence(state)
        expected = [0.0, *itertools.accumulate(_survival(confidence.node_scores))]
        deepest = len(expected) - 1
        scratch[:] = size_entries(
            self._acceptance(state.history),
            self._round(state, confidence, expected[-1]),
            state.nodes,
            [expected[min(size, deepest)] for size in self.size_grid[1:]],
        )
        return scratch

    def _acceptance(self, history: History) -> list[float]:
        """Unscaled entries of the history block; a history grows by whole rounds only."""
        memory = self._memory
        if memory.history is history and memory.rounds == history.rounds:
            return memory.acceptance
        count = self.history
        accepted = history.accepted[: -count - 1 : -1]  # newest first
        drafted = history.drafted[: -count - 1 : -1]
        verified = history.verified[: -count - 1 : -1]
        seen = len(accepted)
        full = 0.0
        if seen:
            possible = min(drafted[0] or verified[0], verified[0])
            full = 1.0 if 0 < possible <= accepted[0] else 0.0
        missing = (0.0,) * (count - seen)
        shown = seen or 1
        memory.acceptance = acceptance_entries(
            (*accepted, *missing, *drafted, *missing, *verified, *missing),
            seen,
            (sum(accepted) / shown, sum(drafted) / shown, sum(verified) / shown),
            full,
        )
        memory.history, memory.rounds = history, history.rounds
        return memory.acceptance

    def _round(self, state: RoundState, confidence: Confidence, expected: float) -> list[float]:
        """Unscaled entries of the running round, up to `verify_slope`."""
        frontier = confidence.frontier_scores
        best = math.exp(min(frontier[0], 0.0)) if frontier else 0.0
        # Free proposals have scores, but no law behind them: entropy and margin are unknown.
        known = 1.0 if frontier and state.depth else 0.0
        # An absent slot reads as the least likely path.
        absent = (-math.inf,) * (self.beam_width - len(frontier))
        return round_entries(
            state,
            confidence,
            known,
            (*frontier[: self.beam_width], *absent),
            best,
            expected,
            state.remaining_tokens / max(state.max_new_tokens, 1),
            math.log2(1 + max(state.uningested_tokens, 0)),
        )

    @cached_property
    def _memory(self) -> _Memory:
        return _Memory()

    @cached_property
    def _depth_block(self) -> Block:
        return Block(self.depth_features)

    @cached_property
    def _size_block(self) -> Block:
        return Block(self.size_features)


@dataclass(slots=True)
class _Memory:
    """The acceptance block of the history read last: a round asks for it at every decision."""

    history: History | None = None
    rounds: int = 0
    acceptance: list[float] = field(default_factory=list)


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


def size_entries(
    acceptance: Iterable[Entry], running: Iterable[Entry], nodes: Entry, expected: Iterable[Entry]
) -> list[Entry]:
    """The unscaled size observation, in the order of `size_features`.

    Args:
        acceptance: From `acceptance_entries`.
        running: From `round_entries`.
        nodes: Drafted tokens in the tree.
        expected: Accepted tokens that the best V nodes promise, by grid V above 0.
    """
    return [*acceptance, *running, nodes, *expected]


class Block:
    """Scale, bounds and scratch memory of one observation kind.

    Scratch is float64 so that no raw value overflows on its way to the bounds.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self.scale = np.array([feature.scale for feature in features], np.float64)
        self.low, self.high = (bound.astype(np.float64) for bound in _bounds(features))
        self.scratch = np.zeros(len(features), np.float64)

    def bounded(self, raw: Float64Array) -> Float32Array:
        """Raw values, [..., entries], scaled, clipped, in float32; NaN becomes the lower bound."""
        scaled = raw * self.scale
        np.fmax(scaled, self.low, out=scaled)
        out = np.empty(scaled.shape, np.float32)
        np.minimum(scaled, self.high, out=out)
        return out


def _bounds(features: Sequence[Feature]) -> tuple[Float32Array, Float32Array]:
    # Rounded to float32 first, so that clipped values equal the declared bounds exactly.
    low = np.array([feature.low for feature in features], np.float32)
    return low, np.array([feature.high for feature in features], np.float32)


def _survival(scores: Sequence[float]) -> list[float]:
    """Path probabilities: their sums are the accepted tokens that a tree promises."""
    # An unknown score counts as the least likely path.
    return [math.exp(score) if score < 0.0 else float(score >= 0.0) for score in scores]


def _confidence(state: RoundState) -> Confidence:
    # Before anything is in the tree there is nothing to read from the device.
    return state.read_confidence() if state.nodes else NO_CONFIDENCE


def _most_tokens(layout: FeatureLayout) -> float:
    """Accepted tokens over the depth: look-ups may bring as many as are verified."""
    return max(2.0, layout.max_size / layout.max_depth)


def _history_features(layout: FeatureLayout) -> list[Feature]:
    tokens = (f"tokens / {layout.max_depth}", 0.0, _most_tokens(layout), 1.0 / layout.max_depth)
    passes = (f"draft passes / {layout.max_depth}", 0.0, 1.0, 1.0 / layout.max_depth)
    sizes = (f"drafted tokens / {layout.max_size}", 0.0, 1.0, 1.0 / layout.max_size)
    kinds = (("accepted", tokens), ("drafted", passes), ("verified", sizes))
    return [
        *(
            Feature(f"{kind}_{age}", *rest)
            for kind, rest in kinds
            for age in range(1, layout.history + 1)
        ),
        Feature("rounds_seen", f"rounds / {layout.history}", 0.0, 1.0, 1.0 / layout.history),
        *(Feature(f"mean_{kind}", *rest) for kind, rest in kinds),
        Feature("last_fully_accepted", "0 or 1", 0.0, 1.0),
    ]


def _round_features(layout: FeatureLayout) -> list[Feature]:
    deep, near = layout.max_depth, _NEAR_ROUNDS * (layout.max_depth + 1)
    score = (f"nats / {_SCORE_NATS:g}", -1.0, 0.0, 1.0 / _SCORE_NATS)
    return [
        Feature("has_confidence", "0 or 1", 0.0, 1.0),
        *(Feature(f"frontier_score_{slot}", *score) for slot in range(1, layout.beam_width + 1)),
        Feature("best_path_probability", "probability", 0.0, 1.0),
        Feature("expected_accepted", f"tokens / {deep}", 0.0, _most_tokens(layout), 1.0 / deep),
        Feature("margin", "probability", 0.0, 1.0),
        Feature("entropy", f"nats / {_ENTROPY_NATS:g}", 0.0, 1.0, 1.0 / _ENTROPY_NATS),
        Feature("depth", f"draft passes / {deep}", 0.0, 1.0, 1.0 / deep),
        Feature("depth_allowed", f"draft passes / {deep}", 0.0, 1.0, 1.0 / deep),
        Feature("size_allowed", f"drafted tokens / {layout.max_size}", 0.0, 1.0,
                1.0 / layout.max_size),
        Feature("context_fraction", "tokens / context limit", 0.0, 1.0),
        Feature("remaining_fraction", "tokens / budget", 0.0, 1.0),
        Feature("remaining_near", f"tokens / {near}", 0.0, 1.0, 1.0 / near),
        Feature("uningested", f"log2(1 + tokens) / {_UNINGESTED_DOUBLINGS:g}", 0.0, 1.0,
                1.0 / _UNINGESTED_DOUBLINGS),
        Feature("draft_pass_over_plain", "ratio", 0.0, 2.0),
        Feature("verify_slope_over_plain", "ratio per token", 0.0, 2.0),
    ]  # fmt: skip
