"""From test samples to the result line of an evaluation and the details of its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from draftgym.benchmark.comparisons import comparisons, domain_speedups_with_limits
from draftgym.benchmark.config import Cell, EvaluateConfig
from draftgym.benchmark.divergence import Divergence
from draftgym.benchmark.measures import decisions_by_domain, measures, over_time
from draftgym.benchmark.methods import TRANSFORMERS
from draftgym.benchmark.runner import Request, Sample
from draftgym.benchmark.summary import (
    PLAIN,
    POLICY,
    Intervals,
    Ranked,
    details_of,
    identical_prompts,
)
from draftgym.benchmark.tuning import baseline_tuned
from draftgym.controllers import TunedRule, rule_named
from draftgym.controllers.tuning import Tuning


@dataclass(frozen=True)
class Findings:
    """Everything that was measured, and how it came about.

    Attributes:
        config: Of the evaluation.
        requests: Test prompts.
        samples: Of the test phase.
        methods: Names, in the order of the plan.
        ranked: Fixed cells on validation prompts, best first.
        divergences: From plain decoding.
        tuning: Of published rules, if any competed.
    """

    config: EvaluateConfig
    requests: Sequence[Request]
    samples: Sequence[Sample]
    methods: Sequence[str]
    ranked: Sequence[Ranked]
    divergences: Sequence[Divergence]
    tuning: Tuning | None

    @property
    def ours(self) -> list[Divergence]:
        """Divergences of our own methods, for which the decoder answers."""
        return [entry for entry in self.divergences if not entry.method.startswith(TRANSFORMERS)]

    @property
    def faults(self) -> tuple[Divergence, ...]:
        """Those that no near-tie explains."""
        return tuple(entry for entry in self.ours if not entry.near_tie)

    def intervals(self) -> Intervals:
        """Of the test samples, always computed in the same way."""
        strata = {request.prompt_id: request.domain for request in self.requests}
        config = self.config
        return Intervals(self.samples, strata, config.bootstrap_resamples, config.seeds.bootstrap)

    @cached_property
    def compared(self) -> list[dict[str, Any]]:
        """Every method against plain decoding and against the best fixed cell."""
        return comparisons(self.intervals(), self.methods, [PLAIN, self.ranked[0].cell.name])

    def payload(self) -> dict[str, Any]:
        """The result line, without schema name and provenance."""
        config, intervals = self.config, self.intervals()
        finalists = [entry.cell for entry in self.ranked[: config.finalists]]
        against = {cell: intervals.speedup(PLAIN, cell.name).estimate for cell in finalists}
        hindsight = max(finalists, key=lambda cell: against[cell])
        best = self.ranked[0].cell
        judged = POLICY in self.methods
        return {
            "results": [intervals.result(method) for method in self.methods],
            "best_fixed": {**_cell(best), "speedup": against[best]},
            "best_fixed_hindsight": {**_cell(hindsight), "speedup": against[hindsight]},
            "baseline_tuned": self._baseline_tuned(),
            "policy_vs_best_fixed": self._versus(best.name, POLICY) if judged else None,
            "policy_vs_plain": self._versus(PLAIN, POLICY) if judged else None,
            "beside_vs_best_fixed": {
                name: self._versus(best.name, name) for name in map(config.named, config.beside)
            },
            "identical_outputs": identical_prompts(self.requests, self.ours),
            "prompts": len(self.requests),
            "repeats": config.test.repeats,
        }

    def details(self) -> dict[str, Any]:
        """What the report shows besides."""
        intervals, methods = self.intervals(), self.methods
        samples, strata = self.samples, intervals.strata
        known = {} if self.tuning is None else self.tuning.details
        return {
            **details_of(samples, self.requests, intervals, self.ranked, self.divergences, methods),
            "domains": domain_speedups_with_limits(intervals, methods),
            "measures": measures(samples, strata, self.divergences, methods),
            "comparisons": self.compared,
            "over_time": over_time(samples, methods),
            "decisions_by_domain": decisions_by_domain(samples, strata, methods),
            "rules": [self._told(rule) for rule in self.tuning.rules] if self.tuning else [],
            **{name: known.get(name) for name in ("bounds", "cost_curves", "reliability")},
            "config": self.config.model_dump(mode="json"),
        }

    def _versus(self, baseline: str, method: str) -> dict[str, Any]:
        """The comparison of two, its verdict corrected as the report's is."""
        row = next(r for r in self.compared if (r["baseline"], r["method"]) == (baseline, method))
        return {name: row[name] for name in ("ratio", "ci95", "p", "p_holm", "verdict")}

    def _baseline_tuned(self) -> dict[str, Any]:
        cells = [entry.cell for entry in self.ranked]
        efforts = {}
        if self.tuning is not None:
            efforts = {
                rule_named(rule.name).title: self._told(rule)["tuned_on"]
                for rule in self.tuning.rules
                if rule.name != "fixed"
            }
        return baseline_tuned(self.ranked[0], cells, self.config.pair.drafter, efforts)

    def _told(self, rule: TunedRule) -> dict[str, Any]:
        """One rule, as reports tell of it; fixed cells go by the name of the best."""
        assert self.tuning is not None
        about = rule_named(rule.name)
        name = self.ranked[0].cell.name if rule.name == "fixed" else about.title
        return {
            "name": name,
            "title": about.title,
            "short": about.short,
            "source": about.source,
            "settings": dict(rule.settings),
            "tuned_on": {
                "prompts": rule.prompts,
                "trace": self.tuning.origin["validation_trace"],
                "settings_tried": len(rule.trials),
                "ms_per_token_simulated": 1e3 * rule.trials[0].seconds_per_token,
                "fitted_on_prompts": len(self.tuning.fitted_on) if rule.fitted else None,
            },
        }


def _cell(cell: Cell) -> dict[str, int]:
    return {"depth": cell.depth, "size": cell.size}
