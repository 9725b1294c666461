"""Sampling whose text depends on the seed alone: drafter and target share the noise.

The token at a position is argmax(log p + G) with Gumbel noise G keyed by (seed, sequence,
position) and indexed by target id. A draft is right when it guesses that argmax, so drafters rank
by the same sum with their own law: the better q resembles p, the more often the two agree.
Sampled output is identical with and without speculation, under any policy.

Source: Gumbel-max coupling, Daliri et al. 2024 (arXiv 2408.07978).
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.rules.base import Verdict, follow, perturbed
from draftgym.decoder.sampling.noise import gumbel
from draftgym.decoder.sampling.warp import warp
from draftgym.decoder.tree import Selection


class CoupledRule:
    """argmax(log p + G) at every position.

    Args:
        sampling: Warping and seed.
    """

    name = "coupled"
    draws_proposals = False

    def __init__(self, sampling: SamplingConfig) -> None:
        self._sampling, self._sequence = sampling, 0

    def start(self, sequence: int) -> None:
        self._sequence = sequence

    def rank(self, logits: Tensor, position: int, ids: Tensor | None) -> Tensor:
        settings = self._sampling
        at = torch.full((1,), position, device=logits.device)
        vocabulary = logits.shape[-1] if ids is None else None
        noise = gumbel(settings.seed, self._sequence, at, ids, vocab=vocabulary)
        return torch.log_softmax(warp(logits, settings) + noise, -1).float()

    def scores(self, logits: Tensor, start: int, chosen: Selection | None) -> Tensor:
        """What the argmax is taken of: log p + G, float64."""
        log_p = warp(logits, self._sampling)
        return perturbed(log_p, start, chosen, self._sampling.seed, self._sequence, 0)

    def verify(self, logits: Tensor, start: int, chosen: Selection | None) -> Verdict:
        return follow(self.scores(logits, start, chosen), start, chosen)
