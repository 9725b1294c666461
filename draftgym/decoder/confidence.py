"""Reads what the drafter believes from the device, in one transfer."""

from __future__ import annotations

import numpy as np
import torch

from draftgym.decoder.tree import DraftTree
from draftgym.state import NO_CONFIDENCE, Confidence

# Stands for -inf, which times a probability of 0 would be NaN.
_LEAST = np.float32(-1e4)


@torch.inference_mode()
def read_confidence(tree: DraftTree) -> Confidence:
    """Summarise a draft tree for a controller.

    Args:
        tree: The tree of the open round.

    Returns:
        Frontier and node scores, and entropy and margin of the newest pass at its best node
        (both 0 when there are only free proposals).
    """
    if tree.size == 0:
        return NO_CONFIDENCE
    return read_host(tree) if tree.scores.device.type == "cpu" else read_device(tree)


def read_host(tree: DraftTree) -> Confidence:
    """Read a tree in host memory: numpy on the same memory, at half the cost."""
    nodes = -np.sort(-tree.scores[1 : tree.size + 1].numpy())
    if tree.expanded_log_probs is None:
        return Confidence(nodes[:1], 0.0, 0.0, nodes)
    log_probs = tree.expanded_log_probs.numpy()
    probs = np.exp(log_probs)
    entropy = -float(np.dot(probs, np.maximum(log_probs, _LEAST)))
    best = probs.argmax()
    top = float(probs[best])
    probs[best] = 0.0
    return Confidence(tree.frontier_scores.numpy(), entropy, top - float(probs.max()), nodes)


def read_device(tree: DraftTree) -> Confidence:
    """Read a tree from a device in one transfer."""
    nodes = torch.sort(tree.scores[1 : tree.size + 1], descending=True).values
    log_probs = tree.expanded_log_probs
    if log_probs is None:
        scores = nodes.cpu().numpy()
        return Confidence(scores[:1], 0.0, 0.0, scores)
    probs = log_probs.exp()
    entropy = -torch.dot(probs, log_probs.clamp_min(float(_LEAST)))
    top = probs.topk(2).values
    packed = torch.cat((entropy.view(1), (top[0] - top[1]).view(1), tree.frontier_scores, nodes))
    values = packed.cpu().numpy().astype(np.float32, copy=False)
    width = 2 + tree.frontier_scores.shape[0]
    return Confidence(values[2:width], float(values[0]), float(values[1]), values[width:])
