"""What a round at a traced position does and costs, by the rules of live decoding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftgym.costs.times import Float64Array, Times
from draftgym.traces.trace import IntArray, Trace


@dataclass(frozen=True, eq=False)
class Rounds:
    """Rounds as they come out, all of one shape.

    Attributes:
        depth: Draft passes made.
        size: Drafted tokens verified.
        emitted: Tokens emitted, at least 1.
        seconds: Mean seconds without the first draft pass, which hangs on unread tokens.
    """

    depth: IntArray
    size: IntArray
    emitted: IntArray
    seconds: Float64Array


@dataclass(frozen=True, eq=False)
class Positions:
    """What the budget and the text say about every row of a trace, [n] each.

    Attributes:
        context: Committed tokens, root included.
        room: Tokens that budget and context still allow.
        left: Tokens of the text that are still to come.
    """

    context: IntArray
    room: IntArray
    left: IntArray

    @classmethod
    def of(cls, trace: Trace) -> Positions:
        """Work them out."""
        prompt = np.array([entry.prompt_tokens for entry in trace.sequences], np.int64)
        budget = np.array([entry.max_new_tokens for entry in trace.sequences], np.int64)
        allowed: IntArray = np.minimum(budget, trace.context_limit - prompt)
        sequence, emitted = trace.sequence, trace.emitted.astype(np.int64)
        return cls(
            prompt[sequence] + emitted,
            allowed[sequence] - emitted,
            trace.lengths[sequence] - emitted,
        )


def play(
    trace: Trace,
    positions: Positions,
    times: Times,
    rows: IntArray,
    depth: IntArray,
    size: IntArray,
) -> Rounds:
    """Play a round of each requested setting, clamped as live decoding clamps it.

    Args:
        trace: What each setting accepts.
        positions: Of the trace.
        times: Mean seconds of work.
        rows: Where the rounds start.
        depth: Draft passes asked for, at most the trace's deepest; broadcasts against `rows`.
        size: Verification sizes asked for; broadcasts against `rows`.

    Returns:
        The rounds, in the broadcast shape.
    """
    rows, depth, size = np.broadcast_arrays(rows, depth, size)
    context, none = positions.context[rows], np.zeros_like(rows)
    speculates = positions.room[rows] > 1  # else the target's own token fills the room
    made = np.where(speculates, np.minimum(depth, trace.depth_limit[rows]), 0)
    verified = np.where(speculates, np.minimum(size, trace.nodes[rows, made]), 0)
    accepted = trace.accepted(rows.ravel(), made.ravel(), verified.ravel()).reshape(rows.shape)
    seconds = (
        times.mean("propose", none, context)
        + times.mean("verify", verified, context)
        + times.mean("commit", none, context)
    )
    if made.max() > 1:  # else the table may not know later passes
        seconds = seconds + np.maximum(made - 1, 0) * times.mean("later", none, context)
    return Rounds(made, verified, np.minimum(accepted + 1, positions.left[rows]), seconds)
