"""One level of a draft tree: what every drafter with a model does with its predictions."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from draftgym.decoder.rules.base import DrawingRule, Rule
from draftgym.decoder.tree import DraftTree

_LEAST = torch.finfo(torch.float32).min


def extend(
    tree: DraftTree,
    rule: Rule,
    logits: Tensor,
    root: int,
    width: int,
    vocabulary: DraftVocabulary | None = None,
) -> Tensor:
    """Add one level: the best continuations, or a drawn one where the rule asks for that.

    Args:
        tree: Extended in place.
        rule: Ranks continuations.
        logits: The drafter's, at each frontier node, shape [n, draft vocabulary].
        root: Index in the sequence of the root.
        width: Children per node and frontier nodes, `W`.
        vocabulary: Maps draft ids to target ids; None when they are the same.

    Returns:
        See `grow`.
    """
    position = root + tree.passes + 1
    ids = None if vocabulary is None else vocabulary.target_ids
    scores = rule.rank(logits, position, ids)
    if rule.draws_proposals:  # testing for the protocol itself would cost as much as a kernel
        return _append_drawn(tree, cast(DrawingRule, rule), scores, position, ids)
    return grow(tree, scores, tree.frontier, tree.frontier_scores, width, vocabulary)


def _append_drawn(
    tree: DraftTree, rule: DrawingRule, log_q: Tensor, position: int, ids: Tensor | None
) -> Tensor:
    pick = rule.draw(log_q, position, ids)  # [1]
    scores = tree.frontier_scores + log_q.gather(1, pick[:, None])[:, 0]
    tree.expanded_log_probs = log_q[0]
    tree.add(tree.frontier, pick if ids is None else ids[pick], scores, tree.passes + 1)
    tree.frontier = torch.full_like(pick, tree.size)
    tree.frontier_scores = scores
    tree.passes += 1
    return torch.zeros_like(pick)


def grow(
    tree: DraftTree,
    log_probs: Tensor,
    parents: Tensor,
    scores: Tensor,
    width: int,
    vocabulary: DraftVocabulary | None = None,
) -> Tensor:
    """Add the `width` best children of each expanded node; the best `width` form the frontier.

    A continuation that a free proposal already made is not made again: it keeps its node, takes
    the higher of the two scores and competes for the frontier. Shapes depend on `width` and the
    number of expanded nodes alone, and nothing is read back from the device.

    Args:
        tree: Extended in place.
        log_probs: Of the next token at each expanded node, float32 [n, draft vocabulary].
        parents: The expanded nodes, [n].
        scores: Their cumulative log-probabilities, [n].
        width: Children per node and frontier nodes, `W`.
        vocabulary: Maps draft ids to target ids; None when they are the same.

    Returns:
        For each frontier node, the row of `log_probs` whose node is its parent, [W].

    Source: EAGLE-2's dynamic tree (arXiv 2406.16858).
    """
    tree.expanded_log_probs = log_probs[0]
    merged = None
    if tree.free:
        nodes = slice(1, tree.free + 1)
        ids = tree.tokens[nodes]
        drafted = ids if vocabulary is None else vocabulary.draft_ids[ids]
        continues = parents[:, None] == tree.parents[nodes]  # [n, free]
        known = continues & (drafted >= 0)  # outside the draft vocabulary: proposed once
        columns = drafted.clamp_min(0).expand(parents.shape[0], -1)
        own = log_probs.gather(1, columns)
        ours = own.add(scores[:, None]).masked_fill_(~known, -torch.inf).amax(0)  # one parent each
        tree.scores[nodes] = merged = torch.maximum(tree.scores[nodes], ours)
        # Siblings may share a column with a stranger's child, so the least value is kept.
        rest = own.masked_fill_(known, -torch.inf)
        log_probs = log_probs.scatter_reduce(1, columns, rest, "amin")
        merged = merged.masked_fill(~continues.any(0), -torch.inf)
    values, picks = log_probs.topk(width, -1)  # [n, W]
    candidates = (scores[:, None] + values).flatten()  # [n * W]
    tokens = picks.flatten() if vocabulary is None else vocabulary.target_ids[picks.flatten()]
    first = tree.size + 1
    tree.add(parents.repeat_interleave(width), tokens, candidates, tree.passes + 1)
    if merged is None:
        best, order = torch.sort(candidates, descending=True, stable=True)
        order = order[:width]
        tree.frontier, rows = order + first, order // width
    else:
        count = candidates.shape[0]
        # Truncation may leave less than `width` continuations. Impossible ones still rank above
        # free nodes of other parents, which must not be expanded here.
        ranked = torch.cat((merged, candidates.clamp_min(_LEAST)))
        order = torch.argsort(ranked, descending=True, stable=True)[:width]
        best = torch.cat((merged, candidates))[order]
        free = torch.arange(1, tree.free + 1, device=order.device)
        fresh = torch.arange(first, first + count, device=order.device)
        tree.frontier = torch.cat((free, fresh))[order]
        own_rows = torch.arange(parents.shape[0], device=order.device)
        rows = torch.cat((continues.int().argmax(0), own_rows.repeat_interleave(width)))[order]
    tree.frontier_scores = best[:width]
    tree.passes += 1
    return rows


class DraftVocabulary:
    """A reduced vocabulary, in both directions.

    Args:
        target_ids: Target id of every draft id, [draft vocabulary].
        target_vocab_size: Ids of the target.

    Attributes:
        draft_ids: Draft id of every target id, -1 for those that are never proposed.
    """

    def __init__(self, target_ids: Tensor, target_vocab_size: int) -> None:
        self.target_ids = target_ids
        self.draft_ids = torch.full((target_vocab_size,), -1, device=target_ids.device)
        self.draft_ids[target_ids] = torch.arange(len(target_ids), device=target_ids.device)
