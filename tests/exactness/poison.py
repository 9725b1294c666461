"""A session whose stale memory is poison: reading it raises, or spoils every number after it.

After each round everything past the committed prefix is filled: caches, features and scores with
NaN, ids and indices with numbers that no table holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from draftgym.decoder.drafters.eagle3 import Eagle3Drafter
from draftgym.decoder.drafters.hybrid import HybridDrafter
from draftgym.decoder.drafters.lm import LmDrafter
from draftgym.decoder.session import DecoderSession
from draftgym.decoder.stopping import StopCheck
from draftgym.decoder.tree import DraftTree
from draftgym.state import RoundRecord

NOWHERE = 1 << 40
"""An id and index that every look-up refuses."""


class PoisonedSession(DecoderSession):
    """Decodes as its parent does, and leaves nothing readable behind."""

    def start(
        self,
        prompt_tokens: Sequence[int],
        max_new_tokens: int,
        sequence: int = 0,
        stop: StopCheck | None = None,
    ) -> None:
        super().start(prompt_tokens, max_new_tokens, sequence, stop)
        self._poison()

    def end_round(self, size: int) -> RoundRecord:
        check_tree(self._tree)
        record = super().end_round(size)
        self._poison()
        return record

    @torch.inference_mode()
    def _poison(self) -> None:
        committed, cached = len(self._committed.ids), self._committed.cached
        self._cache._block[:, :, :, cached:] = torch.nan
        self._device_ids[committed:] = NOWHERE
        if self._features is not None:
            self._features[cached:] = torch.nan
        poison_tree(self._tree)
        poison_drafter(self.drafter)


def check_tree(tree: DraftTree) -> None:
    """Refuse a tree whose nodes do not follow their parents in depth and score."""
    nodes = slice(1, tree.size + 1)
    parents = tree.parents[nodes]
    assert bool((parents <= torch.arange(tree.size)).all()), "a node comes before its parent"
    assert bool((tree.depths[nodes] == tree.depths[parents] + 1).all()), "depths"
    assert bool((tree.scores[nodes] <= tree.scores[parents]).all()), "better than its parent"


def poison_tree(tree: DraftTree) -> None:
    """Spoil every row but the root's own: between rounds the tree is empty."""
    tree.tokens.fill_(NOWHERE)
    tree.parents[1:] = NOWHERE
    tree.depths[1:] = NOWHERE
    tree.scores[1:] = torch.nan
    tree.ancestors[1:] = True
    if tree.expanded_log_probs is not None:
        tree.expanded_log_probs = torch.full_like(tree.expanded_log_probs, torch.nan)


def poison_drafter(drafter: Any) -> None:
    """Spoil what a drafter made for its own guesses."""
    if isinstance(drafter, HybridDrafter):
        poison_drafter(drafter.model)
    elif isinstance(drafter, LmDrafter):
        drafter._cache._block[:, :, :, drafter._ingested :] = torch.nan
        drafter._slot_nodes.fill_(NOWHERE)
    elif isinstance(drafter, Eagle3Drafter):
        drafter._cache[:, :, drafter._ingested :] = torch.nan
        drafter._slot_nodes.fill_(NOWHERE)
        if hasattr(drafter, "_hidden"):
            drafter._hidden = torch.full_like(drafter._hidden, torch.nan)
