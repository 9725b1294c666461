"""What the study of shifts found, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from draftgym.benchmark.statistics import Interval, Ratio
from draftgym.studies.shift.acceptance import Acceptance
from draftgym.studies.shift.gains import Gain
from draftgym.studies.shift.plots import Matrix
from draftgym.studies.shift.temperatures import AtTemperature


def gain_lines(gains: Sequence[Gain], accepted: Mapping[str, Acceptance]) -> Iterator[str]:
    """One line per part.

    Args:
        gains: Parts of one kind.
        accepted: By name.
    """
    for gain in gains:
        mine = accepted[gain.name]
        yield (
            f"{gain.name:<12} {mine.prompts} prompts, {mine.requests} requests, "
            f"{mine.prompt_tokens:.0f} prompt tokens, learned from {gain.learned_from}: next token "
            f"{mine.first.estimate:.3f}, {_told(mine.tau)} tokens a round; cell "
            f"{_told(gain.mixture_over_plain)} x plain, own D={gain.own_cell[0]} "
            f"V={gain.own_cell[1]} {_told(gain.own_over_mixture)} over it, policy "
            f"{_told(gain.policy_over_mixture)} (Holm {gain.policy_holm:.3f}), own policy "
            f"{_told(gain.own_policy_over_policy)} over it"
        )


def matrix_lines(
    found: Mapping[str, Matrix], carried: Mapping[str, Mapping[str, Ratio]]
) -> Iterator[str]:
    """Both matrices and their summaries.

    Args:
        found: By title.
        carried: Speeds by relation, by title.
    """
    for title, matrix in found.items():
        width = max(map(len, matrix))
        columns = list(next(iter(matrix.values())))
        yield f"{title}, speed over the mixture's cell, from (rows) to (columns)"
        yield " " * width + "".join(f"{name:>13}" for name in columns)
        for name, row in matrix.items():
            yield f"{name:<{width}}" + "".join(f"{cell.estimate:>13.3f}" for cell in row.values())
        yield "; ".join(f"{name}: {_told(ratio)}" for name, ratio in carried[title].items())


def temperature_lines(rows: Sequence[AtTemperature]) -> Iterator[str]:
    """One line per temperature.

    Args:
        rows: Of each.
    """
    for row in rows:
        mine = row.acceptance
        yield (
            f"temperature {row.temperature:g}, {mine.prompts} prompts, {mine.requests} requests: "
            f"next token {mine.first.estimate:.3f}, {_told(mine.tau)} tokens a round; cell of 0 "
            f"{_told(row.cold_cell_over_plain)} x plain, own D={row.own_cell[0]} "
            f"V={row.own_cell[1]} {_told(row.own_cell_over_cold_cell)} over it; over the own cell: "
            f"policy {_told(row.policy_over_cell)}, that of 0 {_told(row.cold_policy_over_cell)}; "
            f"learned here over learned at 0 {_told(row.policy_over_cold_policy)}"
        )


def _told(found: Interval) -> str:
    return f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]"
