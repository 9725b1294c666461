"""Speed of fixed chains: five predictions, each knowing more than the one before, and the clock.

The predictions are fitted to the very prompts that are timed, so that what they miss is the
formula's doing and not that of other prompts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftgym.benchmark.runner import Sample, totals
from draftgym.benchmark.statistics import PromptTotals, Ratio, paired_ratio
from draftgym.benchmark.summary import emitting_prompts
from draftgym.costs.ratios import plain_step_seconds
from draftgym.costs.times import Float64Array, Times
from draftgym.studies.cost.joint import Joint
from draftgym.theory.chain_cost import chain_costs, emitted, powers
from draftgym.theory.fixed import fixed
from draftgym.theory.rounds import Positions
from draftgym.traces.trace import Trace

PLAIN = "plain"
FORMULA = "constant acceptance, g = 1"
MEASURED_COSTS = "constant acceptance, measured costs"
JOINT = "joint acceptance, measured costs"
WALKED = "the same where rounds begin"
FOLLOWED = "the same with ends of texts"


@dataclass(frozen=True, eq=False)
class ChainCosts:
    """What rounds of a chain cost, in plain decoding steps.

    Attributes:
        context: Committed tokens at which the table was read.
        plain_seconds: A plain step.
        verify: g(γ): the target's pass over γ + 1 tokens and the rest of the round, by γ from 0.
        first: First draft pass, which reads what the last round emitted, by γ from 0.
        later: Every later draft pass, c.
    """

    context: int
    plain_seconds: float
    verify: Float64Array
    first: Float64Array
    later: float

    @property
    def rounds(self) -> Float64Array:
        """Cost of a round, by γ from 0, [K + 1]."""
        gamma = np.arange(len(self.verify))
        later = self.later * np.maximum(gamma - 1, 0)
        found: Float64Array = self.verify + np.where(gamma > 0, self.first, 0.0) + later
        return found


def measured_costs(times: Times, trace: Trace, tokens: Float64Array) -> ChainCosts:
    """Read a latency table at the median context of a trace.

    Args:
        times: Mean seconds of work.
        trace: Whose contexts count.
        tokens: Of a round, which the next first pass reads, by γ from 0, [K + 1].
    """
    context = int(np.median(Positions.of(trace).context))
    plain = plain_step_seconds(times, context)
    gamma = np.arange(len(tokens))
    rest = plain - float(times.mean("verify", 0, context))
    unread = np.maximum(np.rint(tokens).astype(np.int64), 1)
    return ChainCosts(
        context=context,
        plain_seconds=plain,
        verify=(times.mean("verify", gamma, context) + rest) / plain,
        first=times.mean("first", unread, context) / plain,
        later=float(times.mean("later" if len(tokens) > 2 else "first", 1, context)) / plain,
    )


def predictions(
    joint: Joint, walked: Float64Array, costs: ChainCosts, trace: Trace, times: Times
) -> dict[str, Float64Array]:
    """Speed over plain decoding by each prediction, by γ from 0, [K + 1].

    Args:
        joint: Acceptance over all positions.
        walked: Tokens per round over the positions where rounds begin, by γ from 0, [K + 1].
        costs: Of rounds.
        trace: Of the same prompts, followed round by round with every clamp of live decoding.
        times: Mean seconds of work.
    """
    longest = len(joint.prefix)
    constant = emitted(powers(joint.mean, longest))
    followed = np.array([fixed(trace, times, gamma, gamma).sum() for gamma in range(longest + 1)])
    return {
        FORMULA: constant / chain_costs(costs.later, longest),
        MEASURED_COSTS: constant / costs.rounds,
        JOINT: emitted(joint.prefix) / costs.rounds,
        WALKED: walked / costs.rounds,
        FOLLOWED: followed[0] / followed,
    }


def chain_name(gamma: int) -> str:
    """Of the method that drafts γ tokens in every round."""
    return f"chain of {gamma}"


def live_speed(
    samples: Sequence[Sample], lengths: Sequence[int], requests: Mapping[str, str], seed: int
) -> dict[int, Ratio]:
    """Measured speed of each chain over plain decoding, translations of a request together.

    Args:
        samples: Of plain decoding and of every chain, on the same prompts.
        lengths: Drafted tokens γ.
        requests: Request of each prompt id.
        seed: Of the intervals.

    Raises:
        StatisticsError: Prompts of fewer than two requests.
    """
    usable = emitting_prompts(samples)

    def of(method: str) -> PromptTotals:
        return _by_request(totals(samples, method, usable), requests)

    plain = of(PLAIN)
    return {gamma: paired_ratio(plain, of(chain_name(gamma)), seed=seed) for gamma in lengths}


def live_rounds(
    samples: Sequence[Sample], live: Mapping[int, Ratio]
) -> dict[int, dict[str, float]]:
    """What speed is made of: tokens per round, and a round's cost in plain steps of the same run.

    Args:
        samples: Of every chain.
        live: Measured speed by γ.

    Returns:
        `tokens` and `cost` by γ.
    """
    found = {}
    for gamma, ratio in live.items():
        mine = [s.measurement for s in samples if s.method == chain_name(gamma)]
        tokens = sum(part.emitted for part in mine) / sum(len(part.records) for part in mine)
        found[gamma] = {"tokens": tokens, "cost": tokens / ratio.estimate}
    return found


def _by_request(prompts: PromptTotals, requests: Mapping[str, str]) -> PromptTotals:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for prompt_id, seconds, tokens in zip(
        prompts.prompt_ids, prompts.seconds, prompts.tokens, strict=True
    ):
        sums[requests[prompt_id]][0] += seconds
        sums[requests[prompt_id]][1] += tokens
    ids = tuple(sorted(sums))
    seconds, tokens = np.array([sums[name] for name in ids], np.float64).T
    return PromptTotals(ids, seconds, tokens)


def compared(
    predicted: Mapping[str, Float64Array], live: Mapping[int, Ratio]
) -> dict[str, dict[str, Any]]:
    """How far each prediction is from the clock, and what choosing γ by it costs.

    Args:
        predicted: Speeds by γ from 0, by prediction.
        live: Measured speed by γ.

    Returns:
        By prediction: `error_pct` by γ, `median_abs_error_pct`, `worst_abs_error_pct`, `inside`
        (predictions within the measured 95% interval), `chooses` (γ among the measured ones, 0
        for plain decoding) and `chosen_speed`, its measured speed.
    """
    found = {}
    for name, speeds in predicted.items():
        errors = {g: 100 * (float(speeds[g]) / ratio.estimate - 1) for g, ratio in live.items()}
        best = max((0, *live), key=lambda gamma: float(speeds[gamma]))
        found[name] = {
            "error_pct": errors,
            "median_abs_error_pct": float(np.median(np.abs(list(errors.values())))),
            "worst_abs_error_pct": max(map(abs, errors.values())),
            "inside": sum(ratio.low <= speeds[g] <= ratio.high for g, ratio in live.items()),
            "chooses": best,
            "chosen_speed": live[best].estimate if best else 1.0,
        }
    return found
