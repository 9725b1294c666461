"""The one decoding loop: draft, verify, commit.

Environments, `generate`, benchmarks and checks all step this session. It knows nothing about
learning or rewards; it keeps the law of the target and says what each round cost.

Invariant between rounds: the target's cache holds every committed token but the last one (the
root), and nothing else that will ever be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from draftgym.clock import Clock, Mark
from draftgym.decoder.confidence import read_confidence
from draftgym.decoder.drafters.base import Committed, Drafter
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.request import check_drawable, check_request
from draftgym.decoder.rules import Rule, Verdict, new_rule
from draftgym.decoder.stopping import StopCheck
from draftgym.decoder.transfer import to_device
from draftgym.decoder.tree import DraftTree, Selection
from draftgym.state import (
    Confidence,
    Controller,
    History,
    MeasuredCosts,
    RoundRecord,
    RoundState,
)

PREFILL_CHUNK_TOKENS = 512
"""Bounds the attention mask of a long prompt."""

Decision = TypeVar("Decision", bool, int)


@dataclass(slots=True)
class _OpenRound:
    """Bookkeeping of the round between `begin_round` and `end_round`."""

    state: RoundState
    uningested_tokens: int
    begin: float  # host seconds at the opening boundary
    draft_marks: list[tuple[Mark, Mark]]  # free proposals first, then every pass
    policy_seconds: float = 0.0
    decisions: int = 0
    confidence: Confidence | None = None
    law_read: bool = False


class DecoderSession:
    """Decodes one sequence after another with one target and one drafter.

    Args:
        pair: Target and generation settings.
        drafter: Proposes tokens; None decodes plainly and captures no features.
        clock: Source of time.
        max_depth: Most draft passes in a round, `D`.
        max_size: Most drafted tokens verified in a round, `V`.
        history: Rounds of acceptance history kept for controllers.
        costs: Measured cost ratios shown to controllers.
        ignore_eos: Decode to the budget whatever is generated.
        log_probs: Keep the target's log-probability of every emitted token (unwarped).
        rule: Verification rule; the one that the pair's configuration names when None.

    Raises:
        ConfigurationError: The rule draws proposals, and the drafter makes no chain that can be
            verified whole.
    """

    def __init__(
        self,
        pair: ModelPair,
        drafter: Drafter | None,
        *,
        clock: Clock,
        max_depth: int = 8,
        max_size: int = 32,
        history: int = 8,
        costs: MeasuredCosts | None = None,
        ignore_eos: bool = False,
        log_probs: bool = False,
        rule: Rule | None = None,
    ) -> None:
        self.pair, self.drafter, self.clock = pair, drafter, clock
        self.rule = rule or new_rule(pair.config.sampling)
        self.max_depth = min(max_depth, drafter.max_depth) if drafter else 0
        self.max_size = max_size if drafter else 0
        self.costs = costs or MeasuredCosts()
        self.ignore_eos = ignore_eos
        self._keeps_log_probs = log_probs
        if drafter is not None and self.rule.draws_proposals:
            check_drawable(drafter, max_size)
        self.context_limit = pair.generation.context_limit_tokens
        self._history_length = history
        self._target = pair.target
        capacity = self.context_limit + self.max_size + 1
        self._cache = self._target.new_cache(capacity)
        device = self._target.device
        self._feature_layers = drafter.feature_layers if drafter else ()
        width = len(self._feature_layers) * self._target.hidden_size
        self._features = (
            torch.zeros(capacity, width, device=device, dtype=self._target.dtype) if width else None
        )
        self._device_ids = torch.zeros(capacity, dtype=torch.long, device=device)
        self._positions = torch.arange(capacity, device=device)
        self._tree = DraftTree(max(1, drafter.max_nodes if drafter else 1), device)
        self._round: _OpenRound | None = None
        self.finished = True
        self.stop_reason: str | None = None

    @torch.inference_mode()
    def start(
        self,
        prompt_tokens: Sequence[int],
        max_new_tokens: int,
        sequence: int = 0,
        stop: StopCheck | None = None,
    ) -> None:
        """Prefill a prompt; its pass already gives the first new token, which is the root.

        Args:
            prompt_tokens: Token ids, at least one.
            max_new_tokens: Budget, at least one, the first token included.
            sequence: Keys the noise of sampling, with the seed: the same two numbers give the
                same draws. Ignored by greedy decoding.
            stop: Finds where stop strings end the text, besides end-of-sequence ids.

        Raises:
            ValueError: Empty prompt, ids outside the vocabulary, no budget, or a prompt that
                leaves no room in the context.
        """
        prompt = [int(token) for token in prompt_tokens]
        check_request(prompt, max_new_tokens, self._target.vocab_size, self.context_limit)
        self._stop = stop
        self._committed = Committed(self._device_ids, self._features)
        self._committed.append(prompt)
        self.max_new_tokens = max_new_tokens
        self.tokens: list[int] = []
        self.log_probs: list[float] = []
        self.records: list[RoundRecord] = []
        self.history = History(self._history_length)
        self.finished, self.stop_reason, self._round = False, None, None
        self.rule.start(sequence)
        begin = self.clock.boundary()
        first = self._decide_tokens(self._prefill(len(prompt)), len(prompt) - 1, None).tokens
        self.clock.note("prefill", len(prompt))
        if self.drafter is not None:
            self.drafter.start(self._committed, self.rule)
        self._commit(first)
        self.prefill_seconds = self.clock.boundary() - begin

    def _prefill(self, length: int) -> Tensor:
        logits = None
        for start in range(0, length, PREFILL_CHUNK_TOKENS):
            stop = min(length, start + PREFILL_CHUNK_TOKENS)
            rows = self._positions[: stop - start]
            logits = self._target.forward(
                self._device_ids[start:stop],
                self._positions[start:stop],
                self._cache,
                start,
                rows[:, None] >= rows if stop - start > 1 else None,
                last_only=True,
                features=None if self._features is None else self._features[start:stop],
                feature_layers=self._feature_layers,
            )
        assert logits is not None
        return logits

    @property
    def committed(self) -> Committed:
        """The running sequence, prompt included; buffers are reused by the next `start`."""
        return self._committed

    @torch.inference_mode()
    def begin_round(self) -> RoundState:
        """Open a round; free proposals are in the tree when it returns.

        Raises:
            RuntimeError: The sequence is finished, or a round is already open.
        """
        if self._round is not None:
            raise RuntimeError("begin_round: the last round was not ended")
        if self.finished:
            raise RuntimeError("begin_round: the sequence is finished; call start")
        begin, begin_mark = self.clock.boundary(), self.clock.mark()
        state = self._new_state()
        self._tree.reset(self._device_ids[state.context_tokens - 1])
        if self.drafter is not None and state.max_size > 0:
            self.drafter.propose(self._tree, state.remaining_tokens - 1)
            state.nodes = self._tree.size
        self._round = _OpenRound(
            state, state.uningested_tokens, begin, [(begin_mark, self.clock.mark())]
        )
        return state

    def _new_state(self) -> RoundState:
        committed = len(self._committed.ids)
        room = self._room()
        drafter = self.drafter
        # The target's pass always emits one token itself, so only `room - 1` drafts can be kept.
        within = drafter is not None and committed < drafter.context_limit and room > 1
        depth = min(self.max_depth, room - 1, drafter.context_limit - committed) if within else 0  # type: ignore[union-attr]
        return RoundState(
            depth=0,
            nodes=0,
            max_depth=depth,
            max_size=self.max_size if within else 0,
            context_tokens=committed,
            context_limit=self.context_limit,
            remaining_tokens=room,
            max_new_tokens=self.max_new_tokens,
            uningested_tokens=drafter.uningested if drafter is not None else 0,
            history=self.history,
            costs=self.costs,
            read_confidence=self.read_confidence,
        )

    def _room(self) -> int:
        """Tokens that may still be emitted: the budget's rest or the context's."""
        return min(
            self.max_new_tokens - len(self.tokens),
            self.context_limit - len(self._committed.ids),
        )

    @torch.inference_mode()
    def draft(self) -> None:
        """Make one draft pass.

        Raises:
            RuntimeError: No round is open, or it may not draft deeper.
        """
        current = self._open_round()
        state = current.state
        if state.depth >= state.max_depth:
            raise RuntimeError(f"draft: this round allows {state.max_depth} passes")
        assert self.drafter is not None
        start = self.clock.mark()
        self.drafter.expand(self._tree)
        self.clock.note("draft", max(1, state.uningested_tokens))
        current.draft_marks.append((start, self.clock.mark()))
        current.confidence = None
        state.depth += 1
        state.nodes = self._tree.size
        state.uningested_tokens = self.drafter.uningested

    def last_pass_seconds(self) -> float:
        """Seconds of the newest draft pass of the open round; waits for the device."""
        self.clock.boundary()
        return self.clock.seconds(*self._open_round().draft_marks[-1])

    def charge_policy(self, seconds: float) -> None:
        """Add decision time to the open round (training charges the exported policy's)."""
        self._open_round().policy_seconds += seconds

    def _open_round(self) -> _OpenRound:
        if self._round is None:
            raise RuntimeError("no round is open: call begin_round first")
        return self._round

    def read_confidence(self, law: bool = True) -> Confidence:
        """What the drafter believes about the open round; reads the device once per pass.

        Args:
            law: Whether entropy and margin of the next-token law are wanted; else they may be 0.
        """
        current = self._open_round()
        confidence = current.confidence
        if confidence is None or (law and not current.law_read):
            confidence = current.confidence = read_confidence(self._tree, law)
            current.law_read = law
        return confidence

    @torch.inference_mode()
    def end_round(self, size: int) -> RoundRecord:
        """Verify the best `size` nodes, commit what the target agrees with, close the round.

        Args:
            size: Verification size; clamped to the tree and the round's limit.

        Raises:
            ValueError: Negative size.
            RuntimeError: No round is open.
            BrokenLogitsError: NaN or infinite target logits; names the position.
        """
        current = self._open_round()
        if size < 0:
            raise ValueError(f"size must not be negative, got {size}")
        wanted = self._tree.size if self.rule.draws_proposals else size  # none is discarded
        kept_size = min(wanted, self._tree.size, current.state.max_size)
        start = self._committed.cached
        verify_begin = self.clock.mark()
        verdict = self._verify(kept_size, start)
        emitted = self._cut(verdict.tokens)
        path = verdict.path
        self.clock.note("verify", kept_size)
        verify_end = self.clock.mark()
        self._keep(start, [0, *path[: len(emitted)]])
        self._round = None
        self._commit(emitted)
        self.clock.note("commit", len(emitted))
        commit_end = self.clock.mark()
        self._round_wall_seconds = self.clock.boundary() - current.begin
        seconds = self.clock.seconds
        drafts = [seconds(*marks) for marks in current.draft_marks]
        verify, commit = seconds(verify_begin, verify_end), seconds(verify_end, commit_end)
        record = RoundRecord(
            depth=current.state.depth,
            nodes=self._tree.size,
            requested_size=size,
            size=kept_size,
            accepted=min(len(path), len(emitted)),
            tokens=tuple(emitted),
            context_tokens=current.state.context_tokens,
            uningested_tokens=current.uningested_tokens,
            clamped=kept_size != size,
            draft_seconds=sum(drafts),
            pass_seconds=tuple(drafts[1:]),
            verify_seconds=verify,
            commit_seconds=commit,
            policy_seconds=current.policy_seconds,
            seconds=sum(drafts) + verify + commit + current.policy_seconds,
            decisions=current.decisions,
        )
        self.history.append(record.accepted, record.depth, record.size)
        self.records.append(record)
        return record

    def _verify(self, size: int, start: int) -> Verdict:
        """One target pass over the root and the best `size` nodes."""
        chosen = self._tree.select(size) if size else None
        features = None if self._features is None else self._features[start : start + size + 1]
        logits = self._target.forward(
            self._tree.tokens[:1] if chosen is None else chosen.tokens,
            self._positions[start : start + 1] if chosen is None else chosen.depths + start,
            self._cache,
            start,
            None if chosen is None else chosen.visible,
            features=features,
            feature_layers=self._feature_layers,
        )
        return self._decide_tokens(logits, start, chosen)

    def _decide_tokens(self, logits: Tensor, start: int, chosen: Selection | None) -> Verdict:
        verdict = self.rule.verify(logits, start, chosen)
        if self._keeps_log_probs:
            tokens = self._cut(verdict.tokens)
            rows = to_device([0, *verdict.path][: len(tokens)], logits.device)
            ids = to_device(tokens, logits.device)
            laws = torch.log_softmax(logits[rows].float(), -1)
            self.log_probs += laws.gather(1, ids[:, None])[:, 0].tolist()
        return verdict

    def _keep(self, start: int, slots: list[int]) -> None:
        """Keep the entries of the accepted path; later ones are overwritten before any read."""
        self._cache.compact(start, slots)
        if self._features is not None and slots[-1] != len(slots) - 1:
            rows = to_device(slots, self._features.device) + start
            self._features[start : start + len(slots)] = self._features[rows]

    def _cut(self, tokens: list[int]) -> list[int]:
        """End the block at the first stop, inclusive, and at the room left."""
        tokens = tokens[: self._room()]
        if not self.ignore_eos:
            stops = self.pair.generation.eos_token_ids
            end = next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))
            tokens = tokens[:end]
        return tokens[: self._stop(self.tokens, tokens)] if self._stop else tokens

    def _commit(self, tokens: list[int]) -> None:
        stopped = self._stop is not None and self._stop(self.tokens, tokens) is not None
        self._committed.append(tokens)
        self.tokens.extend(tokens)
        if not self.ignore_eos and tokens[-1] in self.pair.generation.eos_token_ids:
            self.finished, self.stop_reason = True, "eos"
        elif stopped:
            self.finished, self.stop_reason = True, "stop"
        elif len(self.tokens) >= self.max_new_tokens:
            self.finished, self.stop_reason = True, "budget"
        elif len(self._committed.ids) >= self.context_limit:
            self.finished, self.stop_reason = True, "context"

    def step(self, controller: Controller) -> RoundRecord:
        """One whole round; decisions of a controller that is not free are timed inside it."""
        state = self.begin_round()
        timed = not controller.free
        while state.depth < state.max_depth and self._decide(controller.draft_again, state, timed):
            self.draft()
        size = self._decide(controller.choose_size, state, timed)
        record = replace(self.end_round(int(size)), seconds=self._round_wall_seconds)
        self.records[-1] = record
        controller.observe(record)
        return record

    def _decide(
        self, decision: Callable[[RoundState], Decision], state: RoundState, timed: bool
    ) -> Decision:
        if not timed:
            return decision(state)
        begin = self.clock.boundary()  # what the device still drafts is not the policy's time
        answer = decision(state)
        self.clock.note("decide")
        self.charge_policy(self.clock.boundary() - begin)
        self._open_round().decisions += 1
        return answer

    def run(self, controller: Controller) -> list[RoundRecord]:
        """Rounds until the sequence is finished."""
        controller.reset()
        while not self.finished:
            self.step(controller)
        return self.records
