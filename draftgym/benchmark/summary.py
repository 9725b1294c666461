"""From samples to the evaluator's result line and the details of its report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any

from draftgym.benchmark.config import Cell
from draftgym.benchmark.divergence import Divergence
from draftgym.benchmark.reference import Reference
from draftgym.benchmark.runner import Request, Sample, totals
from draftgym.benchmark.statistics import (
    PromptTotals,
    Ratio,
    acceptance,
    paired_ratio,
    time_per_token,
)
from draftgym.decoder.rules import IdenticalRule, Rule
from draftgym.state import RoundRecord

PLAIN = "plain"
POLICY = "learned policy"


@dataclass(frozen=True, slots=True)
class Ranked:
    """A fixed cell with its validation figures.

    Attributes:
        cell: Depth and size.
        prompts: Prompts it was measured on.
        seconds_per_token: Σ seconds / Σ tokens.
        tau_emitted: Tokens per round; None if it was not measured.
        speedup: Over plain decoding on the same prompts.
    """

    cell: Cell
    prompts: int
    seconds_per_token: float
    tau_emitted: float | None
    speedup: float

    @property
    def order(self) -> tuple[int, float]:
        """Sorts best first: cells that went the whole way, then by speedup."""
        return -self.prompts, -self.speedup


def rank_cells(samples: Sequence[Sample], cells: Sequence[Cell]) -> list[Ranked]:
    """Cells from best to worst by speedup; those that left the race early come last.

    Args:
        samples: Of plain decoding and every cell, on validation prompts.
        cells: To rank.

    Raises:
        StatisticsError: If a cell or plain decoding was not measured.
    """
    usable = emitting_prompts(samples)
    ranked = []
    for cell in cells:
        mine = totals(samples, cell.name, usable)
        plain = totals(samples, PLAIN, set(mine.prompt_ids))
        ranked.append(
            Ranked(
                cell=cell,
                prompts=len(mine.prompt_ids),
                seconds_per_token=mine.time_per_token,
                tau_emitted=acceptance(rounds_of(samples, cell.name)).tau_emitted,
                speedup=plain.time_per_token / mine.time_per_token,
            )
        )
    return sorted(ranked, key=lambda entry: entry.order)


def emitting_prompts(samples: Sequence[Sample], *methods: str) -> set[str]:
    """Prompts on which the rounds of every session, and those of the named methods, emitted.

    A text that ends with the first token, which prefill yields, has no decoding round to time, for
    any method. Assisted decoding in Transformers may have none where others have: its first pass
    verifies candidates already, so a short answer can be whole before the clock of decoding runs.
    That pass holds the prefill, so there is no time per token to compare; such a prompt stays for
    all others and is left out wherever that method is judged, for the method and its baseline
    alike. It loses prompts that it is quick on, as it loses the tokens of every first pass.

    Args:
        samples: Of any methods; those with rounds are sessions.
        methods: Names whose figures are wanted, if they may be no sessions.
    """
    timed = {sample.method for sample in samples if sample.measurement.records} | {*methods}
    silent = {
        sample.prompt_id
        for sample in samples
        if sample.method in timed and sample.measurement.emitted == 0
    }
    return {sample.prompt_id for sample in samples} - silent


def rounds_of(samples: Sequence[Sample], method: str) -> list[RoundRecord]:
    """All rounds of one method."""
    return [
        record
        for sample in samples
        if sample.method == method
        for record in sample.measurement.records
    ]


def compare_outputs(
    samples: Sequence[Sample],
    requests: Sequence[Request],
    reference: Reference,
    rule: Rule | None = None,
) -> list[Divergence]:
    """First divergence of every method's output from plain decoding, on every prompt.

    Args:
        samples: Of plain decoding and other methods; repeats of one method must agree too.
        requests: The prompts.
        reference: Asked only when something differs, because it loads a second model.
        rule: Of all these samples; greedy when None.

    Raises:
        ValueError: The rule's text depends on what was drafted, so nothing need be equal.
    """
    if rule is not None and not isinstance(rule, IdenticalRule):
        raise ValueError(f"outputs under the {rule.name} rule need not be equal")
    plain = {
        sample.prompt_id: sample.measurement.output
        for sample in reversed(samples)
        if sample.method == PLAIN
    }
    asked = {request.prompt_id: request for request in requests}
    distinct = dict.fromkeys(
        (sample.method, sample.prompt_id, sample.measurement.output) for sample in samples
    )
    found = []
    for method, prompt_id, output in distinct:
        if output != plain[prompt_id]:
            divergence = reference.judge.compare(
                method,
                prompt_id,
                asked[prompt_id].tokens,
                plain[prompt_id],
                output,
                rule,
                asked[prompt_id].sequence,
            )
            if divergence is not None:
                found.append(divergence)
    return found


def identical_prompts(requests: Sequence[Request], divergences: Sequence[Divergence]) -> int:
    """Prompts on which no method left plain decoding except at a near-tie."""
    faulty = {entry.prompt_id for entry in divergences if not entry.near_tie}
    return sum(request.prompt_id not in faulty for request in requests)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Computes intervals of one set of test samples, always in the same way.

    Attributes:
        samples: Test samples.
        strata: Domain by prompt id.
        resamples: Bootstrap draws.
        seed: Of the draws.
    """

    samples: Sequence[Sample]
    strata: Mapping[str, str]
    resamples: int
    seed: int

    def totals(self, method: str) -> PromptTotals:
        """Per-prompt totals over the method's `emitting_prompts`."""
        return totals(self.samples, method, emitting_prompts(self.samples, method))

    def result(self, method: str) -> dict[str, Any]:
        """One row of `results`, on the method's `emitting_prompts`; no rounds have no tokens each.

        `ci95` belongs to `ms_per_token`; `speedup` is over plain decoding on the same prompts.
        """
        rounds = rounds_of(self.samples, method)
        pace = time_per_token(
            self.totals(method), self.strata, resamples=self.resamples, seed=self.seed
        )
        return {
            "method": method,
            "ms_per_token": 1e3 * pace.estimate,
            "ci95": [1e3 * pace.low, 1e3 * pace.high],
            "tau_emitted": acceptance(rounds).tau_emitted if rounds else None,
            "speedup": self.speedup(PLAIN, method).estimate,
        }

    def speedup(self, baseline: str, method: str, keep: Set[str] | None = None) -> Ratio:
        """Speedup of `method` over `baseline`.

        Args:
            baseline: Name.
            method: Name.
            keep: Prompts to look at; the `emitting_prompts` of both when None.
        """
        usable = emitting_prompts(self.samples, baseline, method) if keep is None else keep
        return paired_ratio(
            totals(self.samples, baseline, usable),
            totals(self.samples, method, usable),
            self.strata,
            resamples=self.resamples,
            seed=self.seed,
        )


def domain_speedups(
    samples: Sequence[Sample], strata: Mapping[str, str], methods: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Speedup over plain decoding by method and domain; points only, too few for intervals."""
    usable = emitting_prompts(samples)
    groups: dict[str, set[str]] = defaultdict(set)
    for prompt_id in usable:
        groups[strata[prompt_id]].add(prompt_id)
    return {
        method: {
            domain: totals(samples, PLAIN, ids).time_per_token
            / totals(samples, method, ids).time_per_token
            for domain, ids in sorted(groups.items())
        }
        for method in methods
    }


def time_split(samples: Sequence[Sample], method: str) -> dict[str, float]:
    """Milliseconds per token by part of the round, of one method."""
    return time_split_of(rounds_of(samples, method))


def time_split_of(records: Sequence[RoundRecord]) -> dict[str, float]:
    """Milliseconds per token by part of the round."""
    per_token = 1e3 / max(1, sum(record.emitted for record in records))
    parts = {
        "draft": sum(record.draft_seconds for record in records) * per_token,
        "verify": sum(record.verify_seconds for record in records) * per_token,
        "commit": sum(record.commit_seconds for record in records) * per_token,
        "policy": sum(record.policy_seconds for record in records) * per_token,
    }
    whole = sum(record.seconds for record in records) * per_token
    # What lies between the parts; marks may overlap the boundary by a rounding error.
    return {**parts, "other": max(0.0, whole - sum(parts.values()))}


def details_of(
    samples: Sequence[Sample],
    requests: Sequence[Request],
    intervals: Intervals,
    ranked: Sequence[Ranked],
    divergences: Sequence[Divergence],
    methods: Sequence[str],
) -> dict[str, Any]:
    """What `report.write_report` wants of single methods, and of the plan."""
    left_out = {request.prompt_id for request in requests} - emitting_prompts(samples)
    speedups = {method: intervals.speedup(PLAIN, method) for method in methods}
    return {
        "speedups": {
            method: {"ratio": speedup.estimate, "ci95": speedup.limits}
            for method, speedup in speedups.items()
        },
        "validation": [
            {
                "method": entry.cell.name,
                "depth": entry.cell.depth,
                "size": entry.cell.size,
                "prompts": entry.prompts,
                "ms_per_token": 1e3 * entry.seconds_per_token,
                "tau_emitted": entry.tau_emitted,
                "speedup": entry.speedup,
            }
            for entry in ranked
        ],
        "decisions": {
            method: {
                "depth": [record.depth for record in rounds_of(samples, method)],
                "size": [record.size for record in rounds_of(samples, method)],
            }
            for method in methods
        },
        "time_split": {method: time_split(samples, method) for method in methods},
        "divergences": [asdict(entry) for entry in divergences],
        "left_out": sorted(left_out),
    }
