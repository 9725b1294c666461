"""Controllers of many rounds decide as those of one round, or with the same law."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftgym.features import FeatureLayout
from draftgym.runtime import ExportedBatch, ExportedController
from draftgym.runtime.network import BatchNetwork, Network
from draftgym.traces.controllers import FixedBatch, RandomBatch
from tests.unit.test_batch_features import batch, random_state
from tests.unit.test_runtime import LAYOUT, make_head, make_policy


def states(count: int, layout: FeatureLayout = LAYOUT) -> list:
    random = np.random.default_rng(8)
    return [random_state(random, layout) for _ in range(count)]


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("name", ["depth", "size"])
def test_a_batch_of_observations_gives_the_logits_of_each(name: str, normalise: bool) -> None:
    head = make_head(name, normalise=normalise)
    features = LAYOUT.depth_features if name == "depth" else LAYOUT.size_features
    random = np.random.default_rng(2)
    values = random.normal(0, 20, (1000, len(features)))
    values[random.random(values.shape) < 0.05] = np.nan
    one, many = Network(head, features), BatchNetwork(head, features)
    expected = np.stack([one.logits(row).copy() for row in values])
    np.testing.assert_allclose(many.logits(values), expected, rtol=1e-4, atol=1e-5)
    best_two = np.sort(expected, 1)[:, -2:]
    clear = best_two[:, 1] - best_two[:, 0] > 1e-4
    assert clear.mean() > 0.99
    assert np.array_equal(many.act(values)[clear], expected.argmax(1)[clear])


@pytest.mark.parametrize("deepest", [None, 2])
@pytest.mark.parametrize("missing", [None, "depth", "size"])
def test_the_exported_policy_decides_as_for_each_round(
    missing: str | None, deepest: int | None
) -> None:
    changes = {} if missing is None else {missing: None, "fallback": {missing: 2}}
    policy = make_policy(**changes, deepest=deepest)
    one, many = ExportedController(policy), ExportedBatch(policy)
    rounds = states(1000)
    columns = batch(rounds, LAYOUT)
    drafts = [one.draft_again(state) for state in rounds]
    assert many.draft_again(columns).tolist() == drafts
    assert many.choose_size(columns).tolist() == [one.choose_size(state) for state in rounds]
    assert many.free is False
    assert 0 < sum(drafts) < len(drafts)


def test_fixed() -> None:
    columns = batch(states(50), LAYOUT)
    controller = FixedBatch(3, 6)
    assert controller.draft_again(columns).tolist() == (columns.depth < 3).tolist()
    assert controller.choose_size(columns).tolist() == [6] * 50
    with pytest.raises(ValueError, match="negative"):
        FixedBatch(0, -1)


def test_random_depths_and_sizes_are_uniform() -> None:
    count = 40_000
    controller = RandomBatch(1, 3, (0, 2, 8))
    columns = batch(states(1), LAYOUT)
    depths = np.zeros(4)
    playing = count
    for depth in range(4):
        rounds = replace(columns, depth=np.full(playing, depth))
        going_on = int(controller.draft_again(rounds).sum())
        depths[depth] = playing - going_on
        playing = going_on
    assert playing == 0
    # Four standard deviations of a binomial.
    assert np.abs(depths / count - 1 / 4).max() < 4 * np.sqrt(3 / 16 / count)
    sizes = controller.choose_size(replace(columns, depth=np.zeros(6000, np.int64)))
    found, times = np.unique(sizes, return_counts=True)
    assert found.tolist() == [0, 2, 8]
    assert np.abs(times / 6000 - 1 / 3).max() < 4 * np.sqrt(2 / 9 / 6000)


def test_a_seed_fixes_the_random_controller() -> None:
    columns = batch(states(200), LAYOUT)
    controller = RandomBatch(3, 8, LAYOUT.size_grid)
    first = (controller.draft_again(columns).tolist(), controller.choose_size(columns).tolist())
    controller.reseed(3)
    again = (controller.draft_again(columns).tolist(), controller.choose_size(columns).tolist())
    assert first == again
