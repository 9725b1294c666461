"""The draft tree: one total order, ancestors, capacity."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftgym.decoder.confidence import read_confidence
from draftgym.decoder.rules.base import accepted_path, read_best
from draftgym.decoder.tree import DraftTree

CPU = torch.device("cpu")


def grown(seed: int, levels: int, width: int, quantum: float) -> DraftTree:
    """A random tree; `quantum` rounds step scores so that exact ties are common."""
    generator = torch.Generator().manual_seed(seed)
    tree = DraftTree(width + (levels - 1) * width**2, CPU)
    tree.reset(torch.tensor(7))
    frontier, scores = torch.zeros(1, dtype=torch.long), torch.zeros(1)
    for level in range(levels):
        steps = -torch.rand(len(frontier), width, generator=generator)
        steps = (steps / quantum).round() * quantum
        values = (scores[:, None] + steps).flatten()
        first = tree.size + 1
        tokens = torch.randint(0, 64, (len(values),), generator=generator)
        tree.add(frontier.repeat_interleave(width), tokens, values, level + 1)
        best, order = torch.sort(values, descending=True, stable=True)
        frontier, scores = order[:width] + first, best[:width]
    return tree


@given(
    seed=st.integers(0, 2**20),
    levels=st.integers(1, 5),
    width=st.integers(1, 4),
    quantum=st.sampled_from([0.5, 0.25, 1e-3]),
)
def test_every_top_v_is_a_tree_in_the_one_order(
    seed: int, levels: int, width: int, quantum: float
) -> None:
    tree = grown(seed, levels, width, quantum)
    key = [(-float(tree.scores[i]), int(tree.depths[i]), i) for i in range(1, tree.size + 1)]
    expected = [index for *_, index in sorted(key)]
    for size in {1, tree.size // 2, tree.size} - {0}:
        chosen = tree.select(size)
        assert chosen.tokens.tolist() == [7, *(int(tree.tokens[i]) for i in expected[:size])]
        for slot in range(1, size + 1):
            parent = int(chosen.parents[slot])
            assert parent < slot
            assert int(chosen.depths[slot]) == int(chosen.depths[parent]) + 1
            path = {slot}
            while (slot_up := int(chosen.parents[min(path)])) not in path:
                path.add(slot_up)
            assert set(chosen.visible[slot].nonzero().flatten().tolist()) == path | {0}


def test_a_round_leaves_nothing_in_the_next() -> None:
    tree = grown(3, 3, 2, 0.1)
    tree.reset(torch.tensor(9))
    tree.add_chain([4, 5], [-0.1, -0.3])
    chosen = tree.select(2)
    assert chosen.tokens.tolist() == [9, 4, 5]
    assert chosen.visible.tolist() == [[True, False, False], [True, True, False], [True] * 3]


def test_a_full_tree_is_an_error() -> None:
    tree = DraftTree(2, CPU)
    tree.reset(torch.tensor(0))
    with pytest.raises(ValueError, match="holds 2 nodes, 3"):
        tree.add_chain([1, 2, 3], [-1.0, -2.0, -3.0])


def test_accepted_path_follows_one_path() -> None:
    # root -> 5, 6; 6 -> 7, 8; 8 -> 9
    tokens, parents = [0, 5, 6, 7, 8, 9], [0, 0, 0, 2, 2, 4]
    assert accepted_path(tokens, parents, [6, 0, 8, 0, 9, 1]) == [2, 4, 5]
    assert accepted_path(tokens, parents, [6, 0, 8, 0, 1, 1]) == [2, 4]
    assert accepted_path(tokens, parents, [4, 6, 8, 8, 9, 1]) == []
    assert accepted_path([3], [0], [1]) == []


@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), float("inf")])
def test_broken_logits_name_their_position(bad: float) -> None:
    logits = torch.zeros(3, 5)
    logits[1] = bad
    with pytest.raises(FloatingPointError, match="position 41"):
        read_best(logits, [40, 41, 42])


def test_ties_go_to_the_lowest_id_for_any_number_of_rows() -> None:
    logits = torch.zeros(33, 49152)
    logits[:, [17, 30_000]] = 1.0
    assert read_best(logits, range(33))[0] == [17] * 33
    assert read_best(logits[:1], range(1))[0] == [17]


def test_confidence_is_what_the_tree_says() -> None:
    tree = grown(5, 2, 2, 1e-3)
    tree.frontier, tree.frontier_scores = torch.tensor([3, 4]), torch.tensor([-0.5, -0.7])
    tree.expanded_log_probs = torch.log(torch.tensor([0.5, 0.25, 0.25, 0.0]))
    confidence = read_confidence(tree)
    assert confidence.entropy == pytest.approx(1.0397, abs=1e-4)
    assert confidence.margin == pytest.approx(0.25)
    assert confidence.frontier_scores == pytest.approx([-0.5, -0.7])
    scores = sorted(tree.scores[1 : tree.size + 1].tolist(), reverse=True)
    assert confidence.node_scores == pytest.approx(scores)
