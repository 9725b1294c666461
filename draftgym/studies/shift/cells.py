"""Every fixed cell of a trace, so that the best of any part of it can be told."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from draftgym.costs.times import Float64Array, Times
from draftgym.theory.fixed import fixed
from draftgym.theory.requests import Mask
from draftgym.traces.trace import Trace

Cell = tuple[int, int]
"""Draft passes and verification size of all rounds."""

PLAIN: Cell = (0, 0)


@dataclass(frozen=True, eq=False)
class CellTimes:
    """Mean seconds of every cell.

    Attributes:
        cells: Depths of the trace times its size grid.
        seconds: Of all rounds of each sequence, [cells, sequences].
    """

    cells: tuple[Cell, ...]
    seconds: Float64Array

    @classmethod
    def of(cls, trace: Trace, times: Times) -> CellTimes:
        """Work them out."""
        cells = tuple(product(range(trace.shape.max_depth + 1), trace.shape.size_grid))
        return cls(cells, np.stack([fixed(trace, times, *cell) for cell in cells]))

    def best(self, mine: Mask | None = None) -> Cell:
        """The cell that takes the least time.

        Args:
            mine: On these sequences; on all when None.

        Raises:
            ValueError: There is no such sequence.
        """
        seconds = self.seconds if mine is None else self.seconds[:, mine]
        if not seconds.shape[1]:
            raise ValueError("no sequence to tune a cell on")
        return self.cells[int(seconds.sum(1).argmin())]

    def __getitem__(self, cell: Cell) -> Float64Array:
        """Seconds of a cell, [sequences]."""
        found: Float64Array = self.seconds[self.cells.index(cell)]
        return found
