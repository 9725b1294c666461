"""The information bound: it uses what can be known, and nothing that cannot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import ArrayLike

from draftgym.costs.times import Float64Array, Work
from draftgym.runtime import DecisionSeconds
from draftgym.theory import information
from draftgym.theory.clairvoyant import clairvoyant
from draftgym.theory.fixed import fixed
from draftgym.theory.follow import follow
from draftgym.theory.information import cross_fitted, information_bound, known
from draftgym.traces.trace import ABSENT, Trace
from tests.unit.traces import make_trace

SEQUENCES, LENGTH = 30, 41
FOLDS = np.arange(SEQUENCES) % 5


class SimpleTimes:
    """A pass costs 1, a plain step 10, every verified token 1 more."""

    decision_seconds = DecisionSeconds()
    costs = {"propose": 0.0, "first": 1.0, "later": 1.0, "verify": 10.0, "commit": 0.0}  # noqa: RUF012

    def mean(self, kind: Work, units: ArrayLike, context: ArrayLike) -> Float64Array:
        units, context = np.broadcast_arrays(units, context)
        slope = 1.0 if kind == "verify" else 0.0
        seconds: Float64Array = self.costs[kind] + slope * units.astype(np.float64)
        return seconds

    def draw(
        self, kind: Work, units: ArrayLike, context: ArrayLike, rng: np.random.Generator
    ) -> Float64Array:
        return self.mean(kind, units, context)


def coin_trace(told: bool) -> Trace:
    """Half of the trees are right about four tokens, the others about none.

    Args:
        told: The entropy says which; otherwise nothing does.
    """
    random = np.random.default_rng(0)
    rows = SEQUENCES * (LENGTH - 1)
    right = random.random(rows) < 0.5
    ranks = np.full((rows, 2, 4), ABSENT)
    ranks[right, 1] = np.arange(4)
    trace = make_trace(ranks.tolist(), (LENGTH,) * SEQUENCES, budget=LENGTH + 9)
    flat = {name: np.zeros_like(getattr(trace, name)) for name in ("margin", "partial", "total")}
    signal = np.where(right, 0.1, 2.0) if told else random.uniform(0, 2, rows)
    entropy = np.repeat(signal[:, None], 2, axis=1).astype(np.float32)
    frontier = np.full_like(trace.frontier, -1.0)
    nodes = np.full_like(trace.nodes, 4)
    return replace(trace, **flat, entropy=entropy, frontier=frontier, nodes=nodes)


def test_finds_what_a_feature_tells() -> None:
    trace, times = coin_trace(told=True), SimpleTimes()
    best_fixed = min(fixed(trace, times, 1, 4).sum(), fixed(trace, times, 0, 0).sum())
    informed = information_bound(trace, times, FOLDS).sum()
    right = trace.rank[:, 1, 0] == 0
    told = follow(trace, times, lambda rows, _: (right[rows] * 1, right[rows] * 4)).sum()
    assert clairvoyant(trace, times).seconds.sum() <= informed < 0.85 * best_fixed
    assert informed < 1.02 * told


def test_gains_nothing_where_nothing_is_told() -> None:
    trace, times = coin_trace(told=False), SimpleTimes()
    best_fixed = min(fixed(trace, times, 1, 4).sum(), fixed(trace, times, 0, 0).sum())
    informed = information_bound(trace, times, FOLDS).sum()
    ideal = clairvoyant(trace, times).seconds.sum()
    assert ideal < 0.85 * best_fixed, "a clairvoyant still gains: it is lucky"
    assert informed > 0.97 * best_fixed, "the future leaked"


def test_what_is_known_does_not_hang_on_the_future() -> None:
    """The rank of a token that is not emitted yet may change without any feature changing."""
    random = np.random.default_rng(1)
    ranks = random.integers(0, 6, (20, 3, 4)).tolist()
    trace = make_trace(ranks, (12, 10))
    features = known(trace)
    for row in (0, 5, 10, 11, 19):
        changed = trace.rank.copy()
        changed[row:] = ABSENT  # everything these trees say about tokens after their roots
        ahead = known(replace(trace, rank=changed))
        np.testing.assert_array_equal(ahead[: row + 1], features[: row + 1])
    # But a token that was emitted since is known.
    changed = trace.rank.copy()
    changed[4, :, 0] = np.where(changed[4, :, 0] == ABSENT, 0, ABSENT)
    assert not np.array_equal(known(replace(trace, rank=changed))[5], features[5])


def test_a_fold_is_predicted_by_others() -> None:
    random = np.random.default_rng(2)
    inputs = random.normal(size=(600, 3)).astype(np.float32)
    folds = np.arange(600) % 4
    # The target of fold 0 alone is shifted: whoever saw it would follow.
    targets = (inputs[:, :1] + 5.0 * (folds == 0)[:, None]).astype(np.float32)
    predicted = cross_fitted(inputs, targets, folds, 0)
    assert predicted[folds == 0].mean() == pytest.approx(inputs[folds == 0, 0].mean(), abs=0.2)
    with pytest.raises(ValueError, match="needs three"):
        cross_fitted(inputs, targets, folds % 2, 0)


def test_a_coarse_bound_is_one_network_of_few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def fitted(inputs: np.ndarray, targets: np.ndarray, *rest: object, epochs: int) -> Float64Array:
        asked.append(epochs)
        return np.zeros(targets.shape)

    monkeypatch.setattr(information, "cross_fitted", fitted)
    trace, times = coin_trace(told=True), SimpleTimes()
    information_bound(trace, times, FOLDS, coarse=True)
    assert asked == [information.COARSE_EPOCHS]
    information_bound(trace, times, FOLDS)
    assert asked[1:] == [information.EPOCHS] * information.MEMBERS
