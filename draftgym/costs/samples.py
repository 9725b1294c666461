"""Measured seconds of one kind of work, raw and by bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain, repeat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgym.costs.drift import slowness
from draftgym.costs.times import Float64Array, Work
from draftgym.errors import DraftGymError
from draftgym.state import RoundRecord

IntArray = NDArray[np.int64]

# Differences of clock readings may round below zero; CUDA events resolve half a microsecond.
_ROUNDING_SECONDS = 1e-6

# A size that only clamped rounds verified has a handful of samples, and whoever looks for the
# cheapest size would find the luckiest of those.
_THIN = 0.25

SPREADS = 3.0
"""Median deviations, some two standard ones, to which a sample's distance from its bucket's median
is bounded where means are taken."""


class LatencyError(DraftGymError, ValueError):
    """A latency table cannot be built, read or asked that; the message names the field."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Measured seconds of one kind of work, one entry per occurrence.

    Attributes:
        units: Tokens ingested ("first") or drafted tokens verified ("verify"), else 0; [n].
        context: Committed tokens before the round, [n].
        seconds: As measured, finite and not negative, [n].
        slowness: Of the machine at that time, from `draftgym.costs.drift`, positive, [n].
    """

    units: IntArray
    context: IntArray
    seconds: Float64Array
    slowness: Float64Array

    def __post_init__(self) -> None:
        for entry in fields(self):
            column = getattr(self, entry.name)
            if column.ndim != 1 or len(column) != len(self.seconds):
                raise LatencyError(
                    f"{entry.name}: shape {list(column.shape)}, expected [{len(self.seconds)}]"
                )
            if not len(column):
                raise LatencyError(f"{entry.name}: no sample")
            if not np.isfinite(column).all() or (column < 0).any():
                raise LatencyError(f"{entry.name}: holds a value that is negative or not finite")
        if (self.slowness == 0).any():
            raise LatencyError("slowness: must be positive")

    @property
    def steady(self) -> Float64Array:
        """Seconds at the machine's usual pace, [n]."""
        result: Float64Array = self.seconds / self.slowness
        return result


@dataclass(frozen=True, slots=True)
class Bucket:
    """Samples that share a bucket.

    Attributes:
        kind: Kind of work.
        units: Its smallest units.
        context: Smallest and largest context tokens; None where there is no largest.
        seconds: Samples at the machine's usual pace, [n].
    """

    kind: Work
    units: int
    context: tuple[int, int | None]
    seconds: Float64Array

    @property
    def name(self) -> str:
        """As results write it, such as `V=4, context 128-255`."""
        low, high = self.context
        context = f"context {low}+" if high is None else f"context {low}-{high}"
        if self.kind == "verify":
            return f"V={self.units}, {context}"
        if self.kind == "first":
            unread = "1" if self.units == 1 else f"{self.units}-{2 * self.units - 1}"
            return f"{unread} unread, {context}"
        return context

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """First, second (the median) and third, seconds."""
        first, median, third = np.quantile(self.seconds, (0.25, 0.5, 0.75)).tolist()
        return first, median, third


class Buckets:
    """Samples of one kind in a flat array with offsets, by units and then by context.

    Everything that a question needs is worked out here for every key (see `_key`) and context
    bucket, because simulated rounds ask for millions of times.

    Args:
        kind: Says what the units are.
        samples: Measured seconds.
        edges: Smallest context of each context bucket, increasing from 0.
    """

    def __init__(self, kind: Work, samples: Samples, edges: Sequence[int]) -> None:
        self.kind = kind
        self._edges = np.asarray(edges, np.int64)
        keys = self._key(samples.units)
        self._knots = _thick(keys) if kind == "verify" else np.unique(keys)  # [k]
        chosen = np.isin(keys, self._knots)
        cells = np.searchsorted(self._knots, keys[chosen]) * len(self._edges)
        cells = cells + self._context_bucket(samples.context[chosen])
        seconds = samples.steady[chosen]
        self._samples = seconds[np.argsort(cells, kind="stable")]
        self._counts = np.bincount(cells, minlength=len(self._knots) * len(self._edges))
        self._starts = np.cumsum(self._counts) - self._counts
        filled = _nearest_filled(self._counts.reshape(len(self._knots), -1))  # [k, c]
        counts = np.maximum(self._counts, 1)
        means = np.bincount(cells, _undelayed(seconds, cells), len(self._counts)) / counts
        low, high, self._weight = self._neighbours(np.arange(self._knots[-1] + 1))  # [key]
        self._low, self._high = filled[low], filled[high]  # [key, c]
        upper = self._weight[:, None]
        self._means = (1 - upper) * means[self._low] + upper * means[self._high]  # [key, c]

    def mean(self, units: ArrayLike, context: ArrayLike) -> Float64Array:
        """As `Times.mean`."""
        row, column = self._place(units, context)
        means: Float64Array = self._means[row, column]
        return means

    def draw(self, units: ArrayLike, context: ArrayLike, rng: np.random.Generator) -> Float64Array:
        """As `Times.draw`."""
        row, column = self._place(units, context)
        bucket = self._low[row, column]
        if self.kind == "verify":  # nothing else lies between two buckets
            upper = rng.random(bucket.shape) < self._weight[row]
            bucket = np.where(upper, self._high[row, column], bucket)
        # Rounds down below the count, for a number below 1.
        chosen = (rng.random(bucket.shape) * self._counts[bucket]).astype(np.int64)
        drawn: Float64Array = self._samples[self._starts[bucket] + chosen]
        return drawn

    def measured(self) -> list[Bucket]:
        """Buckets that hold samples, in order."""
        found = []
        for index in np.flatnonzero(self._counts):
            knot, context = divmod(int(index), len(self._edges))
            units = int(self._knots[knot])
            last = context + 1 == len(self._edges)
            found.append(
                Bucket(
                    self.kind,
                    2**units if self.kind == "first" else units,
                    (
                        int(self._edges[context]),
                        None if last else int(self._edges[context + 1]) - 1,
                    ),
                    self._samples[self._starts[index] :][: self._counts[index]],
                )
            )
        return found

    def _key(self, units: IntArray) -> IntArray:
        """Sizes are exact, tokens to ingest count in powers of two, the rest does not matter."""
        if self.kind == "verify":
            return units
        if self.kind == "first":
            return np.frexp(np.maximum(units, 1))[1].astype(np.int64) - 1
        return np.zeros(units.shape, np.int64)

    def _context_bucket(self, context: IntArray) -> IntArray:
        return np.searchsorted(self._edges[1:], context, side="right")

    def _place(self, units: ArrayLike, context: ArrayLike) -> tuple[IntArray, IntArray]:
        """Key, the largest measured at most, and context bucket."""
        key = np.minimum(self._key(np.asarray(units)), self._knots[-1])
        return key, self._context_bucket(np.asarray(context))

    def _neighbours(self, keys: IntArray) -> tuple[IntArray, IntArray, Float64Array]:
        """Neighbouring knots of keys up to the last knot, and the weight of the upper one.

        Between powers of two the nearer one counts alone, the lower of two.
        """
        high = np.searchsorted(self._knots, keys)
        low = np.where(self._knots[high] > keys, np.maximum(high - 1, 0), high)
        width = self._knots[high] - self._knots[low]
        weight = np.where(width > 0, (keys - self._knots[low]) / np.maximum(width, 1), 0.0)
        if self.kind == "verify":
            return low, high, weight
        nearer = np.where(weight > 0.5, high, low)
        return nearer, nearer, np.zeros(len(keys))


def samples_of(
    records: Sequence[RoundRecord], openings: Sequence[RoundRecord]
) -> dict[Work, Samples]:
    """Split rounds into their kinds of work.

    Args:
        records: Rounds with the seconds of every pass.
        openings: First rounds of prompts: colder than the rest, but nothing else shows a
            first pass over a whole prompt, so they give those passes alone.

    Returns:
        By kind; "first" and "later" only where such a pass was made.

    Raises:
        LatencyError: No round, none of them a plain step's size, or seconds that cannot be.
    """
    if not records:
        raise LatencyError("records: no round was measured")
    factors = slowness(records)
    rows: dict[Work, list[tuple[int, int, float, float]]] = {
        "propose": [], "first": [], "later": [], "verify": [], "commit": [],
    }  # fmt: skip
    # Openings are not interleaved with anything: their drift is not known.
    for record, slow in chain(zip(records, factors, strict=True), zip(openings, repeat(1.0))):
        unread, context = record.uningested_tokens, record.context_tokens
        rows["first"] += [(unread, context, s, slow) for s in record.pass_seconds[:1]]
    for record, slow in zip(records, factors, strict=True):
        context = record.context_tokens
        propose = record.draft_seconds - sum(record.pass_seconds)
        rest = record.seconds - record.draft_seconds - record.verify_seconds - record.policy_seconds
        rows["propose"].append((0, context, propose, slow))
        rows["later"] += [(0, context, seconds, slow) for seconds in record.pass_seconds[1:]]
        rows["verify"].append((record.size, context, record.verify_seconds, slow))
        rows["commit"].append((0, context, rest, slow))
    if all(record.size for record in records):
        raise LatencyError("verify: no plain step (size 0) was measured")
    return {kind: _checked(kind, entries) for kind, entries in rows.items() if entries}


def _checked(kind: Work, entries: Sequence[tuple[int, int, float, float]]) -> Samples:
    units, context, seconds, slow = (np.asarray(column) for column in zip(*entries, strict=True))
    rounded = np.where((seconds < 0) & (seconds > -_ROUNDING_SECONDS), 0.0, seconds)
    try:
        return Samples(
            units.astype(np.int64),
            context.astype(np.int64),
            rounded.astype(np.float64),
            slow.astype(np.float64),
        )
    except LatencyError as error:
        raise LatencyError(f"{kind}: {error}") from error


def _undelayed(seconds: Float64Array, cells: IntArray) -> Float64Array:
    """Seconds whose distance to their bucket's median is bounded, with the same sum as before.

    A delay of the machine falls on any bucket alike, in proportion to its time: a few dozen
    samples of a bucket catch more or fewer of them, by chance. So all buckets share them.

    Args:
        seconds: Samples of one kind, [n].
        cells: Bucket of each, [n].
    """
    order = np.lexsort((seconds, cells))
    _, first, count = np.unique(cells[order], return_index=True, return_counts=True)
    middle = seconds[order][first + (count - 1) // 2] + seconds[order][first + count // 2]
    median = np.repeat(middle / 2, count)  # by bucket, in the sorted order
    away = seconds[order] - median
    spread = np.median(np.abs(away) / np.maximum(median, np.finfo(np.float64).tiny))
    bound = SPREADS * spread * median
    kept = np.empty(len(seconds))
    kept[order] = median + away.clip(-bound, bound)
    total = kept.sum()
    return kept * (seconds.sum() / total) if spread > 0 and total > 0 else seconds


def _thick(sizes: IntArray) -> IntArray:
    """Sizes measured about as often as the others, [k]; the plain step always."""
    found, counts = np.unique(sizes, return_counts=True)
    thick: IntArray = found[(counts >= _THIN * np.median(counts)) | (found == 0)]
    return thick


def _nearest_filled(counts: IntArray) -> IntArray:
    """Flat index of the nearest bucket with samples in the same row, the lower of two; [k, c]."""
    columns = np.arange(counts.shape[1])
    distance = np.abs(columns[:, None] - columns).astype(np.float64)  # [wanted, offered]
    offered = np.where(counts[:, None, :] > 0, distance, np.inf)  # [k, wanted, offered]
    rows = np.arange(counts.shape[0])[:, None] * counts.shape[1]
    filled: IntArray = rows + offered.argmin(-1)
    return filled
