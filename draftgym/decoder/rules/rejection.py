"""Sampling with deterministic proposals: draw from the target, keep what was guessed.

One token is drawn from p at each node and followed if it is a child, else emitted. The drafted
tree does not depend on these draws, so any depth, size and pruning leaves the law exactly p; with
a one-hot q this is the rejection rule itself.

Source: Leviathan et al. 2023 (arXiv 2211.17192) with one-hot q; SpecInfer (arXiv 2305.09781).
"""

from __future__ import annotations

from torch import Tensor

from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.rules.base import Verdict, follow, perturbed
from draftgym.decoder.sampling.warp import warp
from draftgym.decoder.tree import Selection


class RejectionRule:
    """A fresh draw from p at every node of every round.

    Args:
        sampling: Warping and seed.
    """

    name = "rejection"
    draws_proposals = False

    def __init__(self, sampling: SamplingConfig) -> None:
        self._sampling, self._sequence, self._passes = sampling, 0, 0

    def start(self, sequence: int) -> None:
        self._sequence, self._passes = sequence, 0

    def rank(self, logits: Tensor, position: int, ids: Tensor | None) -> Tensor:
        return warp(logits, self._sampling)

    def verify(self, logits: Tensor, start: int, chosen: Selection | None) -> Verdict:
        log_p = warp(logits, self._sampling)
        # Nodes of one depth share noise: at most one of them is on the path that is walked. A
        # pass never reuses another's noise, so no decision can have seen it.
        self._passes += 1
        seed = self._sampling.seed
        scores = perturbed(log_p, start, chosen, seed, self._sequence, self._passes)
        return follow(scores, start, chosen)
