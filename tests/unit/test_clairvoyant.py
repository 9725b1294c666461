"""The clairvoyant bound against every sequence of decisions, on small traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from draftgym.theory import clairvoyant as module
from draftgym.theory.clairvoyant import clairvoyant
from draftgym.theory.fixed import best_fixed, fixed
from draftgym.traces.trace import ABSENT, Trace
from tests.unit.times import RandomTimes
from tests.unit.traces import make_trace

DEPTHS = (0, 1, 2)
SIZES = (0, 1, 2, 4)
PROMPT = 5


def random_trace(seed: int, lengths: Sequence[int], budget: int | None = None) -> Trace:
    """Trees that hold some tokens of the path at some rank, deeper ones perhaps elsewhere."""
    random = np.random.default_rng(seed)
    rows = sum(length - 1 for length in lengths)
    ranks = random.integers(0, 5, (rows, len(DEPTHS), 3))
    ranks[random.random(ranks.shape) < 0.2] = ABSENT
    return make_trace(ranks.tolist(), lengths, size_grid=SIZES, budget=budget, seed=seed)


def cheapest(
    trace: Trace, times: RandomTimes, index: int, settings: Sequence[tuple[int, int]]
) -> float:
    """Least seconds over all sequences of decisions, one by one."""
    entry, start = trace.sequences[index], int(trace.first[index])
    budget = min(entry.max_new_tokens, trace.context_limit - entry.prompt_tokens)
    cost = {kind: table.tolist() for kind, table in times.costs.items()}

    def rest(emitted: int, unread: int) -> float:
        if emitted == len(entry.tokens):
            return 0.0
        row, context = start + emitted - 1, entry.prompt_tokens + emitted
        best = float("inf")
        for asked_depth, asked_size in settings:
            plain = budget - emitted <= 1
            depth = 0 if plain else min(asked_depth, int(trace.depth_limit[row]))
            size = 0 if plain else min(asked_size, int(trace.nodes[row, depth]))
            accepted = 0
            while accepted < 3 and trace.rank[row, depth, accepted] < size:
                accepted += 1
            tokens = min(accepted + 1, len(entry.tokens) - emitted)
            seconds = cost["propose"][0][context] + cost["commit"][0][context]
            seconds += cost["verify"][size][context]
            if depth:
                seconds += cost["first"][unread][context]
                seconds += (depth - 1) * cost["later"][0][context]
            after = tokens if depth else unread + tokens
            best = min(best, seconds + rest(emitted + tokens, after))
        return best

    return rest(1, entry.prompt_tokens)


@pytest.mark.parametrize("seed", range(6))
def test_is_the_least_of_all_sequences_of_decisions(seed: int) -> None:
    trace, times = random_trace(seed, (5, 1, 4)), RandomTimes(seed)
    variants = [(DEPTHS, SIZES), *((DEPTHS, (v,)) for v in (2, 9)), *(((d,), SIZES) for d in (1,))]
    for depths, sizes in variants:
        bound = clairvoyant(trace, times, depths=depths, sizes=sizes)
        settings = list(product(depths, sizes))
        wanted = [cheapest(trace, times, index, settings) for index in range(3)]
        assert bound.seconds == pytest.approx(wanted, rel=1e-12)
        assert bound.tokens.tolist() == [4, 0, 3]


@pytest.mark.parametrize("seed", range(4))
def test_long_stretches_without_a_pass_are_priced_by_what_is_unread(seed: int) -> None:
    """With passes dear and reading costs that differ, when to draft at all is the question."""
    trace, times = random_trace(seed, (11,)), RandomTimes(seed)
    times.costs["first"] *= 4.0
    settings = [(0, 0), (1, 4)]
    without_proposals = replace(
        trace, nodes=np.where(np.arange(3) == 0, 0, trace.nodes).astype("i2")
    )
    bound = clairvoyant(without_proposals, times, depths=(0, 1), sizes=(4,))
    assert bound.seconds[0] == pytest.approx(cheapest(without_proposals, times, 0, settings))
    assert {0, 1} <= set(bound.depth.tolist())


@pytest.mark.parametrize("seed", range(4))
def test_schedule_adds_up_to_the_bound_and_covers_the_text(seed: int) -> None:
    trace, times = random_trace(seed, (9, 1, 12), budget=14), RandomTimes(seed)
    bound = clairvoyant(trace, times)
    assert set(bound.depth.tolist()) <= set(DEPTHS)
    seconds, row_after = np.zeros(3), {0: 0, 2: 8}
    unread = {0: PROMPT, 2: PROMPT}
    for row, depth, size in zip(bound.rows, bound.depth, bound.size, strict=True):
        index, emitted = int(trace.sequence[row]), int(trace.emitted[row])
        assert row == row_after[index]
        accepted = int(trace.accepted(*(np.array([value]) for value in (row, depth, size)))[0])
        tokens = min(accepted + 1, len(trace.sequences[index].tokens) - emitted)
        context = PROMPT + emitted
        costs = times.costs
        spent = costs["propose"][0, context] + costs["commit"][0, context]
        spent += costs["verify"][size, context]
        if depth:
            spent += costs["first"][unread[index], context]
            spent += (depth - 1) * costs["later"][0, context]
        seconds[index] += spent
        unread[index] = tokens if depth else unread[index] + tokens
        row_after[index] = int(row) + tokens
    assert row_after == {0: 8, 2: 19}
    assert seconds == pytest.approx(bound.seconds, rel=1e-12)
    assert bound.seconds_per_token == pytest.approx(seconds.sum() / 19)


@pytest.mark.parametrize("seed", range(4))
def test_no_fixed_cell_beats_the_bound_and_variants_lie_between(seed: int) -> None:
    trace, times = random_trace(seed, (40, 2, 25), budget=45), RandomTimes(seed)
    joint = clairvoyant(trace, times).seconds
    cells = {cell: fixed(trace, times, *cell) for cell in product(DEPTHS, SIZES)}
    for (depth, size), seconds in cells.items():
        depth_only = clairvoyant(trace, times, sizes=(size,)).seconds
        size_only = clairvoyant(trace, times, depths=(depth,)).seconds
        for between in (depth_only, size_only):
            assert (joint <= between + 1e-12).all()
            assert (between <= seconds + 1e-12).all()
    best = best_fixed(trace, times)
    assert cells[best].sum() == min(seconds.sum() for seconds in cells.values())


@pytest.mark.parametrize("cell", [(0, 0), (0, 2), (1, 4), (2, 2)])
def test_a_fixed_cell_is_the_bound_with_nothing_to_choose(cell: tuple[int, int]) -> None:
    trace, times = random_trace(1, (7, 1, 4), budget=8), RandomTimes(1)
    seconds = fixed(trace, times, *cell)
    assert seconds == pytest.approx([cheapest(trace, times, i, [cell]) for i in range(3)])
    depth, size = cell
    assert clairvoyant(trace, times, depths=(depth,), sizes=(size,)).seconds == pytest.approx(
        seconds
    )


@pytest.mark.parametrize("by_context", [False, True])
def test_the_last_token_of_the_room_is_a_plain_step(by_context: bool) -> None:
    """Even where the tree would hold it and verifying were free."""
    trace = make_trace([[[0, 1, 2]] * 3] * 4, size_grid=SIZES, budget=None if by_context else 5)
    if by_context:
        tokens = replace(trace.sequences[0], max_new_tokens=50)
        trace = replace(
            trace,
            sequences=(tokens,),
            context_limit=PROMPT + 5,
            depth_limit=np.full(4, 2, np.int16),
        )
    times = RandomTimes(3)
    for kind in ("first", "later", "propose", "commit"):
        times.costs[kind][:] = 0.0
    times.costs["verify"][:] = 1.0
    times.costs["verify"][1:] = 1e-6
    bound = clairvoyant(trace, times, depths=DEPTHS, sizes=(1,))
    # Two tokens a round from row 0 and 2; a step to row 3 would have to be plain.
    assert bound.rows.tolist() == [0, 2]
    alone = replace(trace, rank=np.full_like(trace.rank, ABSENT))
    steps = clairvoyant(alone, times, depths=DEPTHS, sizes=(1,))
    assert steps.size.tolist() == [1, 1, 1, 0]
    assert steps.depth[-1] == 0
    assert fixed(alone, times, 2, 1)[0] == pytest.approx(1.0 + 3e-6)


@pytest.mark.parametrize("seed", range(3))
def test_beyond_the_cap_unread_tokens_keep_their_price(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, times = random_trace(seed, (30,)), RandomTimes(seed)
    times.costs["first"][6:] = times.costs["first"][6] * 4
    exact = clairvoyant(trace, times).seconds
    monkeypatch.setattr(module, "UNREAD_TOKENS", 6)
    assert clairvoyant(trace, times).seconds == pytest.approx(exact, rel=1e-12)


def test_work_grows_with_the_length_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNREAD_TOKENS", 8)
    entries = []
    for length in (51, 101, 151):
        times = RandomTimes(0, units=256)
        clairvoyant(random_trace(0, (length,)), times)
        entries.append(times.entries)
    assert entries[1] - entries[0] == entries[2] - entries[1]
    assert entries[2] == pytest.approx(3 * entries[0])


def test_a_drafter_without_passes_needs_no_times_of_passes() -> None:
    trace = make_trace([[[0, 1]]] * 6, size_grid=SIZES)
    times = RandomTimes(0)
    del times.costs["first"], times.costs["later"]
    assert clairvoyant(trace, times).seconds[0] <= fixed(trace, times, 0, 2)[0]


def test_what_the_trace_does_not_hold_is_refused() -> None:
    trace, times = random_trace(0, (4,)), RandomTimes(0)
    with pytest.raises(ValueError, match=r"^depths: must be some of 0 to 2, got \[1, 3\]"):
        clairvoyant(trace, times, depths=(1, 3))
    with pytest.raises(ValueError, match=r"^sizes"):
        clairvoyant(trace, times, sizes=())
    with pytest.raises(ValueError, match="depth"):
        fixed(trace, times, 3, 1)
