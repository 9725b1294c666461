"""Published rules: the papers' arithmetic, adaptation over rounds, and bandits that find out."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from draftgym.clock import WallClock
from draftgym.controllers import RULES, RoundCosts, Settings, Space
from draftgym.controllers.bandits import (
    BanditController,
    Exp3,
    Ucb,
    cells_within,
    reward_of,
    ucb_spec_radius,
)
from draftgym.controllers.base import GRID_LIMIT
from draftgym.controllers.confidence import ConfidenceController, best_threshold
from draftgym.controllers.dynamic_depth import DynamicDepthController
from draftgym.controllers.entropy import AdaEdlController, SvipController
from draftgym.controllers.gammatune import GammaTuneController
from draftgym.controllers.heuristic import HeuristicController
from draftgym.controllers.look_up import LookUpController
from draftgym.controllers.tapout import MarginController, TapOutController
from draftgym.decoder.controllers import PlainController
from draftgym.decoder.session import DecoderSession
from draftgym.state import Confidence, Controller, History, MeasuredCosts, RoundRecord, RoundState
from tests.tiny import tiny_pair
from tests.unit.records import timed_round

COSTS = RoundCosts(0.06, 0.08, tuple(1.0 + size / 16 for size in range(33)), 0.1)
SPACE = Space(8, 4, (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32), True, COSTS, MeasuredCosts())


def unread() -> Confidence:
    raise AssertionError("read_confidence was called")


def state(
    depth: int,
    frontier: Sequence[float] | None = None,
    entropy: float = 0.0,
    margin: float = 0.0,
    nodes: int | None = None,
) -> RoundState:
    """A round after some passes; its frontier is given in probabilities, None forbids to look."""
    known = None if frontier is None else [math.log(p) for p in frontier]
    return RoundState(
        depth=depth,
        nodes=4 * depth if nodes is None else nodes,
        max_depth=8,
        max_size=32,
        context_tokens=50,
        context_limit=2048,
        remaining_tokens=40,
        max_new_tokens=96,
        uningested_tokens=1,
        history=History(),
        costs=MeasuredCosts(),
        read_confidence=(
            unread if known is None else lambda: Confidence(known, entropy, margin, known)
        ),
    )


def finished(depth: int, accepted: int, seconds: float = 1.0) -> RoundRecord:
    return replace(timed_round(seconds, accepted + 1), depth=depth)


def passes(controller: Controller) -> int:
    """Draft passes of a round of a controller that reads nothing."""
    depth = 0
    while depth < 8 and controller.draft_again(state(depth)):
        depth += 1
    return depth


def test_the_schedule_adds_two_or_takes_one() -> None:
    rule = HeuristicController(8, 1.0, start=5, carry=False)
    assert rule.free and passes(rule) == 5
    lengths = []
    for depth, accepted in ((5, 5), (7, 6), (6, 9), (8, 0), (0, 0)):
        rule.observe(finished(depth, accepted))
        lengths.append(rule.length)
    assert lengths == [7, 6, 8, 7, 7]  # look-ups beyond the passes are full; no pass, no news
    for _ in range(9):
        rule.observe(finished(1, 0))
    assert rule.length == 1 and passes(rule) == 1
    rule.reset()
    assert rule.length == 5


def test_the_schedule_may_go_on_over_requests() -> None:
    rule = HeuristicController(8, 1.0, start=5, carry=True)
    rule.observe(finished(5, 5))
    rule.reset()
    assert rule.length == 7


def test_the_threshold_of_least_cost_by_hand() -> None:
    """Costs at .9 .8 .7 .6 .5 .4: 2, 1, 4/3, 1/3, 2/3, 1."""
    assert best_threshold([0.4, 0.9, 0.6, 0.8, 0.5, 0.7], [0, 1, 1, 1, 0, 0]) == 0.6


def test_equal_probabilities_are_on_one_side() -> None:
    assert best_threshold([0.5, 0.5, 0.9, 0.2], [1, 0, 1, 0]) == 0.5


def test_no_threshold_costs_less() -> None:
    draws = np.random.default_rng(0)

    def cost(threshold: float, scores: list[float], hits: list[int]) -> float:
        passed = [score >= threshold for score in scores]
        false = sum(p and not h for p, h in zip(passed, hits, strict=True))
        missed = sum(h and not p for p, h in zip(passed, hits, strict=True))
        return false / hits.count(0) + 3 * missed / hits.count(1)

    for _ in range(200):
        scores = draws.integers(1, 9, 12).astype(float).tolist()
        hits = [0, 1, *draws.integers(0, 2, 10).tolist()]
        least = min(cost(t, scores, hits) for t in scores)
        assert cost(best_threshold(scores, hits), scores, hits) == pytest.approx(least)


def test_confidence_is_the_newest_tokens_own() -> None:
    rule = ConfidenceController(8, 1.0, threshold=0.4, refit=False)
    assert rule.draft_again(state(0)) and not rule.free
    assert rule.draft_again(state(1, [0.5, 0.3]))
    assert rule.draft_again(state(2, [0.45]))  # 0.9 of 0.5
    assert not rule.draft_again(state(3, [0.45 * 0.39]))
    assert not rule.draft_again(state(1, [0.39]))  # another round starts at the root


def test_the_threshold_is_refitted_within_a_request() -> None:
    rule = ConfidenceController(8, 1.0, threshold=0.1, refit=True)

    def round_of(accepted: int, *own: float) -> float:
        for depth in range(1, len(own) + 1):
            rule.draft_again(state(depth, [math.prod(own[:depth])]))
        rule.observe(finished(len(own), accepted))
        return rule.threshold

    assert round_of(2, 0.9, 0.8, 0.3, 0.2) == 0.1  # three judged: 0.2 follows a rejection
    assert round_of(0, 0.3) == 0.1
    assert round_of(1, 0.7) == 0.1
    assert round_of(9, 0.6) == pytest.approx(0.6)  # accepted from 0.6 on, rejected at 0.3
    rule.reset()
    assert rule.threshold == 0.1 and round_of(1, 0.9, 0.2) == 0.1


def test_svip_stops_at_the_root_of_entropy() -> None:
    rule = SvipController(8, 1.0, threshold=0.5)
    assert rule.draft_again(state(1, [0.9], entropy=0.24))
    assert not rule.draft_again(state(1, [0.9], entropy=0.26))


def test_adaedl_stops_at_its_bound_and_moves_it() -> None:
    rule = AdaEdlController(8, 1.0, bound=0.4, acceptance=0.7)
    assert rule.draft_again(state(1, [0.9], entropy=1.79))  # 1 - sqrt(.2 * 1.8) is .4
    assert not rule.draft_again(state(1, [0.9], entropy=1.81))
    rule.observe(finished(4, 2))
    assert rule.bound == pytest.approx(0.401)  # accepted .5, too few: stop earlier
    rule.observe(finished(2, 5))
    assert rule.bound == pytest.approx(0.400)  # mean .75
    rule.observe(finished(0, 7))
    assert rule.bound == pytest.approx(0.400)
    rule.reset()
    assert rule.bound == 0.4


def test_dynamic_depth_sums_the_beam_where_it_looks() -> None:
    rule = DynamicDepthController(8, 1.0, threshold=math.log(0.5), first=5, every=2)
    assert all(rule.draft_again(state(depth)) for depth in (0, 1, 2, 3, 4, 6))
    assert rule.draft_again(state(5, [0.3, 0.21]))
    assert not rule.draft_again(state(5, [0.3, 0.19]))
    assert not rule.draft_again(state(7, [0.3, 0.19]))


def test_gammatune_grows_fast_and_else_follows_the_average() -> None:
    rule = GammaTuneController(8, 1.0, most=8, start=3, threshold=0.0)
    assert rule.free and passes(rule) == 3
    seen = []
    for depth, accepted in ((3, 3), (5, 2), (3, 4), (5, 5), (7, 7), (8, 0), (0, 0)):
        rule.observe(finished(depth, accepted))
        seen.append((rule.length, round(rule.average, 3)))
    assert seen == [(5, 3), (3, 2.7), (5, 2.7), (7, 2.7), (8, 2.7), (2, 1.89), (2, 1.89)]
    for _ in range(9):
        rule.observe(finished(2, 0))
    assert (rule.length, rule.average) == (1, 1.0)
    rule.reset()
    assert (rule.length, rule.average) == (3, 3.0)


def test_gammatune_plus_ends_early() -> None:
    rule = GammaTuneController(8, 1.0, most=8, start=3, threshold=0.4)
    assert not rule.free
    assert rule.draft_again(state(1, [0.5]))
    assert not rule.draft_again(state(2, [0.19]))
    assert not rule.draft_again(state(3))


def test_likely_look_ups_take_the_place_of_passes() -> None:
    rule = LookUpController(8, 0.5, depth=2)
    assert not rule.free and rule.choose_size(state(1)) == 8
    assert not rule.draft_again(state(0, [0.5], nodes=3))
    assert rule.draft_again(state(0, [0.49], nodes=3))
    assert passes(rule) == 2  # an empty tree is not read
    every_pass = LookUpController(8, 1.0, depth=2)
    assert every_pass.draft_again(state(0, nodes=3))
    assert not HeuristicController(8, 0.5, start=1, carry=False).free


def test_the_radius_of_ucb_spec() -> None:
    radius = ucb_spec_radius(arms=2, most=2.0)
    assert radius(1, 1) == pytest.approx(4.2593, abs=1e-4)  # √(2 (1 + 2 log(2 √2 / .05)))
    assert radius(100, 200) < radius(10, 200) < radius(10, 2000)


def pulls(bandit: Ucb | Exp3, chances: Sequence[float], rounds: int) -> list[int]:
    """How often each arm is played when arms pay 2 with these chances, else 1."""
    draws, played = random.Random(1), [0] * len(chances)
    for _ in range(rounds):
        arm = bandit.choose()
        played[arm] += 1
        bandit.learn(arm, 1.0 + (draws.random() < chances[arm]))
    return played


def test_ucb_plays_each_arm_once_and_then_the_best() -> None:
    def plain(n: int, t: int) -> float:
        return math.sqrt(2 * math.log(t) / n)

    assert pulls(Ucb(3, plain), (0.2, 0.9, 0.5), 3) == [1, 1, 1]
    assert pulls(Ucb(3, plain), (0.2, 0.9, 0.5), 1000)[1] > 800
    assert pulls(Ucb(3, ucb_spec_radius(3, 0.3)), (0.2, 0.9, 0.5), 1000)[1] > 800


def test_exp3_weighs_estimated_losses() -> None:
    bandit = Exp3(2, most=4.0, rate=1.0, seed=0)
    assert bandit.chances() == [0.5, 0.5]
    bandit.learn(0, 1.0)  # the whole loss, drawn by a half: 2; η = √(log 2 / 4)
    assert bandit.chances()[0] == pytest.approx(0.3031, abs=1e-4)
    bandit.learn(1, 99.0)
    assert bandit.chances()[1] > bandit.chances()[0]


def test_exp3_finds_the_best_arm_and_draws_by_its_seed() -> None:
    def played(seed: int) -> list[int]:
        return pulls(Exp3(3, most=1.0, rate=1.0, seed=seed), (0.2, 0.9, 0.5), 2000)

    assert played(0)[1] > 1400
    assert played(0) == played(0) != played(1)


def test_a_bandit_chooses_once_a_round_and_remembers_requests() -> None:
    bandit = Ucb(2, lambda n, t: 0.0)
    rule = BanditController([(0, 4), (3, 8)], bandit, lambda record: float(record.emitted))
    assert rule.free and passes(rule) == 0 and rule.choose_size(state(0)) == 4
    rule.reset()  # the round was never finished
    assert passes(rule) == 0
    rule.observe(finished(0, 1))
    rule.reset()
    assert bandit.pulls == [1, 0] and passes(rule) == passes(rule) == 3
    assert rule.choose_size(state(3)) == 8
    rule.observe(finished(3, 5))
    rule.reset()
    assert bandit.pulls == [1, 1] and passes(rule) == 3


@pytest.mark.parametrize("name", ["ucb1", "exp3"])
def test_banditspec_finds_the_planted_cell(name: str) -> None:
    settings = {"arms": 1, "reward": 1, "width": 0.03, "rate": 4.0}
    rule = RULES[name].controller(SPACE, settings, {}, 0)
    best, late = (1, 8), 0
    for turn in range(3000):
        cell = (passes(rule), rule.choose_size(state(0)))
        rule.observe(finished(cell[0], 2, seconds=0.5 if cell == best else 1.5))
        rule.reset()
        late += turn >= 2000 and cell == best
    assert late > 800


def test_rewards_are_tokens_or_speed() -> None:
    assert reward_of(SPACE, 0)(finished(2, 3, seconds=2.0)) == 4.0
    assert reward_of(SPACE, 1)(finished(2, 3, seconds=2.0)) == pytest.approx(4 * 1.1 / 2)


def test_cells_stay_within_a_space() -> None:
    narrow = replace(SPACE, max_depth=1, size_grid=(0, 2, 6))
    assert cells_within(narrow, [(0, 0), (1, 4), (2, 4), (3, 99)]) == [(0, 0), (1, 2), (1, 6)]


def test_tapout_pays_length_and_rate() -> None:
    rule = TapOutController(8, 1.0, most=8, blend=0.25, width=1.0)
    rule.draft_again(state(1, [0.9], entropy=0.01, margin=0.9))
    rule.observe(finished(4, 2))
    assert rule.bandit.pulls == [1, 0, 0, 0]
    assert rule.bandit.sums[0] == pytest.approx(0.25 * 2 / 8 + 0.75 * 2 / 4)
    rule.observe(finished(1, 1))  # no rule was asked
    assert sum(rule.bandit.pulls) == 1


def test_tapout_finds_the_planted_rule_over_requests() -> None:
    """Only the margin tells here: the others draft on where nothing is accepted."""
    rule = TapOutController(8, 1.0, most=8, blend=0.5, width=1.0)
    assert isinstance(rule.arms[3], MarginController)
    for _ in range(2000):
        on = rule.draft_again(state(1, [0.9], entropy=0.01, margin=0.1))
        rule.observe(finished(8 if on else 1, 1))
        rule.reset()
    assert rule.bandit.pulls[3] > 1500
    assert all(count >= 1 for count in rule.bandit.pulls)


def test_tapout_lets_a_rule_learn_from_its_own_rounds_only() -> None:
    rule = TapOutController(8, 1.0, most=8, blend=0.5, width=1.0)
    bounds = []
    for _ in range(4):
        rule.draft_again(state(1, [0.9], entropy=0.01, margin=0.9))
        rule.observe(finished(2, 0))
        adaptive = rule.arms[2]
        assert isinstance(adaptive, AdaEdlController)
        bounds.append(round(adaptive.bound, 6))
    assert bounds == [0.4, 0.4, 0.401, 0.401]
    rule.reset()
    assert adaptive.bound == 0.4 and rule.bandit.pulls == [1, 1, 1, 1]


PUBLISHED: list[tuple[str, Settings]] = [
    ("heuristic", {"carry": 0, "start": 20}),
    ("heuristic", {"carry": 1, "start": 20}),
    ("confidence", {"refit": 1, "threshold": 0.4}),
    ("confidence", {"refit": 0, "threshold": 0.4}),
    ("svip", {"threshold": 0.3}),
    ("adaedl", {"acceptance": 0.9}),
    ("ddd", {"first": 5, "every": 2}),
    ("gammatune", {"threshold": 0.0}),
    ("ucb1", {"width": 1.0, "reward": 0}),
    ("ucb1", {"width": 1.0, "reward": 1}),
    ("exp3", {"rate": 1.0, "reward": 0}),
    ("tapout", {"width": 1.0, "blend": 0.5}),
]


@pytest.mark.parametrize(("name", "settings"), PUBLISHED)
def test_grids_hold_what_was_published_without_look_ups(name: str, settings: Settings) -> None:
    grid = RULES[name].grid(SPACE)
    assert len(grid) <= GRID_LIMIT
    assert len({tuple(row.items()) for row in grid}) == len(grid)
    wanted = settings.items()
    assert any(wanted <= row.items() and row.get("look_up", 1.0) == 1.0 for row in grid)
    alone = RULES[name].grid(replace(SPACE, free_proposals=False))
    assert all(row.get("look_up", 1.0) == 1.0 for row in alone)


@pytest.mark.parametrize("drafter", ["hybrid", "ngram"])
def test_rules_decode_live_and_keep_the_text(drafter: Literal["hybrid", "ngram"]) -> None:
    pair = tiny_pair(1, drafter, eos=frozenset())
    session = DecoderSession(pair, pair.new_drafter(), clock=WallClock())

    def text(controller: Controller) -> list[int]:
        for _ in range(2):  # memories meet a second request
            session.start([3, 5, 7, 9, 11], 12)
            session.run(controller)
        return session.tokens

    shape = replace(SPACE, max_depth=session.max_depth)
    expected = text(PlainController())
    for name in ("look_up", *dict.fromkeys(name for name, _ in PUBLISHED)):
        rule = RULES[name]
        assert text(rule.controller(shape, rule.grid(shape)[0], {}, 0)) == expected
