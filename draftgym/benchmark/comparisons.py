"""Methods against baselines, with one correction for asking many questions at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from draftgym.benchmark.runner import totals
from draftgym.benchmark.statistics import SIGNIFICANCE, SMALLEST_STRATUM, Verdict
from draftgym.benchmark.summary import PLAIN, Intervals, emitting_prompts


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (Scandinavian Journal of Statistics 6, 1979).

    Args:
        p_values: Of one family, in any order.

    Returns:
        Corrected values in the same order: below .05 where the hypothesis is rejected with all
        of the family's errors together held at 5%.
    """
    order = np.argsort(p_values, kind="stable")
    scaled = np.array(p_values, np.float64)[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return [float(value) for value in corrected]


def read_p(ratio: float, p_value: float) -> Verdict:
    """The verdict on a speedup by its (corrected) p-value."""
    if p_value >= SIGNIFICANCE:
        return "no significant difference"
    return "faster" if ratio > 1 else "slower"


def comparisons(
    intervals: Intervals, methods: Sequence[str], baselines: Sequence[str]
) -> list[dict[str, Any]]:
    """Every method against every baseline, in pairs of prompts that both emitted on.

    The comparisons with one baseline are one family of the correction.

    Args:
        intervals: Of the test samples.
        methods: Names.
        baselines: Names; a baseline is not compared with itself.

    Returns:
        Rows of `baseline`, `method`, `ratio` (speedup of the method over the baseline), `ci95`,
        `p`, `p_holm` and `verdict`, which reads `p_holm`.
    """
    rows = []
    for baseline in baselines:
        others = [method for method in methods if method != baseline]
        speedups = [intervals.speedup(baseline, method) for method in others]
        corrected = holm([speedup.p_value for speedup in speedups])
        for method, speedup, p_holm in zip(others, speedups, corrected, strict=True):
            rows.append(
                {
                    "baseline": baseline,
                    "method": method,
                    "ratio": speedup.estimate,
                    "ci95": speedup.limits,
                    "p": speedup.p_value,
                    "p_holm": p_holm,
                    "verdict": read_p(speedup.estimate, p_holm),
                }
            )
    return rows


def domain_speedups_with_limits(
    intervals: Intervals, methods: Sequence[str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Speedup over plain decoding by method and domain.

    Args:
        intervals: Of the test samples.
        methods: Names.

    Returns:
        `speedup` and `ci95`, which is None in a domain of fewer than `SMALLEST_STRATUM` prompts; no
        domain without prompts.
    """
    found = {}
    for method in methods:
        domains: dict[str, set[str]] = defaultdict(set)
        for prompt_id in emitting_prompts(intervals.samples, PLAIN, method):
            domains[intervals.strata[prompt_id]].add(prompt_id)
        found[method] = {
            domain: _domain_speedup(intervals, method, domains[domain])
            for domain in sorted(domains)
        }
    return found


def _domain_speedup(intervals: Intervals, method: str, prompts: set[str]) -> dict[str, Any]:
    if len(prompts) < SMALLEST_STRATUM:
        over, under = (totals(intervals.samples, name, prompts) for name in (PLAIN, method))
        return {"speedup": over.time_per_token / under.time_per_token, "ci95": None}
    speedup = intervals.speedup(PLAIN, method, prompts)
    return {"speedup": speedup.estimate, "ci95": speedup.limits}
