"""Speeds over each other in parts of a trace, and matrices of what carries over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from draftgym.benchmark.comparisons import holm
from draftgym.benchmark.statistics import Ratio, paired_ratio
from draftgym.costs.times import Float64Array
from draftgym.studies.shift.cells import PLAIN, Cell, CellTimes
from draftgym.studies.shift.groups import ALL, ONE_OF_EACH, all_but
from draftgym.theory.requests import Mask, request_domains, request_totals
from draftgym.traces.trace import Trace


def speed(
    trace: Trace, over: Float64Array, under: Float64Array, mine: Mask, *, seed: int = 0
) -> Ratio:
    """How much faster one way is than another, with a 95% interval over requests.

    Args:
        trace: Gives requests, domains and tokens.
        over: Seconds of each sequence by the slower way, [sequences].
        under: By the faster way, [sequences].
        mine: Where, [sequences].
        seed: Of the interval.

    Raises:
        StatisticsError: There are fewer than two requests.
    """
    slow, fast = (request_totals(trace, seconds, mine) for seconds in (over, under))
    return paired_ratio(slow, fast, request_domains(trace), seed=seed)


@dataclass(frozen=True, slots=True)
class Gain:
    """Speeds in one part of the test prompts; cells are tuned on learning prompts.

    Attributes:
        name: Of the part.
        learned_from: Learning prompts of the same name.
        mixture_cell: Tuned on learning prompts of all kinds.
        own_cell: Tuned on learning prompts of this kind.
        best_cell: Best here in hindsight; nothing is made of it.
        mixture_over_plain: The mixture's cell over plain decoding.
        own_over_mixture: The own cell over the mixture's.
        policy_over_mixture: The policy of all learning prompts over the mixture's cell.
        policy_over_own: The same over the own cell.
        policy_holm: p-value of `policy_over_mixture`, corrected for all parts of one kind.
        own_policy_over_policy: The policy of this kind's learning prompts over that of all.
    """

    name: str
    learned_from: int
    mixture_cell: Cell
    own_cell: Cell
    best_cell: Cell
    mixture_over_plain: Ratio
    own_over_mixture: Ratio
    policy_over_mixture: Ratio
    policy_over_own: Ratio
    policy_holm: float
    own_policy_over_policy: Ratio


def group_gains(
    test: Trace,
    cells: CellTimes,
    tuned: CellTimes,
    learning: Mapping[str, Mask],
    tested: Mapping[str, Mask],
    policies: Mapping[str, Float64Array],
    *,
    seed: int = 0,
) -> list[Gain]:
    """What cells and policies gain in each part.

    Args:
        test: What is judged.
        cells: Of `test`.
        tuned: Of the learning prompts.
        learning: Parts of the learning prompts by name.
        tested: Parts of `test` of the same names.
        policies: Seconds of each test sequence by what was learned from; decisions charged.
        seed: Of the intervals.

    Raises:
        StatisticsError: A part holds fewer than two requests.
    """
    mixture, policy = tuned.best(), policies[ALL]
    corrected = holm(
        [speed(test, cells[mixture], policy, m, seed=seed).p_value for m in tested.values()]
    )
    gains = []
    for (name, mine), p_holm in zip(tested.items(), corrected, strict=True):
        own = tuned.best(learning[name])

        def over(slow: Float64Array, fast: Float64Array, mine: Mask = mine) -> Ratio:
            return speed(test, slow, fast, mine, seed=seed)

        gains.append(
            Gain(
                name=name,
                learned_from=int(learning[name].sum()),
                mixture_cell=mixture,
                own_cell=own,
                best_cell=cells.best(mine),
                mixture_over_plain=over(cells[PLAIN], cells[mixture]),
                own_over_mixture=over(cells[mixture], cells[own]),
                policy_over_mixture=over(cells[mixture], policy),
                policy_over_own=over(cells[own], policy),
                policy_holm=p_holm,
                own_policy_over_policy=over(policy, policies[name]),
            )
        )
    return gains


def matrix(
    test: Trace,
    ways: Mapping[str, Float64Array],
    reference: Float64Array,
    tested: Mapping[str, Mask],
    *,
    seed: int = 0,
) -> dict[str, dict[str, Ratio]]:
    """Speed over a reference by what was learned from (rows) and where it is tested (columns).

    Args:
        test: What is judged.
        ways: Seconds of each test sequence by row, [sequences].
        reference: Of the same for all rows, [sequences].
        tested: Parts of `test` by column.
        seed: Of the intervals.
    """
    return {
        row: {
            column: speed(test, reference, seconds, mine, seed=seed)
            for column, mine in tested.items()
        }
        for row, seconds in ways.items()
    }


OWN, FOREIGN, OTHERS = "own kind", "another kind, mean", "all other kinds"


def carried_over(
    ways: Mapping[str, Float64Array], tested: Mapping[str, Mask]
) -> dict[str, Float64Array]:
    """Seconds of each test sequence by how what was learned is related to it.

    Args:
        ways: By what was learned from, [sequences]; controls may be among them.
        tested: Parts by name, together every sequence once.

    Returns:
        `OWN`, `FOREIGN` (the mean over every other kind), `ALL`, and of the controls what there
        is: `OTHERS` (everything but the own kind), `ONE_OF_EACH`.
    """
    names = list(tested)

    def pick(choose: Mapping[str, Sequence[str]]) -> Float64Array:
        seconds = np.zeros(len(next(iter(ways.values()))))
        for name, mine in tested.items():
            seconds[mine] = np.mean([ways[row][mine] for row in choose[name]], axis=0)
        return seconds

    found = {
        OWN: pick({name: [name] for name in names}),
        FOREIGN: pick({name: [row for row in names if row != name] for name in names}),
    }
    if all(all_but(name) in ways for name in names):
        found[OTHERS] = pick({name: [all_but(name)] for name in names})
    return found | {name: ways[name] for name in (ONE_OF_EACH, ALL) if name in ways}
