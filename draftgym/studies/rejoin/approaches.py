"""What the rejected tail would be worth, and what it must earn: four approaches and their bars.

With T(x) seconds of a round that drafts γ tokens anew and verifies x more beside them, F the mean
accepted tokens of a fresh draft, the pace is ρ = T(0) / (F + 1) seconds per token. Tokens cost time
in two ways:

- beside a fresh draft, x tokens of the tail cost verify(γ + x) - verify(γ) seconds; the round must
  emit (verify(γ + x) - verify(γ)) / ρ tokens more than the fresh draft gives alone;
- instead of a fresh draft, the round costs S(x) = verify(x) + rest; it must emit S(x) / ρ tokens,
  so S(x) / ρ - 1 of the tail must survive. Where the fresh draft would have failed, this wins even
  with x = 0, a plain step, so that is the control: only what is above it is the tail's merit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftgym.costs.times import Times
from draftgym.studies.rejoin.alignment import Alignment, Reach
from draftgym.studies.rejoin.clusters import Clusters, Floats, mean, share
from draftgym.studies.rejoin.rejections import Rejection


@dataclass(frozen=True, slots=True)
class Approach:
    """One way to use the tail.

    Attributes:
        name: In tables.
        live: Can be decided when the tokens are needed; others know the text already.
        recovered: Tail tokens that would have been accepted.
        tokens: Tail tokens that the target must verify for it.
    """

    name: str
    live: bool
    recovered: Callable[[Alignment], int]
    tokens: Callable[[int, Reach], int]


def candidate_tokens(escrow: int, reach: Reach) -> int:
    """Tokens of all candidates: the escrow with 0, 1, ... front tokens left out."""
    return sum(max(0, escrow - trimmed) for trimmed in range(reach.trim + 1))


def _escrow(escrow: int, reach: Reach) -> int:
    return escrow


PLAIN = Approach("plain step", True, lambda found: 0, lambda escrow, reach: 0)
APPROACHES = (
    Approach("reattach at 0", True, lambda found: found.direct, _escrow),
    Approach("candidate tree", True, lambda found: found.trimmed, candidate_tokens),
    # Told where to look: what they verify is the escrow alone, which flatters them.
    Approach("bridge", False, lambda found: found.bridged, _escrow),
    Approach("best alignment", False, lambda found: found.longest.length, _escrow),
)
"""From the most modest to the most generous; each finds at least what the one before finds, where
the slack is no smaller than what candidates leave out."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Mean seconds of rounds of one pair with blocks of γ.

    Args:
        times: Measured work of its chains.
        block: γ.
        context: Committed tokens at which rounds are priced.
        fresh: Mean accepted tokens of a fresh draft, F.
    """

    times: Times
    block: int
    context: int
    fresh: float

    def verify(self, tokens: int) -> float:
        """Seconds of the target's pass over the root and `tokens` more."""
        return float(self.times.mean("verify", tokens, self.context))

    @property
    def rest(self) -> float:
        """Seconds of a round beside draft and verification."""
        return float(
            self.times.mean("propose", 0, self.context) + self.times.mean("commit", 0, self.context)
        )

    def drafting(self, passes: int) -> float:
        """Seconds of draft passes; the first ingests what a round emits on average."""
        if not passes:
            return 0.0
        unread = max(1, round(self.fresh + 1))
        first = float(self.times.mean("first", unread, self.context))
        later = float(self.times.mean("later", 1, self.context)) if passes > 1 else 0.0
        return first + (passes - 1) * later

    @property
    def fresh_round(self) -> float:
        """Seconds of a round that drafts anew, T(0)."""
        return self.drafting(self.block) + self.verify(self.block) + self.rest

    @property
    def pace(self) -> float:
        """Seconds per token of rounds that draft anew, ρ."""
        return self.fresh_round / (self.fresh + 1)

    def beside(self, tokens: int) -> float:
        """Tokens that `tokens` of the tail must add to what a fresh draft gives."""
        return (self.verify(self.block + tokens) - self.verify(self.block)) / self.pace

    def instead(self, tokens: int) -> float:
        """Tokens of the tail that must survive where it takes the fresh draft's place."""
        return (self.verify(tokens) + self.rest) / self.pace - 1


@dataclass(frozen=True, slots=True)
class Worth:
    """Every rejection under one approach, [rejections].

    Attributes:
        recovered: Tail tokens that would have been accepted.
        fresh: Accepted tokens of the fresh redraft at the same place.
        beside_bar: Tokens that the tail must add beside a fresh draft.
        instead_bar: Tokens that must survive in its place.
        usual: Mean accepted tokens of a fresh draft, F.
    """

    recovered: Floats
    fresh: Floats
    beside_bar: Floats
    instead_bar: Floats
    usual: float

    @property
    def beyond(self) -> Floats:
        """Tail tokens beyond what the fresh redraft gives anyway."""
        return np.maximum(0, self.recovered - self.fresh)

    @property
    def beside(self) -> Floats:
        """Net gain in tokens of trying the tail beside the fresh draft."""
        return self.beyond - self.beside_bar

    @property
    def instead(self) -> Floats:
        """Net gain in tokens of trying the tail alone: time not spent drafting counts, too."""
        return self.recovered - self.fresh + (self.usual - self.instead_bar)


def worth(
    approach: Approach,
    events: Sequence[Rejection],
    found: Sequence[Alignment],
    prices: Prices,
    reach: Reach,
) -> Worth:
    """What an approach recovers at every rejection, and what that must cost.

    Args:
        approach: Which.
        events: Rejections of one block length.
        found: Their alignments.
        prices: Of rounds of that block length.
        reach: Of the candidates.
    """
    recovered = np.array([approach.recovered(entry) for entry in found], np.float64)
    fresh = np.array([event.fresh for event in events], np.float64)
    tokens = np.array([approach.tokens(len(event.escrow), reach) for event in events])
    sizes, places = np.unique(tokens, return_inverse=True)
    beside = np.array([prices.beside(int(size)) for size in sizes])
    instead = np.array([prices.instead(int(size)) for size in sizes])
    return Worth(recovered, fresh, beside[places], instead[places], prices.fresh)


def oracle_speed(gains: Floats, rounds: int, prices: Prices) -> float:
    """Speed gained by a gate that opens exactly where the net gain is positive.

    Args:
        gains: Net tokens at each rejection.
        rounds: All rounds that these rejections are of, accepted whole or not.
        prices: Of the rounds.

    Returns:
        New over old tokens per second, less 1.
    """
    saved = float(np.maximum(gains, 0).sum()) * prices.pace
    return 1 / (1 - saved / (rounds * prices.fresh_round)) - 1


def approach_rows(
    worths: dict[str, Worth], clusters: Clusters, rounds: int, prices: Prices
) -> list[dict[str, Any]]:
    """The table of approaches: means per rejection with intervals over requests.

    Args:
        worths: By name of the approach.
        clusters: Of the rejections.
        rounds: All rounds that the rejections are of.
        prices: Of the rounds.
    """
    return [
        {
            "approach": approach.name,
            "live": approach.live,
            "recovered": mean(clusters, worths[approach.name].recovered),
            "beyond_fresh": mean(clusters, worths[approach.name].beyond),
            **_against_bar("beside", worths[approach.name].beside_bar,
                           worths[approach.name].beside, clusters, rounds, prices),
            **_against_bar("instead", worths[approach.name].instead_bar,
                           worths[approach.name].instead, clusters, rounds, prices),
        }
        for approach in (*APPROACHES, PLAIN)
    ]  # fmt: skip


def _against_bar(
    name: str, bar: Floats, gain: Floats, clusters: Clusters, rounds: int, prices: Prices
) -> dict[str, Any]:
    return {
        f"{name}_bar": float(bar.mean()),
        f"{name}_net": mean(clusters, gain),
        f"{name}_winnable": share(clusters, gain > 0),
        f"{name}_oracle_speed": oracle_speed(gain, rounds, prices),
    }
