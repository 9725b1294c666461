"""The draft tree of one round, in preallocated device buffers.

One total order everywhere: score descending, then depth, then insertion. Nodes are inserted
level by level, so a stable sort by score gives it. Scores are cumulative log-probabilities
in float32, never larger than the parent's, so the best `V` nodes always form a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Selection:
    """The root and the best `V` nodes, as the target's pass wants them.

    Attributes:
        tokens: Token ids, shape [V + 1]; index 0 is the root.
        parents: Slot of each node's parent within the selection, shape [V + 1]; 0 for the root.
        depths: Depth of each node, shape [V + 1].
        visible: Row i is True at the slots on the path root..i, shape [V + 1, V + 1].
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    visible: Tensor


class DraftTree:
    """Nodes drafted in one round; node 0 is the root (the pending token).

    Args:
        capacity: Most nodes, root not counted.
        device: Where the drafter runs.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        rows = capacity + 1
        self.capacity = capacity
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)
        self.parents = torch.zeros(rows, dtype=torch.long, device=device)
        self.depths = torch.zeros(rows, dtype=torch.long, device=device)
        self.scores = torch.zeros(rows, dtype=torch.float32, device=device)
        self.ancestors = torch.zeros(rows, rows, dtype=torch.bool, device=device)
        self.ancestors[0, 0] = True
        self._diagonal = self.ancestors.diagonal()
        self.size = 0  # nodes, root not counted
        self.passes = 0
        self.frontier = torch.zeros(1, dtype=torch.long, device=device)  # node indices
        self.frontier_scores = torch.zeros(1, dtype=torch.float32, device=device)
        self.expanded_log_probs: Tensor | None = None  # [vocabulary] at the best expanded node

    def reset(self, root: Tensor) -> None:
        """Start a round from `root`, the pending token's id as a tensor of shape []."""
        self.tokens[0] = root
        self.size = 0
        self.passes = 0
        self.expanded_log_probs = None

    def add(self, parents: Tensor, tokens: Tensor, scores: Tensor, depth: int) -> None:
        """Append children of one level.

        Args:
            parents: Node indices, shape [n].
            tokens: Token ids, shape [n].
            scores: Cumulative log-probabilities, float32, shape [n].
            depth: Depth of the new nodes; the root has 0.

        Raises:
            ValueError: The tree is full.
        """
        start, stop = self.size + 1, self.size + 1 + parents.shape[0]
        if stop > self.capacity + 1:
            raise ValueError(f"draft tree holds {self.capacity} nodes, {stop - 1} were drafted")
        self.tokens[start:stop] = tokens
        self.parents[start:stop] = parents
        self.scores[start:stop] = scores
        self.depths[start:stop] = depth
        self.ancestors[start:stop] = self.ancestors[parents]
        self._diagonal[start:stop] = True
        self.size = stop - 1

    def add_chain(self, tokens: Sequence[int], scores: Sequence[float]) -> None:
        """Append a chain below the root, best first."""
        device = self.tokens.device
        ids = torch.tensor(tokens, dtype=torch.long, device=device)
        values = torch.tensor(scores, dtype=torch.float32, device=device)
        for i in range(len(tokens)):
            parent = torch.tensor([self.size if i else 0], dtype=torch.long, device=device)
            self.add(parent, ids[i : i + 1], values[i : i + 1], i + 1)

    def select(self, size: int) -> Selection:
        """The root and the best `size` nodes in the one total order; `size <= self.size`."""
        order = torch.argsort(self.scores[1 : self.size + 1], descending=True, stable=True)
        nodes = torch.cat((order.new_zeros(1), order[:size] + 1))  # [V + 1]
        slots = torch.zeros_like(self.parents)
        slots[nodes] = torch.arange(size + 1, device=nodes.device)
        return Selection(
            tokens=self.tokens[nodes],
            parents=slots[self.parents[nodes]],
            depths=self.depths[nodes],
            visible=self.ancestors[nodes][:, nodes],
        )
