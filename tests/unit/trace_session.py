"""A session that reads its rounds from a trace, one by one: what replays are compared with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from draftgym.clock import FakeClock
from draftgym.features import FeatureLayout
from draftgym.runtime import DecisionSeconds
from draftgym.state import Confidence, History, MeasuredCosts, RoundRecord, RoundState
from draftgym.traces.trace import ABSENT, Trace
from tests.unit.traces import make_trace

LAYOUT = FeatureLayout(max_depth=3, beam_width=2, history=3, size_grid=(0, 1, 2, 4))
COSTS = MeasuredCosts(0.06, 0.03)
CONTEXT_LIMIT = 40
PROMPT_TOKENS = (5, 30, 9, 5, 17, 5)
LENGTHS = (12, 10, 1, 2, 20, 7)
BUDGETS = (12, 30, 8, 2, 23, 16)
"""Ends by budget, by context, at once, without a choice for depth, and by end of sequence."""

Scores = list[list[list[float]]]


class TickTimes:
    """No spread: seconds are whole ticks of a power of two, so that any order of sums is exact."""

    def __init__(self, decision_seconds: DecisionSeconds | None = None) -> None:
        self.decision_seconds = decision_seconds or DecisionSeconds()

    def mean(self, kind: Any, units: Any, context: Any) -> Any:
        fixed = {"propose": 3, "first": 40, "later": 23, "verify": 900, "commit": 7}[kind]
        per_unit = {"first": 2, "verify": 31}.get(kind, 0)
        ticks = fixed + per_unit * np.asarray(units) + np.asarray(context) // 16
        return np.asarray(ticks, np.float64) / 2**15

    def draw(self, kind: Any, units: Any, context: Any, rng: np.random.Generator) -> Any:
        return self.mean(kind, units, context)


def believable_trace(seed: int = 0, *, levels: int = 4) -> tuple[Trace, Scores]:
    """A trace whose beliefs come from node scores, and these: by row, level and node."""
    random = np.random.default_rng(seed)
    rows, path = sum(length - 1 for length in LENGTHS), 5
    rank = np.sort(random.integers(0, 9, (rows, levels, path)), -1) + np.arange(path)
    rank[random.random(rank.shape) < 0.2] = ABSENT
    trace = make_trace(rank, LENGTHS, prompt_tokens=5, seed=seed)
    sequences = tuple(
        replace(entry, prompt_tokens=prompt, max_new_tokens=budget, tokens=tuple(range(length)))
        for entry, prompt, budget, length in zip(
            trace.sequences, PROMPT_TOKENS, BUDGETS, LENGTHS, strict=True
        )
    )
    nodes = trace.nodes.copy()
    nodes[:, 0] = random.integers(0, 4, rows)
    nodes[random.random(nodes.shape) < 0.1] = 1
    scores: Scores = [
        [(-np.sort(random.exponential(1.0, count))).tolist() for count in row] for row in nodes
    ]
    frontier, partial, total = trace.frontier.copy(), trace.partial.copy(), trace.total.copy()
    for row, level in itertools.product(range(rows), range(levels)):
        known = scores[row][level]
        slots = (known if level else known[:1])[:2]
        frontier[row, level] = [*slots, *[-np.inf] * (2 - len(slots))]
        sums = [0.0, *itertools.accumulate(map(math.exp, known))]
        partial[row, level] = [sums[min(size, len(known))] for size in LAYOUT.size_grid]
        total[row, level] = sums[-1]
    prompt, budget = np.array(PROMPT_TOKENS), np.array(BUDGETS)
    room = np.minimum(budget, CONTEXT_LIMIT - prompt)[trace.sequence] - trace.emitted
    within = np.array([len(entry.tokens) for entry in sequences])[trace.sequence] - trace.emitted
    rank[np.arange(path) >= within[:, None, None].repeat(levels, 1)] = ABSENT
    changed = replace(
        trace,
        sequences=sequences,
        context_limit=CONTEXT_LIMIT,
        depth_limit=np.minimum(levels - 1, room - 1).astype(np.int16),
        nodes=nodes,
        frontier=frontier,
        partial=partial,
        total=total,
        rank=rank.astype(np.int16),
    )
    return changed, scores


class TraceSession:
    """The part of a decoder session that live environments drive, over a trace.

    A prompt is one number, that of its sequence.
    """

    def __init__(self, trace: Trace, scores: Scores, layout: FeatureLayout = LAYOUT) -> None:
        self.trace, self.scores, self.layout = trace, scores, layout
        self.times = TickTimes()
        self.clock = FakeClock()
        self.max_depth, self.max_size = trace.shape.max_depth, layout.max_size
        self.finished, self.stop_reason = True, None

    def start(self, prompt_tokens: Sequence[int], max_new_tokens: int, sequence: int = 0) -> None:
        self.index = prompt_tokens[0]
        self.request = self.trace.sequences[self.index]
        self.emitted = 1
        self.uningested = self.request.prompt_tokens
        self.history = History(self.layout.history)
        self._check_end()

    def begin_round(self) -> RoundState:
        request = self.request
        most = min(request.max_new_tokens, self.trace.context_limit - request.prompt_tokens)
        self.row = int(self.trace.first[self.index]) + self.emitted - 1
        self.passes: list[float] = []
        self.policy_seconds = 0.0
        room = most - self.emitted
        self.state = RoundState(
            depth=0,
            nodes=int(self.trace.nodes[self.row, 0]),
            max_depth=int(self.trace.depth_limit[self.row]),
            max_size=self.max_size if room > 1 else 0,
            context_tokens=request.prompt_tokens + self.emitted,
            context_limit=self.trace.context_limit,
            remaining_tokens=room,
            max_new_tokens=request.max_new_tokens,
            uningested_tokens=self.uningested,
            history=self.history,
            costs=COSTS,
            read_confidence=self.read_confidence,
        )
        return self.state

    def read_confidence(self, law: bool = True) -> Confidence:
        depth = self.state.depth
        known = self.scores[self.row][depth]
        return Confidence(
            (known if depth else known[:1])[: self.layout.beam_width],
            float(self.trace.entropy[self.row, depth]),
            float(self.trace.margin[self.row, depth]),
            known,
        )

    def seconds(self, kind: str, units: int = 0) -> float:
        return float(self.times.mean(kind, units, self.state.context_tokens))

    def draft(self) -> None:
        assert self.state.depth < self.state.max_depth
        first = self.state.depth == 0
        self.passes.append(
            self.seconds("first", self.uningested) if first else self.seconds("later")
        )
        self.state.depth += 1
        self.state.nodes = int(self.trace.nodes[self.row, self.state.depth])
        self.state.uningested_tokens = 0

    def last_pass_seconds(self) -> float:
        return self.passes[-1]

    def charge_policy(self, seconds: float) -> None:
        self.policy_seconds += seconds

    def end_round(self, size: int) -> RoundRecord:
        state, request = self.state, self.request
        kept = min(size, state.nodes, state.max_size)
        accepted = 0
        for rank in self.trace.rank[self.row, state.depth].tolist():
            if rank >= kept:
                break
            accepted += 1
        tokens = request.tokens[self.emitted : self.emitted + accepted + 1]
        draft = self.seconds("propose") + sum(self.passes)
        verify, commit = self.seconds("verify", kept), self.seconds("commit")
        record = RoundRecord(
            depth=state.depth,
            nodes=state.nodes,
            requested_size=size,
            size=kept,
            accepted=min(accepted, len(tokens)),
            tokens=tokens,
            context_tokens=state.context_tokens,
            uningested_tokens=self.uningested,
            clamped=kept != size,
            draft_seconds=draft,
            pass_seconds=tuple(self.passes),
            verify_seconds=verify,
            commit_seconds=commit,
            policy_seconds=self.policy_seconds,
            seconds=draft + verify + commit + self.policy_seconds,
        )
        self.uningested = len(tokens) + (0 if state.depth else self.uningested)
        self.history.append(record.accepted, record.depth, record.size)
        self.emitted += len(tokens)
        self._check_end()
        return record

    def _check_end(self) -> None:
        request = self.request
        self.finished = self.emitted >= len(request.tokens)
        if self.finished:
            self.stop_reason = "eos"
            if request.prompt_tokens + self.emitted >= self.trace.context_limit:
                self.stop_reason = "context"
            if self.emitted >= request.max_new_tokens:
                self.stop_reason = "budget"
