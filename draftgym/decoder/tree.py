"""The draft tree of one round, in preallocated device buffers.

One total order everywhere: score descending, then depth, then insertion. Scores are cumulative
log-probabilities in float32, never larger than the parent's, and a parent is inserted before its
children, so the best `V` nodes always form a tree. Where truncation leaves fewer continuations
than a beam is wide, impossible ones fill it: their score is -inf, and they rank last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftgym.decoder.transfer import to_device


@dataclass(frozen=True, slots=True)
class Selection:
    """The root and the best `V` nodes, as the target's pass wants them.

    Attributes:
        tokens: Token ids, shape [V + 1]; index 0 is the root.
        parents: Slot of each node's parent within the selection, shape [V + 1]; 0 for the root.
        depths: Depth of each node, shape [V + 1].
        visible: Row i is True at the slots on the path root..i, shape [V + 1, V + 1].
        deepest: Bound of the depths, known on the host.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    visible: Tensor
    deepest: int


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
        # The same memory where the host can read it: a view costs as much as a kernel.
        # A memoryview is turned into numbers without any of numpy's code.
        self.host_scores = memoryview(self.scores.numpy().data) if device.type == "cpu" else None
        self.ancestors = torch.zeros(rows, rows, dtype=torch.bool, device=device)
        self.ancestors[0, 0] = True
        self._diagonal = self.ancestors.diagonal()
        self.size = 0  # nodes, root not counted
        self.free = 0  # free proposals: the nodes 1..free
        self.passes = 0
        self._root = torch.zeros(1, dtype=torch.long, device=device)
        self._root_score = torch.zeros(1, dtype=torch.float32, device=device)
        self._counts = torch.arange(rows, dtype=torch.long, device=device)
        self._chain = self._counts[:, None] >= self._counts  # ancestors in a chain
        self.frontier = self._root  # nodes that the next pass expands
        self.frontier_scores = self._root_score
        self.expanded_log_probs: Tensor | None = None  # [vocabulary] at the best expanded node

    def reset(self, root: Tensor) -> None:
        """Start a round from `root`, the pending token's id as a tensor of shape []."""
        self.tokens[0] = root
        self.size = self.free = self.passes = 0
        self.frontier, self.frontier_scores = self._root, self._root_score
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
        """Put free proposals into a tree that holds its root only: a chain, best first.

        Args:
            tokens: Token ids; may be empty.
            scores: Cumulative log-probabilities, each at most the one before.

        Raises:
            ValueError: More than the tree holds.
        """
        count, device = len(tokens), self.tokens.device
        if count > self.capacity:
            raise ValueError(f"draft tree holds {self.capacity} nodes, {count} were proposed")
        rows = slice(1, count + 1)
        self.tokens[rows] = to_device(tokens, device)
        self.scores[rows] = to_device(scores, device, torch.float32)
        self.parents[rows] = self._counts[:count]
        self.depths[rows] = self._counts[rows]
        self.ancestors[rows] = self._chain[rows]
        self.size = self.free = count

    def add_chains(
        self, chains: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]
    ) -> None:
        """Put several free chains into a tree that holds its root only; shared beginnings are one.

        A path that several chains begin with takes the highest of their scores.

        Args:
            chains: Token ids of each chain.
            scores: Cumulative log-probabilities, each at most the one before.

        Raises:
            ValueError: More than the tree holds.
        """
        best: dict[tuple[int, ...], float] = {}
        for chain, values in zip(chains, scores, strict=True):
            for depth, value in enumerate(values, 1):
                path = tuple(chain[:depth])
                best[path] = max(value, best.get(path, value))
        paths = sorted(best, key=len)  # level by level, parents first
        if len(paths) > self.capacity:
            raise ValueError(f"draft tree holds {self.capacity} nodes, {len(paths)} were proposed")
        node = {(): 0} | {path: i for i, path in enumerate(paths, 1)}
        count, device = len(paths), self.tokens.device
        rows = slice(1, count + 1)
        self.tokens[rows] = to_device([path[-1] for path in paths], device)
        self.scores[rows] = to_device([best[path] for path in paths], device, torch.float32)
        self.parents[rows] = to_device([node[path[:-1]] for path in paths], device)
        self.depths[rows] = to_device([len(path) for path in paths], device)
        seen = [[True, *[False] * count]]
        for i, path in enumerate(paths, 1):
            seen.append(seen[node[path[:-1]]].copy())
            seen[i][i] = True
        flat = [value for row in seen[1:] for value in row]
        self.ancestors[rows] = False
        self.ancestors[rows, : count + 1] = to_device(flat, device, torch.bool).view(count, -1)
        self.size = self.free = count

    def select(self, size: int) -> Selection:
        """The root and the best `size` nodes in the one total order; `size <= self.size`."""
        order = self._order()
        nodes = torch.cat((order.new_zeros(1), order[:size] + 1))  # [V + 1]
        slots = torch.zeros_like(self.parents)
        slots[nodes] = torch.arange(size + 1, device=nodes.device)
        return Selection(
            tokens=self.tokens[nodes],
            parents=slots[self.parents[nodes]],
            depths=self.depths[nodes],
            visible=self.ancestors[nodes][:, nodes],
            deepest=min(size, max(self.free, self.passes)),
        )

    def _order(self) -> Tensor:
        """All nodes but the root, score descending, then depth, then insertion; from 0."""
        scores = self.scores[1 : self.size + 1]
        if self.free == 0 or self.passes == 0:  # inserted by depth
            return torch.argsort(scores, descending=True, stable=True)
        by_depth = torch.argsort(self.depths[1 : self.size + 1], stable=True)
        return by_depth[torch.argsort(scores[by_depth], descending=True, stable=True)]
