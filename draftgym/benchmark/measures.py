"""What every method did and cost, from its samples: one set of figures for all of them.

Figures that a method cannot have are None: rounds of Transformers' `generate`, joules and memory
where nothing measured them. Sums run over all repeats; time per token alone combines repeats
as the comparisons do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgym.benchmark.divergence import Divergence
from draftgym.benchmark.runner import Measurement, Sample
from draftgym.benchmark.statistics import combine_repeats
from draftgym.benchmark.summary import emitting_prompts, time_split_of
from draftgym.state import RoundRecord

ROUNDS_OVER_TIME = 32


def measures(
    samples: Sequence[Sample],
    strata: Mapping[str, str],
    divergences: Sequence[Divergence],
    methods: Sequence[str],
) -> dict[str, dict[str, Any]]:
    """All figures by method, over all prompts and by domain.

    Args:
        samples: Of any methods; each is judged on its `emitting_prompts`.
        strata: Domain by prompt id.
        divergences: From plain decoding; a prompt with one that no near-tie explains is not
            identical.
        methods: Names.

    Returns:
        For each method `all` and `domains`, each figures as `figures` returns them; no domain
        without prompts.
    """
    found = {}
    for method in methods:
        usable = emitting_prompts(samples, method)
        mine = [s for s in samples if s.method == method and s.prompt_id in usable]
        faulty = {
            entry.prompt_id
            for entry in divergences
            if entry.method == method and not entry.near_tie
        }
        found[method] = {
            "all": figures(mine, faulty),
            "domains": {
                domain: figures([s for s in mine if strata[s.prompt_id] == domain], faulty)
                for domain in sorted({strata[prompt_id] for prompt_id in usable})
            },
        }
    return found


def figures(samples: Sequence[Sample], faulty: Set[str] = frozenset()) -> dict[str, Any]:
    """Figures of one method on some prompts.

    Args:
        samples: Of one method; at least one, and every one emitted something.
        faulty: Prompts whose output is not plain decoding's.

    Returns:
        Units are in the names; `per_token` is per token emitted by rounds, except joules,
        which are per token of the whole output, prefill included as in
        `tokens_per_second_end_to_end`.
    """
    measured = [sample.measurement for sample in samples]
    pace = combine_repeats(
        (s.prompt_id, s.measurement.seconds, s.measurement.emitted) for s in samples
    ).time_per_token
    prompts = {sample.prompt_id for sample in samples}
    gaps = 1e3 * np.concatenate([inter_token_seconds(entry) for entry in measured])
    return {
        "ms_per_token": 1e3 * pace,
        "tokens_per_second_decode": 1 / pace if pace else None,
        "tokens_per_second_end_to_end": _end_to_end(samples),
        "first_token_ms": _first_token(measured),
        "inter_token_ms": _quantiles(gaps, (50, 95, 99)),
        **_round_figures([record for entry in measured for record in entry.records]),
        "peak_memory_mib": _peak_mebibytes(measured),
        "joules_per_token": _joules_per_token(measured),
        "identical_outputs": len(prompts - faulty),
        "prompts": len(prompts),
    }


def inter_token_seconds(measured: Measurement) -> NDArray[np.float64]:
    """What a reader of the stream waits before every token of the rounds, [emitted].

    The first token of a round waits the round's seconds; the others arrive with it, after 0.
    """
    if not measured.records:
        return np.array(measured.gaps_seconds, np.float64)
    waits = np.zeros(sum(record.emitted for record in measured.records))
    starts = np.cumsum([0] + [record.emitted for record in measured.records[:-1]])
    waits[starts] = [record.seconds for record in measured.records]
    return waits


def acceptance_by_position(records: Sequence[RoundRecord]) -> list[float]:
    """Share of rounds that kept a j-th drafted token, of those that verified j tokens or more.

    For a chain this is the chance that its j-th token survives; a tree also spends
    tokens on siblings, so there it says what the j-th token of the budget was good for at most.
    """
    sizes = np.array([record.size for record in records])
    accepted = np.array([record.accepted for record in records])
    deepest = int(sizes.max(initial=0))
    return [float((accepted >= j)[sizes >= j].mean()) for j in range(1, deepest + 1)]


def over_time(
    samples: Sequence[Sample], methods: Sequence[str]
) -> dict[str, dict[str, list[float]]]:
    """Mean depth and size of the first, second, ... round of a request, by method.

    Args:
        samples: Of any methods.
        methods: Names.

    Returns:
        `depth` and `size`, at most `ROUNDS_OVER_TIME` means; empty without rounds.
    """
    found = {}
    for method in methods:
        requests = [s.measurement.records for s in samples if s.method == method]
        longest = min(ROUNDS_OVER_TIME, max(map(len, requests), default=0))
        ranks = [[r[rank] for r in requests if rank < len(r)] for rank in range(longest)]
        found[method] = {
            "depth": [float(np.mean([record.depth for record in rank])) for rank in ranks],
            "size": [float(np.mean([record.size for record in rank])) for rank in ranks],
        }
    return found


def decisions_by_domain(
    samples: Sequence[Sample], strata: Mapping[str, str], methods: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """Mean depth and size of rounds by method and domain; no domain without rounds.

    Args:
        samples: Of any methods.
        strata: Domain by prompt id.
        methods: Names.
    """
    rounds: dict[str, dict[str, list[RoundRecord]]] = {method: {} for method in methods}
    for sample in samples:
        if sample.method in rounds and sample.measurement.records:
            domain = rounds[sample.method].setdefault(strata[sample.prompt_id], [])
            domain.extend(sample.measurement.records)
    return {
        method: {
            domain: {
                "depth": float(np.mean([record.depth for record in records])),
                "size": float(np.mean([record.size for record in records])),
            }
            for domain, records in sorted(domains.items())
        }
        for method, domains in rounds.items()
    }


_ROUND_FIGURES = (
    "tau_emitted", "accepted_per_round", "acceptance_by_position", "drafted_per_token",
    "verified_per_token", "wasted_per_token", "target_rows_per_token", "draft_passes_per_token",
    "time_split_ms_per_token", "policy_ms_per_round", "policy_share", "decisions_per_round",
)  # fmt: skip


def _round_figures(records: Sequence[RoundRecord]) -> dict[str, Any]:
    if not records:
        return dict.fromkeys(_ROUND_FIGURES)
    rounds, tokens = len(records), sum(record.emitted for record in records)
    accepted = sum(record.accepted for record in records)
    verified = sum(record.size for record in records)
    policy = sum(record.policy_seconds for record in records)
    seconds = sum(record.seconds for record in records)
    values = (
        tokens / rounds,
        accepted / rounds,
        acceptance_by_position(records),
        sum(record.nodes for record in records) / tokens,
        verified / tokens,
        (verified - accepted) / tokens,
        (verified + rounds) / tokens,
        sum(record.depth for record in records) / tokens,
        time_split_of(records),
        1e3 * policy / rounds,
        policy / seconds if seconds else 0.0,
        sum(record.decisions for record in records) / rounds,
    )
    return dict(zip(_ROUND_FIGURES, values, strict=True))


def _end_to_end(samples: Sequence[Sample]) -> float | None:
    runs = []
    for sample in samples:
        measured = sample.measurement
        if measured.first_token_seconds is None:
            return None
        whole = measured.first_token_seconds + measured.seconds
        runs.append((sample.prompt_id, whole, len(measured.output)))
    pace = combine_repeats(runs).time_per_token
    return 1 / pace if pace else None


def _first_token(measured: Sequence[Measurement]) -> dict[str, float] | None:
    firsts = [m.first_token_seconds for m in measured if m.first_token_seconds is not None]
    return _quantiles(1e3 * np.array(firsts), (50, 95)) if len(firsts) == len(measured) else None


def _quantiles(values: NDArray[np.float64], percents: Sequence[int]) -> dict[str, float] | None:
    if not len(values):
        return None
    return {f"p{percent}": float(np.percentile(values, percent)) for percent in percents}


def _peak_mebibytes(measured: Sequence[Measurement]) -> float | None:
    peaks = [entry.peak_bytes for entry in measured if entry.peak_bytes is not None]
    return max(peaks) / 2**20 if len(peaks) == len(measured) else None


def _joules_per_token(measured: Sequence[Measurement]) -> float | None:
    joules = [entry.joules for entry in measured if entry.joules is not None]
    tokens = sum(len(entry.output) for entry in measured)
    return sum(joules) / tokens if len(joules) == len(measured) else None
