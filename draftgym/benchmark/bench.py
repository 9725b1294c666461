"""The benchmark of the machinery: how lean the loop is, and what speculation gains.

Everything runs side by side in one process: plain decoding, the best fixed cell (chosen on
validation prompts), Transformers' `generate`, a session that never speculates, and a session
under a policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from draftgym.benchmark.cell_race import (
    FIXED,
    BenchPlan,
    CellRace,
    best_fixed,
    ratio,
    strata,
)
from draftgym.benchmark.config import Cell
from draftgym.benchmark.costs import CostCurve, measure_costs, read_bandwidth
from draftgym.benchmark.divergence import Divergence
from draftgym.benchmark.methods import TRANSFORMERS, HuggingFaceMethod, SessionMethod
from draftgym.benchmark.reference import Reference
from draftgym.benchmark.runner import Method, Plan, Request, Sample, run_blocks, totals
from draftgym.benchmark.statistics import acceptance
from draftgym.benchmark.summary import (
    PLAIN,
    compare_outputs,
    domain_speedups,
    emitting_prompts,
    identical_prompts,
    rounds_of,
)
from draftgym.benchmark.untrained import Unheeded
from draftgym.clock import Clock
from draftgym.console import progress
from draftgym.costs.measure import cost_table
from draftgym.decoder.config import DrafterConfig, SamplingConfig
from draftgym.decoder.controllers import PlainController
from draftgym.decoder.pair import ModelPair
from draftgym.runtime import LearnedController
from draftgym.state import Controller, RoundRecord

SILENT = "silent session"
UNDER_POLICY = "under the policy"


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
        controller: Policy whose overhead is measured.
        reference: The target in Transformers.
        clock: Source of time.
        plan: Sizes.
        heeded: False for an untrained policy: rounds then do what the best fixed cell says.
    """

    def __init__(
        self,
        pair: ModelPair,
        drafter: DrafterConfig,
        controller: LearnedController,
        reference: Reference,
        clock: Clock,
        plan: BenchPlan,
        *,
        heeded: bool = True,
    ) -> None:
        self._pair, self._drafter, self._clock, self._plan = pair, drafter, clock, plan
        self._controller, self._reference, self._heeded = controller, reference, heeded
        layout = controller.layout
        self._size_grid = layout.size_grid
        self._race = CellRace(pair, clock, plan, layout.history)
        self._session, self._plain = self._race.session, self._race.plain

    def run(self, validation: Sequence[Request], test: Sequence[Request]) -> BenchResult:
        """Measure costs and tune on validation prompts, then judge on test prompts.

        Args:
            validation: Prompts for costs and tuning.
            test: Prompts for every reported ratio of methods.
        """
        curve = self._costs(validation)
        self._session.costs = curve.measured
        best = self._race.tune(validation)
        samples = self._judge(test, best.cell)
        ours = [sample for sample in samples if sample.method != TRANSFORMERS]
        divergences = compare_outputs(ours, test, self._reference, self._session.rule)
        records = rounds_of(samples, UNDER_POLICY)
        payload = {
            "plain_over_hf": self._ratio(samples, TRANSFORMERS, PLAIN),
            "best_fixed": best_fixed(best),
            "speedup": self._ratio(samples, PLAIN, FIXED),
            "domains": domain_speedups(samples, strata(test), [FIXED])[FIXED],
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
            "temperatures": {
                f"{temperature:g}": self._sampled(temperature, validation, test)
                for temperature in self._plan.temperatures
            },
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

    def _sampled(
        self, temperature: float, validation: Sequence[Request], test: Sequence[Request]
    ) -> dict[str, Any]:
        """The same comparison for coupled sampling, its cell tuned anew."""
        sampling = SamplingConfig(temperature=temperature, seed=self._plan.seed)
        config = self._pair.config.model_copy(update={"sampling": sampling})
        race = CellRace(replace(self._pair, config=config), self._clock, self._plan)
        return race.speedup(validation, test, self._reference, f"temperature {temperature:g}")

    def _judge(self, requests: Sequence[Request], best: Cell) -> list[Sample]:
        session, policy = self._session, self._controller
        asked: Controller = policy if self._heeded else Unheeded(policy, best.depth, best.size)
        methods: list[Method] = [
            self._plain,
            self._race.method(best),
            SessionMethod(SILENT, session, PlainController()),
            SessionMethod(UNDER_POLICY, session, asked),
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
        return ratio(samples, over, under, self._plan.seed)

    def _bandwidth_floor(self, curve: CostCurve) -> float:
        """Reading every weight once, at the speed memory can be read, over one plain step."""
        bandwidth = read_bandwidth(self._pair.device, self._clock)
        return self._pair.target.weight_bytes / bandwidth / curve.plain_seconds


def _policy_microseconds(records: Sequence[RoundRecord]) -> dict[str, float]:
    values = [1e6 * record.policy_seconds for record in records]
    return {"median": float(np.median(values)), "p99": float(np.quantile(values, 0.99))}


def _policy_share(records: Sequence[RoundRecord]) -> float:
    whole = sum(record.seconds for record in records)
    return sum(record.policy_seconds for record in records) / whole


def _milliseconds(samples: Sequence[Sample], curve: CostCurve) -> dict[str, float]:
    """Plain times behind the ratios: per token by method, and one draft pass."""
    names = sorted({sample.method for sample in samples})
    paces = {
        name: 1e3 * totals(samples, name, emitting_prompts(samples, name)).time_per_token
        for name in names
    }
    return {
        **paces,
        "plain step": 1e3 * curve.plain_seconds,
        "first draft pass": 1e3 * curve.first_pass_seconds,
        "later draft pass": 1e3 * curve.later_pass_seconds,
    }
