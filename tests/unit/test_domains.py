"""Gains by domain: another cell per domain told apart from adapting, intervals over requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftgym.theory.bounds import tuned_cells
from draftgym.theory.domains import MIXED, domain_gains
from draftgym.theory.fixed import fixed
from draftgym.theory.landscape import LinearTimes, Ways
from draftgym.traces.same_prompts import common_prompts
from draftgym.traces.trace import ABSENT, Trace
from tests.unit.traces import make_trace

COUNT, LENGTH = 24, 21
FOLDS = np.arange(COUNT) // 2 % 4
TIMES = LinearTimes(0.1, 0.25)


def two_kinds(*, translations: int = 1) -> Trace:
    """In code the first four draft tokens are right, in chat none is.

    Args:
        translations: Prompts of one request.
    """
    ranks = np.full((COUNT, LENGTH - 1, 2, 4), ABSENT)
    ranks[::2, :, 1] = np.arange(4)
    rows = ranks.reshape(-1, 2, 4).tolist()
    trace = make_trace(rows, (LENGTH,) * COUNT, budget=LENGTH + 9)
    sequences = tuple(
        replace(entry, request_id=f"{entry.domain}-{i // (2 * translations)}")
        for i, entry in enumerate(trace.sequences)
    )
    return replace(trace, sequences=sequences, nodes=np.full_like(trace.nodes, 4))


def found(trace: Trace) -> Ways:
    cells = tuned_cells(trace, TIMES, FOLDS)
    return Ways(cells, information=cells.by_domain, clairvoyant=cells.by_domain)


def test_a_cell_per_domain_is_all_the_gain_where_rounds_do_not_differ() -> None:
    trace = two_kinds()
    mixed, *rest = domain_gains(trace, found(trace))
    assert mixed.domain == MIXED
    gains = {gain.domain: gain for gain in rest}
    assert gains["code"].cell == (1, 4)
    assert gains["chat"].cell == (0, 0)
    assert mixed.own_over_tuned.estimate > 1.05
    for gain in (mixed, *rest):
        assert gain.information_over_own.limits == pytest.approx([1.0, 1.0])
        assert gain.own_over_tuned == gain.information_over_tuned


def test_own_cells_are_tuned_on_other_folds_of_the_domain() -> None:
    trace = two_kinds()
    # One fold of code is like chat, so its own prompts would ask for another cell.
    odd = trace.rank.copy()
    odd[np.isin(trace.sequence, np.flatnonzero(FOLDS == 0))] = ABSENT
    trace = replace(trace, rank=odd)
    code = np.array([entry.domain == "code" for entry in trace.sequences])
    cells = tuned_cells(trace, TIMES, FOLDS)
    here = code & (FOLDS == 0)
    np.testing.assert_allclose(cells.own[here], fixed(trace, TIMES, 1, 4)[here])
    assert (cells.own[here] > fixed(trace, TIMES, 0, 0)[here]).all()


def test_a_domain_without_other_prompts_takes_the_cell_of_the_mixture() -> None:
    trace = two_kinds()
    lonely = replace(trace.sequences[0], domain="lonely", request_id="alone")
    trace = replace(trace, sequences=(lonely, *trace.sequences[1:]))
    cells = tuned_cells(trace, TIMES, FOLDS)
    assert cells.own[0] == cells.tuned[0]
    gains = domain_gains(trace, found(trace))
    assert [gain.domain for gain in gains] == [MIXED, "chat", "code"]
    assert gains[0].prompts == COUNT, "a small domain counts in the mixed stream"


def test_translations_count_once() -> None:
    trace = two_kinds(translations=4)
    noise = np.random.default_rng(0).uniform(0.5, 1.0, COUNT // 8).repeat(8)
    ways = found(trace)
    ways = replace(ways, information=ways.fixed.tuned * noise)
    wide = domain_gains(trace, ways)[1]
    assert (wide.prompts, wide.requests) == (COUNT // 2, COUNT // 8)
    singles = two_kinds()
    narrow = domain_gains(singles, ways)[1]
    assert narrow.requests == COUNT // 2
    low, high = narrow.information_over_tuned.limits
    assert wide.information_over_tuned.limits[0] < low
    assert wide.information_over_tuned.limits[1] > high
    assert wide.information_over_tuned.estimate == pytest.approx(
        narrow.information_over_tuned.estimate
    )


def test_common_prompts() -> None:
    trace = two_kinds()
    other = trace.select(np.array([5, 3, 8]))
    first, second = common_prompts([trace, other])
    assert [e.prompt_id for e in first.sequences] == [e.prompt_id for e in second.sequences]
    assert [e.prompt_id for e in first.sequences] == ["prompt-3", "prompt-5", "prompt-8"]
    np.testing.assert_array_equal(first.rank, second.rank)
    with pytest.raises(ValueError, match="no prompt"):
        common_prompts([other, trace.select(np.array([0, 1]))])
    changed = replace(other.sequences[0], tokens=(8,) * LENGTH)
    with pytest.raises(ValueError, match="'prompt-5' differ"):
        common_prompts([trace, replace(other, sequences=(changed, *other.sequences[1:]))])
