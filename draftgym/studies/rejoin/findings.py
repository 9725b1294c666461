"""What logs say of rejected tails: survival, runs against chance, approaches and gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftgym.costs.times import Times
from draftgym.studies.rejoin.alignment import (
    Alignment,
    Reach,
    Run,
    against_others,
    against_shuffled,
    aligned,
)
from draftgym.studies.rejoin.approaches import (
    APPROACHES,
    PLAIN,
    Prices,
    Worth,
    approach_rows,
    worth,
)
from draftgym.studies.rejoin.clusters import Clusters, clustered, mean, ratio, share
from draftgym.studies.rejoin.gates import Judged, judge, signals
from draftgym.studies.rejoin.log import LoggedText
from draftgym.studies.rejoin.rejections import Rejection, rejections

LENGTHS = (4, 8)
"""Runs of at least so many tokens are counted."""

ACTIONS = (
    ("reattach at 0", "beside"),
    ("candidate tree", "beside"),
    ("reattach at 0", "instead"),
    ("plain step", "instead"),
)
"""What gates decide on; the last is the control, which uses nothing of the tail."""


def survival(texts: Sequence[LoggedText], reach: Reach, draws: int, seed: int) -> dict[str, Any]:
    """Survival and alignment of the rejected tails of one block length.

    Args:
        texts: Logged with one block length; rejections of at least two requests.
        reach: How far to look.
        draws: Wrong continuations per rejection.
        seed: Of wrong continuations and intervals.

    Raises:
        ValueError: Rejections of fewer than two requests.
    """
    events = rejections(texts, reach.slack)
    others = against_others(events, reach.slack, draws, seed)
    shuffled = against_shuffled(events, reach.slack, draws, seed)
    found = aligned(events, reach)
    clusters = clustered([event.cluster for event in events], seed)
    direct = np.array([entry.direct for entry in found], np.float64)
    fresh = np.array([event.fresh for event in events], np.float64)
    escrow = np.array([len(event.escrow) for event in events], np.float64)
    rounds = [entry for text in texts for entry in text.rounds]
    return {
        "rejections": len(events),
        "requests": clusters.count,
        "rounds": len(rounds),
        "rejected_rounds": sum(entry.rejected for entry in rounds),
        "escrow_tokens": mean(clusters, escrow),
        "direct": mean(clusters, direct),
        "direct_any": share(clusters, direct > 0, escrow > 0),
        "fresh": mean(clusters, fresh),
        "delta": mean(clusters, direct - fresh),
        "delta_equal_length": mean(clusters, direct - np.minimum(fresh, escrow)),
        "bridges": _bridges(found, clusters, reach),
        "runs": {
            str(length): _runs(length, escrow, found, others, shuffled, clusters)
            for length in LENGTHS
        },
        "both_sides": _both_sides(found, clusters),
        "fraction": {
            "longest": share(clusters, [entry.longest.length for entry in found], escrow),
            "direct": share(clusters, direct, escrow),
            "wrong": share(clusters, [_mean_length(runs) for runs in others], escrow),
            "shuffled": share(clusters, [_mean_length(runs) for runs in shuffled], escrow),
        },
    }


def _mean_length(runs: Sequence[Run]) -> float:
    return float(np.mean([run.length for run in runs]))


def _runs(
    length: int,
    escrow: np.ndarray[Any, Any],
    found: Sequence[Alignment],
    others: Sequence[Sequence[Run]],
    shuffled: Sequence[Sequence[Run]],
    clusters: Clusters,
) -> dict[str, Any]:
    """Shares of rejections with a run so long, of those whose escrow is as long."""
    able = escrow >= length
    hits = np.array([entry.longest.length >= length for entry in found]) * able
    wrong, mixed = (
        np.array([np.mean([run.length >= length for run in runs]) for runs in several]) * able
        for several in (others, shuffled)
    )
    return {
        "rejections": int(able.sum()),
        "share": share(clusters, hits, able),
        "share_of_all": share(clusters, hits),
        "wrong": share(clusters, wrong, able),
        "shuffled": share(clusters, mixed, able),
        "over_wrong": ratio(clusters, hits, wrong),
    }


def _both_sides(found: Sequence[Alignment], clusters: Clusters) -> dict[str, Any]:
    """Of runs long enough to count, those out of reach with slack on one side alone."""
    long = np.array([entry.longest.length >= LENGTHS[0] for entry in found])
    both = long & np.array([entry.either < LENGTHS[0] for entry in found])
    return {"runs": int(long.sum()), "share": share(clusters, both, long)}


def _bridges(found: Sequence[Alignment], clusters: Clusters, reach: Reach) -> list[dict[str, Any]]:
    rows = []
    for index in range(reach.bridge):
        values = [entry.by_bridge[index] for entry in found]
        right = np.array([value is not None for value in values])
        rows.append(
            {
                "fresh_tokens": index + 1,
                "right": share(clusters, right),
                "survival_if_right": mean(clusters, [value or 0 for value in values], right),
                "rejections": int(right.sum()),
            }
        )
    return rows


def prices_of(texts: Sequence[LoggedText], times: Times, contexts: Sequence[int]) -> Prices:
    """Prices at the mean acceptance of whole blocks and the median context.

    Args:
        texts: Of one block length.
        times: Measured work.
        contexts: Prompt tokens of each text.

    Raises:
        ValueError: No round drafted a whole block.
    """
    block = texts[0].block
    whole = [
        (entry.accepted, prompt + entry.root + 1)
        for text, prompt in zip(texts, contexts, strict=True)
        for entry in text.rounds
        if len(entry.drafted) == block
    ]
    if not whole:
        raise ValueError(f"no round drafted {block} tokens")
    accepted, context = np.array(whole).T
    return Prices(times, block, int(np.median(context)), float(accepted.mean()))


def best_shorter(texts: Sequence[LoggedText], prices: Prices) -> dict[str, float]:
    """The block that would be fastest, by the acceptance of these drafts cut short.

    Long blocks leave long tails; how much of what a tail saves did the long block cost?

    Args:
        texts: Of one block length.
        prices: At that length.
    """
    kept = np.array(
        [e.accepted for text in texts for e in text.rounds if len(e.drafted) == text.block]
    )
    paces = {
        depth: (prices.drafting(depth) + prices.verify(depth) + prices.rest)
        / (np.minimum(kept, depth).mean() + 1)
        for depth in range(prices.block + 1)
    }
    best = min(paces, key=lambda depth: paces[depth])
    return {"block": best, "speed_over_this_block": prices.pace / paces[best]}


def worths(
    events: Sequence[Rejection], found: Sequence[Alignment], prices: Prices, reach: Reach
) -> dict[str, Worth]:
    """Every approach and the control, by name."""
    return {
        approach.name: worth(approach, events, found, prices, reach)
        for approach in (*APPROACHES, PLAIN)
    }


def value(
    choosing: Sequence[LoggedText],
    judging: Sequence[LoggedText],
    prices: Prices,
    reach: Reach,
    seed: int,
) -> dict[str, Any]:
    """Approaches against their bars, and signals as gates.

    Args:
        choosing: Texts whose rejections choose thresholds.
        judging: Texts that everything is reported of, of other requests.
        prices: Of rounds of the judging texts.
        reach: How far to look.
        seed: Of intervals.

    Raises:
        ValueError: One request is on both sides, or a side has no rejection.
    """
    chosen, judged = (rejections(texts, reach.slack) for texts in (choosing, judging))
    if not chosen or not judged:
        raise ValueError("no rejection to choose or to judge by: use more prompts or tokens")
    shared = {event.cluster for event in chosen} & {event.cluster for event in judged}
    if shared:
        raise ValueError(f"request {min(shared)!r} both chooses and judges")
    clusters = clustered([event.cluster for event in judged], seed)
    before = worths(chosen, aligned(chosen, reach), prices, reach)
    after = worths(judged, aligned(judged, reach), prices, reach)
    # Only rounds whose rejection can be followed are counted, so their share stays theirs.
    rounds = round(len(judged) / _rejected_share(judging))
    given, seen = signals(chosen), signals(judged)
    gates = {
        f"{name}, {form}": _gates(
            judge(given, getattr(before[name], form), seen, getattr(after[name], form),
                  after[name].recovered, clusters),
            getattr(after[name], form), clusters,
        )
        for name, form in ACTIONS
    }  # fmt: skip
    return {
        "choosing_rejections": len(chosen),
        "judging_rejections": len(judged),
        "pace_ms_per_token": 1e3 * prices.pace,
        "fresh_round_ms": 1e3 * prices.fresh_round,
        "mean_fresh_accepted": prices.fresh,
        "context_tokens": prices.context,
        "best_shorter_block": best_shorter(judging, prices),
        "approaches": approach_rows(after, clusters, rounds, prices),
        "signals": len(given),
        "gates": gates,
    }


def _rejected_share(texts: Sequence[LoggedText]) -> float:
    whole = [e for text in texts for e in text.rounds if len(e.drafted) == text.block]
    return sum(entry.rejected for entry in whole) / len(whole)


def _gates(
    rows: Sequence[Judged], gains: np.ndarray[Any, Any], clusters: Clusters
) -> Mapping[str, Any]:
    return {
        "always_open": mean(clusters, gains),
        "clearing": [row.signal for row in rows if row.clears],
        "clearing_all": [row.signal for row in rows if row.clears_all],
        "expected_by_chance": 0.025 * len(rows),
        "gates": rows,
    }
