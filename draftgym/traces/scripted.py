"""A trace played by controllers of one round at a time, the ones that decode live.

`draftgym.traces.replay` plays many requests at once for controllers that take whole columns. Rules
from papers remember and adapt, so they are tuned here: by the very objects that are judged live, by
mean seconds, one request after another.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from draftgym.costs.times import Float64Array, Times
from draftgym.state import Confidence, Controller, History, MeasuredCosts, RoundRecord, RoundState
from draftgym.theory.rounds import Positions
from draftgym.traces.trace import Trace

_LEAST = -1e4  # log-probability of a node that adds nothing to the sum of its grid cell


class ScriptedTrace:
    """A trace and its mean seconds, read for fast single steps.

    Args:
        trace: Positions.
        times: Mean seconds of work; decisions are not charged.
        costs: Cost ratios shown to controllers.
        history: Rounds of acceptance history.

    Attributes:
        tokens: Tokens that the rounds of each sequence emit, [sequences].
    """

    def __init__(
        self, trace: Trace, times: Times, costs: MeasuredCosts, *, history: int = 8
    ) -> None:
        self._trace, self._times, self._costs, self._history = trace, times, costs, history
        self.tokens = np.maximum(trace.lengths - 1, 0)
        self._first_rows = trace.first.tolist()
        positions = Positions.of(trace)
        self._context, self._room = positions.context.tolist(), positions.room.tolist()
        self._max_size = trace.shape.size_grid[-1]
        self._limits = trace.depth_limit.tolist()
        self._nodes = trace.nodes.tolist()
        rows, none = positions.context, np.zeros_like(positions.context)
        self._propose = times.mean("propose", none, rows).tolist()
        self._rest = times.mean("commit", none, rows).tolist()
        sizes = np.arange(self._max_size + 1)
        self._verify = times.mean("verify", sizes[None, :], rows[:, None]).tolist()
        deepest = trace.shape.max_depth
        self._later = (times.mean("later", none, rows) if deepest > 1 else none * 0.0).tolist()
        self._first: dict[tuple[int, int], float] = {}
        self._known: dict[tuple[int, int], Confidence] = {}

    def seconds(self, controller: Controller) -> Float64Array:
        """Mean seconds of every sequence under a controller, [sequences].

        Args:
            controller: Asked and told as in live decoding; requests in the trace's order.
        """
        return np.array(
            [
                math.fsum(record.seconds for record in self.play(sequence, controller))
                for sequence in range(len(self._trace.sequences))
            ]
        )

    def play(self, sequence: int, controller: Controller) -> list[RoundRecord]:
        """The rounds of one request.

        Args:
            sequence: Index of the request in the trace.
            controller: Asked and told as in live decoding.
        """
        request = self._trace.sequences[sequence]
        controller.reset()
        history, records = History(self._history), []
        emitted, uningested = 1, request.prompt_tokens
        while emitted < len(request.tokens):
            row = self._first_rows[sequence] + emitted - 1
            record = self._round(row, emitted, uningested, history, controller)
            history.append(record.accepted, record.depth, record.size)
            controller.observe(record)
            records.append(record)
            emitted += record.emitted
            read = record.depth > 0 or self._trace.shape.max_depth == 0
            uningested = record.emitted + (0 if read else uningested)
        return records

    def _round(
        self, row: int, emitted: int, uningested: int, history: History, controller: Controller
    ) -> RoundRecord:
        request = self._trace.sequences[self._trace.sequence[row]]
        context, room = self._context[row], self._room[row]
        nodes = self._nodes[row]

        def read_confidence(law: bool = True) -> Confidence:
            return self._confidence(row, state.depth)

        state: RoundState = RoundState(
            depth=0,
            nodes=nodes[0],
            max_depth=self._limits[row],
            max_size=self._max_size if room > 1 else 0,
            context_tokens=context,
            context_limit=self._trace.context_limit,
            remaining_tokens=room,
            max_new_tokens=request.max_new_tokens,
            uningested_tokens=uningested,
            history=history,
            costs=self._costs,
            read_confidence=read_confidence,
        )
        passes: list[float] = []
        while state.depth < state.max_depth and controller.draft_again(state):
            passes.append(
                self._later[row] if state.depth else self._first_pass(uningested, context)
            )
            state.depth += 1
            state.nodes = nodes[state.depth]
            state.uningested_tokens = 0
        size = int(controller.choose_size(state))
        kept = min(size, state.nodes, state.max_size)
        path = 0
        for rank in self._trace.rank[row, state.depth].tolist():
            if rank >= kept:
                break
            path += 1
        tokens = request.tokens[emitted : emitted + path + 1]
        draft = self._propose[row] + sum(passes)
        verify, rest = self._verify[row][kept], self._rest[row]
        return RoundRecord(
            depth=state.depth,
            nodes=state.nodes,
            requested_size=size,
            size=kept,
            accepted=min(path, len(tokens)),
            tokens=tokens,
            context_tokens=context,
            uningested_tokens=uningested,
            clamped=kept != size,
            draft_seconds=draft,
            pass_seconds=tuple(passes),
            verify_seconds=verify,
            commit_seconds=rest,
            policy_seconds=0.0,
            seconds=draft + verify + rest,
        )

    def _first_pass(self, uningested: int, context: int) -> float:
        key = uningested, context
        if key not in self._first:
            self._first[key] = float(self._times.mean("first", uningested, context))
        return self._first[key]

    def _confidence(self, row: int, depth: int) -> Confidence:
        """What the drafter believed; made once per tree."""
        key = row, depth
        if key not in self._known:
            trace = self._trace
            if not self._nodes[row][depth]:
                raise RuntimeError("read_confidence: the tree is empty")
            frontier = [x for x in trace.frontier[row, depth].tolist() if x > -math.inf]
            self._known[key] = Confidence(
                frontier,
                float(trace.entropy[row, depth]),
                float(trace.margin[row, depth]),
                node_scores(trace, row, depth),
            )
        return self._known[key]


def node_scores(trace: Trace, row: int, depth: int) -> list[float]:
    """Cumulative log-probabilities of a tree's nodes, descending, as far as a trace tells them.

    A trace keeps their sums for the sizes of its grid. Nodes between two sizes share what lies
    between the sums, so sums at sizes of the grid are exact.

    Args:
        trace: Positions.
        row: The position.
        depth: Draft passes.
    """
    count = int(trace.nodes[row, depth])
    sums = [float(value) for value in trace.partial[row, depth]]
    scores: list[float] = []
    edges = [
        *zip(trace.shape.size_grid, sums, strict=True),
        (count, float(trace.total[row, depth])),
    ]
    for (low, before), (high, after) in itertools.pairwise(edges):
        width = min(high, count) - low
        if width > 0:
            share = (after - before) / width
            scores += [math.log(share) if share > 0.0 else _LEAST] * width
    return scores
