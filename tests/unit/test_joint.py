"""One decision a round, or for some rounds: what it is worth, and that the best one is learned."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from draftgym.batch_state import IntArray
from draftgym.console import QuietBar
from draftgym.runtime import DecisionSeconds
from draftgym.theory.fixed import fixed
from draftgym.theory.follow import follow
from draftgym.theory.held import all_cells, held_cells
from draftgym.traces.judge import judge_rounds
from draftgym.traces.replay import ReplayBatch
from policies.all_action import AllActionConfig
from policies.joint import JOINT_ENTROPY, JointTrainer, learn_joint
from tests.unit.test_all_action import COSTS, DEEPER, LAYOUT, told_from_the_start
from tests.unit.test_clairvoyant import random_trace
from tests.unit.test_information import SimpleTimes
from tests.unit.times import RandomTimes

TIMES = RandomTimes(5)


def test_a_cell_held_to_the_end_is_a_fixed_cell() -> None:
    trace = random_trace(5, (7, 1, 5, 12), budget=12)
    held = held_cells(trace, TIMES, rounds=20)
    used = np.flatnonzero(trace.lengths > 1)
    rows = trace.first[:-1][used]
    prompts = np.array([entry.prompt_tokens for entry in trace.sequences])[used]
    tokens, seconds = held.outcome(rows, TIMES, prompts, prompts + 1)
    np.testing.assert_array_equal(tokens, np.tile(trace.lengths[used] - 1, (len(held.cells), 1)).T)
    for column, cell in enumerate(held.cells.tolist()):
        np.testing.assert_allclose(seconds[:, column], fixed(trace, TIMES, *cell)[used])


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_held_cell_is_what_playing_it_takes(rounds: int) -> None:
    trace = random_trace(6, (9,), budget=10)
    held = held_cells(trace, TIMES, rounds)
    for column, (depth, size) in enumerate(held.cells.tolist()):
        batch = ReplayBatch(trace, TIMES, DEEPER, 1, seed=0)
        who = np.zeros(1, np.int64)
        batch.start(who, who)
        batch.emitted[:], batch.uningested[:] = 2, 3  # as if a plain step had been made
        tokens = seconds = 0.0
        for turn in range(rounds):
            if batch.finished.all():
                break
            batch.open(who)
            if not turn:
                got = held.outcome(batch.row, TIMES, batch.uningested, batch.context)
            while batch.depth[0] < min(depth, batch.max_depth[0]):
                batch.draft(who)
            finished = batch.close(who, np.array([size]))
            tokens, seconds = tokens + finished.emitted[0], seconds + finished.seconds[0]
        assert got[0][0, column] == tokens
        assert got[1][0, column] == pytest.approx(seconds)


@pytest.mark.parametrize("every", [1, 3])
def test_a_decision_is_charged_when_it_is_made(every: int) -> None:
    trace, asked = random_trace(7, (9, 6, 1), budget=9), np.zeros(3)
    dear = RandomTimes(5)
    dear.decision_seconds = DecisionSeconds(depth=100.0, size=7.0)

    def choose(batch: ReplayBatch, who: IntArray) -> tuple[IntArray, IntArray]:
        asked[who] += 1
        return np.full(len(who), 1), np.full(len(who), 2)

    seconds = judge_rounds(trace, dear, DEEPER, choose, COSTS, every=every)
    np.testing.assert_allclose(seconds, fixed(trace, TIMES, 1, 2) + 100 * asked)
    assert asked[2] == 0 and asked[0] >= 2
    if every == 3:
        often = judge_rounds(trace, dear, DEEPER, choose, COSTS, every=1)
        assert (often[:2] > seconds[:2]).all()


def test_learns_the_best_of_all_enumerated_rules() -> None:
    trace, times = told_from_the_start(), SimpleTimes()
    right = trace.rank[:, 1, 0] == 0
    cells = all_cells(trace)

    def under(good: IntArray, bad: IntArray) -> float:
        def choose(rows: IntArray, unread: IntArray) -> tuple[IntArray, IntArray]:
            chosen = np.where(right[rows][:, None], good, bad)
            return chosen[:, 0], chosen[:, 1]

        return float(follow(trace, times, choose).sum())

    best = min(under(good, bad) for good, bad in product(cells, cells))
    config = AllActionConfig(steps=150, requests=64, learning_rate=1e-2, hidden=(16,))
    policy = learn_joint(trace, times, LAYOUT, COSTS, config, 1, QuietBar("", 150))
    reached = judge_rounds(trace, times, LAYOUT, policy, COSTS).sum()
    assert best <= reached < 1.01 * best


def test_a_decision_kept_to_the_end_is_the_best_cell() -> None:
    trace, times = told_from_the_start(), SimpleTimes()
    config = AllActionConfig(
        steps=100, requests=64, learning_rate=1e-2, hidden=(16,), entropy=JOINT_ENTROPY
    )
    trainer = JointTrainer(trace, times, LAYOUT, COSTS, config, every=50)
    trainer.train(100)
    kept = judge_rounds(trace, times, LAYOUT, trainer.policy(), COSTS, every=50).sum()
    best = min(fixed(trace, times, *cell).sum() for cell in all_cells(trace).tolist())
    # The first token's hint is worth little over so many rounds.
    assert 0.9 * best < kept < 1.01 * best
