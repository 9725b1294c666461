"""The observation layout: names, bounds, content, and defined values for absurd states."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgym import features
from draftgym.feature_list import Feature
from draftgym.features import FeatureLayout
from draftgym.state import NO_CONFIDENCE, Confidence, History, MeasuredCosts, RoundState

LAYOUT = FeatureLayout()


def confidence(frontier: list[float], nodes: list[float], **values: float) -> Confidence:
    return Confidence(
        frontier,
        values.get("entropy", 0.0),
        values.get("margin", 0.0),
        nodes,
    )


def state(read: Confidence = NO_CONFIDENCE, **changes: Any) -> RoundState:
    fields: dict[str, Any] = {
        "depth": 0,
        "nodes": len(read.node_scores),
        "max_depth": 8,
        "max_size": 32,
        "context_tokens": 100,
        "context_limit": 2048,
        "remaining_tokens": 64,
        "max_new_tokens": 64,
        "uningested_tokens": 1,
        "history": History(),
        "costs": MeasuredCosts(),
        "read_confidence": lambda law=True: read,
    }
    return RoundState(**(fields | changes))


def named(layout: FeatureLayout, observed: RoundState) -> dict[str, float]:
    """The size observation, which starts with all depth entries, by name."""
    values = layout.size_observation(observed)
    return dict(zip(layout.size_names, map(float, values), strict=True))


def test_names_are_unique_and_bounds_match_the_observations() -> None:
    for names, low, high, observe in (
        (LAYOUT.depth_names, LAYOUT.depth_low, LAYOUT.depth_high, LAYOUT.depth_observation),
        (LAYOUT.size_names, LAYOUT.size_low, LAYOUT.size_high, LAYOUT.size_observation),
    ):
        observation = observe(state())
        assert len(set(names)) == len(names) == len(low) == len(high) == len(observation)
        assert low.dtype == high.dtype == observation.dtype == np.float32
        assert np.isfinite(low).all()
        assert np.isfinite(high).all()
        assert (low < high).all()


def test_every_entry_states_its_unit() -> None:
    assert all(feature.unit for feature in LAYOUT.size_features)
    assert LAYOUT.size_features[: len(LAYOUT.depth_features)] == LAYOUT.depth_features


def test_first_round_has_no_history_and_no_confidence() -> None:
    """CASES 17: no drafts yet must not become 0/0."""
    seen = named(LAYOUT, state())
    assert seen["rounds_seen"] == seen["mean_accepted"] == seen["last_fully_accepted"] == 0.0
    assert all(seen[f"accepted_{age}"] == 0.0 for age in range(1, 9))
    assert seen["has_confidence"] == seen["best_path_probability"] == 0.0
    assert all(seen[f"frontier_score_{slot}"] == -1.0 for slot in range(1, 5))
    assert seen["nodes"] == seen["expected_accepted_32"] == 0.0


def test_history_is_newest_first_and_padded_with_zeros() -> None:
    history = History()
    history.append(accepted=1, drafted=2, verified=4)
    history.append(accepted=3, drafted=4, verified=8)
    seen = named(LAYOUT, state(history=history))
    assert seen["accepted_1"] == pytest.approx(3 / 8)
    assert seen["accepted_2"] == pytest.approx(1 / 8)
    assert seen["accepted_3"] == 0.0
    assert seen["drafted_1"] == pytest.approx(4 / 8)
    assert seen["verified_2"] == pytest.approx(4 / 32)
    assert seen["rounds_seen"] == pytest.approx(2 / 8)
    assert seen["mean_accepted"] == pytest.approx(2 / 8)
    assert seen["mean_verified"] == pytest.approx(6 / 32)


def test_a_longer_history_than_the_layout_is_cut_to_the_newest_rounds() -> None:
    history = History(length=20)
    for accepted in range(12):
        history.append(accepted=accepted % 4, drafted=4, verified=4)
    layout = FeatureLayout(history=2)
    seen = named(layout, state(history=history))
    assert seen["accepted_1"] == pytest.approx(3 / 8)
    assert seen["accepted_2"] == pytest.approx(2 / 8)
    assert seen["mean_accepted"] == pytest.approx(2.5 / 8)


@pytest.mark.parametrize(
    ("accepted", "drafted", "verified", "full"),
    [
        (4, 4, 12, 1.0),  # the deepest path of a tree
        (3, 4, 12, 0.0),
        (2, 4, 2, 1.0),  # a pruned chain, all of it
        (5, 0, 5, 1.0),  # free proposals: no draft pass
        (4, 0, 5, 0.0),
        (0, 0, 0, 0.0),  # a plain round accepts nothing and is not "fully accepted"
        (0, 4, 0, 0.0),  # drafted, then nothing verified
    ],
)
def test_last_round_fully_accepted(accepted: int, drafted: int, verified: int, full: float) -> None:
    history = History()
    history.append(accepted, drafted, verified)
    assert named(LAYOUT, state(history=history))["last_fully_accepted"] == full


def test_confidence_and_expected_accepted_tokens() -> None:
    read = confidence(
        [math.log(0.5), math.log(0.25)],
        [math.log(p) for p in (0.5, 0.25, 0.125, 0.0625)],
        entropy=2.5,
        margin=0.75,
    )
    seen = named(LAYOUT, state(read, depth=1))
    assert seen["has_confidence"] == 1.0
    assert seen["best_path_probability"] == pytest.approx(0.5)
    assert seen["margin"] == pytest.approx(0.75)
    assert seen["entropy"] == pytest.approx(0.25)
    assert seen["frontier_score_2"] == pytest.approx(math.log(0.25) / 16)
    assert seen["frontier_score_3"] == -1.0
    sums = {1: 0.5, 2: 0.75, 3: 0.875, 4: 0.9375}
    for size in LAYOUT.size_grid[1:]:
        expected = sums.get(size, 0.9375) / 8  # flat beyond the tree
        assert seen[f"expected_accepted_{size}"] == pytest.approx(expected)


def test_partial_sums_do_not_remember_a_larger_tree() -> None:
    layout = FeatureLayout()
    large = confidence([-0.1], [-0.1] * 40)
    small = confidence([-0.1], [-0.1])
    layout.size_observation(state(large))
    seen = named(layout, state(small))
    assert seen["expected_accepted_32"] == pytest.approx(math.exp(-0.1) / 8)


def test_free_proposals_have_scores_but_no_law() -> None:
    seen = named(LAYOUT, state(confidence([-0.5], [-0.5, -1.0]), depth=0))
    assert seen["has_confidence"] == 0.0
    assert seen["best_path_probability"] == pytest.approx(math.exp(-0.5))
    assert seen["expected_accepted_2"] > 0.0


def test_an_empty_tree_never_reads_the_device() -> None:
    def forbidden() -> Confidence:
        raise AssertionError("read before anything was drafted")

    observed = state(read_confidence=forbidden)
    assert LAYOUT.depth_observation(observed).shape == (len(LAYOUT.depth_names),)


def test_unknown_scores_count_as_the_least_likely_path() -> None:
    read = confidence([math.nan, 0.0], [math.nan, 0.0, math.inf, -math.inf])
    seen = named(LAYOUT, state(read))
    assert seen["frontier_score_1"] == -1.0
    assert seen["best_path_probability"] == 0.0
    assert seen["expected_accepted_1"] == pytest.approx(0.0, abs=1e-6)
    assert seen["expected_accepted_2"] == pytest.approx(1 / 8)
    assert seen["expected_accepted_4"] == pytest.approx(2 / 8)


ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)
ANY_FLOAT32 = st.floats(allow_nan=True, allow_infinity=True, width=32)
ANY_COUNT = st.integers(-(10**15), 10**15)


@settings(max_examples=200, deadline=None)
@given(
    counts=st.lists(ANY_COUNT, min_size=8, max_size=8),
    rounds=st.lists(st.tuples(ANY_COUNT, ANY_COUNT, ANY_COUNT), max_size=10),
    frontier=st.lists(ANY_FLOAT32, max_size=6),
    nodes=st.lists(ANY_FLOAT32, max_size=40),
    scalars=st.tuples(ANY_FLOAT, ANY_FLOAT, ANY_FLOAT, ANY_FLOAT),
)
def test_row_17_any_state_gives_a_finite_bounded_float32_observation(
    counts: list[int],
    rounds: list[tuple[int, int, int]],
    frontier: list[float],
    nodes: list[float],
    scalars: tuple[float, float, float, float],
) -> None:
    """CASES 17: whatever is measured, both checkers must stay clean."""
    history = History()
    for row in rounds:
        history.append(*row)
    read = confidence(frontier, nodes, entropy=scalars[0], margin=scalars[1])
    observed = state(
        read,
        depth=counts[0],
        max_depth=counts[1],
        max_size=counts[2],
        context_tokens=counts[3],
        context_limit=counts[4],
        remaining_tokens=counts[5],
        max_new_tokens=counts[6],
        uningested_tokens=counts[7],
        history=history,
        costs=MeasuredCosts(scalars[2], scalars[3]),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        depth = LAYOUT.depth_observation(observed)
        size = LAYOUT.size_observation(observed)
    for values, low, high in (
        (depth, LAYOUT.depth_low, LAYOUT.depth_high),
        (size, LAYOUT.size_low, LAYOUT.size_high),
    ):
        assert values.dtype == np.float32
        assert np.isfinite(values).all()
        assert (values >= low).all()
        assert (values <= high).all()


def test_observations_are_fresh_arrays() -> None:
    first = LAYOUT.size_observation(state())
    kept = first.copy()
    LAYOUT.size_observation(state(confidence([-0.1], [-0.1]), depth=3))
    assert np.array_equal(first, kept)


def test_hash_changes_with_parameters_names_bounds_units_and_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = FeatureLayout().hash()
    assert FeatureLayout().hash() == base
    assert FeatureLayout(history=4).hash() != base
    assert FeatureLayout(size_grid=(0, 1, 2)).hash() != base
    original = FeatureLayout().depth_features
    for change in ({"name": "other"}, {"high": 3.0}, {"unit": "furlongs"}, {"scale": 2.0}):
        changed = (dataclasses.replace(original[0], **change), *original[1:])
        layout = FeatureLayout()
        layout.__dict__["depth_features"] = changed
        assert layout.hash() != base
    monkeypatch.setattr(features, "LAYOUT_SCHEMA", "draftgym.features/2")
    assert FeatureLayout().hash() != base


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_depth", 0), ("beam_width", 0), ("history", 0), ("size_grid", (1, 2)),
     ("size_grid", (0,)), ("size_grid", (0, 2, 2))],
)  # fmt: skip
def test_a_bad_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        FeatureLayout(**{field: value})


def test_feature_rows_are_plain_data() -> None:
    row = FeatureLayout().schema()["depth"][0]
    assert row == dataclasses.asdict(Feature("accepted_1", "tokens / 8", 0.0, 4.0, 1 / 8))
