"""Speculative sampling of a drawn chain: accept with min(1, p/q), else draw from max(p - q, 0).

Every drawn token is verified: the depth may depend on what was drawn, but discarding a drawn
token would bias the law. Noise is fresh at every pass, for the same reason.

Source: Leviathan et al. 2023 (arXiv 2211.17192); Chen et al. 2023 (arXiv 2302.01318).
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.rules.base import Verdict, follow, refuse_broken
from draftgym.decoder.sampling.noise import gumbel, uniform
from draftgym.decoder.sampling.warp import warp
from draftgym.decoder.tree import Selection


class ChainRejectionRule:
    """The rejection rule for proposals drawn from q.

    Args:
        sampling: Warping and seed; the same warping makes p and q.
    """

    name = "chain_rejection"
    draws_proposals = True

    def __init__(self, sampling: SamplingConfig) -> None:
        self._sampling = sampling
        self.start(0)

    def start(self, sequence: int) -> None:
        self._sequence, self._streams = sequence, 0
        self._proposed: list[tuple[Tensor, Tensor | None]] = []

    def rank(self, logits: Tensor, position: int, ids: Tensor | None) -> Tensor:
        return warp(logits, self._sampling)

    def draw(self, log_q: Tensor, position: int, ids: Tensor | None) -> Tensor:
        """Draw a proposal and remember the law it came from.

        Args:
            log_q: From `rank`, shape [1, draft vocabulary].
            position: Index in the sequence of the token to draft.
            ids: Target id of every draft id.

        Returns:
            The drawn draft id, shape [1].
        """
        self._proposed.append((log_q, ids))
        at = torch.full((1,), position, device=log_q.device)
        noise = gumbel(
            self._sampling.seed,
            self._sequence,
            at,
            vocab=log_q.shape[-1],
            stream=self._fresh(),
        )
        return noise.add_(log_q).argmax(-1)

    def verify(self, logits: Tensor, start: int, chosen: Selection | None) -> Verdict:
        log_p = warp(logits, self._sampling)  # [D + 1, vocabulary]
        proposed, self._proposed = self._proposed, []
        if len(proposed) != len(log_p) - 1:
            raise RuntimeError(
                f"{len(proposed)} tokens were drawn and {len(log_p) - 1} verified: every drawn "
                "token must be"
            )
        seed, sequence, vocabulary = self._sampling.seed, self._sequence, log_p.shape[-1]
        at = torch.arange(start + 1, start + 1 + len(log_p), device=log_p.device)
        noise = gumbel(seed, sequence, at, vocab=vocabulary, stream=self._fresh())
        if chosen is None:
            return follow(noise.add_(log_p), start, None)
        log_q = on_target(proposed, log_p)  # [D, vocabulary]
        chance = uniform(seed, sequence, at[:-1], self._fresh())
        kept, spare = correct(log_p, log_q, chosen.tokens[1:], noise, chance)
        finite = torch.isfinite(log_p.amax(-1))
        kept = torch.cat((kept, kept.new_zeros(1)))
        read = torch.stack([row.long() for row in (finite, kept, spare, chosen.tokens)]).tolist()
        refuse_broken(read[0], range(start, start + len(log_p)))
        length = read[1].index(0)
        return Verdict(list(range(1, length + 1)), [*read[3][1 : length + 1], read[2][length]])

    def _fresh(self) -> int:
        """A stream that was not used in this sequence."""
        self._streams += 1
        return self._streams


def correct(
    log_p: Tensor, log_q: Tensor, drawn: Tensor, noise: Tensor, chance: Tensor
) -> tuple[Tensor, Tensor]:
    """Accept each drawn token with min(1, p/q); draw what would replace it.

    Rows decide alone. A session reads them up to the first rejection.

    Args:
        log_p: The target's log-probabilities, shape [D + 1, vocabulary]; the last row is the
            bonus's.
        log_q: Of the laws that the proposals were drawn from, over target ids, [D, vocabulary].
        drawn: The proposals, [D].
        noise: Gumbel noise that the proposals have not seen, float64, shape of `log_p`;
            overwritten.
        chance: Uniform numbers, [D].

    Returns:
        Whether each proposal is kept, [D], and the correction or bonus of each row, [D + 1].
    """
    p = log_p.double().exp()
    spare = torch.cat((residual(p[:-1], log_q.double().exp()), p[-1:]))
    column = drawn[:, None]
    ratio = (log_p[:-1].gather(1, column) - log_q.gather(1, column))[:, 0]
    return chance.log() <= ratio, noise.add_(spare.log_()).argmax(-1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """max(p - q, 0), not normalised: the law of what replaces a rejected proposal.

    Args:
        p: The target's probabilities, shape [rows, vocabulary].
        q: The drafter's.
    """
    rest = (p - q).clamp_min_(0)
    # p = q never rejects; the row is then not read, but must be a law.
    return torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)


def on_target(proposed: list[tuple[Tensor, Tensor | None]], log_p: Tensor) -> Tensor:
    """The laws of all draws over target ids.

    Args:
        proposed: Per draw its log-law, [1, draft vocabulary], and the target id of every draft
            id, None when they are the same.
        log_p: Over target ids; sets the width, the type and the device.

    Returns:
        Shape [D, vocabulary], -inf where a token is never drafted.
    """
    log_q = log_p.new_full((len(proposed), log_p.shape[-1]), -torch.inf)
    for row, (law, ids) in enumerate(proposed):
        if ids is None:
            log_q[row, : law.shape[-1]] = law[0]  # a draft model may know fewer ids
        else:
            log_q[row, ids] = law[0]
    return log_q
