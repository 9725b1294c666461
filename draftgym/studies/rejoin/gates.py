"""Signals that are known when a token is rejected, as gates for the rejected tail.

A gate opens where one signal lies on one side of a threshold. Side and threshold are chosen on some
requests and judged on others; what counts is the mean net gain where it is open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from draftgym.benchmark.statistics import SIGNIFICANCE, Interval
from draftgym.studies.rejoin.alignment import common_prefix
from draftgym.studies.rejoin.clusters import Clusters, Floats, mean, share
from draftgym.studies.rejoin.rejections import Rejection

Signal = Callable[[Rejection], float]
LEAST_OPEN = 0.1
"""Share of rejections that a gate must open at where it is chosen."""
QUANTILES = np.linspace(0.05, 0.95, 19)
RECENT = 4
_NONE = -1.0
_FAR = 1e6


def _at(name: str, ahead: int = 0) -> Signal:
    """A value of the round at the rejected token, or some tokens past it."""

    def read(event: Rejection) -> float:
        values = getattr(event.round, name)
        return float(values[min(event.round.accepted + ahead, len(values) - 1)])

    return read


def _tail(name: str, reduce: Callable[[Sequence[float]], float]) -> Signal:
    """A value over the escrow."""

    def read(event: Rejection) -> float:
        values = getattr(event.round, name)[event.round.accepted + 1 :]
        return float(reduce(values)) if len(values) else 0.0

    return read


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(np.maximum(values, -_FAR)))


def _agreeing(event: Rejection) -> list[bool]:
    """Whether the target would have written each escrow token after the rejected draft."""
    said = event.round.best[event.round.accepted + 1 :]
    return [one == other for one, other in zip(said, event.escrow, strict=False)]


def _leading(event: Rejection) -> float:
    agreed = _agreeing(event)
    return float(agreed.index(False) if False in agreed else len(agreed))


def _place_of_correction(event: Rejection) -> float:
    escrow = event.escrow
    return float(escrow.index(event.correction)) if event.correction in escrow else _FAR


def _recent(event: Rejection) -> float:
    rounds = event.text.rounds[max(0, event.index - RECENT) : event.index]
    return float(np.mean([entry.accepted for entry in rounds])) if rounds else _NONE


def _last(event: Rejection) -> float:
    return float(event.text.rounds[event.index - 1].accepted) if event.index else _NONE


def _last_survival(event: Rejection) -> float:
    """Direct survival of the escrow before this one, as far as its text is written by now."""
    if not event.index:
        return _NONE
    before = event.text.rounds[event.index - 1]
    written = event.text.tokens[before.root + before.accepted + 2 : _written(event)]
    return float(common_prefix(before.escrow, written))


def _written(event: Rejection) -> int:
    """New tokens written when the correction is."""
    return event.round.root + event.round.accepted + 2


def _repeated(event: Rejection) -> float:
    """Longest suffix of what is written that was written before."""
    written = event.text.tokens[: _written(event)]
    ends = range(1, len(written))
    return float(max((_suffix(written, end) for end in ends), default=0))


def _suffix(written: Sequence[int], end: int) -> int:
    return common_prefix(written[:end][::-1][:16], written[::-1][:16])


def _seen(event: Rejection) -> float:
    """Whether the correction and the first escrow token were written in a row before."""
    if not event.escrow:
        return 0.0
    written = event.text.tokens[: _written(event)]
    return float((event.correction, event.escrow[0]) in pairwise(written))


def _distinct(event: Rejection) -> float:
    return len(set(event.escrow)) / len(event.escrow) if event.escrow else 0.0


SIGNALS: Mapping[str, Signal] = {
    "accepted tokens": lambda event: float(event.round.accepted),
    "escrow tokens": lambda event: float(len(event.escrow)),
    "tokens written": lambda event: float(_written(event)),
    "drafter: log-probability of the rejected": _at("draft_log_probs"),
    "drafter: entropy at the rejected": _at("draft_entropies"),
    "drafter: margin at the rejected": _at("draft_margins"),
    "drafter: log-probability of the correction": (
        lambda event: max(event.round.correction_log_prob, -_FAR)
    ),
    "drafter: rank of the correction": (
        lambda event: float(event.round.correction_rank) if event.round.correction_rank >= 0
        else _FAR
    ),
    "drafter: log-probability of the whole draft": (
        lambda event: float(sum(event.round.draft_log_probs))
    ),
    "drafter: mean log-probability of the escrow": _tail("draft_log_probs", _mean),
    "drafter: least log-probability in the escrow": _tail("draft_log_probs", min),
    "drafter: log-probability of the escrow's first": _at("draft_log_probs", 1),
    "drafter: mean entropy in the escrow": _tail("draft_entropies", _mean),
    "target: gap at the rejected": _at("target_gaps"),
    "target: entropy at the rejected": _at("target_entropies"),
    "target: log-probability of the rejected": _at("target_log_probs"),
    "target: rank of the rejected": _at("target_ranks"),
    "target: gap after the rejected": _at("target_gaps", 1),
    "target: mean entropy in the escrow": _tail("target_entropies", _mean),
    "target: mean log-probability of the escrow": _tail("target_log_probs", _mean),
    "target: escrow tokens it agrees with": lambda event: float(sum(_agreeing(event))),
    "target: leading escrow tokens it agrees with": _leading,
    "the correction is in the escrow": lambda event: float(event.correction in event.escrow),
    "place of the correction in the escrow": _place_of_correction,
    "the rejected token comes twice": (
        lambda event: float(event.escrow[:1] == (event.round.drafted[event.round.accepted],))
    ),
    "accepted tokens of the last round": _last,
    "accepted tokens of recent rounds": _recent,
    "survival of the last escrow": _last_survival,
    "longest repeated suffix": _repeated,
    "correction and escrow met before": _seen,
    "distinct tokens in the escrow": _distinct,
}  # fmt: skip
"""Observable before the next round; tokens written by then, and what both models said of them."""


def signals(events: Sequence[Rejection]) -> dict[str, Floats]:
    """Every signal at every rejection, [rejections] by name."""
    return {
        name: np.array([read(event) for event in events], np.float64)
        for name, read in SIGNALS.items()
    }


@dataclass(frozen=True, slots=True)
class Gate:
    """Opens where the signal is at least the threshold, or at most it.

    Attributes:
        threshold: In the signal's own unit.
        above: Which side is open.
    """

    threshold: float
    above: bool

    def opens(self, values: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether it is open, [rejections]."""
        return values >= self.threshold if self.above else values <= self.threshold


def choose(values: Floats, gains: Floats) -> Gate | None:
    """The gate with the largest mean gain where it is open.

    Args:
        values: The signal on the requests that choose.
        gains: Net tokens there.

    Returns:
        None where every gate opens too rarely, which needs values that are not numbers.
    """
    thresholds = np.unique(np.quantile(values, QUANTILES, method="nearest"))
    gates = [Gate(float(value), above) for value in thresholds for above in (True, False)]
    least = LEAST_OPEN * len(values)
    scored = [
        (float(gains[gate.opens(values)].mean()), gate)
        for gate in gates
        if (open_at := int(gate.opens(values).sum())) and open_at >= least
    ]
    return max(scored, key=lambda entry: entry[0])[1] if scored else None


@dataclass(frozen=True, slots=True)
class Judged:
    """A gate on requests that had no say in it.

    Attributes:
        signal: Its name.
        gate: Side and threshold.
        opened: Share of rejections.
        events: Rejections at which it was open.
        recovered: Mean tokens recovered there.
        needed: Mean tokens that it would have taken there.
        gain: Mean net tokens there, 95% interval.
        clears: The interval lies above 0.
        clears_all: So does the one that allows for the number of signals (Bonferroni).
    """

    signal: str
    gate: Gate
    opened: Interval
    events: int
    recovered: float
    needed: float
    gain: Interval
    clears: bool
    clears_all: bool


def judge(
    choosing: Mapping[str, Floats],
    choosing_gains: Floats,
    judging: Mapping[str, Floats],
    gains: Floats,
    recovered: Floats,
    clusters: Clusters,
) -> list[Judged]:
    """Every signal as a gate, the largest gain first.

    Args:
        choosing: Signals of the rejections that choose.
        choosing_gains: Net tokens there.
        judging: Signals of the rejections that judge.
        gains: Net tokens there.
        recovered: Tokens recovered there.
        clusters: Of the rejections that judge.
    """
    found = []
    for name, values in judging.items():
        gate = choose(choosing[name], choosing_gains)
        if gate is None or not (opened := gate.opens(values)).any():
            continue
        gain = mean(clusters, gains * opened, opened)
        strict = mean(clusters, gains * opened, opened, SIGNIFICANCE / len(judging))
        found.append(
            Judged(
                signal=name,
                gate=gate,
                opened=share(clusters, opened),
                events=int(opened.sum()),
                recovered=float(recovered[opened].mean()),
                needed=float((recovered - gains)[opened].mean()),
                gain=gain,
                clears=gain.low > 0,
                clears_all=strict.low > 0,
            )
        )
    return sorted(found, key=lambda entry: -entry.gain.estimate)
