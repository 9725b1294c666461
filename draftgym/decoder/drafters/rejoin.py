"""Rejoin: the tokens after a rejected one, proposed again right after its correction.

A draft is one guess at what comes next; when a token of it is rejected, the rest of the guess (the
escrow) is usually thrown away. Here it enters the next round's tree as free proposals, as it is
or also with front tokens left out, beside what the wrapped drafter drafts anew.

What is proposed depends on earlier rounds' drafts, not on the committed prefix alone. That is
lossless under every rule with deterministic proposals: the tree is fixed before the target's
pass draws anything for it, and `greedy` and `coupled` compare with one token per position while
`rejection` draws from noise that no earlier pass has read. But one tree per position no longer
describes a round, so tracing and replay refuse it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace

import torch
from torch import Tensor

from draftgym.decoder.config import DrafterConfig
from draftgym.decoder.drafters.base import Committed, Drafter
from draftgym.decoder.rules.base import Rule
from draftgym.decoder.tree import DraftTree


@dataclass(frozen=True, slots=True)
class RejoinCounts:
    """What was carried over rejections so far, over all sequences.

    Attributes:
        rejections: Rounds in which the target went another way than the drafted tree.
        escrows: Those whose rejected token was not the draft's last.
        escrow_tokens: Tokens after the rejected ones.
        carried: Nodes proposed again.
        recovered: Accepted tokens that carried nodes stood for, whether or not the wrapped
            drafter proposed them as well. The token that ends a sequence is not counted.
        recovering: Rounds in which there was one.
    """

    rejections: int = 0
    escrows: int = 0
    escrow_tokens: int = 0
    carried: int = 0
    recovered: int = 0
    recovering: int = 0

    def __add__(self, other: RejoinCounts) -> RejoinCounts:
        return RejoinCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def since(self, before: RejoinCounts) -> RejoinCounts:
        """What was added to an earlier state of the same counts."""
        return RejoinCounts(*(a - b for a, b in zip(astuple(self), astuple(before), strict=True)))


@dataclass(frozen=True, slots=True)
class Drafted:
    """The nodes of a finished round on the host; index 0 is the root.

    Attributes:
        tokens: Token of each node.
        parents: Its parent.
        scores: Its cumulative log-probability.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    scores: Sequence[float]

    def follow(self, emitted: Sequence[int]) -> list[int]:
        """Nodes that stand for the first emitted tokens, as far as the tree goes with them."""
        path, children = [0], self._children()
        for token in emitted:
            node = next((n for n in children[path[-1]] if self.tokens[n] == token), None)
            if node is None:
                break
            path.append(node)
        return path[1:]

    def best_path(self, node: int) -> Iterator[int]:
        """Tokens of the best nodes below one, each the best child of the one before."""
        children = self._children()
        while children[node]:
            node = max(children[node], key=lambda child: self.scores[child])  # first among equals
            yield self.tokens[node]

    def _children(self) -> list[list[int]]:
        children: list[list[int]] = [[] for _ in self.tokens]
        for node in range(1, len(self.tokens)):
            if self.scores[node] > -math.inf:  # others only fill a beam
                children[self.parents[node]].append(node)
        return children


class RejoinDrafter:
    """A drafter whose rejected tails are proposed again.

    Args:
        model: Makes draft passes and no free proposals.
        survival: Chance that the first token of a candidate is right, by front tokens left out
            of the escrow; one candidate each.
        next_survival: Chance of each later token, given the ones before it.

    Attributes:
        model: The wrapped drafter.

    Source: greedy speculative decoding's accepted path (Leviathan et al. 2023, arXiv 2211.17192)
    on a tree of candidates (SpecInfer, arXiv 2305.09781).
    """

    name = "rejoin"
    draws = False

    def __init__(self, model: Drafter, survival: Sequence[float], next_survival: float) -> None:
        self.model = model
        self._survival = tuple(survival)
        self._later = math.log(next_survival)
        longest = max(0, model.max_depth - 1)
        carried = sum(max(0, longest - trimmed) for trimmed in range(len(survival)))
        self.max_depth, self.max_nodes = model.max_depth, model.max_nodes + carried
        self.feature_layers, self.context_limit = model.feature_layers, model.context_limit
        self._counts = RejoinCounts()
        self._committed: Committed | None = None
        self._nodes: tuple[Tensor, ...] | None = None

    def start(self, committed: Committed, rule: Rule) -> None:
        self._settle()
        self.model.start(committed, rule)
        self._committed = committed

    @property
    def uningested(self) -> int:
        return self.model.uningested

    @property
    def counts(self) -> RejoinCounts:
        """What was carried so far, the round that is over included."""
        return self._look_back()[1]

    def propose(self, tree: DraftTree, max_depth: int) -> None:
        assert self._committed is not None
        candidates = self._candidates(self._settle(), max_depth)
        scores = [
            [math.log(self._survival[trimmed]) + self._later * step for step in range(len(tokens))]
            for trimmed, tokens in enumerate(candidates)
        ]
        if candidates:
            tree.add_chains(candidates, scores)
        self._counts = replace(self._counts, carried=self._counts.carried + tree.free)
        self._remember(tree)

    def expand(self, tree: DraftTree) -> None:
        self.model.expand(tree)
        self._remember(tree)

    def _remember(self, tree: DraftTree) -> None:
        """Keep the nodes on the device; they are read when the round is over."""
        assert self._committed is not None
        rows = slice(tree.size + 1)
        self._nodes = (tree.tokens[rows].clone(), tree.parents[rows].clone(),
                       tree.scores[rows].clone())  # fmt: skip
        self._free, self._root = tree.free, len(self._committed.ids)

    def _settle(self) -> list[int]:
        """Count the round that is over and forget it; returns its escrow."""
        escrow, self._counts = self._look_back()
        self._nodes = None
        return escrow

    def _look_back(self) -> tuple[list[int], RejoinCounts]:
        """The escrow of the round that is over, and the counts with it."""
        counts = self._counts
        if self._nodes is None:
            return [], counts
        assert self._committed is not None
        emitted = self._committed.ids[self._root :]
        # One transfer; float64 holds token ids and scores exactly.
        tokens, parents, scores = torch.stack([n.double() for n in self._nodes]).tolist()
        drafted = Drafted([int(t) for t in tokens], [int(p) for p in parents], scores)
        path = drafted.follow(emitted)
        recovered = sum(node <= self._free for node in path[: max(0, len(emitted) - 1)])
        tail = list(drafted.best_path(path[-1] if path else 0))
        rejected = len(path) < len(emitted) and bool(tail)
        # The tail begins with the rejected token, which the last emitted one corrects.
        escrow = tail[len(emitted) - len(path) :] if rejected else []
        return escrow, replace(
            counts,
            rejections=counts.rejections + rejected,
            escrows=counts.escrows + bool(escrow),
            escrow_tokens=counts.escrow_tokens + len(escrow),
            recovered=counts.recovered + recovered,
            recovering=counts.recovering + bool(recovered),
        )

    def _candidates(self, escrow: Sequence[int], max_depth: int) -> list[Sequence[int]]:
        """The escrow with ever more front tokens left out, none deeper than allowed."""
        count = min(len(self._survival), len(escrow)) if max_depth > 0 else 0
        return [escrow[trimmed:][:max_depth] for trimmed in range(count)]


def with_rejoin(drafter: Drafter | None, settings: DrafterConfig) -> Drafter | None:
    """The drafter as its configuration wants it: wrapped, or as it is.

    Args:
        drafter: Made for the configured kind.
        settings: Of the drafter.
    """
    if drafter is None or settings.rejoin is None:
        return drafter
    return RejoinDrafter(drafter, settings.carried_chains, settings.rejoin_next_survival)
