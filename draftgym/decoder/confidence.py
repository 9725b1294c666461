"""Reads what the drafter believes from the device, in one transfer."""

from __future__ import annotations

import numpy as np
import torch

from draftgym.decoder.tree import DraftTree
from draftgym.state import NO_CONFIDENCE, Confidence

# Stands for -inf, which times a probability of 0 would be NaN.
_LEAST = np.float32(-1e4)


def read_confidence(tree: DraftTree, law: bool = True) -> Confidence:
    """Summarise a draft tree for a controller.

    Args:
        tree: The tree of the open round.
        law: Whether entropy and margin are wanted: they take a pass over the vocabulary.

    Returns:
        Frontier and node scores, and entropy and margin of the newest pass at its best node
        (both 0 when there are only free proposals, or they are not wanted).
    """
    if tree.size == 0:
        return NO_CONFIDENCE
    return read_device(tree, law) if tree.host_scores is None else read_host(tree, law)


def read_host(tree: DraftTree, law: bool = True) -> Confidence:
    """Read a tree in host memory.

    It runs right after a pass has emptied the caches, where every numpy call costs as much as
    sorting a tree in plain Python: few calls, and none of numpy's Python wrappers.
    """
    assert tree.host_scores is not None
    nodes = tree.host_scores[1 : tree.size + 1].tolist()
    nodes.sort(reverse=True)
    if tree.expanded_log_probs is None:
        return Confidence(nodes[:1], 0.0, 0.0, nodes)
    if not law:
        return Confidence(tree.frontier_scores.tolist(), 0.0, 0.0, nodes)
    log_probs = tree.expanded_log_probs.numpy()
    if log_probs[log_probs.argmin()] < _LEAST:  # to look is cheaper than to floor every time
        log_probs = np.maximum(log_probs, _LEAST)
    probs = np.exp(log_probs)
    entropy = -float(probs.dot(log_probs))
    best = probs.argmax()
    top = float(probs[best])
    probs[best] = 0.0
    margin = top - float(probs[probs.argmax()])
    return Confidence(tree.frontier_scores.tolist(), entropy, margin, nodes)


@torch.inference_mode()
def read_device(tree: DraftTree, law: bool = True) -> Confidence:
    """Read a tree from a device in one transfer."""
    nodes = torch.sort(tree.scores[1 : tree.size + 1], descending=True).values
    log_probs = tree.expanded_log_probs
    if log_probs is None:
        scores = nodes.tolist()
        return Confidence(scores[:1], 0.0, 0.0, scores)
    if not law:
        values = torch.cat((tree.frontier_scores, nodes)).tolist()
        width = tree.frontier_scores.shape[0]
        return Confidence(values[:width], 0.0, 0.0, values[width:])
    probs = log_probs.exp()
    entropy = -torch.dot(probs, log_probs.clamp_min(float(_LEAST)))
    top = probs.topk(2).values
    packed = torch.cat((entropy.view(1), (top[0] - top[1]).view(1), tree.frontier_scores, nodes))
    values = packed.tolist()
    width = 2 + tree.frontier_scores.shape[0]
    return Confidence(values[2:width], values[0], values[1], values[width:])
