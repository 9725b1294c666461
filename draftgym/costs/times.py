"""What a simulated round asks about time. It does not know where the seconds come from."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgym.runtime.timing import DecisionSeconds

Work = Literal["propose", "first", "later", "verify", "commit"]
"""Kinds of work in a round: free proposals, the first draft pass, each later one, the target's
pass with acceptance, and everything else (cache compaction, commit, the host's overhead)."""

WORK: tuple[Work, ...] = get_args(Work)

Float64Array = NDArray[np.float64]


class Times(Protocol):
    """Seconds of each kind of work.

    `units` are the tokens to ingest for "first" and the drafted tokens verified for "verify";
    other kinds ignore their values. `context` are committed tokens before the round, root
    included. Both are integers and broadcast against each other.
    """

    @property
    def decision_seconds(self) -> DecisionSeconds:
        """Seconds of one decision of a learned policy, reading the confidence included."""

    def mean(self, kind: Work, units: ArrayLike, context: ArrayLike) -> Float64Array:
        """Mean seconds, in the broadcast shape."""

    def draw(
        self, kind: Work, units: ArrayLike, context: ArrayLike, rng: np.random.Generator
    ) -> Float64Array:
        """One measured sample per entry, in the broadcast shape."""
