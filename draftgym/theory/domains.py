"""How much of a gain is another fixed cell per domain, and how much is adapting within one.

A stream of one domain is served by a cell tuned on that domain, a mixed stream by one cell for
all. From there to the information bound only decisions that differ from round to round can go.
Translations of one request are not independent, so intervals resample requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftgym.benchmark.statistics import Interval, paired_ratio
from draftgym.costs.times import Float64Array
from draftgym.theory.landscape import Ways
from draftgym.theory.requests import Mask, request_domains, request_ids, request_totals
from draftgym.traces.trace import Trace

MIXED = "mixed"
FEWEST_REQUESTS = 3
"""A domain of fewer has no interval of its own; its prompts count in the mixed stream."""


@dataclass(frozen=True, slots=True)
class DomainGain:
    """Speeds in one domain, each over another method's, with 95% intervals over requests.

    Attributes:
        domain: Its name, or `MIXED` for all prompts.
        prompts: Traced prompts.
        requests: What they ask, translations counted once.
        cell: Depth and size that are best here in hindsight.
        tuned_over_plain: The cell tuned on other prompts of the mixture, over plain decoding.
        own_over_tuned: Cells tuned on other prompts of the same domain, over the mixture's.
        information_over_tuned: The information bound over the mixture's cell.
        information_over_own: The information bound over the domain's own cell: adapting within.
        clairvoyant_over_tuned: The clairvoyant over the mixture's cell.
    """

    domain: str
    prompts: int
    requests: int
    cell: tuple[int, int]
    tuned_over_plain: Interval
    own_over_tuned: Interval
    information_over_tuned: Interval
    information_over_own: Interval
    clairvoyant_over_tuned: Interval


def domain_gains(trace: Trace, found: Ways, *, seed: int = 0) -> list[DomainGain]:
    """The mixed stream, then every domain of `FEWEST_REQUESTS` or more.

    Args:
        trace: Gives domains, requests and tokens.
        found: Seconds of its sequences.
        seed: Of the intervals.

    Raises:
        StatisticsError: If the trace holds a single request.
    """
    domains = np.array([entry.domain for entry in trace.sequences])
    used = trace.lengths > 1
    gains = [_gain(MIXED, trace, found, used, found.fixed.best, seed)]
    for domain, cell in found.fixed.best_of.items():
        mine = used & (domains == domain)
        if _requests(trace, mine) >= FEWEST_REQUESTS:
            gains.append(_gain(domain, trace, found, mine, cell, seed))
    return gains


def _gain(
    domain: str,
    trace: Trace,
    found: Ways,
    mine: Mask,
    cell: tuple[int, int],
    seed: int,
) -> DomainGain:
    strata = request_domains(trace)

    def over(slower: Float64Array, faster: Float64Array) -> Interval:
        slow, fast = (request_totals(trace, seconds, mine) for seconds in (slower, faster))
        return paired_ratio(slow, fast, strata, seed=seed)

    fixed = found.fixed
    return DomainGain(
        domain=domain,
        prompts=int(mine.sum()),
        requests=_requests(trace, mine),
        cell=cell,
        tuned_over_plain=over(fixed.plain, fixed.tuned),
        own_over_tuned=over(fixed.tuned, fixed.own),
        information_over_tuned=over(fixed.tuned, found.information),
        information_over_own=over(fixed.own, found.information),
        clairvoyant_over_tuned=over(fixed.tuned, found.clairvoyant),
    )


def _requests(trace: Trace, mine: Mask) -> int:
    names = zip(request_ids(trace), mine, strict=True)
    return len({name for name, wanted in names if wanted})
