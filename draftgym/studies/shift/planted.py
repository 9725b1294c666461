"""Traces with known answers: text that the drafter always guesses, and text that it never does.

A round of D passes and V verified tokens costs 1 + .05 D + .02 V plain steps. Guessed text emits
D + 1 tokens a round where V = D, text that is never guessed emits one. So the best cell of the
former is the deepest, (1 + .07 * 3) / 4 = .3025 steps a token, that of the latter is plain
decoding, and everything that is learned from one and used on the other has a price that can be
worked out by hand.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from draftgym.features import FeatureLayout
from draftgym.theory.landscape import LinearTimes
from draftgym.traces.trace import ABSENT, Trace, TracedSequence, TraceShape

PASSES = 3
SIZES = (0, 1, 2, 3)
TIMES = LinearTimes(draft=0.05, slope=0.02)
LAYOUT = FeatureLayout(max_depth=PASSES, beam_width=1, history=8, size_grid=SIZES)
GUESSED, HARD = "guessed", "hard"
DEEPEST = (1 + PASSES * (0.05 + 0.02)) / (PASSES + 1)
"""Steps a token of guessed text under its own cell."""

_TOKENS = 41
"""A multiple of PASSES + 1, and the token of prefill: the last round is as long as the others."""


def planted(requests: Mapping[str, int], *, told: bool) -> Trace:
    """A trace of guessed and of hard text, one sequence per request.

    Args:
        requests: How many of `GUESSED` and of `HARD`.
        told: Whether scores say beforehand which of the two it is; otherwise all look alike.
    """
    kinds = [kind for kind, count in requests.items() for _ in range(count)]
    shape = TraceShape(PASSES, 1, SIZES, PASSES)
    rounds = _TOKENS - 1
    rows = rounds * len(kinds)
    levels, place = np.arange(PASSES + 1), np.arange(PASSES)
    guessed = np.repeat([kind == GUESSED for kind in kinds], rounds)[:, None]  # [rows, 1]
    emitted = np.tile(np.arange(1, _TOKENS), len(kinds))
    inside = place < (_TOKENS - emitted)[:, None]  # [rows, path]
    drafted = place < levels[:, None]  # [levels, path]
    hit = (guessed & inside)[:, None] & drafted
    likely = guessed if told else np.ones_like(guessed)
    score = np.where(likely, -0.1, -8.0)  # of the one free proposal, which is never right
    partial = np.minimum(np.array(SIZES), levels[:, None] + 1) * np.exp(score)[:, :, None]
    law = np.broadcast_to(likely, (rows, PASSES + 1))
    return Trace(
        shape=shape,
        sequences=tuple(
            TracedSequence(
                f"{kind}-{index}", kind, "none", 16, (0,) * _TOKENS, 2 * _TOKENS,
                request_id=f"{kind}-{index}",
            )
            for index, kind in enumerate(kinds)
        ),
        context_limit=1024,
        sequence=np.repeat(np.arange(len(kinds)), rounds).astype(np.int32),
        emitted=emitted.astype(np.int32),
        depth_limit=np.full(rows, PASSES, np.int16),
        nodes=np.broadcast_to(levels + 1, (rows, PASSES + 1)).astype(np.int16),
        frontier=np.broadcast_to(score, (rows, PASSES + 1))[:, :, None].astype(np.float32),
        entropy=np.where(law, 0.1, 5.0).astype(np.float32),
        margin=np.where(law, 0.9, 0.0).astype(np.float32),
        partial=partial.astype(np.float32),
        total=partial[:, :, -1].astype(np.float32),
        rank=np.where(hit, place, ABSENT).astype(np.int16),
        source={"planted": True},
    )  # fmt: skip
