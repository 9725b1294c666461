"""The exact gradient over all decisions: its recursion, and what it learns."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from draftgym.features import FeatureLayout
from draftgym.runtime import DecisionSeconds, ExportedPolicy
from draftgym.runtime.batch import ExportedBatch
from draftgym.state import MeasuredCosts
from draftgym.theory.fixed import fixed
from draftgym.theory.follow import follow
from draftgym.traces.controllers import FixedBatch
from draftgym.traces.judge import judge
from draftgym.traces.trace import Trace
from policies.all_action import AllActionConfig, AllActionTrainer, expected_gain
from tests.unit.test_clairvoyant import random_trace
from tests.unit.test_information import LENGTH, SEQUENCES, SimpleTimes, coin_trace
from tests.unit.times import RandomTimes

LAYOUT = FeatureLayout(max_depth=1, beam_width=2, history=2, size_grid=(0, 1, 2, 4))
DEEPER = FeatureLayout(max_depth=2, beam_width=2, history=2, size_grid=(0, 1, 2, 4))
COSTS = MeasuredCosts(0.1, 0.1)


def test_expected_gain_is_the_sum_over_all_outcomes() -> None:
    torch.manual_seed(0)
    levels, rounds, sizes = 3, 5, 4
    depth = torch.randn(levels, rounds, 2).log_softmax(-1)
    size = torch.randn(levels, rounds, sizes).log_softmax(-1)
    gain, price = torch.randn(levels, rounds, sizes), torch.rand(levels - 1, rounds)
    limit = torch.tensor([0, 1, 2, 2, 1])
    got = expected_gain(depth, size, gain, price, limit)
    for i in range(rounds):
        wanted = 0.0
        for stop, action in product(range(int(limit[i]) + 1), range(sizes)):
            chance = size[stop, i, action].exp()
            for level in range(stop):
                chance = chance * depth[level, i, 1].exp()
            if stop < limit[i]:
                chance = chance * depth[stop, i, 0].exp()
            wanted += float(chance * (gain[stop, i, action] - price[:stop, i].sum()))
        assert float(got[i]) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("cell", [(0, 0), (0, 4), (1, 2), (2, 4)])
def test_a_fixed_cell_is_judged_as_the_bounds_do(cell: tuple[int, int]) -> None:
    trace, times = random_trace(4, (7, 1, 5), budget=9), RandomTimes(4)
    got = judge(trace, times, DEEPER, FixedBatch(*cell), COSTS)
    np.testing.assert_allclose(got, fixed(trace, times, *cell))


def learned(trace: Trace, times: SimpleTimes, steps: int) -> float:
    config = AllActionConfig(steps=steps, requests=64, learning_rate=1e-2, hidden=(16,))
    trainer = AllActionTrainer(trace, times, LAYOUT, COSTS, config)
    trainer.train(steps)
    heads = trainer.heads()
    policy = ExportedPolicy(layout=LAYOUT, depth=heads["depth"], size=heads["size"])
    return float(judge(trace, times, LAYOUT, ExportedBatch(policy), COSTS).sum())


def told_from_the_start() -> Trace:
    """The first level tells whether the second one will be right."""
    trace = coin_trace(told=True)
    # At level 0 entropy counts only where something was drafted, so the frontier tells.
    frontier = trace.frontier.copy()
    frontier[:, 0] = -trace.entropy[:, :1]
    return replace(trace, frontier=frontier)


def test_learns_to_draft_where_it_pays() -> None:
    trace, times = told_from_the_start(), SimpleTimes()
    right = trace.rank[:, 1, 0] == 0
    told = follow(trace, times, lambda rows, _: (right[rows] * 1, right[rows] * 4)).sum()
    best_fixed = min(fixed(trace, times, 1, 4).sum(), fixed(trace, times, 0, 0).sum())
    reached = learned(trace, times, 150)
    assert told < 0.9 * best_fixed
    assert reached < 1.03 * told


def test_a_dear_decision_is_counted() -> None:
    trace = told_from_the_start()
    dear = SimpleTimes()
    dear.decision_seconds = DecisionSeconds(depth=0.5, size=0.25)
    config = AllActionConfig(steps=2, requests=4, hidden=(4,))
    played = [
        AllActionTrainer(trace, times, LAYOUT, COSTS, config)._look()
        for times in (SimpleTimes(), dear)
    ]
    extra = played[1].seconds - played[0].seconds
    # One depth decision at level 0, still that one at the deepest; one size decision.
    np.testing.assert_allclose(extra[:, played[0].limit > 0], 0.75)


def test_the_same_seed_learns_the_same() -> None:
    trace, times = told_from_the_start(), SimpleTimes()
    assert learned(trace, times, 5) == learned(trace, times, 5)
    assert len(trace) == SEQUENCES * (LENGTH - 1)
