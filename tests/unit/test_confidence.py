"""Host and device read the same belief from a draft tree."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from draftgym.decoder.confidence import read_confidence, read_device, read_host
from draftgym.decoder.tree import DraftTree
from draftgym.state import NO_CONFIDENCE


def make_tree(log_probs: torch.Tensor | None) -> DraftTree:
    tree = DraftTree(8, torch.device("cpu"))
    tree.reset(torch.tensor(3))
    parents = torch.zeros(4, dtype=torch.long)
    tree.add(parents, torch.arange(4), torch.tensor([-2.0, -0.5, -3.0, -1.0]), 1)
    tree.frontier_scores = torch.tensor([-0.5, -1.0])
    tree.expanded_log_probs = log_probs
    return tree


MASKED = torch.tensor([math.log(0.75), -math.inf, math.log(0.25), -math.inf])


@pytest.mark.parametrize(
    "log_probs",
    [torch.log_softmax(torch.linspace(-3, 3, 50), 0), MASKED, torch.zeros(5) - math.log(5), None],
)
def test_host_and_device_agree(log_probs: torch.Tensor | None) -> None:
    tree = make_tree(log_probs)
    kept = None if log_probs is None else log_probs.clone()
    host, device = read_host(tree), read_device(tree)
    assert host.entropy == pytest.approx(device.entropy, abs=1e-5)
    assert host.margin == pytest.approx(device.margin, abs=1e-6)
    np.testing.assert_array_equal(host.node_scores, device.node_scores)
    np.testing.assert_array_equal(host.frontier_scores, device.frontier_scores)
    assert host.node_scores == [-0.5, -1.0, -2.0, -3.0]
    if kept is not None and log_probs is not None:
        assert torch.equal(kept, log_probs), "reading changes nothing"


def test_without_the_law_only_scores_are_read() -> None:
    broken = torch.full((50,), math.nan)  # reading it would show
    for read in (read_host, read_device, read_confidence):
        scores = read(make_tree(broken), law=False)
        whole = read(make_tree(torch.log_softmax(torch.linspace(-3, 3, 50), 0)))
        assert (scores.entropy, scores.margin) == (0.0, 0.0) != (whole.entropy, whole.margin)
        np.testing.assert_array_equal(scores.node_scores, whole.node_scores)
        np.testing.assert_array_equal(scores.frontier_scores, whole.frontier_scores)


def test_a_masked_vocabulary_has_a_finite_entropy() -> None:
    read = read_confidence(make_tree(MASKED))
    assert read.entropy == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), abs=1e-6)
    assert read.margin == pytest.approx(0.5)


def test_an_empty_tree_believes_nothing() -> None:
    tree = DraftTree(8, torch.device("cpu"))
    tree.reset(torch.tensor(3))
    assert read_confidence(tree) is NO_CONFIDENCE
