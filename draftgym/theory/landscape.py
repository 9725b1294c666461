"""Where adapting can pay: bounds over hypothetical costs, for the text and drafter of a trace.

A trace says what every depth and size keeps; what they cost is another machine's business. Here
the costs are two numbers, in plain decoding steps: one draft pass, and one more verified token.
A large target on a GPU that serves one request has cheap passes and verifies for next to nothing;
a full batch makes every verified token cost; a small model as the drafter makes passes dear.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from draftgym.costs.times import Float64Array, Times, Work
from draftgym.runtime.timing import DecisionSeconds
from draftgym.theory.bounds import FixedCells, tuned_cells
from draftgym.theory.clairvoyant import clairvoyant
from draftgym.theory.information import information_bound
from draftgym.traces.trace import IntArray, Trace


@dataclass(frozen=True, slots=True)
class LinearTimes:
    """Costs in plain steps; implements `Times` without any spread.

    Attributes:
        draft: One draft pass.
        slope: One more verified token.
    """

    draft: float
    slope: float

    @property
    def decision_seconds(self) -> DecisionSeconds:
        """Nothing."""
        return DecisionSeconds(0.0, 0.0)

    def mean(self, kind: Work, units: ArrayLike, context: ArrayLike) -> Float64Array:
        """As `Times.mean`."""
        units, _ = np.broadcast_arrays(units, context)
        if kind == "verify":
            return np.asarray(1.0 + self.slope * units, np.float64)
        return np.full(units.shape, self.draft if kind in ("first", "later") else 0.0)

    def draw(
        self, kind: Work, units: ArrayLike, context: ArrayLike, rng: np.random.Generator
    ) -> Float64Array:
        """The mean."""
        return self.mean(kind, units, context)


@dataclass(frozen=True, eq=False)
class Ways:
    """What decoding each sequence takes, from knowing nothing of it to knowing everything.

    Attributes:
        fixed: Plain decoding and fixed cells.
        information: Of the information bound, [sequences]. It is an estimate from one trace, so
            a fixed cell may be faster somewhere.
        clairvoyant: Of the clairvoyant, [sequences].
    """

    fixed: FixedCells
    information: Float64Array
    clairvoyant: Float64Array


@dataclass(frozen=True, slots=True)
class Place:
    """What can be gained under some costs; speeds are ratios of summed times.

    Attributes:
        tuned_over_plain: Speed of the fixed cell tuned on other prompts, over plain decoding.
        information: Speed of the information bound, over the tuned cell.
        clairvoyant: Speed of the clairvoyant, over the tuned cell.
        cell: Depth and size of the best fixed cell of all prompts.
    """

    tuned_over_plain: float
    information: float
    clairvoyant: float
    cell: tuple[int, int]

    @classmethod
    def of(cls, ways: Ways) -> Place:
        """Sum up."""
        tuned = float(ways.fixed.tuned.sum())
        # Whoever knows everything could also follow the cell.
        knows = min(tuned, float(ways.information.sum()))
        return cls(
            float(ways.fixed.plain.sum()) / tuned,
            tuned / knows,
            tuned / float(ways.clairvoyant.sum()),
            ways.fixed.best,
        )


def ways(
    trace: Trace,
    times: Times,
    folds: IntArray,
    *,
    more: Trace | None = None,
    seed: int = 0,
    coarse: bool = False,
) -> Ways:
    """Fixed cells and bounds of a trace under some costs.

    Args:
        trace: Positions.
        times: Mean seconds, or any other unit.
        folds: Fold of each sequence; what is tuned or learned for it saw the others only.
        more: Positions of other prompts, to learn from.
        seed: Of the networks.
        coarse: As `information_bound`.

    Raises:
        ValueError: If there are fewer than three folds, or `more` is of another shape.
    """
    return Ways(
        tuned_cells(trace, times, folds),
        information_bound(trace, times, folds, more=more, seed=seed, coarse=coarse),
        clairvoyant(trace, times).seconds,
    )
