"""Look-ups and a head in one tree."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgym.clock import FakeClock
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.controllers import FixedController, RandomController
from draftgym.decoder.drafters.growth import DraftVocabulary, grow
from draftgym.decoder.session import DecoderSession
from draftgym.decoder.tree import DraftTree
from tests.tiny import tiny_pair

CPU = torch.device("cpu")
VOCABULARY = 12


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """Token path of every node, the root left out."""
    found: list[tuple[int, ...]] = [()]
    for node in range(1, tree.size + 1):
        found.append((*found[int(tree.parents[node])], int(tree.tokens[node])))
    return found[1:]


def law(path: tuple[int, ...], seed: int) -> torch.Tensor:
    """A model of the next token that depends on the path alone."""
    generator = torch.Generator().manual_seed(hash((seed, *path)) % 2**31)
    return torch.log_softmax(2 * torch.randn(VOCABULARY, generator=generator), -1)


def mixed(
    seed: int, chain: list[int], scores: list[float], passes: int, width: int
) -> tuple[DraftTree, list[tuple[int, ...]]]:
    """A chain, then `passes` levels of the model; also the paths that were expanded."""
    tree = DraftTree(len(chain) + width + max(0, passes - 1) * width**2, CPU)
    tree.reset(torch.tensor(0))
    tree.add_chain(chain, scores)
    expanded: list[tuple[int, ...]] = []
    for _ in range(passes):
        known = [(), *paths(tree)]
        frontier = [known[int(node)] for node in tree.frontier]
        expanded += frontier
        log_probs = torch.stack([law(path, seed) for path in frontier])
        grow(tree, log_probs, tree.frontier, tree.frontier_scores, width)
    return tree, expanded


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    chain=st.lists(st.integers(0, VOCABULARY - 1), max_size=5),
    steps=st.lists(st.sampled_from([0.0, 0.01, 0.5, 2.0]), min_size=5, max_size=5),
    passes=st.integers(0, 3),
    width=st.integers(1, 4),
)
def test_one_path_is_one_node_with_the_higher_score(
    seed: int, chain: list[int], steps: list[float], passes: int, width: int
) -> None:
    free = [-sum(steps[: i + 1]) for i in range(len(chain))]
    tree, expanded = mixed(seed, chain, free, passes, width)
    found = paths(tree)
    assert len(set(found)) == len(found)
    score = dict(zip(found, tree.scores[1 : tree.size + 1].tolist(), strict=True))
    score[()] = float(tree.scores[0])
    assert score[()] == 0.0
    chain_paths = [tuple(chain[: i + 1]) for i in range(len(chain))]
    for path in found:
        parent = path[:-1]
        # The model's opinion as it stood when the parent was expanded.
        model = score[parent] + float(law(parent, seed)[path[-1]])
        if path not in chain_paths:
            assert parent in expanded
            assert score[path] == pytest.approx(model, abs=1e-5)
        else:
            ours = free[len(path) - 1]
            best = max(ours, model) if parent in expanded else ours
            assert score[path] == pytest.approx(best, abs=1e-5)
        assert score[path] <= score[parent]
    for parent in expanded:  # the model always adds W of its own
        own = [p for p in found if p[:-1] == parent and p not in chain_paths]
        assert len(own) == width


def test_frontier_is_the_best_of_both() -> None:
    seed, width = 3, 2
    best = int(law((), seed).argmax())
    other = int(law((), seed).argsort(descending=True)[5])
    for token, score in ((best, -3.0), (other, -0.001)):
        tree, _ = mixed(seed, [token, 1], [score, score - 0.01], 1, width)
        assert tree.frontier[0] == 1  # the look-up's node, by its own or by the model's score
        level = [node for node in range(1, tree.size + 1) if int(tree.depths[node]) == 1]
        ranked = sorted(level, key=lambda node: -float(tree.scores[node]))
        assert tree.frontier.tolist() == ranked[:width]
        assert tree.frontier_scores.tolist() == [float(tree.scores[n]) for n in ranked[:width]]


def test_order_is_score_then_depth_then_insertion() -> None:
    tree = DraftTree(6, CPU)
    tree.reset(torch.tensor(0))
    tree.add_chain([5, 6], [-1.0, -1.0])
    log_probs = torch.full((1, 8), -9.0)
    log_probs[0, [2, 3]] = -1.0
    grow(tree, log_probs, tree.frontier, tree.frontier_scores, 2)
    # Nodes: 1, 2 the chain (depths 1, 2), 3, 4 the model's (depth 1); all scores -1.
    assert tree.select(4).tokens.tolist() == [0, 5, 2, 3, 6]


def test_tokens_outside_the_draft_vocabulary_are_proposed_by_the_look_up_alone() -> None:
    vocabulary = DraftVocabulary(torch.tensor([1, 4, 6]), 8)
    tree = DraftTree(4, CPU)
    tree.reset(torch.tensor(0))
    tree.add_chain([5, 4], [-0.5, -0.6])
    log_probs = torch.log(torch.tensor([[0.2, 0.5, 0.3]]))
    rows = grow(tree, log_probs, tree.frontier, tree.frontier_scores, 2, vocabulary)
    assert paths(tree) == [(5,), (5, 4), (4,), (6,)]
    assert tree.frontier.tolist() == [1, 3] and rows.tolist() == [0, 0]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_both_sources_get_accepted_and_nothing_is_lost(depth: int) -> None:
    pair = tiny_pair(1, "hybrid", eos=frozenset())
    plain = DecoderSession(pair, None, clock=FakeClock())
    plain.start([3, 5, 7, 9], 60)
    plain.run(FixedController(0, 0))
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    session.start([3, 5, 7, 9], 60)
    records = session.run(FixedController(depth, 12))
    assert session.tokens == plain.tokens
    assert sum(record.accepted for record in records) > 5  # this target falls into loops


def test_random_cells_are_lossless_and_depend_on_the_prefix_alone() -> None:
    pair = tiny_pair(2, "hybrid", eos=frozenset())
    answers = []
    for seed in range(4):
        session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock(), max_size=64)
        session.start([9, 8, 7], 70)
        session.run(RandomController(seed, 8, (0, 1, 2, 3, 6, 12, 32, 64)))
        answers.append(session.tokens)
    assert answers.count(answers[0]) == 4


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_truncation_never_expands_the_root_again(top_k: int) -> None:
    """Fewer continuations than the beam is wide: impossible ones fill it, not a stand-in row."""
    sampling = SamplingConfig(temperature=1.0, top_k=top_k)
    pair = tiny_pair(1, "hybrid", eos=frozenset(), sampling=sampling)
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock(), max_size=116)
    session.start([3, 5, 7, 9, 3, 5, 7], 60)
    free = 0
    while not session.finished:
        state = session.begin_round()
        while state.depth < min(4, state.max_depth):
            session.draft()
        tree = session._tree
        nodes = slice(1, tree.size + 1)
        parents = tree.parents[nodes]
        torch.testing.assert_close(tree.depths[nodes], tree.depths[parents] + 1)
        assert bool((tree.scores[nodes] <= tree.scores[parents]).all())
        free += tree.free
        session.end_round(116)
    assert free > 0
