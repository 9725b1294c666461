"""Paired statistics of time per token.

The one figure is seconds summed over tokens summed, never a mean of per-prompt ratios, and
the one source of uncertainty is which prompts were asked, so intervals resample prompts and
keep each prompt's methods together. This module does not know how anything was measured.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from draftgym.benchmark.resampling import Resampling
from draftgym.errors import DraftGymError
from draftgym.state import RoundRecord

Verdict = Literal["faster", "slower", "no significant difference"]

RESAMPLES = 10_000
SIGNIFICANCE = 0.05
CONFIDENCE = 1 - SIGNIFICANCE
SMALLEST_STRATUM = 3
"""Smaller strata are pooled: resampling one or two prompts shows next to no variation."""
WILD = 6.0
"""Standard deviations of repeats above its prompt's fastest run at which a run is held."""


class StatisticsError(DraftGymError, ValueError):
    """Data that no interval can honestly be computed from."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence limits, in the unit of the estimate."""

    estimate: float
    low: float
    high: float

    @property
    def limits(self) -> list[float]:
        """`[low, high]`, as reports write it."""
        return [self.low, self.high]


@dataclass(frozen=True, slots=True)
class Ratio(Interval):
    """A ratio and its two-sided p-value of "it is 1": below .05 where 1 is outside the limits."""

    p_value: float


@dataclass(frozen=True, slots=True)
class PromptTotals:
    """What one method spent on each prompt.

    Args:
        prompt_ids: Unique ids, shape [prompts].
        seconds: Seconds of all rounds, shape [prompts].
        tokens: Tokens emitted by these rounds, shape [prompts].

    Raises:
        StatisticsError: If shapes differ, ids repeat, a prompt emitted nothing, or a time is
            negative or not finite.
    """

    prompt_ids: tuple[str, ...]
    seconds: NDArray[np.float64]
    tokens: NDArray[np.float64]

    def __post_init__(self) -> None:
        count = len(self.prompt_ids)
        if count == 0:
            raise StatisticsError("no prompts were measured")
        if self.seconds.shape != (count,) or self.tokens.shape != (count,):
            raise StatisticsError(
                f"{count} prompts, but seconds {self.seconds.shape} and tokens {self.tokens.shape}"
            )
        if len(set(self.prompt_ids)) != count:
            raise StatisticsError("prompt ids repeat; combine repeats first")
        for prompt_id, seconds, tokens in zip(
            self.prompt_ids, self.seconds, self.tokens, strict=True
        ):
            if not tokens > 0:
                raise StatisticsError(f"prompt {prompt_id!r}: no round emitted a token")
            if not (math.isfinite(seconds) and seconds >= 0):
                raise StatisticsError(f"prompt {prompt_id!r}: {seconds} seconds is not a time")

    @property
    def time_per_token(self) -> float:
        """Σ seconds / Σ tokens."""
        return float(self.seconds.sum() / self.tokens.sum())


def combine_repeats(runs: Iterable[tuple[str, float, int]]) -> PromptTotals:
    """Reduce repeated runs to one per prompt: mean pace, mean tokens.

    Methods of one block share the machine's mood, and means keep what they share: it cancels
    in a ratio, while medians, taken per method, pick different blocks. Only a run that the
    machine stopped, `WILD` standard deviations above its prompt's fastest, is held there.

    Args:
        runs: (prompt id, seconds, tokens emitted) of each run, in any order.

    Returns:
        Totals with prompts in order of id.

    Raises:
        StatisticsError: If there is no run, or a run emitted nothing.
    """
    by_prompt: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for prompt_id, seconds, tokens in runs:
        if tokens <= 0:
            raise StatisticsError(f"prompt {prompt_id!r}: no round emitted a token")
        by_prompt[prompt_id].append((seconds, tokens))
    ids = tuple(sorted(by_prompt))
    tokens_mean = np.array([np.mean([n for _, n in by_prompt[i]]) for i in ids], np.float64)
    paces = [np.array([s / n for s, n in by_prompt[i]]) for i in ids]
    reach = math.exp(WILD * _spread(paces))
    held = np.array([np.minimum(pace, pace.min() * reach).mean() for pace in paces])
    return PromptTotals(ids, held * tokens_mean, tokens_mean)


def time_per_token(
    totals: PromptTotals,
    strata: Mapping[str, str] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Σ seconds / Σ tokens with an interval over prompts like that of a ratio, in seconds.

    Args and raised errors are those of `paired_ratio`.
    """
    plan = _resampling(totals.prompt_ids, strata, resamples, seed)
    estimate = totals.time_per_token
    return Interval(estimate, *plan.limits(estimate, plan.paces(totals.seconds, totals.tokens)))


def paired_ratio(
    over: PromptTotals,
    under: PromptTotals,
    strata: Mapping[str, str] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Ratio:
    """Time per token of `over` divided by that of `under`, resampling prompts in pairs.

    With the baseline as `over` this is a speedup: above 1, `under` is faster. Prompts are
    drawn with replacement within their stratum. The percentile interval is expanded
    (Hesterberg, "What Teachers Should Know About the Bootstrap", 2015, section 5.2): the
    plain one is too narrow by sqrt((n - 1) / n) and by the step from t to normal quantiles,
    which with a dozen prompts means 90% coverage where 95% was promised. Where so few draws lie
    beyond a percentile that it says nothing (three or four prompts, very small p), a normal
    law of the log ratio takes over, which is Student's interval.

    Args:
        over: Numerator.
        under: Denominator, measured on the same prompts.
        strata: Stratum (domain) of each prompt id; one stratum when None.
        resamples: Bootstrap draws.
        seed: Of the draws.

    Returns:
        The ratio, its 95% limits and the p-value that inverts them.

    Raises:
        StatisticsError: If prompts differ, or are too few for an interval.
    """
    if over.prompt_ids != under.prompt_ids:
        odd = set(over.prompt_ids) ^ set(under.prompt_ids)
        raise StatisticsError(f"methods were not measured on the same prompts: {sorted(odd)[:3]}")
    if under.seconds.sum() == 0:
        raise StatisticsError("the denominator took no time at all")
    plan = _resampling(over.prompt_ids, strata, resamples, seed)
    above, below = (plan.paces(totals.seconds, totals.tokens) for totals in (over, under))
    estimate, draws = over.time_per_token / under.time_per_token, above / below
    return Ratio(estimate, *plan.limits(estimate, draws), plan.p_value(estimate, draws))


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance over rounds, each word with one meaning.

    Attributes:
        accepted_per_round: Mean drafted tokens kept.
        tau_emitted: Mean tokens emitted per round, bonus counted.
        accepted_rate: Drafted tokens kept / drafted tokens verified; 0 if none was verified.
    """

    accepted_per_round: float
    tau_emitted: float
    accepted_rate: float


def acceptance(records: Sequence[RoundRecord]) -> Acceptance:
    """Summarise rounds by sums, so a short round weighs only what it verified.

    Raises:
        StatisticsError: If there are no rounds.
    """
    if not records:
        raise StatisticsError("no rounds to summarise")
    accepted = sum(record.accepted for record in records)
    verified = sum(record.size for record in records)
    return Acceptance(
        accepted_per_round=accepted / len(records),
        tau_emitted=sum(record.emitted for record in records) / len(records),
        accepted_rate=accepted / verified if verified else 0.0,
    )


def _spread(paces: Sequence[NDArray[np.float64]]) -> float:
    """Standard deviation of log pace among repeats, from the median distance of two of them."""
    apart = [
        abs(math.log(one / other)) if one > 0 and other > 0 else 0.0
        for pace in paces
        for one, other in combinations(pace, 2)
    ]
    return float(np.median(apart)) / (NormalDist().inv_cdf(0.75) * math.sqrt(2)) if apart else 0.0


def _resampling(
    prompt_ids: Sequence[str], strata: Mapping[str, str] | None, resamples: int, seed: int
) -> Resampling:
    if resamples < 100:
        raise StatisticsError(f"resamples: at least 100 are needed, got {resamples}")
    if len(prompt_ids) < 2:
        raise StatisticsError(
            f"an interval needs at least 2 prompts, got {len(prompt_ids)}; measure more"
        )
    return Resampling(_pooled_strata(prompt_ids, strata), resamples, seed, SIGNIFICANCE)


def _pooled_strata(
    prompt_ids: Sequence[str], strata: Mapping[str, str] | None
) -> list[NDArray[np.intp]]:
    """Index groups by stratum; small strata share one group."""
    by_name: dict[str, list[int]] = defaultdict(list)
    for index, prompt_id in enumerate(prompt_ids):
        by_name["" if strata is None else strata[prompt_id]].append(index)
    large = [members for members in by_name.values() if len(members) >= SMALLEST_STRATUM]
    rest = [i for members in by_name.values() if len(members) < SMALLEST_STRATUM for i in members]
    if rest and len(rest) < SMALLEST_STRATUM and large:
        large[0] = large[0] + rest
    elif rest:
        large.append(rest)
    return [np.array(members, np.intp) for members in large]
