"""The judge judged: what the statistics say when the truth is known.

Experiments are redrawn from the timings of a real evaluation. An experiment draws prompts, with
replacement within their strata, and for every repeat a recorded block of the same stratum. A block
lends the deviations of two methods from their own means on its prompt, so that the arms of a
comparison are as noisy, and as alike in their noise, as methods measured side by side were. Which
mean pace the arms have is then ours to choose: the same for both (A-A), one slower by a known
factor, or those of two methods, whose ratio over the recorded prompts is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgym.benchmark.comparisons import holm, read_p
from draftgym.benchmark.runner import Sample, totals
from draftgym.benchmark.statistics import (
    CONFIDENCE,
    RESAMPLES,
    PromptTotals,
    Ratio,
    Verdict,
    combine_repeats,
    paired_ratio,
)
from draftgym.benchmark.summary import emitting_prompts
from draftgym.console import Bar
from draftgym.errors import DraftGymError

COVERAGE = (0.91, 0.99)
"""Accepted shares of 95% intervals that hold the truth: 2.6 standard deviations at 200 trials."""
POWER = 0.8
"""Accepted share of experiments that find the planted slowdown."""
_REACH = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) + NormalDist().inv_cdf(POWER)


class JudgeStudyError(DraftGymError, ValueError):
    """Timings that no experiment can be redrawn from."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Recorded timings, split into what belongs to the prompt and what to chance.

    Attributes:
        methods: Names.
        prompt_ids: Prompts on which every method was measured in every repeat.
        strata: Domain by prompt id.
        pace: Seconds per token, mean over repeats, [methods, prompts].
        tokens: Emitted per run, [methods, prompts].
        noise: Log deviations of single runs, [methods, prompts, repeats], widened by
            sqrt(r / (r - 1)) for the mean that was taken out; the mean of exp(noise) is 1.
    """

    methods: tuple[str, ...]
    prompt_ids: tuple[str, ...]
    strata: Mapping[str, str]
    pace: NDArray[np.float64]
    tokens: NDArray[np.float64]
    noise: NDArray[np.float64]


def pool_of(samples: Sequence[Sample], strata: Mapping[str, str]) -> Pool:
    """The pool of one evaluation's test samples.

    Raises:
        JudgeStudyError: Fewer than two methods, repeats or prompts.
    """
    methods = tuple(dict.fromkeys(sample.method for sample in samples))
    keep = emitting_prompts(samples, *methods)
    runs: dict[str, dict[tuple[str, int], tuple[float, int]]] = defaultdict(dict)
    for sample in samples:
        if sample.prompt_id in keep:
            timed = (sample.measurement.seconds, sample.measurement.emitted)
            runs[sample.prompt_id][sample.method, sample.repeat] = timed
    repeats = sorted({sample.repeat for sample in samples})
    prompts = tuple(p for p in sorted(runs) if len(runs[p]) == len(methods) * len(repeats))
    for name, found in (("methods", methods), ("repeats", repeats), ("complete prompts", prompts)):
        if len(found) < 2:
            raise JudgeStudyError(f"{name}: at least 2 are needed, the samples have {len(found)}")
    table = np.array([[[runs[p][m, r] for r in repeats] for p in prompts] for m in methods])
    logs = np.log(table[..., 0] / table[..., 1])  # [methods, prompts, repeats]
    noise = (logs - logs.mean(-1, keepdims=True)) * np.sqrt(len(repeats) / (len(repeats) - 1))
    noise -= np.log(np.exp(noise).mean((1, 2), keepdims=True))
    pace = np.exp(logs).mean(-1)
    return Pool(methods, prompts, dict(strata), pace, table[..., 1].mean(-1), noise)


class Experiments:
    """Redraws experiments from a pool.

    Args:
        pool: Recorded timings.
        prompts: Prompts of an experiment; dealt to strata in turn, as the evaluator does.
        repeats: Runs of each prompt and method.
        seed: Of all draws.
        resamples: Bootstrap draws of each interval.
    """

    def __init__(
        self, pool: Pool, prompts: int, repeats: int, seed: int = 0, resamples: int = RESAMPLES
    ) -> None:
        self._pool, self._repeats, self._resamples = pool, repeats, resamples
        self._random = np.random.default_rng(seed)
        groups: dict[str, list[int]] = defaultdict(list)
        for index, prompt_id in enumerate(pool.prompt_ids):
            groups[pool.strata.get(prompt_id, "")].append(index)
        names = sorted(groups, key=lambda name: -len(groups[name]))
        turns = [name for rank in range(len(pool.prompt_ids)) for name in names
                 if rank < len(groups[name])]  # fmt: skip
        self._dealt = [turns[slot % len(turns)] for slot in range(prompts)]
        self._groups = {name: np.array(members) for name, members in groups.items()}
        self._ids = [f"{slot:05d}" for slot in range(prompts)]
        self._strata = dict(zip(self._ids, self._dealt, strict=True))

    def truth(self, over: int, under: int) -> float:
        """The ratio of two methods that experiments of this make estimate."""
        sums = np.zeros((2, 2))  # [arm, seconds and tokens]
        for name in self._dealt:
            members = self._groups[name]
            for arm, method in enumerate((over, under)):
                tokens = self._pool.tokens[method, members]
                seconds = self._pool.pace[method, members] * tokens
                sums[arm] += seconds.mean(), tokens.mean()
        paces = sums[:, 0] / sums[:, 1]
        return float(paces[0] / paces[1])

    def ratio(self, over: int, under: int, slower: float = 1.0) -> Ratio:
        """One experiment: time per token of method `over` by that of `under`.

        Args:
            over: Index of a method.
            under: Index; the same one for an A-A comparison, whose arms then borrow the noise
                of two other methods drawn anew for every prompt.
            slower: Factor on the seconds of `under`.
        """
        pool, draw = self._pool, self._random
        arms: list[list[tuple[str, float, int]]] = [[], []]
        for prompt_id, name in zip(self._ids, self._dealt, strict=True):
            slot = draw.choice(self._groups[name])
            lenders = self.methods() if over == under else (over, under)
            for donor in draw.choice(self._groups[name], self._repeats):
                block = draw.integers(pool.noise.shape[2])
                for arm, method, lender in zip(arms, (over, under), lenders, strict=True):
                    tokens = pool.tokens[method, slot]
                    noise = np.exp(pool.noise[lender, donor, block])
                    arm.append((prompt_id, pool.pace[method, slot] * noise * tokens, tokens))
        above, below = (combine_repeats(arm) for arm in arms)
        slowed = PromptTotals(below.prompt_ids, slower * below.seconds, below.tokens)
        seed = int(self._random.integers(2**31))
        return paired_ratio(above, slowed, self._strata, resamples=self._resamples, seed=seed)

    def methods(self) -> tuple[int, int]:
        """Two different methods, drawn."""
        first, second = self._random.permutation(len(self._pool.methods))[:2]
        return int(first), int(second)


def judge_statistics(
    experiments: Experiments, *, trials: int = 200, slowdown: float = 1.03, bar: Bar | None = None
) -> dict[str, Any]:
    """Coverage of A-A comparisons and of real ratios, and power for a planted slowdown.

    Args:
        experiments: To draw from.
        trials: Experiments of each kind.
        slowdown: Factor planted on one arm of an A-A comparison.
        bar: Advanced once per experiment.

    Returns:
        Shares and whether they are what is promised; `smallest_found` is the slowdown that
        experiments of this size would find in `POWER` of all cases.
    """
    same, real, found, logs = [], [], [], []
    for _ in range(trials):
        method, other = experiments.methods()
        truth = experiments.truth(method, other)
        alike = experiments.ratio(method, method)
        differing = experiments.ratio(method, other)
        slowed = experiments.ratio(method, method, slowdown)
        same.append(alike.low <= 1.0 <= alike.high)
        real.append(differing.low <= truth <= differing.high)
        found.append(slowed.high < 1.0)
        logs.append(np.log(alike.estimate))
        if bar is not None:
            bar.advance(3)
    return {
        "trials": trials,
        "same_method": _covered(same),
        "two_methods": _covered(real),
        "planted": {
            "slowdown": slowdown,
            "found": float(np.mean(found)),
            "smallest_found": float(np.exp(_REACH * np.std(logs))),
            "at_least": POWER,
            "ok": bool(np.mean(found) >= POWER),
        },
    }


def opposite_verdicts(
    runs: Sequence[Sequence[Sample]], strata: Mapping[str, str], resamples: int = RESAMPLES
) -> dict[str, Any]:
    """Pairs of methods that one run calls faster and another slower; there should be none.

    Args:
        runs: Test samples of each run.
        strata: Domain by prompt id.
        resamples: Bootstrap draws of each interval.

    Returns:
        How many pairs two runs or more have in common, and the contradictions.
    """
    read: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for samples in runs:
        for pair, verdict in _verdicts(samples, strata, resamples).items():
            read[pair].append(verdict)
    shared = {pair: verdicts for pair, verdicts in read.items() if len(verdicts) > 1}
    torn = [list(pair) for pair, verdicts in shared.items() if {"faster", "slower"} <= {*verdicts}]
    return {"pairs": len(shared), "contradictions": torn, "ok": not torn}


def _verdicts(
    samples: Sequence[Sample], strata: Mapping[str, str], resamples: int
) -> dict[tuple[str, str], Verdict]:
    """Holm-corrected over all pairs of a run."""
    names = sorted({sample.method for sample in samples})
    domains = defaultdict(str, strata)
    ratios = {}
    for pair in combinations(names, 2):
        keep = emitting_prompts(samples, *pair)
        over, under = (totals(samples, name, keep) for name in pair)
        ratios[pair] = paired_ratio(over, under, domains, resamples=resamples)
    corrected = holm([ratio.p_value for ratio in ratios.values()])
    return {
        pair: read_p(ratio.estimate, p)
        for (pair, ratio), p in zip(ratios.items(), corrected, strict=True)
    }


def _covered(hits: Iterable[bool]) -> dict[str, Any]:
    share = float(np.mean(list(hits)))
    return {"coverage": share, "between": COVERAGE, "ok": COVERAGE[0] <= share <= COVERAGE[1]}
