"""The benchmark of the machinery: how lean the loop is, and what speculation gains.

Everything runs side by side in one process: plain decoding, the best fixed cell (chosen on
validation prompts), Transformers' `generate`, a session that never speculates, and a session
under a policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from draftgym.benchmark.config import Cell, depths, largest_size
from draftgym.benchmark.costs import CostCurve, cost_table, measure_costs, read_bandwidth
from draftgym.benchmark.divergence import Divergence
from draftgym.benchmark.methods import TRANSFORMERS, HuggingFaceMethod, SessionMethod
from draftgym.benchmark.reference import Reference
from draftgym.benchmark.runner import Method, Plan, Request, Sample, run_blocks, totals
from draftgym.benchmark.statistics import acceptance, paired_ratio
from draftgym.benchmark.summary import (
    PLAIN,
    Ranked,
    compare_outputs,
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
from draftgym.runtime import ExportedController
from draftgym.state import RoundRecord

FIXED = "best fixed"
SILENT = "silent session"
UNDER_POLICY = "under the policy"
COARSE_DEPTHS = (0, 1, 2, 4)
COARSE_SIZES = (2, 4, 8, 12)


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Sizes of a benchmark.

    Attributes:
        tokens: Budget per prompt.
        repeats: Measurements per test prompt and method.
        tune_tokens: Budget per validation prompt.
        cost_rounds: Rounds per setting of the cost curve.
        seed: Of orders and intervals.
    """

    tokens: int = 64
    repeats: int = 2
    tune_tokens: int = 48
    cost_rounds: int = 12
    seed: int = 0


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A finished benchmark.

    Attributes:
        payload: The result line, without schema name and provenance.
        faults: Divergences from plain decoding that no near-tie explains.
    """

    payload: dict[str, Any]
    faults: tuple[Divergence, ...]


class Bench:
    """One benchmark run.

    Args:
        pair: Target and drafter.
        drafter: Configuration of the drafter.
        controller: Policy whose overhead is measured, trained or not.
        reference: The target in Transformers.
        clock: Source of time.
        plan: Sizes.
    """

    def __init__(
        self,
        pair: ModelPair,
        drafter: DrafterConfig,
        controller: ExportedController,
        reference: Reference,
        clock: Clock,
        plan: BenchPlan,
    ) -> None:
        self._pair, self._drafter, self._clock, self._plan = pair, drafter, clock, plan
        self._controller, self._reference = controller, reference
        layout = controller.policy.layout
        self._size_grid = layout.size_grid
        self._session = DecoderSession(
            pair,
            pair.new_drafter(),
            clock=clock,
            max_depth=drafter.max_depth,
            max_size=drafter.max_size,
            history=layout.history,
        )
        plain = DecoderSession(pair, None, clock=clock)
        self._plain = SessionMethod(PLAIN, plain, PlainController())

    def run(self, validation: Sequence[Request], test: Sequence[Request]) -> BenchResult:
        """Measure costs and tune on validation prompts, then judge on test prompts.

        Args:
            validation: Prompts for costs and tuning.
            test: Prompts for every reported ratio of methods.
        """
        curve = self._costs(validation)
        self._session.costs = curve.measured
        best = self._tune(validation)
        samples = self._judge(test, best.cell)
        ours = [sample for sample in samples if sample.method != TRANSFORMERS]
        divergences = compare_outputs(ours, test, self._reference)
        records = rounds_of(samples, UNDER_POLICY)
        payload = {
            "plain_over_hf": self._ratio(samples, TRANSFORMERS, PLAIN),
            "best_fixed": {
                "depth": best.cell.depth,
                "size": best.cell.size,
                "tuned_on": f"{best.prompts} validation prompts",
            },
            "speedup": self._ratio(samples, PLAIN, FIXED),
            "tau_emitted": acceptance(rounds_of(samples, FIXED)).tau_emitted,
            "draft_pass_over_plain": curve.draft_pass_over_plain,
            "verify_over_plain": curve.verify_over_plain,
            "policy_us_per_round": _policy_microseconds(records),
            "policy_share": _policy_share(records),
            "silent_session_over_plain": self._ratio(samples, SILENT, PLAIN)["ratio"],
            "bandwidth_floor_over_plain": self._bandwidth_floor(curve),
            "identical_prompts": identical_prompts(test, divergences),
            "prompts": len(test),
            "divergences": [asdict(entry) for entry in divergences],
            "milliseconds": _milliseconds(samples, curve),
        }
        return BenchResult(payload, tuple(entry for entry in divergences if not entry.near_tie))

    def _costs(self, requests: Sequence[Request]) -> CostCurve:
        table = cost_table(self._drafter, self._size_grid)
        with progress("costs", self._plan.cost_rounds * len(table)) as bar:
            return measure_costs(
                self._session,
                requests,
                table,
                rounds_per_setting=self._plan.cost_rounds,
                max_new_tokens=self._plan.tokens,
                seed=self._plan.seed,
                bar=bar,
            )

    def _tune(self, requests: Sequence[Request]) -> Ranked:
        """Coarse grid first, then the neighbours of its best cells, on the same prompts."""
        coarse = coarse_cells(self._drafter)
        samples = self._measure_cells("tune, coarse", coarse, requests)
        ranked = rank_cells(samples, coarse)
        fine = neighbours(self._drafter, [entry.cell for entry in ranked[:2]])
        fresh = [cell for cell in fine if cell not in coarse]
        # The leader runs again beside its neighbours, so that they meet in one interleaved run.
        second = [ranked[0].cell, *fresh]
        return rank_cells(self._measure_cells("tune, fine", second, requests), second)[0]

    def _measure_cells(
        self, title: str, cells: Sequence[Cell], requests: Sequence[Request]
    ) -> list[Sample]:
        methods = [
            self._plain,
            *(
                SessionMethod(cell.name, self._session, FixedController(cell.depth, cell.size))
                for cell in cells
            ),
        ]
        plan = Plan(self._plan.tune_tokens, 1, self._plan.seed)
        with progress(title, len(methods) * len(requests)) as bar:
            return run_blocks(methods, requests, plan, bar=bar)

    def _judge(self, requests: Sequence[Request], best: Cell) -> list[Sample]:
        session = self._session
        methods: list[Method] = [
            self._plain,
            SessionMethod(FIXED, session, FixedController(best.depth, best.size)),
            SessionMethod(SILENT, session, PlainController()),
            SessionMethod(UNDER_POLICY, session, self._controller),
            HuggingFaceMethod(
                self._reference.model,
                self._clock,
                tuple(sorted(self._pair.generation.eos_token_ids)),
            ),
        ]
        plan = Plan(self._plan.tokens, self._plan.repeats, self._plan.seed)
        with progress("test", len(methods) * len(requests) * self._plan.repeats) as bar:
            return run_blocks(methods, requests, plan, bar=bar)

    def _ratio(self, samples: Sequence[Sample], over: str, under: str) -> dict[str, Any]:
        usable = emitting_prompts(samples)
        ratio = paired_ratio(
            totals(samples, over, usable), totals(samples, under, usable), seed=self._plan.seed
        )
        return {"ratio": ratio.estimate, "ci95": ratio.limits}

    def _bandwidth_floor(self, curve: CostCurve) -> float:
        """Reading every weight once, at the speed memory can be read, over one plain step."""
        bandwidth = read_bandwidth(self._pair.device, self._clock)
        return self._pair.target.weight_bytes / bandwidth / curve.plain_seconds


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


def _policy_microseconds(records: Sequence[RoundRecord]) -> dict[str, float]:
    values = [1e6 * record.policy_seconds for record in records]
    return {"median": float(np.median(values)), "p99": float(np.quantile(values, 0.99))}


def _policy_share(records: Sequence[RoundRecord]) -> float:
    whole = sum(record.seconds for record in records)
    return sum(record.policy_seconds for record in records) / whole


def _milliseconds(samples: Sequence[Sample], curve: CostCurve) -> dict[str, float]:
    """Plain times behind the ratios: per token by method, and one draft pass."""
    usable = emitting_prompts(samples)
    names = dict.fromkeys(sample.method for sample in samples)
    paces = {name: 1e3 * totals(samples, name, usable).time_per_token for name in sorted(names)}
    return {
        **paces,
        "plain step": 1e3 * curve.plain_seconds,
        "first draft pass": 1e3 * curve.first_pass_seconds,
        "later draft pass": 1e3 * curve.later_pass_seconds,
    }
