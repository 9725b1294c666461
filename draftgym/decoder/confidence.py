"""Reads what the drafter believes from the device, in one transfer."""

from __future__ import annotations

import numpy as np
import torch

from draftgym.decoder.tree import DraftTree
from draftgym.state import NO_CONFIDENCE, Confidence


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
    nodes = torch.sort(tree.scores[1 : tree.size + 1], descending=True).values
    log_probs = tree.expanded_log_probs
    if log_probs is None:
        scores = nodes.cpu().numpy()
        return Confidence(scores[:1], 0.0, 0.0, scores)
    probs = log_probs.exp()
    entropy = -torch.dot(probs, log_probs.clamp_min(-1e4))  # 0 * -inf is 0 here
    top = probs.topk(2).values
    packed = torch.cat((entropy.view(1), (top[0] - top[1]).view(1), tree.frontier_scores, nodes))
    values = packed.cpu().numpy().astype(np.float32, copy=False)
    width = 2 + tree.frontier_scores.shape[0]
    return Confidence(values[2:width], float(values[0]), float(values[1]), values[width:])
