"""Sums over one request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from draftgym.state import RoundRecord


@dataclass(frozen=True, slots=True)
class EpisodeTotals:
    """Sums over one request, its prefill and first token left out.

    Attributes:
        rounds: Rounds, those without a decision included.
        tokens: Emitted by them.
        seconds: Wall seconds of them.
        tau_emitted: Mean tokens per round, correction or bonus counted.
        seconds_per_token: Ratio of the sums.
        depths: Rounds by draft passes made.
        sizes: Rounds by drafted tokens verified.
        stop_reason: Why the request ended.
    """

    rounds: int
    tokens: int
    seconds: float
    tau_emitted: float
    seconds_per_token: float
    depths: dict[int, int]
    sizes: dict[int, int]
    stop_reason: str | None


def sum_up(records: Sequence[RoundRecord], stop_reason: str | None) -> EpisodeTotals:
    """Sum up a request; ratios are ratios of sums."""
    tokens = sum(record.emitted for record in records)
    seconds = sum(record.seconds for record in records)
    return EpisodeTotals(
        rounds=len(records),
        tokens=tokens,
        seconds=seconds,
        tau_emitted=tokens / max(len(records), 1),
        seconds_per_token=seconds / max(tokens, 1),
        depths=dict(sorted(Counter(record.depth for record in records).items())),
        sizes=dict(sorted(Counter(record.size for record in records).items())),
        stop_reason=stop_reason,
    )
