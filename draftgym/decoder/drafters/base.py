"""What every drafter is given and must do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from draftgym.decoder.rules.base import Rule
from draftgym.decoder.tree import DraftTree


@dataclass(slots=True)
class Committed:
    """The committed prefix of one sequence; owned and filled by the session.

    Attributes:
        ids: Committed token ids on the host, the root last.
        device_ids: The same on the device, preallocated, shape [capacity].
        features: Target features of cached positions, shape [capacity, layers * hidden], or
            None when the drafter reads none. Row i belongs to token i; the root has none yet.
    """

    device_ids: Tensor
    features: Tensor | None
    ids: list[int] = field(default_factory=list)

    @property
    def cached(self) -> int:
        """Tokens with target entries: all committed ones but the root."""
        return len(self.ids) - 1

    def append(self, tokens: list[int]) -> None:
        """Commit tokens; the last becomes the root."""
        start = len(self.ids)
        self.ids.extend(tokens)
        block = torch.tensor(tokens, dtype=torch.long)
        self.device_ids[start : len(self.ids)].copy_(block, non_blocking=True)


class Drafter(Protocol):
    """Proposes tokens; its state is a function of the committed prefix alone.

    Only `rejoin` is exempt: it carries rejected tokens into the next round, and whatever relies on
    the rule (tracing, replay, pretraining) refuses it.

    Attributes:
        name: Its name in the registry.
        max_depth: Draft passes it can make in a round; 0 means free proposals only.
        max_nodes: Most nodes it puts into one tree.
        feature_layers: Target layers whose entries it reads; empty for none.
        context_limit: Committed tokens it can work with.
        draws: Can propose tokens drawn from its law, where the rule asks for that.
    """

    name: str
    draws: bool
    max_depth: int
    max_nodes: int
    feature_layers: tuple[int, ...]
    context_limit: int

    def start(self, committed: Committed, rule: Rule) -> None:
        """Forget the last sequence and follow this one, ranking as the rule says."""

    @property
    def uningested(self) -> int:
        """Committed tokens that the first pass would ingest now."""

    def propose(self, tree: DraftTree, max_depth: int) -> None:
        """Put free proposals, at most `max_depth` deep, into a tree that holds its root only."""

    def expand(self, tree: DraftTree) -> None:
        """One draft pass: expand the frontier by one level."""
