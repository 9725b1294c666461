"""The latency table: raw measured seconds of every kind of work, and their means.

Samples count at the machine's usual pace (`draftgym.costs.drift`). Their means follow them as they
are: nothing is smoothed or forced to grow with the work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgym.costs.samples import Bucket, Buckets, LatencyError, Samples, samples_of
from draftgym.costs.times import WORK, Float64Array, Work
from draftgym.runtime.folder import first_difference
from draftgym.runtime.timing import DecisionSeconds
from draftgym.state import RoundRecord
from draftgym.storage import plain, write_json

SCHEMA = "draftgym.latency/2"
TABLE = "latency.json"
"""Name of a table's file in the folder of a run or of `calibrate`."""
CONTEXT_EDGES = (0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class LatencyTable:
    """Seconds of every kind of work of a round; implements `Times`.

    Verification sizes are exact: a size between two measured ones takes the line between
    their means, or a sample of one of them with the line's weight. Tokens to ingest are bucketed
    in powers of two, contexts by `context_edges`. What was never measured takes the nearest
    measured bucket, the nearest context of the same units first.

    Args:
        samples: By kind; "first" and "later" are absent for drafters without such passes.
        fingerprint: Of the pair and the machine, from `draftgym.costs.fingerprint`.
        decision_seconds: Of one decision of a learned policy, reading the confidence included.
        context_edges: Smallest context of each bucket, tokens, increasing from 0.

    Raises:
        LatencyError: Naming the kind that is unknown or missing, or the field that is wrong.
    """

    def __init__(
        self,
        samples: Mapping[Work, Samples],
        fingerprint: Mapping[str, Any],
        decision_seconds: DecisionSeconds,
        context_edges: Sequence[int] = CONTEXT_EDGES,
    ) -> None:
        for kind in samples:
            if kind not in WORK:
                raise LatencyError(f"{kind}: unknown kind; accepted: {', '.join(WORK)}")
        for kind in ("propose", "verify", "commit"):
            if kind not in samples:
                raise LatencyError(f"{kind}: no sample; every round has one")
        edges = tuple(context_edges)
        if edges[:1] != (0,) or list(edges) != sorted(set(edges)):
            raise LatencyError(f"context_edges: must increase from 0, got {list(edges)}")
        for name, value in asdict(decision_seconds).items():
            if not 0 <= value < np.inf:
                raise LatencyError(
                    f"decision_seconds.{name}: must be finite and not negative, got {value}"
                )
        self.samples = dict(samples)
        self.fingerprint = plain(fingerprint)
        self.decision_seconds = decision_seconds
        self.context_edges = edges
        self._buckets = {kind: Buckets(kind, part, edges) for kind, part in samples.items()}

    @classmethod
    def from_records(
        cls,
        records: Sequence[RoundRecord],
        fingerprint: Mapping[str, Any],
        decision_seconds: DecisionSeconds,
        *,
        openings: Sequence[RoundRecord] = (),
        context_edges: Sequence[int] = CONTEXT_EDGES,
    ) -> LatencyTable:
        """A table of live rounds.

        Args:
            records: Rounds with the seconds of every pass, some of them plain steps.
            fingerprint: Of the pair and the machine.
            decision_seconds: Of one decision of a learned policy.
            openings: First rounds of prompts; only their first passes count.
            context_edges: Smallest context of each bucket, tokens.

        Raises:
            LatencyError: If a kind that every round has is missing or a time is not a time.
        """
        samples = samples_of(records, openings)
        return cls(samples, fingerprint, decision_seconds, context_edges)

    @property
    def kinds(self) -> tuple[Work, ...]:
        """Kinds of work that were measured."""
        return tuple(kind for kind in WORK if kind in self.samples)

    def mean(self, kind: Work, units: ArrayLike, context: ArrayLike) -> Float64Array:
        """Mean seconds of work; delays that hit single samples are shared by all buckets.

        Args:
            kind: Of work.
            units: Tokens to ingest for "first", drafted tokens verified for "verify"; the values
                do not matter otherwise. Integers.
            context: Committed tokens before the round; integers, broadcast against `units`.

        Returns:
            Seconds in the broadcast shape.

        Raises:
            LatencyError: If no such work was measured.
        """
        return self._of(kind).mean(units, context)

    def draw(
        self, kind: Work, units: ArrayLike, context: ArrayLike, rng: np.random.Generator
    ) -> Float64Array:
        """Measured samples; arguments and errors as `mean`, with the source of chance."""
        return self._of(kind).draw(units, context, rng)

    def buckets(self, kind: Work) -> list[Bucket]:
        """The buckets of a kind that hold samples."""
        return self._of(kind).measured()

    def save(self, path: str | Path) -> Path:
        """Write the table as one JSON file, in one step.

        Args:
            path: Destination.

        Returns:
            The destination.
        """
        content = {
            "schema": SCHEMA,
            "fingerprint": self.fingerprint,
            "decision_seconds": asdict(self.decision_seconds),
            "context_edges": self.context_edges,
            "samples": {
                kind: {entry.name: getattr(part, entry.name) for entry in fields(Samples)}
                for kind, part in self.samples.items()
            },
        }
        return write_json(path, content, indent=None)

    @classmethod
    def load(cls, path: str | Path, fingerprint: Mapping[str, Any] | None = None) -> LatencyTable:
        """Read a table.

        Args:
            path: File written by `save`.
            fingerprint: Of the pair and machine that it must hold for; not compared when None.

        Raises:
            LatencyError: If the file is missing, damaged or of another fingerprint; names the
                file and the field, and for a fingerprint both values.
        """
        file = Path(path)
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            if data["schema"] != SCHEMA:
                raise LatencyError(f"schema: expected {SCHEMA!r}, found {data['schema']!r}")
            table = cls(
                {kind: _read_samples(kind, part) for kind, part in data["samples"].items()},
                data["fingerprint"],
                DecisionSeconds(**data["decision_seconds"]),
                data["context_edges"],
            )
        except FileNotFoundError:
            raise LatencyError(f"{file}: no such latency table") from None
        except LatencyError as error:
            raise LatencyError(f"{file}: {error}") from error
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LatencyError(f"{file}: damaged: {type(error).__name__}: {error}") from error
        if fingerprint is not None:
            difference = first_difference(
                table.fingerprint, plain(fingerprint), "fingerprint", "the table"
            )
            if difference is not None:
                raise LatencyError(f"{file}: measured elsewhere: {difference}")
        return table

    def _of(self, kind: Work) -> Buckets:
        if kind not in self._buckets:
            raise LatencyError(f"{kind}: not measured; this table has {', '.join(self.kinds)}")
        return self._buckets[kind]


def _read_samples(kind: str, part: Mapping[str, Any]) -> Samples:
    try:
        return Samples(
            _numbers("units", part, "iu").astype(np.int64),
            _numbers("context", part, "iu").astype(np.int64),
            _numbers("seconds", part, "iuf").astype(np.float64),
            _numbers("slowness", part, "iuf").astype(np.float64),
        )
    except LatencyError as error:
        raise LatencyError(f"samples.{kind}.{error}") from error


def _numbers(name: str, part: Mapping[str, Any], accepted: str) -> NDArray[Any]:
    values = np.asarray(part[name])
    if values.size and values.dtype.kind not in accepted:
        raise LatencyError(f"{name}: must hold numbers, found {values.dtype}")
    return values
