"""Temperature 0: tokens identical to plain decoding."""

from __future__ import annotations

import torch
from torch import Tensor

from draftgym.decoder.rules.base import Verdict, follow
from draftgym.decoder.tree import Selection


class GreedyRule:
    """The target's argmax; drafters rank by their own probabilities."""

    name = "greedy"
    draws_proposals = False

    def start(self, sequence: int) -> None:
        """Nothing is random."""

    def rank(self, logits: Tensor, position: int, ids: Tensor | None) -> Tensor:
        return torch.log_softmax(logits.float(), -1)

    def scores(self, logits: Tensor, start: int, chosen: Selection | None) -> Tensor:
        """What the argmax is taken of: the logits."""
        return logits

    def verify(self, logits: Tensor, start: int, chosen: Selection | None) -> Verdict:
        return follow(self.scores(logits, start, chosen), start, chosen)
