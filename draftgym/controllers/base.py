"""What a published rule is here: a few settings to tune, perhaps something to fit, a controller.

A rule is one file and one line of `draftgym.controllers.registry`. It is fitted on traces of the
policy split, tuned on traces of the validation split (`draftgym.controllers.tuning`) and judged
live, where its decisions are timed like those of learned policies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from draftgym.costs.times import Times
from draftgym.state import Controller, MeasuredCosts
from draftgym.traces.trace import Trace, TraceShape

Settings = Mapping[str, float]
"""What is tuned: plain numbers by name."""

Fitted = Mapping[str, Any]
"""What was learned from traces: plain data, as JSON holds it."""

GRID_LIMIT = 48
"""Most settings that any rule may try: the same budget for all, fixed cells included."""


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Mean seconds of a round's parts at a typical context, for rules that weigh them.

    Attributes:
        draft_pass: One draft pass after the first.
        first_pass: The first one, which ingests what was committed since the last.
        verify: Target pass with acceptance for 0, 1, 2 ... drafted tokens, to the largest size.
        rest: Free proposals and commit.
    """

    draft_pass: float
    first_pass: float
    verify: tuple[float, ...]
    rest: float

    @classmethod
    def of(cls, times: Times, trace: Trace, max_size: int) -> RoundCosts:
        """Read them at a trace's median context.

        Args:
            times: Mean seconds.
            trace: Gives the context.
            max_size: Largest verification size.
        """
        prompts = np.array([entry.prompt_tokens for entry in trace.sequences])
        context = int(np.median(prompts[trace.sequence] + trace.emitted))

        def mean(kind: Any, units: int = 0) -> float:
            return float(times.mean(kind, units, context))

        passes = trace.shape.max_depth > 0
        return cls(
            draft_pass=mean("later") if trace.shape.max_depth > 1 else 0.0,
            first_pass=mean("first", 3) if passes else 0.0,  # a round commits some three tokens
            verify=tuple(mean("verify", size) for size in range(max_size + 1)),
            rest=mean("propose") + mean("commit"),
        )


@dataclass(frozen=True, slots=True)
class Space:
    """What a round allows, and what it costs.

    Attributes:
        max_depth: Most draft passes.
        beam_width: Frontier nodes.
        size_grid: Verification sizes, increasing from 0.
        free_proposals: Whether look-ups put nodes into the tree before the first pass.
        costs: Mean seconds.
        ratios: The same as ratios, as `RoundState.costs` shows them.
    """

    max_depth: int
    beam_width: int
    size_grid: tuple[int, ...]
    free_proposals: bool
    costs: RoundCosts
    ratios: MeasuredCosts

    @classmethod
    def of(
        cls, shape: TraceShape, free_proposals: bool, costs: RoundCosts, ratios: MeasuredCosts
    ) -> Space:
        """The space of a trace's rounds."""
        return cls(
            shape.max_depth, shape.beam_width, shape.size_grid, free_proposals, costs, ratios
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Verification sizes above 0."""
        return self.size_grid[1:]

    def cell_sizes(self, depth: int) -> tuple[int, ...]:
        """Sizes that make sense at a depth: fewer tokens than passes waste the deepest ones."""
        grown = self.beam_width + (depth - 1) * self.beam_width**2 if depth else 0
        most = self.size_grid[-1] if self.free_proposals else grown
        return tuple(size for size in self.sizes if max(1, depth) <= size <= most)


class Rule(ABC):
    """A family of controllers.

    Attributes:
        name: In configurations and files.
        title: In reports; its live method goes by it.
        short: The same in a word or two, for charts.
        source: The paper or file it follows.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    short: ClassVar[str]
    source: ClassVar[str]

    def fit(self, trace: Trace, times: Times, space: Space, seed: int) -> Fitted:
        """Learn from a trace of the policy split what the controller needs; nothing by default.

        Args:
            trace: Of prompts that neither tune nor judge.
            times: Mean seconds of work.
            space: What rounds allow and cost.
            seed: Of whatever is random.
        """
        return {}

    @abstractmethod
    def grid(self, space: Space) -> Sequence[Settings]:
        """Settings to try, at least one and at most `GRID_LIMIT`."""

    @abstractmethod
    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        """A fresh controller, for live rounds and for traces alike.

        Args:
            space: What rounds allow and cost.
            settings: One of the grid.
            fitted: From `fit`.
            seed: Of a controller that draws.
        """


def product(**values: Sequence[float]) -> list[dict[str, float]]:
    """All combinations of values by name, the last name fastest."""
    rows: list[dict[str, float]] = [{}]
    for name, choices in values.items():
        rows = [{**row, name: choice} for row in rows for choice in choices]
    return rows
