"""What was tuned and learned at one temperature, used at another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from draftgym.benchmark.statistics import Ratio
from draftgym.costs.times import Float64Array
from draftgym.studies.shift.acceptance import Acceptance, acceptance
from draftgym.studies.shift.cells import PLAIN, Cell, CellTimes
from draftgym.studies.shift.gains import speed
from draftgym.studies.shift.groups import everything
from draftgym.traces.trace import Trace

COLD = 0.0


@dataclass(frozen=True, slots=True)
class AtTemperature:
    """Speeds at one temperature; cells and policies come from learning prompts.

    Attributes:
        temperature: Of the target's law.
        acceptance: Under the cell of temperature 0.
        cold_cell: Tuned at temperature 0.
        own_cell: Tuned at this temperature.
        best_cell: Best here in hindsight; nothing is made of it.
        cold_cell_over_plain: The cell of temperature 0 over plain decoding.
        own_cell_over_cold_cell: What tuning the cell here gains.
        policy_over_cell: The policy learned here over the cell tuned here.
        cold_policy_over_cell: The policy learned at temperature 0 over the cell tuned here.
        policy_over_cold_policy: What learning here gains over learning at temperature 0.
    """

    temperature: float
    acceptance: Acceptance
    cold_cell: Cell
    own_cell: Cell
    best_cell: Cell
    cold_cell_over_plain: Ratio
    own_cell_over_cold_cell: Ratio
    policy_over_cell: Ratio
    cold_policy_over_cell: Ratio
    policy_over_cold_policy: Ratio


def at_temperature(
    temperature: float,
    test: Trace,
    cells: CellTimes,
    tuned: Mapping[float, Cell],
    policies: Mapping[float, Float64Array],
    *,
    seed: int = 0,
) -> AtTemperature:
    """Judge what came from this temperature and from temperature 0.

    Args:
        temperature: Of `test`.
        test: Test prompts, decoded at this temperature.
        cells: Of `test`.
        tuned: Cells by the temperature that they were tuned at.
        policies: Seconds of each sequence of `test` by the temperature learned at, decisions
            charged.
        seed: Of the intervals.
    """
    mine = everything(test)
    cold, own = cells[tuned[COLD]], cells[tuned[temperature]]

    def over(slow: Float64Array, fast: Float64Array) -> Ratio:
        return speed(test, slow, fast, mine, seed=seed)

    return AtTemperature(
        temperature=temperature,
        acceptance=acceptance(test, tuned[COLD], mine, seed=seed),
        cold_cell=tuned[COLD],
        own_cell=tuned[temperature],
        best_cell=cells.best(),
        cold_cell_over_plain=over(cells[PLAIN], cold),
        own_cell_over_cold_cell=over(cold, own),
        policy_over_cell=over(own, policies[temperature]),
        cold_policy_over_cell=over(own, policies[COLD]),
        policy_over_cold_policy=over(policies[COLD], policies[temperature]),
    )
