"""Cases worked out by hand, which the study's own code must find again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgym.costs.times import Work
from draftgym.runtime.timing import DecisionSeconds
from draftgym.studies.known import Known
from draftgym.studies.rejoin.alignment import Reach, align, aligned, common_prefix
from draftgym.studies.rejoin.approaches import (
    APPROACHES,
    Prices,
    candidate_tokens,
    oracle_speed,
    worth,
)
from draftgym.studies.rejoin.formats import code_prefix, is_format
from draftgym.studies.rejoin.gates import choose
from draftgym.studies.rejoin.log import LoggedRound, LoggedText
from draftgym.studies.rejoin.rejections import rejections

REACH = Reach(slack=3, trim=1, bridge=2)
_EXACT = 1e-12


@dataclass(frozen=True, slots=True)
class PlantedTimes:
    """Verification of V tokens takes 10 + V, a draft pass 2; nothing else takes time."""

    @property
    def decision_seconds(self) -> DecisionSeconds:
        """Decisions are free."""
        return DecisionSeconds()

    def mean(self, kind: Work, units: ArrayLike, context: ArrayLike) -> NDArray[np.float64]:
        """Seconds by the plan."""
        count = np.asarray(units, np.float64) + 0 * np.asarray(context, np.float64)
        passes = 2.0 * (kind in ("first", "later"))
        return np.asarray(10 + count if kind == "verify" else 0 * count + passes, np.float64)

    def draw(
        self, kind: Work, units: ArrayLike, context: ArrayLike, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """As `mean`: nothing is random."""
        return self.mean(kind, units, context)


def planted_round(root: int, drafted: Sequence[int], accepted: int, best: int) -> LoggedRound:
    """A round of which only the tokens matter."""
    count = len(drafted)
    return LoggedRound(
        root, tuple(drafted), accepted, (-1.0,) * count, (1.0,) * count, (0.5,) * count,
        (*drafted[:accepted], best, *(0,) * (count - accepted)), (-2.0,) * count, (1,) * count,
        (1.0,) * (count + 1), (0.5,) * (count + 1), -2.0, 1,
    )  # fmt: skip


def planted_text() -> LoggedText:
    """A text with two rejections of blocks of four that count, and two that come too late.

    After the first, 3 4 5 is left of the draft and follows in the text: all of it survives, where a
    fresh draft gets two tokens right. After the second, 8 is left where 6 follows, and a fresh
    draft gets two tokens right again.
    """
    tokens = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14)
    rounds = (
        planted_round(0, (8, 3, 4, 5), 0, 2),  # 8 is rejected, 2 is right; 3 4 5 is left
        planted_round(1, (3, 4, 9, 8), 2, 5),  # 9 is rejected, 5 is right; 8 is left
        planted_round(4, (6, 7, 8, 9), 2, 9),  # 8 is rejected, 9 is right; 9 is left
        planted_round(7, (10, 11, 12, 0), 3, 13),
        planted_round(11, (14,), 1, 0),
    )
    return LoggedText("planted", "planted", "toy", 4, tokens, rounds)


def _alignments() -> list[Known]:
    cases = {
        # escrow, continuation, fresh draft: direct, front trimmed, after a bridge, longest run
        "survives two tokens": ((5, 6, 7), (5, 6, 9, 1), (5, 6, 9), (2, 2, 2, 2)),
        "needs its front token off": ((1, 5, 6, 7), (5, 6, 7, 8), (5,), (0, 3, 3, 3)),
        "needs one fresh token": ((5, 6, 7), (9, 5, 6, 7), (9, 4), (0, 0, 3, 3)),
        "its fresh token is wrong": ((5, 6, 7), (9, 5, 6, 7), (8, 4), (0, 0, 0, 3)),
        "needs slack on both sides": (
            (1, 2, 5, 6, 7, 8), (9, 5, 6, 7, 8, 3), (9, 5), (0, 0, 0, 4),
        ),
        "shares nothing": ((1, 2, 3), (4, 5, 6), (4,), (0, 0, 0, 0)),
    }  # fmt: skip
    names = [approach.name for approach in APPROACHES]
    values = []
    for case, (escrow, text, fresh, expected) in cases.items():
        found = align(escrow, text, fresh, REACH)
        for approach, name, value in zip(APPROACHES, names, expected, strict=True):
            values.append(Known(f"{case}: {name}", value, approach.recovered(found), 0))
    both = align((1, 2, 5, 6, 7, 8), (9, 5, 6, 7, 8, 3), (9,), REACH)
    return [
        *values,
        Known("slack on both sides: in the escrow", 2, both.longest.escrow_start, 0),
        Known("slack on both sides: in the text", 1, both.longest.text_start, 0),
        Known("slack on both sides: run with slack on one", 0, both.either, 0),
    ]


def _chance() -> Known:
    """All texts of two letters: half agree in the first, a quarter in both."""
    texts = list(itertools.product((0, 1), repeat=2))
    return Known(
        "mean direct survival of a coin's text", 0.75,
        float(np.mean([common_prefix((0, 1), text) for text in texts])), _EXACT,
    )  # fmt: skip


def _log() -> list[Known]:
    events = rejections([planted_text()], slack=2)
    found = aligned(events, REACH)
    return [
        Known("rejections of the planted text", 2, len(events), 0),
        Known("mean direct survival", 1.5, float(np.mean([e.direct for e in found])), _EXACT),
        Known("mean fresh acceptance", 2, float(np.mean([e.fresh for e in events])), _EXACT),
    ]


def _bars() -> list[Known]:
    """γ = 8, F = 3: 16 + 18 = 34 seconds for 4 tokens, a pace of 8.5."""
    prices = Prices(PlantedTimes(), block=8, context=100, fresh=3.0)
    events = rejections([planted_text()], slack=2)
    made = worth(APPROACHES[0], events, aligned(events, REACH), prices, REACH)
    # Escrows of 3 and 1 tokens, surviving 3 and 0 where fresh drafts give 2 and 2.
    beside = np.array([1 - 3 / 8.5, 0 - 1 / 8.5])
    # Tokens that net 1, -1, 2 and -2 in eight rounds: 3 of 32 tokens' time is saved.
    gains = np.array([1.0, -1.0, 2.0, -2.0])
    return [
        Known("bar beside a fresh draft, 7 tokens", 7 / 8.5, prices.beside(7), _EXACT),
        Known("bar instead of one, 7 tokens", 1.0, prices.instead(7), _EXACT),
        Known("tokens of the candidates of 7, one trimmed", 13, candidate_tokens(7, REACH), 0),
        Known("net gain beside, mean", float(beside.mean()), float(made.beside.mean()), _EXACT),
        Known("speed of the oracle's gate", 1 / (1 - 3 / 32) - 1,
              oracle_speed(gains, 8, prices), _EXACT),
    ]  # fmt: skip


def _gate() -> list[Known]:
    """A signal that tells gains from losses is found, on the right side."""
    values = np.arange(20.0)
    gains = np.where(values >= 14, 2.0, -1.0)
    gate = choose(values, gains)
    opened = values >= math.inf if gate is None else gate.opens(values)
    return [
        Known("gain where the planted gate is open", 2.0,
              float(gains[opened].mean()) if opened.any() else math.nan, _EXACT),
        Known("the planted gate opens upwards", 1, float(gate is not None and gate.above), 0),
    ]  # fmt: skip


def _formats() -> list[Known]:
    request = 'Complete it.\n\ndef f(x: int) -> int:\n    """Double."""\n'
    prefix = '```python\ndef f(x: int) -> int:\n    """Double."""\n'
    return [
        Known("fence against line break is format", 1, is_format("```", "\n"), 0),
        Known("spaced word is format", 1, is_format(" the", "the"), 0),
        Known("another word is not", 0, is_format(" the", " a"), 0),
        Known("prefix holds fence, header and docstring", 1, code_prefix(request) == prefix, 0),
    ]


def known_values() -> list[Known]:
    """Every planted case, found anew."""
    return [*_alignments(), _chance(), *_log(), *_bars(), *_gate(), *_formats()]
