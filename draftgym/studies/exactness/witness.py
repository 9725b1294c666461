"""A rule that decides as another and notes, per position, what theory says of the decision.

A position counts when it had a proposal and every proposal before it was kept. Given the text so
far, theory gives the probability that it is kept:

- `chain_rejection`, proposals drawn from q: Σ min(p, q) = 1 - TV(p, q);
- `rejection`, the drafter's best token x: p(x);
- `coupled`, the drafter's best under the target's noise: see `laws.coupled_match`.

It knows nothing of prompts and statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from draftgym.benchmark.acceptance import coupled_match, optimum
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.rules import Verdict, new_rule
from draftgym.decoder.rules.base import DrawingRule
from draftgym.decoder.rules.chain import on_target
from draftgym.decoder.sampling.noise import gumbel
from draftgym.decoder.sampling.warp import warp
from draftgym.decoder.tree import Selection

RANKS = (1, 4, 16)
"""Upper ends of the cells of a token: its rank in p, and beyond."""
CELLS = 2 * (len(RANKS) + 1)
_RESTART_STREAM = 1 << 20  # far from the streams of rules


def _kept_best(log_p: Tensor, log_q: Tensor, proposed: Tensor) -> Tensor:
    return log_p.double().gather(1, proposed[:, None])[:, 0].exp()


COMPUTED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "chain_rejection": lambda log_p, log_q, proposed: optimum(log_p, log_q),
    "rejection": _kept_best,
    "coupled": lambda log_p, log_q, proposed: coupled_match(log_p, log_q),
}
"""Probability that a proposal is kept, [n], from log p, log q and the proposals, by rule."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided at the positions of one round; `n` of them.

    Attributes:
        kept: Whether the proposal was, [n].
        computed: The probability of that, given the text before it, [n].
        cells: Law of the emitted token, [n, CELLS]: rank in p, times whether a restart from p
            after a rejection would favour it.
        emitted: Cell of the emitted token, [n].
        restarted: Cell of what a draw from p after a rejection would have emitted, [n]; empty
            where proposals are not drawn, and nothing is corrected.
        distance: Total variation between the law of that and p, [n].
    """

    kept: list[bool]
    computed: list[float]
    cells: list[list[float]]
    emitted: list[int]
    restarted: list[int]
    distance: list[float]


@dataclass(frozen=True, slots=True)
class Moment:
    """What a rule is given in one round of one proposal, for draws to be repeated.

    Attributes:
        start: Index in the sequence of the root.
        draft: The drafter's logits at the root, [1, draft vocabulary].
        ids: Target id of every draft id.
        target: The target's logits after the root and after some proposal, [2, vocabulary].
    """

    start: int
    draft: Tensor
    ids: Tensor | None
    target: Tensor


class Witness:
    """The rule that a configuration names, and notes on what it decides.

    Args:
        sampling: Rule, warping and seed. Drafts must be chains.

    Attributes:
        decided: One entry per round with proposals, of the present sequence.
        moment: The last such round's.
    """

    def __init__(self, sampling: SamplingConfig) -> None:
        self._sampling, self._rule = sampling, new_rule(sampling)
        self.name, self.draws_proposals = self._rule.name, self._rule.draws_proposals
        self.start(0)

    def start(self, sequence: int) -> None:
        """Forget the last sequence."""
        self._rule.start(sequence)
        self._sequence = sequence
        self._drafted: list[tuple[Tensor, Tensor | None]] = []
        self.decided: list[Decided] = []
        self.moment: Moment | None = None

    def rank(self, logits: Tensor, position: int, ids: Tensor | None) -> Tensor:
        """As the rule; the drafter's logits are kept."""
        self._drafted.append((logits, ids))
        return self._rule.rank(logits, position, ids)

    def draw(self, log_q: Tensor, position: int, ids: Tensor | None) -> Tensor:
        """As the rule."""
        return cast(DrawingRule, self._rule).draw(log_q, position, ids)

    def verify(self, logits: Tensor, start: int, chosen: Selection | None) -> Verdict:
        """As the rule; notes are taken after it has decided."""
        verdict = self._rule.verify(logits, start, chosen)
        drafted, self._drafted = self._drafted, []
        if chosen is not None:
            self._note(logits, start, chosen.tokens[1:], drafted, verdict)
            self.moment = Moment(start, *drafted[0], logits[:2].clone())
        return verdict

    def _note(
        self,
        logits: Tensor,
        start: int,
        proposed: Tensor,
        drafted: list[tuple[Tensor, Tensor | None]],
        verdict: Verdict,
    ) -> None:
        count = min(len(verdict.path) + 1, len(proposed))
        log_p = warp(logits[:count], self._sampling)  # [n, vocabulary]
        laws = [(warp(law, self._sampling), ids) for law, ids in drafted[:count]]
        log_q = on_target(laws, log_p)
        tokens = torch.tensor(verdict.tokens[:count], device=logits.device)
        kept = torch.arange(count, device=logits.device) < len(verdict.path)
        computed = COMPUTED[self.name](log_p, log_q, proposed[:count])
        favoured, distance = restart(log_p, log_q)
        law, cell_of = cells(log_p, favoured)
        restarted = []
        if self.draws_proposals:
            again = torch.where(kept, tokens, self._drawn_again(log_p, start))
            restarted = cell_of(again).tolist()
        self.decided.append(
            Decided(
                kept.tolist(),
                computed.tolist(),
                law.tolist(),
                cell_of(tokens).tolist(),
                restarted,
                distance.tolist(),
            )
        )

    def _drawn_again(self, log_p: Tensor, start: int) -> Tensor:
        """A draw from every row by noise that nothing has seen, [n]."""
        at = torch.arange(start + 1, start + 1 + len(log_p), device=log_p.device)
        seed, vocabulary = self._sampling.seed, log_p.shape[-1]
        noise = gumbel(seed, self._sequence, at, vocab=vocabulary, stream=_RESTART_STREAM)
        return noise.add_(log_p).argmax(-1)


def restart(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """What a draw from p after a rejection does to the law: min(p, q) + (1 - α) p instead of p.

    Args:
        log_p: Shape [n, vocabulary].
        log_q: Over the same ids.

    Returns:
        Where the law exceeds p, which is where min(p, q) > α p, bool [n, vocabulary]; and its total
        variation from p, [n].
    """
    p, q = log_p.double().exp(), log_q.double().exp()
    excess = torch.minimum(p, q) - optimum(log_p, log_q)[:, None] * p
    return excess > 0, excess.clamp_min(0).sum(-1)


def cells(log_p: Tensor, favoured: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Split the vocabulary of each row by what is known before the draw.

    Args:
        log_p: Shape [n, vocabulary].
        favoured: Bool, same shape.

    Returns:
        The law of the cells, float64 [n, CELLS], and the cell of one token per row.
    """
    p = log_p.double().exp()
    p /= p.sum(-1, keepdim=True)
    top = p.topk(min(RANKS[-1], p.shape[-1]), -1)  # [n, 16]
    ends = torch.tensor(RANKS, device=p.device)
    groups = torch.bucketize(torch.arange(1, top.indices.shape[-1] + 1, device=p.device), ends)
    favoured_top = favoured.gather(1, top.indices)
    law = p.new_zeros(len(p), CELLS)
    law.scatter_add_(1, 2 * groups + favoured_top, top.values)
    law[:, -1] = ((p * favoured).sum(-1) - (top.values * favoured_top).sum(-1)).clamp_min(0)
    law[:, -2] = (1 - law[:, :-2].sum(-1) - law[:, -1]).clamp_min(0)

    def cell_of(tokens: Tensor) -> Tensor:
        column = tokens[:, None]
        hit = top.indices == column  # [n, 16]
        group = torch.where(hit.any(-1), groups[hit.long().argmax(-1)], len(RANKS))
        return 2 * group + favoured.gather(1, column)[:, 0]

    return law, cell_of
