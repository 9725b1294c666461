"""Observations of many rounds at once are those of each round alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from draftgym.batch_features import BatchFeatures
from draftgym.batch_state import BatchConfidence, BatchHistory, RoundBatch
from draftgym.features import FeatureLayout
from draftgym.state import NO_CONFIDENCE, Confidence, History, MeasuredCosts, RoundState

LAYOUTS = (
    FeatureLayout(),
    FeatureLayout(max_depth=3, beam_width=2, history=1, size_grid=(0, 2, 4, 8)),
    FeatureLayout(max_depth=1, beam_width=6, history=3, size_grid=(0, 1)),
)
CONTEXT_LIMIT = 512
COSTS = MeasuredCosts(0.07, float("nan"))


def score(random: np.random.Generator) -> float:
    """Mostly an ordinary score, at times an absurd one."""
    absurd = (-math.inf, math.nan, 0.0, 0.25, -1e-9, -80.0, math.inf)
    if random.random() < 0.25:
        return absurd[random.integers(len(absurd))]
    return -float(random.exponential(3.0))


def random_state(random: np.random.Generator, layout: FeatureLayout) -> RoundState:
    history = History(layout.history)
    for _ in range(random.choice([0, 1, random.integers(0, 2 * layout.history + 1)])):
        accepted, drafted, verified = random.integers(0, [9, layout.max_depth + 1, 12])
        history.append(int(accepted), int(drafted), int(verified))
    nodes = int(random.choice([0, 1, random.integers(1, 60)]))
    depth = int(random.integers(0, layout.max_depth + 1))
    slots = int(random.integers(1, layout.beam_width + 1)) if depth else 1
    belief = Confidence(
        [score(random) for _ in range(slots)],
        float(random.choice([0.0, 2.5, math.nan, 40.0])),
        float(random.random()),
        [score(random) for _ in range(nodes)],
    )
    return RoundState(
        depth=depth,
        nodes=nodes,
        max_depth=int(random.integers(0, layout.max_depth + 1)),
        max_size=int(random.choice([0, layout.max_size])),
        context_tokens=int(random.integers(1, CONTEXT_LIMIT + 1)),
        context_limit=CONTEXT_LIMIT,
        remaining_tokens=int(random.choice([0, 1, 2, 50])),
        max_new_tokens=int(random.choice([0, 2, 64])),
        uningested_tokens=int(random.choice([0, 1, 5, 9000])),
        history=history,
        costs=COSTS,
        read_confidence=lambda law=True: belief,
    )


def survival(value: float) -> float:
    return math.exp(value) if value < 0.0 else float(value >= 0.0)


def batch(states: Sequence[RoundState], layout: FeatureLayout) -> RoundBatch:
    """The same rounds as columns."""

    def column(name: str) -> np.ndarray:
        return np.array([getattr(state, name) for state in states], np.int64)

    def history(kind: str) -> np.ndarray:
        rows = np.zeros((len(states), layout.history), np.int64)
        for row, state in zip(rows, states, strict=True):
            newest = getattr(state.history, kind)[::-1]
            row[: len(newest)] = newest
        return rows

    # What a trace would hold of an empty tree must not matter.
    beliefs = [state.read_confidence() if state.nodes else JUNK for state in states]
    frontier = np.full((len(states), layout.beam_width), -np.inf)
    promised = []
    for row, belief in zip(frontier, beliefs, strict=True):
        row[: len(belief.frontier_scores)] = belief.frontier_scores
        promised.append(
            [0.0, *itertools.accumulate(survival(value) for value in belief.node_scores)]
        )
    partial = [
        [sums[min(size, len(sums) - 1)] for size in layout.size_grid[1:]] for sums in promised
    ]
    confidence = BatchConfidence(
        frontier,
        np.array([belief.entropy for belief in beliefs]),
        np.array([belief.margin for belief in beliefs]),
        layout.size_grid[1:],
        np.array([sums[-1] for sums in promised]),
        lambda: np.array(partial),
    )
    return RoundBatch(
        depth=column("depth"),
        nodes=column("nodes"),
        max_depth=column("max_depth"),
        max_size=column("max_size"),
        context_tokens=column("context_tokens"),
        context_limit=CONTEXT_LIMIT,
        remaining_tokens=column("remaining_tokens"),
        max_new_tokens=column("max_new_tokens"),
        uningested_tokens=column("uningested_tokens"),
        costs=COSTS,
        read_history=lambda: BatchHistory(
            history("accepted"),
            history("drafted"),
            history("verified"),
            np.array([len(state.history.accepted) for state in states]),
        ),
        read_confidence=lambda law=True: confidence,
    )


JUNK = Confidence([-0.5], 3.0, 0.5, [-0.5, -0.7])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_sees_what_each_round_sees(layout: FeatureLayout) -> None:
    random = np.random.default_rng(len(layout.size_grid))
    states = [random_state(random, layout) for _ in range(1200)]
    assert any(state.nodes == 0 for state in states)
    assert any(not state.history.accepted for state in states)
    features, rounds = BatchFeatures(layout), batch(states, layout)
    depth = np.stack([layout.depth_observation(state) for state in states])
    size = np.stack([layout.size_observation(state) for state in states])
    for seen, expected in (
        (features.depth_observation(rounds), depth),
        (features.size_observation(rounds), size),
    ):
        assert seen.dtype == np.float32 and seen.flags.c_contiguous
        # Only exponential and logarithm may round differently.
        np.testing.assert_array_max_ulp(seen, expected, maxulp=1)
        inexact = {"best_path_probability", "uningested"}
        exact = [name not in inexact for name in layout.size_names[: expected.shape[1]]]
        assert np.array_equal(seen[:, exact], expected[:, exact])


def test_a_batch_is_not_reused() -> None:
    layout = LAYOUTS[0]
    features = BatchFeatures(layout)
    random = np.random.default_rng(0)
    rounds = batch([random_state(random, layout) for _ in range(3)], layout)
    first = features.size_observation(rounds)
    kept = first.copy()
    features.size_observation(batch([random_state(random, layout) for _ in range(3)], layout))
    assert np.array_equal(first, kept)


def test_sums_of_another_size_grid_are_refused() -> None:
    layout, other = LAYOUTS[0], FeatureLayout(size_grid=(0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 48))
    rounds = batch([random_state(np.random.default_rng(1), layout)], layout)
    with pytest.raises(ValueError, match=r"layout\.size_grid: .*48\] above 0, .* 32\]"):
        BatchFeatures(other).size_observation(rounds)


def test_no_confidence_is_read_as_an_empty_tree() -> None:
    layout = LAYOUTS[0]
    state = random_state(np.random.default_rng(1), layout)
    state.nodes, state.read_confidence = 0, lambda law=True: NO_CONFIDENCE
    seen = BatchFeatures(layout).size_observation(batch([state], layout))[0]
    values = dict(zip(layout.size_names, seen.tolist(), strict=True))
    assert values["has_confidence"] == values["nodes"] == values["expected_accepted"] == 0.0
    assert values["frontier_score_1"] == -1.0
