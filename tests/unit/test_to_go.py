"""The time to go is what playing the fixed cell to the end takes, from any position."""

from __future__ import annotations

import numpy as np
import pytest

from draftgym.theory.fixed import fixed
from draftgym.theory.follow import follow
from draftgym.theory.held import held_cells
from draftgym.theory.information import information_bound
from draftgym.theory.to_go import TimeToGo
from draftgym.traces.replay import ReplayBatch
from tests.unit.test_all_action import DEEPER, DearPass, hard_then_easy
from tests.unit.test_clairvoyant import random_trace
from tests.unit.test_information import FOLDS
from tests.unit.times import RandomTimes

TIMES = RandomTimes(8)
LENGTHS = (8, 1, 5, 11)


@pytest.mark.parametrize("cell", [(0, 0), (0, 2), (1, 1), (2, 4)])
def test_from_the_start_it_is_the_fixed_cell(cell: tuple[int, int]) -> None:
    trace = random_trace(8, LENGTHS, budget=12)
    used = np.flatnonzero(trace.lengths > 1)
    prompts = np.array([entry.prompt_tokens for entry in trace.sequences])[used]
    got = TimeToGo(trace, TIMES, *cell)(trace.first[:-1][used], prompts)
    np.testing.assert_allclose(got, fixed(trace, TIMES, *cell)[used])


@pytest.mark.parametrize("cell", [(0, 1), (2, 2)])
def test_from_the_middle_it_is_what_playing_on_takes(cell: tuple[int, int]) -> None:
    trace = random_trace(9, LENGTHS, budget=12)
    to_go, who = TimeToGo(trace, TIMES, *cell), np.zeros(1, np.int64)
    for sequence in (0, 3):
        for emitted in range(1, LENGTHS[sequence]):
            batch = ReplayBatch(trace, TIMES, DEEPER, 1, seed=0)
            batch.start(who, np.array([sequence]))
            batch.emitted[:], batch.uningested[:] = emitted, 4
            row, seconds = trace.first[sequence] + emitted - 1, 0.0
            while not batch.finished[0]:
                batch.open(who)
                while batch.depth[0] < min(cell[0], batch.max_depth[0]):
                    batch.draft(who)
                seconds += float(batch.close(who, np.array([cell[1]])).seconds[0])
            assert to_go(np.array([row]), np.array([4]))[0] == pytest.approx(seconds)


def test_nothing_is_left_after_the_end_of_a_text() -> None:
    trace = random_trace(10, LENGTHS, budget=12)
    to_go = TimeToGo(trace, TIMES, 1, 2)
    ends = trace.first[1:][trace.lengths > 1] - 1
    assert (to_go.after(ends, np.array(1), np.array(1)) == 0).all()
    before = to_go.after(ends[:1] - 1, np.array(1), np.array(1))
    assert before == to_go(ends[:1], np.array(1)) > 0


@pytest.mark.parametrize("rounds", [1, 2, 30])
def test_the_cell_itself_saves_nothing(rounds: int) -> None:
    trace = random_trace(11, LENGTHS, budget=12)
    held = held_cells(trace, TIMES, rounds)
    rows, unread = np.arange(len(trace)), np.full(len(trace), 3)
    context = np.array([entry.prompt_tokens for entry in trace.sequences])[trace.sequence]
    _, seconds = held.outcome(rows, TIMES, unread, context + trace.emitted)
    for column, cell in enumerate(held.cells.tolist()):
        to_go = TimeToGo(trace, TIMES, *cell)
        saved = held.saved(to_go, rows, unread, seconds)[:, column]
        np.testing.assert_allclose(saved, 0.0, atol=1e-9)


def test_the_information_bound_weighs_tokens_by_their_place() -> None:
    trace, times = hard_then_easy(), DearPass()
    easy = trace.rank[:, 0, 0] == 0
    best = follow(trace, times, lambda rows, _: (1 - easy[rows], np.where(easy[rows], 4, 1))).sum()
    by_average = follow(trace, times, lambda rows, _: (rows * 0, easy[rows] * 4)).sum()
    informed = information_bound(trace, times, FOLDS).sum()
    assert by_average > 1.1 * best and informed < 1.03 * best
