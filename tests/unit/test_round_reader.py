"""What a reader remembers of one round never reaches another."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from draftgym.features import FeatureLayout
from draftgym.round_reader import RoundReader, promised
from draftgym.state import Confidence, History, RoundState
from tests.unit.test_features import confidence, state

LAYOUT = FeatureLayout()


def history(*rounds: tuple[int, int, int]) -> History:
    made = History()
    for numbers in rounds:
        made.append(*numbers)
    return made


def read(reader: RoundReader, observed: RoundState) -> list[float]:
    """Both observations, the depth's asked for first as in a round."""
    depth, size = reader.depth(observed), reader.size(observed)
    assert size[: len(depth)] == depth
    return size


def test_entries_are_those_of_the_layout() -> None:
    reader = RoundReader(LAYOUT)
    observed = state(confidence([-0.5], [-0.5, -1.0]), history=history((1, 2, 4)))
    assert len(reader.depth(observed)) == len(LAYOUT.depth_names)
    values = dict(zip(LAYOUT.size_names, read(reader, observed), strict=True))
    assert values["accepted_1"] == 1
    assert values["verified_1"] == 4
    assert values["uningested"] == 1.0
    assert values["expected_accepted_1"] == math.exp(-0.5)
    assert values["expected_accepted_32"] == values["expected_accepted"]


def test_one_reader_sees_what_fresh_ones_see() -> None:
    """Rounds of several requests in any order, histories that grow, are replaced and come back."""
    first, second = history((1, 2, 4)), history((3, 4, 8))  # of the same number of rounds
    beliefs = [confidence([-0.1 * i - 0.1], [-0.1 * i - 0.1, -1.0 - i]) for i in range(3)]
    reader, random = RoundReader(LAYOUT), np.random.default_rng(0)
    for step in range(300):
        known = (first, second)[random.integers(2)]
        if random.random() < 0.3:
            known.append(*(int(number) for number in random.integers(0, 9, 3)))
        if step % 50 == 49:  # the next request starts with as many rounds as the last one had
            first = history(*[(0, 1, 1)] * first.rounds)
        observed = state(
            beliefs[random.integers(3)],
            history=known,
            depth=int(random.integers(0, 3)),
            uningested_tokens=int(random.integers(0, 5)),
            remaining_tokens=int(random.integers(1, 64)),
        )
        assert read(reader, observed) == read(RoundReader(LAYOUT), observed)


def test_a_pass_replaces_what_the_tree_promised() -> None:
    """The state is the same object, the tree as large as before: a look-up's score was raised."""
    reader, observed = RoundReader(LAYOUT), state(confidence([-2.0], [-2.0, -3.0]))
    before = read(reader, observed)
    raised = confidence([-0.5], [-0.5, -3.0])
    observed.read_confidence = lambda law=True: raised
    place = LAYOUT.size_names.index("expected_accepted_2")
    after = read(reader, observed)
    assert before[place] == math.exp(-2.0) + math.exp(-3.0)
    assert after[place] == math.exp(-0.5) + math.exp(-3.0)
    empty = dataclasses.replace(observed, nodes=0)
    assert read(reader, empty)[place] == 0.0
    assert read(reader, observed) == after


def test_a_round_is_summed_up_once() -> None:
    class Counted(list[float]):
        times = 0

        def __iter__(self):  # type: ignore[no-untyped-def]
            Counted.times += 1
            return super().__iter__()

    belief = Confidence((-0.5,), 1.0, 0.5, Counted([-0.5, -1.0]))
    reader, observed = RoundReader(LAYOUT), state(belief)
    read(reader, observed)
    assert Counted.times == 1


@pytest.mark.parametrize(
    ("scores", "sums"),
    [
        ((), [0.0]),
        ((0.0, -math.inf), [0.0, 1.0, 1.0]),
        ((math.nan, 0.25, math.inf), [0.0, 0.0, 1.0, 2.0]),
        ((-1.0, -800.0), [0.0, math.exp(-1.0), math.exp(-1.0)]),
    ],
)
def test_promised_tokens(scores: tuple[float, ...], sums: list[float]) -> None:
    assert promised(scores) == sums
