"""Logs greedy chain drafts round by round, with what drafter and target believed.

The session decodes; a recording rule watches. What is committed after a rejection is the target's
own continuation, so the fate of the rejected tail is in the log and needs no further pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from draftgym.clock import Clock
from draftgym.decoder.controllers import FixedController
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.rules.base import Verdict
from draftgym.decoder.rules.greedy import GreedyRule
from draftgym.decoder.session import DecoderSession
from draftgym.decoder.tree import Selection


@dataclass(frozen=True, slots=True)
class LoggedRound:
    """One chain of γ drafted tokens and its verification; probabilities are natural logarithms.

    Attributes:
        root: Index of the root among the new tokens; the drafts stand for root + 1 onwards.
        drafted: Token ids, [γ].
        accepted: Leading drafts that the target agreed with, A.
        draft_log_probs: Of each draft by the drafter, [γ].
        draft_entropies: Of the drafter's law at each pass, nats, [γ].
        draft_margins: Its largest probability less the second, [γ].
        best: The target's token after the root and after each draft, [γ + 1].
        target_log_probs: Of each draft by the target, [γ].
        target_ranks: Rank of each draft in the target's law from 0, [γ].
        target_entropies: Nats, [γ + 1].
        target_gaps: Best logit less the second, [γ + 1].
        correction_log_prob: Of the target's token at the first rejection by the drafter; -inf
            where it cannot propose it, 0 where nothing was rejected.
        correction_rank: Its rank in the drafter's law from 0; -1 where there is none.
    """

    root: int
    drafted: tuple[int, ...]
    accepted: int
    draft_log_probs: tuple[float, ...]
    draft_entropies: tuple[float, ...]
    draft_margins: tuple[float, ...]
    best: tuple[int, ...]
    target_log_probs: tuple[float, ...]
    target_ranks: tuple[int, ...]
    target_entropies: tuple[float, ...]
    target_gaps: tuple[float, ...]
    correction_log_prob: float
    correction_rank: int

    @property
    def rejected(self) -> bool:
        """Whether the target went another way than the chain."""
        return self.accepted < len(self.drafted)

    @property
    def escrow(self) -> tuple[int, ...]:
        """Drafts after the first rejected one."""
        return self.drafted[self.accepted + 1 :]


@dataclass(frozen=True, slots=True)
class LoggedText:
    """A greedy text and the chains that were drafted along it.

    Attributes:
        prompt_id: Of the prompt.
        request_id: Of the request; translations share it, and are one cluster.
        domain: Kind of task.
        block: Drafted tokens per round, γ.
        tokens: All new tokens, the prefill's first.
        rounds: Those that drafted, in order.
    """

    prompt_id: str
    request_id: str
    domain: str
    block: int
    tokens: tuple[int, ...]
    rounds: tuple[LoggedRound, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LoggedText:
        """Read what `asdict` and JSON made of one.

        Raises:
            KeyError, TypeError: A field is missing or unknown.
        """
        rounds = tuple(_round(entry) for entry in data["rounds"])
        return cls(**{**data, "tokens": tuple(data["tokens"]), "rounds": rounds})

    def to_json(self) -> dict[str, Any]:
        """Plain data; JSON has no -inf, which becomes null."""
        return asdict(self)


def _round(data: Mapping[str, Any]) -> LoggedRound:
    def finite(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(finite(item) for item in value)
        return float("-inf") if value is None else value

    return LoggedRound(**{name: finite(value) for name, value in data.items()})


class RecordingRule:
    """Greedy verification that keeps what drafter and target said in each round.

    Attributes:
        rounds: Of the running sequence.
    """

    name = "recording"
    draws_proposals = False

    def __init__(self) -> None:
        self._rule = GreedyRule()
        self.start(0)

    def start(self, sequence: int) -> None:
        """Forget the last sequence."""
        self.rounds: list[LoggedRound] = []
        self._laws: list[Tensor] = []
        self._ids: Tensor | None = None
        self._first: int | None = None

    def rank(self, logits: Tensor, position: int, ids: Tensor | None) -> Tensor:
        """As `greedy`; the law is kept."""
        log_q = self._rule.rank(logits, position, ids)
        self._laws.append(log_q[0])
        self._ids = ids
        return log_q

    def scores(self, logits: Tensor, start: int, chosen: Selection | None) -> Tensor:
        """As `greedy`."""
        return self._rule.scores(logits, start, chosen)

    def verify(self, logits: Tensor, start: int, chosen: Selection | None) -> Verdict:
        """As `greedy`; the round is kept."""
        verdict = self._rule.verify(logits, start, chosen)
        if self._first is None:  # the prefill's pass: its token is the first new one
            self._first = start + 1
        if chosen is not None:
            laws = torch.stack(self._laws)
            root = start - self._first
            self.rounds.append(logged(root, laws, self._ids, logits, chosen.tokens[1:]))
        self._laws = []
        return verdict


def logged(
    root: int, log_q: Tensor, ids: Tensor | None, logits: Tensor, drafted: Tensor
) -> LoggedRound:
    """What is kept of a round.

    Args:
        root: Index of the root among the new tokens.
        log_q: The drafter's laws, [γ, draft vocabulary].
        ids: Target id of every draft id, or None when they are the same.
        logits: The target's, [γ + 1, vocabulary].
        drafted: Token ids, [γ].
    """
    count = drafted.shape[0]
    log_p = torch.log_softmax(logits.float(), -1)
    best = logits.max(-1).indices  # ties as the rule decides them
    kept = int((best[:count] == drafted).long().cumprod(0).sum())
    own = log_p[:count].gather(1, drafted[:, None])
    top_p, top_q = logits.float().topk(2, -1).values, log_q.topk(2, -1).values
    correction_log_prob, correction_rank = 0.0, -1
    if kept < count:
        law = log_q[kept]
        place = best[kept] if ids is None else (ids == best[kept]).nonzero().flatten()
        if place.numel() and int(place) < law.shape[0]:
            correction_log_prob = float(law[place])
            correction_rank = int((law > correction_log_prob).sum())
        else:
            correction_log_prob = float("-inf")
    return LoggedRound(
        root=root,
        drafted=tuple(drafted.tolist()),
        accepted=kept,
        draft_log_probs=tuple(top_q[:, 0].tolist()),
        draft_entropies=tuple(_entropies(log_q).tolist()),
        draft_margins=tuple((top_q[:, 0].exp() - top_q[:, 1].exp()).tolist()),
        best=tuple(best.tolist()),
        target_log_probs=tuple(own[:, 0].tolist()),
        target_ranks=tuple((log_p[:count] > own).sum(-1).tolist()),
        target_entropies=tuple(_entropies(log_p).tolist()),
        target_gaps=tuple((top_p[:, 0] - top_p[:, 1]).tolist()),
        correction_log_prob=correction_log_prob,
        correction_rank=correction_rank,
    )


def _entropies(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs.clamp_min(-1e4)).sum(-1)


@dataclass(frozen=True, slots=True)
class LogRequest:
    """A prompt to log, encoded.

    Attributes:
        prompt_id: Of the prompt.
        request_id: Of the request.
        domain: Kind of task.
        tokens: Token ids; a committed prefix of the answer may end them.
        max_new_tokens: Budget.
        block: Drafted tokens per round, γ.
    """

    prompt_id: str
    request_id: str
    domain: str
    tokens: tuple[int, ...]
    max_new_tokens: int
    block: int


class ChainLogger:
    """Decodes prompts with chains and logs every round.

    Args:
        pair: Its drafter makes a chain, `beam_width` 1.
        drafter: Name in the registry.
        longest: Largest block.
        clock: Source of time, which is not used.
    """

    def __init__(self, pair: ModelPair, drafter: str, longest: int, clock: Clock) -> None:
        self._rule = RecordingRule()
        self._session = DecoderSession(
            pair,
            pair.new_drafter(drafter),
            clock=clock,
            max_depth=longest,
            max_size=longest,
            rule=self._rule,
        )

    def log(self, request: LogRequest) -> LoggedText:
        """Decode one prompt."""
        self._session.start(request.tokens, request.max_new_tokens)
        self._session.run(FixedController(request.block, request.block))
        return LoggedText(
            request.prompt_id,
            request.request_id,
            request.domain,
            request.block,
            tuple(self._session.tokens),
            tuple(self._rule.rounds),
        )
