"""The exact gradient over all decisions: its recursion, and what it learns."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from draftgym.batch_state import IntArray
from draftgym.console import QuietBar
from draftgym.features import FeatureLayout
from draftgym.runtime import DecisionSeconds, ExportedPolicy, PolicyHead
from draftgym.runtime.batch import ExportedBatch
from draftgym.state import MeasuredCosts
from draftgym.theory.fixed import fixed
from draftgym.theory.follow import follow
from draftgym.traces.controllers import FixedBatch
from draftgym.traces.judge import judge
from draftgym.traces.trace import ABSENT, Trace
from envs.rewards import RateTracker, RewardKind, RoundReward
from policies.all_action import AllActionConfig, AllActionTrainer, expected_gain
from policies.export import PolicyCard
from policies.feature_groups import untold
from policies.objectives import round_reward
from policies.pretraining import Pretrained, pretrain
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
    gain = torch.randn(levels, rounds, sizes)
    limit = torch.tensor([0, 1, 2, 2, 1])
    got = expected_gain(depth, size, gain, limit)
    for i in range(rounds):
        wanted = 0.0
        for stop, action in product(range(int(limit[i]) + 1), range(sizes)):
            chance = size[stop, i, action].exp()
            for level in range(stop):
                chance = chance * depth[level, i, 1].exp()
            if stop < limit[i]:
                chance = chance * depth[stop, i, 0].exp()
            wanted += float(chance * gain[stop, i, action])
        assert float(got[i]) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("cell", [(0, 0), (0, 4), (1, 2), (2, 4)])
def test_a_fixed_cell_is_judged_as_the_bounds_do(cell: tuple[int, int]) -> None:
    trace, times = random_trace(4, (7, 1, 5), budget=9), RandomTimes(4)
    got = judge(trace, times, DEEPER, FixedBatch(*cell), COSTS)
    np.testing.assert_allclose(got, fixed(trace, times, *cell))


def policy_of(trace: Trace, times: SimpleTimes, steps: int, **changes: Any) -> ExportedPolicy:
    config = AllActionConfig(steps=steps, requests=64, learning_rate=1e-2, hidden=(16,), **changes)
    trainer = AllActionTrainer(trace, times, LAYOUT, COSTS, config)
    trainer.train(steps)
    fixed_ones = {"depth": config.fixed_depth, "size": config.fixed_size}
    return ExportedPolicy(
        layout=LAYOUT,
        **trainer.heads(),
        fallback={name: value for name, value in fixed_ones.items() if value is not None},
    )


def learned(trace: Trace, times: SimpleTimes, steps: int, **changes: Any) -> float:
    policy = policy_of(trace, times, steps, **changes)
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


def test_rewards_are_those_of_the_environments() -> None:
    tokens, seconds = np.array([2.0, 4.0]), np.array([10.0, 25.0])
    best = {
        kind: int(round_reward(kind, tokens, seconds, pace=8.0).argmax())
        for kind in get_args(RewardKind)
    }
    # At 8 seconds a token the long round saves more in all, the short one more per second.
    assert best == {
        "rate": 1, "throughput": 0, "time_per_token": 0, "emitted": 1, "time_cost": 0
    }  # fmt: skip
    for kind in get_args(RewardKind):
        rate = RateTracker(10, 8.0)
        for e, t, got in zip(
            tokens, seconds, round_reward(kind, tokens, seconds, 8.0), strict=True
        ):
            rate.load_state_dict({"rounds": [], "initial_seconds_per_token": 8.0})
            reward = RoundReward(kind, rate)
            reward.begin()
            drafted = reward.draft_pass(1.5)
            record = SimpleNamespace(emitted=int(e), seconds=float(t))
            assert got == pytest.approx(drafted + reward.end(record))  # type: ignore[arg-type]


def test_objectives_learn_what_they_say() -> None:
    trace = coin_trace(told=False)
    # A quarter of the trees is right: drafting costs 15 for 2 tokens on average, 10 for one else.
    right = np.random.default_rng(1).random(len(trace)) < 0.25
    rank = np.full_like(trace.rank, ABSENT)
    rank[right, 1] = np.arange(4)
    trace, times = replace(trace, rank=rank), SimpleTimes()
    plain, drafting = fixed(trace, times, 0, 0).sum(), fixed(trace, times, 1, 4).sum()
    assert drafting < 0.9 * plain
    reached = {kind: learned(trace, times, 80, reward=kind) for kind in get_args(RewardKind)}
    for kind in ("rate", "throughput", "emitted"):
        assert reached[kind] == pytest.approx(drafting, rel=0.03), kind
    # A mean of ratios fears the rounds that keep nothing.
    for kind in ("time_per_token", "time_cost"):
        assert reached[kind] == pytest.approx(plain, rel=0.03), kind


class DearPass(SimpleTimes):
    """A pass costs 6."""

    costs = {**SimpleTimes.costs, "first": 6.0, "later": 6.0}  # noqa: RUF012


def hard_then_easy() -> Trace:
    """Texts whose first half needs a pass for every second token, and whose second is free."""
    rows = np.arange(SEQUENCES * (LENGTH - 1)) % (LENGTH - 1)
    easy = rows >= (LENGTH - 1) // 2
    ranks = np.full((len(rows), 2, 4), ABSENT)
    ranks[:, 1, 0] = 0
    ranks[easy] = np.arange(4)
    trace = coin_trace(told=True)
    frontier = np.where(easy, -0.1, -2.0)[:, None, None] + np.zeros_like(trace.frontier)
    return replace(trace, rank=ranks, frontier=frontier.astype(np.float32))


def test_a_token_is_worth_what_it_would_take_where_it_stands() -> None:
    trace, times = hard_then_easy(), DearPass()
    easy = trace.rank[:, 0, 0] == 0

    def ideal(rows: IntArray, unread: IntArray) -> tuple[IntArray, IntArray]:
        return 1 - easy[rows], np.where(easy[rows], 4, 1)

    best = follow(trace, times, ideal).sum()
    assert learned(trace, times, 150) < 1.03 * best
    # A drafted token costs 7: 10 without, where it stands, but less on average over the text.
    pace = best / (trace.lengths - 1).sum()
    plain, drafted = round_reward("rate", np.array([1.0, 2.0]), np.array([10.0, 17.0]), pace)
    assert plain > drafted, "by the average alone it would not be drafted"


def test_what_is_unseen_is_not_used() -> None:
    trace, times = told_from_the_start(), SimpleTimes()
    hints = ("frontier_score_1", "frontier_score_2", "best_path_probability", "entropy")
    policy = policy_of(trace, times, 60, unseen=hints)
    for head, names in ((policy.depth, LAYOUT.depth_names), (policy.size, LAYOUT.size_names)):
        assert head is not None
        columns = [names.index(name) for name in hints]
        assert (head.weights[0][:, columns] == 0).all()
        assert (np.delete(head.weights[0], columns, axis=1) != 0).any()
    blind = judge(trace, times, LAYOUT, ExportedBatch(policy), COSTS).sum()
    best_fixed = min(fixed(trace, times, 1, 4).sum(), fixed(trace, times, 0, 0).sum())
    assert blind > 0.97 * best_fixed
    with pytest.raises(ValueError, match="unseen: 'entrop' is no observation"):
        policy_of(trace, times, 1, unseen=("entrop",))


def test_by_default_only_what_tells_is_shown() -> None:
    policy = policy_of(told_from_the_start(), SimpleTimes(), 20)
    hidden = set(untold(LAYOUT))
    assert {"accepted_4", "drafted_1", "frontier_score_3", "verify_slope_over_plain"} <= set(
        untold(FeatureLayout())
    )
    for head, names in ((policy.depth, LAYOUT.depth_names), (policy.size, LAYOUT.size_names)):
        assert head is not None
        used = head.weights[0].any(axis=0)
        assert {name for name, there in zip(names, used, strict=True) if not there} == hidden & set(
            names
        )


def pretrained() -> Pretrained:
    trace, times = told_from_the_start(), SimpleTimes()
    config = AllActionConfig(steps=60, requests=64, learning_rate=1e-2, hidden=(16,))
    quiet = QuietBar("", None)
    card = PolicyCard({}, {}, {})
    return pretrain(trace, times, LAYOUT, COSTS, config, card, bar=quiet, tell=lambda _: None)


def test_the_length_is_found_on_held_out_prompts_and_all_prompts_are_learned_from() -> None:
    trace, times = told_from_the_start(), SimpleTimes()
    got = pretrained()
    curve, steps = got.held_out["curve"], got.held_out["steps"]
    near = [6 * (check + 1) for check, reached in enumerate(curve) if reached > 0.995 * max(curve)]
    assert steps == near[-1] and len(curve) == 10
    assert got.held_out["deepest"]["all"] == curve[steps // 6 - 1]
    assert 0 < got.held_out["prompts"] < len(trace.sequences)
    assert got.policy.training["trace_positions"] == len(trace)
    config = AllActionConfig(
        steps=60, requests=64, learning_rate=1e-2, hidden=(16,), deepest=got.policy.deepest
    )
    alone = AllActionTrainer(trace, times, LAYOUT, COSTS, config)
    alone.train(steps)
    for name, head in alone.heads().items():
        exported = got.policy.head(name)
        assert head is not None and exported is not None
        for mine, theirs in zip(head.weights, exported.weights, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    right = trace.rank[:, 1, 0] == 0
    told = follow(trace, times, lambda rows, _: (right[rows] * 1, right[rows] * 4)).sum()
    assert judge(trace, times, LAYOUT, ExportedBatch(got.policy), COSTS).sum() < 1.03 * told


def always_drafting(deepest: int | None) -> ExportedPolicy:
    width = len(DEEPER.depth_names)
    never, always = np.zeros((2, width), np.float32), np.array([0.0, 1.0], np.float32)
    head = PolicyHead((never,), (always,), None)
    return ExportedPolicy(DEEPER, head, None, fallback={"size": 2}, deepest=deepest)


def test_unasked_depths_are_not_charged() -> None:
    trace, dear = random_trace(4, (7, 1, 5), budget=9), SimpleTimes()
    dear.decision_seconds = DecisionSeconds(depth=0.5, size=0.0)

    def questions(deepest: int | None) -> float:
        controller = ExportedBatch(always_drafting(deepest))
        paid, free = (
            judge(trace, times, DEEPER, controller, COSTS).sum() for times in (dear, SimpleTimes())
        )
        return float(paid - free) / 0.5

    rounds = questions(1)  # one in each round that may draft at all
    assert rounds == pytest.approx(round(rounds)) and rounds > 3
    one, two = (judge(trace, SimpleTimes(), DEEPER, ExportedBatch(always_drafting(d)), COSTS)
                for d in (1, None))  # fmt: skip
    np.testing.assert_allclose(one, fixed(trace, SimpleTimes(), 1, 2))
    np.testing.assert_allclose(two, fixed(trace, SimpleTimes(), 2, 2))
    assert questions(None) > rounds


def test_a_dear_question_is_not_asked_where_the_answer_is_known() -> None:
    trace, dear = random_trace(3, (6,) * 24), SimpleTimes()
    dear.decision_seconds = DecisionSeconds(depth=0.3, size=0.0)
    config = AllActionConfig(steps=20, requests=32, learning_rate=1e-2, hidden=(8,))
    card, quiet = PolicyCard({}, {}, {}), QuietBar("", None)
    told: list[str] = []
    got = pretrain(trace, dear, DEEPER, COSTS, config, card, bar=quiet, tell=told.append)
    assert set(got.held_out["deepest"]) == {"all", "1"}
    assert got.policy.deepest == 1 == got.policy.training["deepest"]
    assert got.held_out["over_tuned_cell"] == got.held_out["deepest"]["1"]
    assert "asking up to pass 1" in told[-1]
    given = pretrain(
        trace, dear, DEEPER, COSTS, replace(config, deepest=2), card, bar=quiet, tell=told.append
    )
    assert given.policy.deepest == 2 and set(given.held_out["deepest"]) == {"2"}


def test_pretraining_is_the_same_every_time() -> None:
    first, second = pretrained(), pretrained()
    assert first.held_out == second.held_out
    assert first.policy.depth is not None and second.policy.depth is not None
    np.testing.assert_array_equal(first.policy.depth.weights[0], second.policy.depth.weights[0])


def test_one_decision_may_be_fixed() -> None:
    trace, times = told_from_the_start(), SimpleTimes()
    size_only = policy_of(trace, times, 100, fixed_depth=1, unseen=())  # the entropy tells
    assert size_only.depth is None and size_only.size is not None
    depth_only = policy_of(trace, times, 100, fixed_size=4)
    assert depth_only.size is None and depth_only.depth is not None
    cell = fixed(trace, times, 1, 4).sum()
    for policy in (size_only, depth_only):
        assert judge(trace, times, LAYOUT, ExportedBatch(policy), COSTS).sum() < 0.97 * cell
    config = AllActionConfig(fixed_depth=1)
    assert config.charged(DecisionSeconds(1.0, 2.0)) == DecisionSeconds(0.0, 2.0)


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
