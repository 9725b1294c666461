"""Rounds of many requests at once, replayed from a trace: no model, no loop over requests.

The mechanics are the session's: what a round may do, what it keeps, what it costs. Who decides,
and what a decision is worth, is elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from draftgym.batch_state import BatchConfidence, BatchHistory, BoolArray, IntArray, RoundBatch
from draftgym.costs.times import Float64Array, Times, Work
from draftgym.features import FeatureLayout
from draftgym.state import MeasuredCosts, RoundRecord
from draftgym.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class FinishedRounds:
    """Rounds that ended together, field by field those of `draftgym.state.RoundRecord`, [k].

    Attributes:
        who: Requests, as numbered by the batch.
        sequence: Their sequences in the trace.
        depth: Draft passes made.
        nodes: Nodes in the tree.
        requested_size: Verification size asked for.
        size: Drafted tokens verified.
        accepted: Drafted tokens kept and emitted.
        emitted: Tokens emitted.
        context_tokens: Committed tokens before the round.
        uningested_tokens: Committed tokens the drafter had not seen before it.
        draft_seconds: Free proposals and all passes.
        pass_seconds: By pass, zero beyond `depth`, [k, D].
        verify_seconds: Target pass and acceptance.
        commit_seconds: The rest.
        policy_seconds: Charged decisions.
        seconds: Sum of these.
    """

    who: IntArray
    sequence: IntArray
    depth: IntArray
    nodes: IntArray
    requested_size: IntArray
    size: IntArray
    accepted: IntArray
    emitted: IntArray
    context_tokens: IntArray
    uningested_tokens: IntArray
    draft_seconds: Float64Array
    pass_seconds: Float64Array
    verify_seconds: Float64Array
    commit_seconds: Float64Array
    policy_seconds: Float64Array
    seconds: Float64Array

    def __len__(self) -> int:
        return len(self.who)


class ReplayBatch:
    """State of m requests, each in a round of its own.

    `start` a request, `open` a round, `draft` and `charge` in it, `close` it; each takes the
    requests it is about as an array of indices without repeats.

    Args:
        trace: Of the positions.
        times: Seconds of work; drawn anew for every round.
        layout: Sizes, history and the confidence that is shown.
        requests: m.
        costs: Cost ratios shown to controllers.
        seed: Of the drawn seconds; fresh entropy when None.

    Raises:
        ValueError: If a number is out of range, or the trace was not made for the layout; names
            the field.
    """

    def __init__(
        self,
        trace: Trace,
        times: Times,
        layout: FeatureLayout,
        requests: int,
        *,
        costs: MeasuredCosts | None = None,
        seed: int | None = None,
    ) -> None:
        if requests < 1:
            raise ValueError(f"requests: must be at least 1, got {requests}")
        shape = trace.shape
        if shape.max_depth > layout.max_depth:
            raise ValueError(
                f"layout.max_depth: {layout.max_depth}, but the trace allows {shape.max_depth}"
            )
        unknown = sorted(set(layout.size_grid) - set(shape.size_grid))
        if unknown:
            raise ValueError(
                f"layout.size_grid: {unknown[0]} is not a size of the trace; it has "
                f"{list(shape.size_grid)}"
            )
        self.trace, self.times, self.layout = trace, times, layout
        self.costs = costs or MeasuredCosts()
        self.requests = requests
        self._grid = np.array([shape.size_grid.index(size) for size in layout.size_grid[1:]])
        self._first, self._lengths = trace.first, trace.lengths
        self._prompts = np.array([s.prompt_tokens for s in trace.sequences], np.int64)
        self._budgets = np.array([s.max_new_tokens for s in trace.sequences], np.int64)
        self._no_units = np.zeros(requests, np.int64)
        self.reseed(seed)

        def integers() -> IntArray:
            return np.zeros(requests, np.int64)

        self.finished: BoolArray = np.ones(requests, np.bool_)
        self.sequence, self.emitted = integers(), integers()
        self.row, self.depth = integers(), integers()
        self.max_depth, self.max_size = integers(), integers()
        self.context, self.remaining, self.uningested = integers(), integers(), integers()
        # Accepted, drafted and verified, newest first; rounds last, as observations want them.
        self._history = np.zeros((3, layout.history, requests), np.int64)
        self._seen = integers()
        self._propose_seconds = np.zeros(requests)
        self._pass_seconds = np.zeros((requests, max(shape.max_depth, 1)))
        self._policy_seconds = np.zeros(requests)

    def reseed(self, seed: int | np.random.SeedSequence | None) -> None:
        """Restart the stream of drawn seconds."""
        self._random = np.random.default_rng(seed)

    def start(self, who: IntArray, sequences: IntArray) -> None:
        """Begin requests; one of a single token is finished at once.

        Args:
            who: Requests, [k].
            sequences: What they answer, [k].
        """
        self.sequence[who] = sequences
        self.emitted[who] = 1
        self.uningested[who] = self._prompts[sequences]
        self.finished[who] = self._lengths[sequences] <= 1
        self._history[:, :, who] = 0
        self._seen[who] = 0

    def open(self, who: IntArray) -> None:
        """Begin a round of unfinished requests; free proposals are in their trees."""
        sequence, emitted = self.sequence[who], self.emitted[who]
        prompt = self._prompts[sequence]
        context = prompt + emitted
        budget = np.minimum(self._budgets[sequence], self.trace.context_limit - prompt)
        remaining = budget - emitted
        row = self._first[sequence] + emitted - 1
        self.row[who], self.context[who], self.remaining[who] = row, context, remaining
        self.depth[who] = 0
        self.max_depth[who] = self.trace.depth_limit[row]
        # The target's pass always emits one token itself: with one left, no draft can be kept.
        self.max_size[who] = np.where(remaining > 1, self.layout.max_size, 0)
        self._propose_seconds[who] = self._draw("propose", self._no_units[: len(who)], context)
        self._pass_seconds[who] = 0.0
        self._policy_seconds[who] = 0.0

    def draft(self, who: IntArray) -> Float64Array:
        """Make one draft pass each.

        Returns:
            Its seconds, [k].

        Raises:
            RuntimeError: If a round may not draft deeper.
        """
        begun = self.depth[who]
        self.deepen(who)
        seconds = np.empty(len(who))
        first, later = np.flatnonzero(begun == 0), np.flatnonzero(begun)
        if len(first):
            seconds[first] = self._draw_passes("first", who[first])
        if len(later):
            seconds[later] = self._draw_passes("later", who[later])
        self._pass_seconds[who, begun] = seconds
        return seconds

    def deepen(self, who: IntArray) -> None:
        """Make one draft pass each, to be timed by `time_passes`.

        Raises:
            RuntimeError: If a round may not draft deeper.
        """
        depth = self.depth[who]
        if (depth >= self.max_depth[who]).any():
            raise RuntimeError("draft: a round is at its deepest pass")
        self.depth[who] = depth + 1

    def time_passes(self, who: IntArray) -> None:
        """Draw the seconds of all passes of the open rounds at once."""
        drafted = who[self.depth[who] > 0]
        if not len(drafted):
            return
        self._pass_seconds[drafted, 0] = self._draw_passes("first", drafted)
        made = np.arange(self._pass_seconds.shape[1]) < self.depth[who][:, None]  # [k, D]
        rows, later = np.nonzero(made[:, 1:])
        if len(rows):
            self._pass_seconds[who[rows], later + 1] = self._draw_passes("later", who[rows])

    def charge(self, who: IntArray, seconds: float) -> None:
        """Add decision time to the open rounds."""
        self._policy_seconds[who] += seconds

    def close(self, who: IntArray, size: IntArray) -> FinishedRounds:
        """Verify, commit and end the rounds.

        Args:
            who: Requests, [k].
            size: Verification sizes asked for, at least 0, [k].
        """
        row, depth, context = self.row[who], self.depth[who], self.context[who]
        sequence, uningested = self.sequence[who], self.uningested[who]
        nodes = self.nodes(who)
        kept = np.minimum(np.minimum(size, nodes), self.max_size[who])
        path = self.trace.accepted(row, depth, kept)
        emitted = np.minimum(path + 1, self._lengths[sequence] - self.emitted[who])
        passes = self._pass_seconds[who]
        draft = self._propose_seconds[who] + passes.sum(1)
        verify = self._draw("verify", kept, context)
        commit = self._draw("commit", self._no_units[: len(who)], context)
        policy = self._policy_seconds[who]
        rounds = FinishedRounds(
            who=who,
            sequence=sequence,
            depth=depth,
            nodes=nodes,
            requested_size=size,
            size=kept,
            accepted=np.minimum(path, emitted),
            emitted=emitted,
            context_tokens=context,
            uningested_tokens=uningested,
            draft_seconds=draft,
            pass_seconds=passes,
            verify_seconds=verify,
            commit_seconds=commit,
            policy_seconds=policy,
            seconds=draft + verify + commit + policy,
        )
        self._commit(rounds)
        return rounds

    def rounds(self, who: IntArray | slice) -> RoundBatch:
        """The open rounds as controllers see them; valid until the next change.

        Args:
            who: Requests, [k]; a slice spares copies.
        """
        row, depth = self.row[who], self.depth[who]

        def read_confidence() -> BatchConfidence:
            return BatchConfidence(
                self.trace.frontier[row, depth],
                self.trace.entropy[row, depth],
                self.trace.margin[row, depth],
                self.layout.size_grid[1:],
                self.trace.total[row, depth],
                lambda: self.trace.partial[row, depth][:, self._grid],
            )

        return RoundBatch(
            depth=depth,
            nodes=self.nodes(who),
            max_depth=self.max_depth[who],
            max_size=self.max_size[who],
            context_tokens=self.context[who],
            context_limit=self.trace.context_limit,
            remaining_tokens=self.remaining[who],
            max_new_tokens=self._budgets[self.sequence[who]],
            # A pass has ingested them all.
            uningested_tokens=np.where(depth > 0, 0, self.uningested[who]),
            costs=self.costs,
            read_history=lambda: self.history(who),
            read_confidence=read_confidence,
        )

    def nodes(self, who: IntArray | slice) -> IntArray:
        """Nodes in the requests' trees, [k]."""
        return self.trace.nodes[self.row[who], self.depth[who]].astype(np.int64)

    def history(self, who: IntArray | slice) -> BatchHistory:
        """Acceptance of the requests' last rounds."""
        accepted, drafted, verified = self._history[:, :, who]
        return BatchHistory(accepted.T, drafted.T, verified.T, self._seen[who])

    def record(self, rounds: FinishedRounds, index: int) -> RoundRecord:
        """One of the rounds, as the live session would report it."""
        shared = [entry.name for entry in fields(RoundRecord) if hasattr(rounds, entry.name)]
        values: dict[str, Any] = {name: getattr(rounds, name)[index] for name in shared}
        passes = values.pop("pass_seconds")[: values["depth"]]
        request = self.trace.sequences[rounds.sequence[index]]
        begin = rounds.context_tokens[index] - request.prompt_tokens
        return RoundRecord(
            tokens=request.tokens[begin : begin + rounds.emitted[index]],
            clamped=bool(values["size"] != values["requested_size"]),
            pass_seconds=tuple(passes.tolist()),
            **{name: value.item() for name, value in values.items()},
        )

    def stop_reason(self, sequence: int) -> str:
        """Why a sequence ended, as far as its length tells: `budget`, `context` or `eos`."""
        entry = self.trace.sequences[sequence]
        if len(entry.tokens) >= entry.max_new_tokens:
            return "budget"
        full = entry.prompt_tokens + len(entry.tokens) >= self.trace.context_limit
        return "context" if full else "eos"

    def _draw_passes(self, kind: Literal["first", "later"], who: IntArray) -> Float64Array:
        units = self.uningested[who] if kind == "first" else np.zeros(len(who), np.int64)
        return self._draw(kind, units, self.context[who])

    def _draw(self, kind: Work, units: IntArray, context: IntArray) -> Float64Array:
        return self.times.draw(kind, units, context, self._random)

    def _commit(self, rounds: FinishedRounds) -> None:
        """Move the requests past their rounds."""
        who = rounds.who
        self.emitted[who] += rounds.emitted
        self.finished[who] = self.emitted[who] >= self._lengths[rounds.sequence]
        # A look-up reads the whole text in every round; a model only when it makes a pass.
        read = (rounds.depth > 0) | (self.trace.shape.max_depth == 0)
        self.uningested[who] = rounds.emitted + np.where(read, 0, rounds.uningested_tokens)
        self._history[:, 1:, who] = self._history[:, :-1, who]
        self._history[:, 0, who] = rounds.accepted, rounds.depth, rounds.size
        self._seen[who] = np.minimum(self._seen[who] + 1, self.layout.history)
