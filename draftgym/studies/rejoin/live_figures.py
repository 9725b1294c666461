"""What a race of rejoining says: paces, ratios, and what a rejection gives back.

Everything is summed by request (translations of one request are one cluster) and resampled over
requests, in pairs between methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgym.benchmark.resampling import Resampling
from draftgym.benchmark.runner import Sample, totals
from draftgym.benchmark.statistics import (
    RESAMPLES,
    SIGNIFICANCE,
    Interval,
    PromptTotals,
    acceptance,
    paired_ratio,
    time_per_token,
)
from draftgym.benchmark.summary import PLAIN, emitting_prompts, rounds_of
from draftgym.decoder.drafters.rejoin import RejoinCounts

Counts = dict[str, dict[str, RejoinCounts]]
"""By method and prompt."""
Values = NDArray[np.float64]

FEWEST_REQUESTS = 6
"""Fewer give a difference no percentile interval."""


@dataclass(frozen=True, slots=True)
class Spent:
    """One method by request.

    Attributes:
        totals: Seconds and tokens of its rounds.
        rounds: Rounds, [requests].
    """

    totals: PromptTotals
    rounds: Values

    @classmethod
    def of(cls, samples: Sequence[Sample], method: str, clusters: Mapping[str, str]) -> Spent:
        """Means over repeats, summed over a request's prompts; prompts without rounds left out."""
        by_prompt = totals(samples, method, emitting_prompts(samples))
        ids = by_prompt.prompt_ids
        counts: dict[str, list[int]] = {prompt: [] for prompt in ids}
        for sample in samples:
            if sample.method == method and sample.prompt_id in counts:
                counts[sample.prompt_id].append(len(sample.measurement.records))
        rounds = np.array([np.mean(counts[prompt]) for prompt in ids])
        requests = tuple(sorted({clusters[prompt] for prompt in ids}))
        seconds, tokens, rounds = (
            summed(dict(zip(ids, values, strict=True)), clusters, requests)
            for values in (by_prompt.seconds, by_prompt.tokens, rounds)
        )
        return cls(PromptTotals(requests, seconds, tokens), rounds)


def summed(
    values: Mapping[str, float], clusters: Mapping[str, str], requests: Sequence[str]
) -> Values:
    """Values by prompt, summed by request, in the order of `requests`."""
    sums = dict.fromkeys(requests, 0.0)
    for prompt, value in values.items():
        sums[clusters[prompt]] += value
    return np.array([sums[request] for request in requests], np.float64)


@dataclass(frozen=True, slots=True)
class Returns:
    """What rejoining gives and costs per rejection, in tokens; [requests] each.

    With N tokens in R rounds of J rejections and T seconds, and the chain's own N', R', T':

        net = (N/R - N'/R') R / J          tokens that the carried ones added
        bar = (T/R - T'/R') R / J / (T'/N')  tokens that the dearer rounds cost

    Where texts are equal, the time per token falls below the chain's exactly if net > bar.

    Attributes:
        mine: The method that rejoins.
        chain: The same chain without.
        rejections: Of the method.
        recovered: Accepted tokens that carried nodes stood for, of the method.
    """

    mine: Spent
    chain: Spent
    rejections: Values
    recovered: Values

    def figures(self, seed: int) -> dict[str, Any]:
        """`recovered`, `net` and `bar` per rejection, each with limits."""
        count = len(self.rejections)
        if not self.rejections.any():
            return {}
        every = np.arange(count)[None]
        point = {name: float(value[0]) for name, value in self._tokens(every).items()}
        if count < FEWEST_REQUESTS or np.count_nonzero(self.rejections) < FEWEST_REQUESTS:
            return {name: _written(value, None) for name, value in point.items()}
        picks = np.random.default_rng(seed).integers(0, count, size=(RESAMPLES, count))
        draws, plan = self._tokens(picks), Resampling([every[0]], RESAMPLES, seed, SIGNIFICANCE)
        return {
            name: _written(value, plan.limits(value, draws[name])) for name, value in point.items()
        }

    def _tokens(self, picks: NDArray[np.intp]) -> dict[str, Values]:
        """Each figure of every draw, from indices of requests, [draws, requests]."""
        mine, chain = self.mine, self.chain
        sums = [
            values[picks].sum(1)
            for values in (
                mine.totals.tokens, mine.rounds, mine.totals.seconds,
                chain.totals.tokens, chain.rounds, chain.totals.seconds,
                self.rejections, self.recovered,
            )
        ]  # fmt: skip
        tokens, rounds, seconds, chain_tokens, chain_rounds, chain_seconds = sums[:6]
        rejections, recovered = sums[6], sums[7]
        per_rejection = rounds / np.maximum(rejections, 1.0)
        dearer = seconds / rounds - chain_seconds / chain_rounds
        return {
            "recovered": recovered / np.maximum(rejections, 1.0),
            "net": (tokens / rounds - chain_tokens / chain_rounds) * per_rejection,
            "bar": dearer * per_rejection * chain_tokens / chain_seconds,
        }


def race_figures(
    samples: Sequence[Sample],
    counts: Counts,
    clusters: Mapping[str, str],
    *,
    baseline: str,
    seed: int = 0,
) -> dict[str, Any]:
    """Everything that a race says.

    Args:
        samples: Of plain decoding, the chain and others.
        counts: What was carried, by method and prompt.
        clusters: Request id of every prompt id.
        baseline: Name of the chain without rejoining.
        seed: Of the bootstrap.

    Returns:
        `methods`: by name, milliseconds per token, `speedup` over plain decoding and `over_chain`
        (the chain's time per token by the method's: above 1 is faster), each with 95% limits,
        tokens per round, and for those that rejoin `rejoin`: rejections, what was carried, and
        tokens `recovered`, `net` and `bar` per rejection. `prompts`, `requests`, `identical`:
        how many, and on how many prompts every text is plain decoding's.

    Raises:
        StatisticsError: Fewer than two requests, or one that emitted nothing.
    """
    names = list(dict.fromkeys(sample.method for sample in samples))
    names.sort(key=lambda name: (name != PLAIN, name != baseline, name))
    spent = {name: Spent.of(samples, name, clusters) for name in names}
    texts = {s.prompt_id: s.measurement.output for s in samples if s.method == PLAIN}
    other = {s.prompt_id for s in samples if s.measurement.output != texts[s.prompt_id]}
    methods: dict[str, Any] = {}
    for name in names:
        mine, records = spent[name], rounds_of(samples, name)
        accepted = acceptance(records)
        methods[name] = {
            "ms_per_token": _scaled(time_per_token(mine.totals, seed=seed), 1e3),
            "speedup": _ratio(spent[PLAIN], mine, seed),
            "over_chain": _ratio(spent[baseline], mine, seed),
            "tau_emitted": accepted.tau_emitted,
            "verified_per_round": float(np.mean([record.size for record in records])),
            "passes_per_round": float(np.mean([record.depth for record in records])),
            "ms_per_round": 1e3 * float(np.mean([record.seconds for record in records])),
            "rounds": len(records),
        }
        if name in counts:
            methods[name]["rejoin"] = _carried(counts[name], clusters, mine, spent[baseline], seed)
    return {
        "methods": methods,
        "chain": baseline,
        "prompts": len(texts),
        "requests": len(spent[PLAIN].rounds),
        "identical": len(texts) - len(other),
    }


def _carried(
    counts: Mapping[str, RejoinCounts],
    clusters: Mapping[str, str],
    mine: Spent,
    chain: Spent,
    seed: int,
) -> dict[str, Any]:
    requests = mine.totals.prompt_ids
    known = {prompt: row for prompt, row in counts.items() if clusters[prompt] in requests}
    total = sum(known.values(), RejoinCounts())
    rejections = summed({p: row.rejections for p, row in known.items()}, clusters, requests)
    recovered = summed({p: row.recovered for p, row in known.items()}, clusters, requests)
    return {
        "rejections": total.rejections,
        "escrows": total.escrows,
        "escrow_tokens": total.escrow_tokens,
        "carried": total.carried,
        "recovered_tokens": total.recovered,
        "recovering_rounds": total.recovering,
        "per_rejection": Returns(mine, chain, rejections, recovered).figures(seed),
    }


def _ratio(over: Spent, under: Spent, seed: int) -> dict[str, Any]:
    if over is under:
        return {"estimate": 1.0, "ci95": [1.0, 1.0], "p_value": 1.0}
    found = paired_ratio(over.totals, under.totals, seed=seed)
    return {"estimate": found.estimate, "ci95": found.limits, "p_value": found.p_value}


def _scaled(interval: Interval, factor: float) -> dict[str, Any]:
    return _written(factor * interval.estimate, (factor * interval.low, factor * interval.high))


def _written(estimate: float, limits: tuple[float, float] | None) -> dict[str, Any]:
    return {"estimate": estimate, "ci95": None if limits is None else list(limits)}
