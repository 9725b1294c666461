"""A drafter that knows the answer, for tests of trees, acceptance and compaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from draftgym.decoder.drafters.base import Committed
from draftgym.decoder.rules.base import Rule
from draftgym.decoder.tree import DraftTree


class OracleDrafter:
    """Grows `width` children per frontier node; on the true path one of them is right.

    Args:
        reference: Prompt and answer of plain decoding.
        right_rank: Rank of the right token among the children at a position, or None for
            "not proposed there".
        vocab: Vocabulary size; wrong tokens are other ids.
        width: Beam width.
        max_depth: Passes per round.
    """

    name = "oracle"
    draws = False
    feature_layers: tuple[int, ...] = ()
    context_limit = 1 << 30

    def __init__(
        self,
        reference: Sequence[int],
        right_rank: Callable[[int], int | None],
        vocab: int = 64,
        width: int = 3,
        max_depth: int = 6,
    ) -> None:
        self._reference, self._rank = list(reference), right_rank
        self._vocab, self._width = vocab, width
        self.max_depth, self.max_nodes = max_depth, width + (max_depth - 1) * width**2

    def start(self, committed: Committed, rule: Rule) -> None:
        self._committed = committed

    @property
    def uningested(self) -> int:
        return 0

    def propose(self, tree: DraftTree, max_depth: int) -> None:
        """Nothing is free."""

    def expand(self, tree: DraftTree) -> None:
        position = len(self._committed.ids) + tree.passes  # of the children
        right = self._reference[position] if position < len(self._reference) else 0
        rank = self._rank(position)
        fresh = tree.passes == 0
        nodes = [0] if fresh else tree.frontier.tolist()
        parents, tokens, scores = [], [], []
        for order, node in enumerate(nodes):
            children = [(right + 1 + order + i) % self._vocab for i in range(self._width)]
            if rank is not None:
                children[rank] = right
            score = 0.0 if fresh else float(tree.scores[node])
            for i, token in enumerate(children):
                parents.append(node)
                tokens.append(token)
                scores.append(score - 0.1 - 0.2 * i)
        first = tree.size + 1
        values = torch.tensor(scores)
        tree.add(torch.tensor(parents), torch.tensor(tokens), values, tree.passes + 1)
        best, order_ = torch.sort(values, descending=True, stable=True)
        tree.frontier, tree.frontier_scores = order_[: self._width] + first, best[: self._width]
        tree.passes += 1
