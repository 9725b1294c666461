"""Find the best fixed cell of a drafter under one law, and measure what it gains.

A coarse grid runs first, then the neighbours of its best cells, always interleaved with plain
decoding of the same law. Tuning sees validation prompts only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftgym.benchmark.config import Cell, depths, largest_size
from draftgym.benchmark.methods import SessionMethod
from draftgym.benchmark.reference import Reference
from draftgym.benchmark.runner import Plan, Request, Sample, run_blocks, totals
from draftgym.benchmark.statistics import acceptance, paired_ratio
from draftgym.benchmark.summary import (
    PLAIN,
    Ranked,
    compare_outputs,
    domain_speedups,
    emitting_prompts,
    identical_prompts,
    rank_cells,
    rounds_of,
)
from draftgym.clock import Clock
from draftgym.console import progress
from draftgym.decoder.config import DrafterConfig
from draftgym.decoder.controllers import FixedController, PlainController
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.session import DecoderSession

FIXED = "best fixed"
COARSE_DEPTHS = (0, 1, 2, 4)
COARSE_SIZES = (2, 4, 8, 12, 20)


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Sizes of a benchmark.

    Attributes:
        tokens: Budget per prompt.
        repeats: Measurements per test prompt and method.
        tune_tokens: Budget per validation prompt.
        cost_rounds: Rounds per setting of the cost curve.
        seed: Of orders, intervals and sampling.
        temperatures: Also measured, under the coupled rule.
    """

    tokens: int = 64
    repeats: int = 2
    tune_tokens: int = 48
    cost_rounds: int = 12
    seed: int = 0
    temperatures: tuple[float, ...] = ()


class CellRace:
    """Fixed cells and plain decoding of one pair under its law.

    Args:
        pair: Target, drafter and sampling settings.
        clock: Source of time.
        plan: Sizes.
        history: Rounds of history the session keeps.

    Attributes:
        plain: Plain decoding.
        session: The session that all cells share.
    """

    def __init__(self, pair: ModelPair, clock: Clock, plan: BenchPlan, history: int = 8) -> None:
        self._drafter, self._plan = pair.config.drafter, plan
        self.session = DecoderSession(
            pair,
            pair.new_drafter(),
            clock=clock,
            max_depth=self._drafter.max_depth,
            max_size=self._drafter.max_size,
            history=history,
        )
        plain = DecoderSession(pair, None, clock=clock)
        self.plain = SessionMethod(PLAIN, plain, PlainController())

    def tune(self, requests: Sequence[Request], title: str = "tune") -> Ranked:
        """The fastest cell on validation prompts."""
        coarse = coarse_cells(self._drafter)
        ranked = rank_cells(self._measure(f"{title}, coarse", coarse, requests), coarse)
        fine = neighbours(self._drafter, [entry.cell for entry in ranked[:2]])
        fresh = [cell for cell in fine if cell not in coarse]
        # The leader runs again beside its neighbours, so that they meet in one interleaved run.
        second = [ranked[0].cell, *fresh]
        return rank_cells(self._measure(f"{title}, fine", second, requests), second)[0]

    def method(self, cell: Cell, name: str = FIXED) -> SessionMethod:
        """A cell as a method to measure."""
        return SessionMethod(name, self.session, FixedController(cell.depth, cell.size))

    def speedup(
        self,
        validation: Sequence[Request],
        test: Sequence[Request],
        reference: Reference,
        title: str,
    ) -> dict[str, Any]:
        """Tune on validation prompts, then measure the winner against plain on test prompts."""
        best = self.tune(validation, f"{title}: tune")
        plan = Plan(self._plan.tokens, self._plan.repeats, self._plan.seed)
        with progress(f"{title}: test", 2 * len(test) * plan.repeats) as bar:
            samples = run_blocks([self.plain, self.method(best.cell)], test, plan, bar=bar)
        divergences = compare_outputs(samples, test, reference, self.session.rule)
        return {
            "best_fixed": best_fixed(best),
            "speedup": ratio(samples, PLAIN, FIXED, plan.seed),
            "domains": domain_speedups(samples, strata(test), [FIXED])[FIXED],
            "tau_emitted": acceptance(rounds_of(samples, FIXED)).tau_emitted,
            "identical_prompts": identical_prompts(test, divergences),
            "divergences": [asdict(entry) for entry in divergences],
        }

    def _measure(
        self, title: str, cells: Sequence[Cell], requests: Sequence[Request]
    ) -> list[Sample]:
        methods = [self.plain, *(self.method(cell, cell.name) for cell in cells)]
        plan = Plan(self._plan.tune_tokens, 1, self._plan.seed)
        with progress(title, len(methods) * len(requests)) as bar:
            return run_blocks(methods, requests, plan, bar=bar)


def best_fixed(best: Ranked) -> dict[str, Any]:
    """A tuned cell, as results name it."""
    return {
        "depth": best.cell.depth,
        "size": best.cell.size,
        "tuned_on": f"{best.prompts} validation prompts",
    }


def strata(requests: Sequence[Request]) -> dict[str, str]:
    """Domain by prompt id."""
    return {request.prompt_id: request.domain for request in requests}


def ratio(samples: Sequence[Sample], over: str, under: str, seed: int) -> dict[str, Any]:
    """Time per token of `over` by that of `under`, with its interval."""
    usable = emitting_prompts(samples, over, under)
    estimate = paired_ratio(
        totals(samples, over, usable), totals(samples, under, usable), seed=seed
    )
    return {"ratio": estimate.estimate, "ci95": estimate.limits}


def coarse_cells(drafter: DrafterConfig) -> list[Cell]:
    """A few depths and sizes, spread over the table."""
    allowed = depths(drafter)
    chosen = [depth for depth in COARSE_DEPTHS if depth in allowed] or list(allowed[:1])
    cells = dict.fromkeys(
        Cell(depth=depth, size=size)
        for depth in chosen
        for size in COARSE_SIZES
        # Fewer tokens than passes: the deepest ones could never be accepted.
        if max(1, depth) <= size <= largest_size(drafter, depth)
    )
    return list(cells)


def neighbours(drafter: DrafterConfig, cells: Sequence[Cell]) -> list[Cell]:
    """Cells one depth or one size step away from the given ones."""
    found = []
    for cell in cells:
        step = max(1, cell.size // 4)
        for depth, size in (
            (cell.depth - 1, cell.size),
            (cell.depth + 1, cell.size),
            (cell.depth, cell.size - step),
            (cell.depth, cell.size + step),
            (cell.depth + 1, cell.size + step),
        ):
            if depth in depths(drafter) and 1 <= size <= largest_size(drafter, depth):
                found.append(Cell(depth=depth, size=size))
    return list(dict.fromkeys(found))
