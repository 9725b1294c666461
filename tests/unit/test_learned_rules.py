"""Rules that learn from traces: calibration, survival against brute force, classifiers, PPO."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from draftgym.commands import learn as command
from draftgym.controllers import RULES, Fitted, RoundCosts, Space
from draftgym.controllers import calibration as module
from draftgym.controllers.calibration import curve, isotonic, round_starts
from draftgym.controllers.classifier import Classifier, fit_classifier
from draftgym.controllers.survival import SurvivalController
from draftgym.runtime import load
from draftgym.state import Confidence, Controller, History, MeasuredCosts, RoundState
from draftgym.traces.scripted import ScriptedTrace
from draftgym.traces.trace import ABSENT, Trace
from policies import learning_to_draft
from policies.learning_to_draft import ROLLOUTS, SIZE_PPO, TURNS, unseen
from tests.unit.test_bound import PAIR
from tests.unit.test_information import SimpleTimes
from tests.unit.test_learn import table_file, write
from tests.unit.traces import make_trace

LEARNED = ("survival", "disco", "specdecpp", "c2t")
GRID, DEEPEST, PROMPTS, LENGTH = (0, 1, 2, 4), 3, 24, 60
KINDS = COPIED, GOOD, BAD = range(3)
"""Look-ups that are right; a head that is right for two tokens; one that never is."""

SURE, SOME, LITTLE = math.log(0.9), math.log(0.8), math.log(0.02)
SCORES = {  # of the best nodes, by kind and passes; all other nodes are LITTLE
    COPIED: ([SURE] * 4, *([SURE] * 4,) * 3),
    GOOD: ([], [SURE], [SURE, SOME], [SURE, SOME]),
    BAD: ([], [], [], []),
}
ACCEPTED = {COPIED: (4, 4, 4, 4), GOOD: (0, 1, 2, 2), BAD: (0, 0, 0, 0)}
TIMES = SimpleTimes()
COSTS = MeasuredCosts(0.1, 0.1)


def planted_trace() -> tuple[Trace, list[int]]:
    """Three kinds of positions, told by scores as soon as they can be; and the kinds."""
    random = np.random.default_rng(0)
    rows = PROMPTS * (LENGTH - 1)
    kinds = random.choice(KINDS, rows, p=(0.3, 0.5, 0.2))
    rank = np.full((rows, DEEPEST + 1, 4), ABSENT)
    plain = make_trace(rank.tolist(), (LENGTH,) * PROMPTS, size_grid=GRID, budget=LENGTH + 9)
    nodes, frontier = plain.nodes.copy(), np.full_like(plain.frontier, -np.inf)
    partial, entropy = np.zeros_like(plain.partial), np.zeros_like(plain.entropy)
    total = np.zeros_like(plain.total)
    for row, depth in product(range(rows), range(DEEPEST + 1)):
        kind = int(kinds[row])
        rank[row, depth, : ACCEPTED[kind][depth]] = range(ACCEPTED[kind][depth])
        best = SCORES[kind][depth]
        scores = [*best, *[LITTLE] * (4 * depth)]
        nodes[row, depth] = len(scores)
        sums = [0.0, *np.cumsum(np.exp(scores))]
        partial[row, depth] = [sums[min(size, len(scores))] for size in GRID]
        total[row, depth] = sums[-1]
        if scores:
            newest = best[-1:] if kind != BAD and (kind == COPIED or depth < DEEPEST) else []
            frontier[row, depth] = [*newest, LITTLE, LITTLE][:2]
            entropy[row, depth] = 0.2 if newest else 4.0
    changed = replace(
        plain, rank=rank.astype(np.int16), nodes=nodes, frontier=frontier, partial=partial,
        total=total, entropy=entropy,
    )  # fmt: skip
    return changed, kinds.tolist()


TRACE, ROW_KINDS = planted_trace()
SPACE = Space.of(TRACE.shape, True, RoundCosts.of(TIMES, TRACE, GRID[-1]), COSTS)


@pytest.fixture(scope="module")
def fitted() -> dict[str, Fitted]:
    return {name: RULES[name].fit(TRACE, TIMES, SPACE, 0) for name in LEARNED}


def cells(controller: Controller) -> dict[int, set[tuple[int, int]]]:
    """Depths and sizes of rounds by kind of position, the ends of texts left out."""
    script = ScriptedTrace(TRACE, TIMES, COSTS)
    found: dict[int, set[tuple[int, int]]] = {kind: set() for kind in KINDS}
    for sequence in range(PROMPTS):
        row = int(TRACE.first[sequence])
        for record in script.play(sequence, controller):
            if row < TRACE.first[sequence + 1] - 8:
                found[ROW_KINDS[row]].add((record.depth, record.size))
            row += record.emitted
    return found


def test_isotonic_regression_pools_what_falls() -> None:
    assert isotonic([1, 3, 2, 4], [1, 1, 1, 1]).tolist() == [1, 2.5, 2.5, 4]
    assert isotonic([2, 1], [1, 3]).tolist() == [1.25, 1.25]
    assert isotonic([3, 2, 1], [1, 1, 2]).tolist() == [1.75, 1.75, 1.75]  # (3 + 2 + 2) / 4
    assert isotonic([0, 5, 4, 0, 9], [1, 1, 1, 1, 1]).tolist() == [0, 3, 3, 3, 9]
    assert isotonic([], []).tolist() == []


def test_curves_are_steps_of_equal_weight() -> None:
    promised, observed = np.array([0.3, 0.1, 0.2, 0.4]), np.array([1.0, 0.0, 0.5, 0.75])
    even = np.ones(4)
    assert curve(promised, observed, even, 4) == ([0.1, 0.2, 0.3], [0.0, 0.5, 0.875])
    assert curve(promised, observed, even, 2) == ([0.1, 0.3], [0.25, 0.875])
    assert curve(promised, observed, np.array([1.0, 3.0, 1.0, 1.0]), 2) == (
        [0.1, 0.2],
        [0.0, 0.75],
    )
    assert curve(np.full(3, 0.5), np.array([0.0, 1.0, 1.0]), np.ones(3), 5) == ([0.5], [2 / 3])


def test_positions_count_as_often_as_rounds_start_there(monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = [[ABSENT, ABSENT], [0, 1]], [[ABSENT, ABSENT], [ABSENT, ABSENT]]
    trace = make_trace([right, wrong, wrong, wrong, right, wrong], (6, 2), budget=20)
    monkeypatch.setattr(module, "STARTS", 1)
    # From the first position a round leaps over two; the second text is one round.
    assert round_starts(trace, 1, 2).tolist() == [1, 0, 0, 1, 1, 1]
    assert round_starts(trace, 0, 2).tolist() == [1, 1, 1, 1, 1, 1]
    monkeypatch.setattr(module, "STARTS", 2)
    assert round_starts(trace, 1, 2).tolist() == [0.5, 0.5, 0.5, 1, 1, 0.5]


def test_survival_finds_the_planted_cells(fitted: dict[str, Fitted]) -> None:
    """What each kind is can be told after a look at its scores: brute force over all cells."""

    def rate(kind: int, depth: int, size: int) -> float:
        accepted = min(ACCEPTED[kind][depth], size)
        return (1 + accepted) / (depth + 10 + size)

    best = {}
    for kind in KINDS:
        told = 0 if kind == COPIED else 1  # good and bad ones differ after the first pass only
        best[kind] = max(
            product(range(told, DEEPEST + 1), GRID), key=lambda cell: rate(kind, *cell)
        )
    assert best == {COPIED: (0, 4), GOOD: (2, 2), BAD: (1, 0)}
    plain = {"pass_price": 1.0, "verify_price": 1.0, "credit_tokens": 0.0}
    controller = RULES["survival"].controller(SPACE, plain, fitted["survival"], 0)
    assert cells(controller) == {kind: {cell} for kind, cell in best.items()}
    dear = {**plain, "pass_price": 12.0}
    assert {depth for depth, _ in set().union(*cells(
        RULES["survival"].controller(SPACE, dear, fitted["survival"], 0)
    ).values())} == {0}  # fmt: skip


def state(depth: int, nodes: int, known: Confidence, **changes: int) -> RoundState:
    values = {"max_depth": 3, "max_size": 4, "remaining_tokens": 50, **changes}
    return RoundState(
        depth=depth, nodes=nodes, context_tokens=9, context_limit=99, max_new_tokens=60,
        uningested_tokens=0, history=History(), costs=COSTS, read_confidence=lambda law=True: known,
        **values,
    )  # fmt: skip


def test_survival_decides_as_brute_force_does_on_random_tables() -> None:
    """Against the definition, written out plainly, with random calibration and costs."""
    random = np.random.default_rng(5)
    said = set()
    for _ in range(300):
        begins = np.sort(random.uniform(-3, 0, 4)).tolist()
        heights = np.sort(random.uniform(0, 1, 4)).tolist()
        gain = random.uniform(0, 1, (2, 4)).tolist()
        costs = RoundCosts(*random.uniform(0.1, 4, 2), tuple(random.uniform(5, 9, 5)), 0.5)
        settings = {"pass_price": 0.9, "verify_price": 1.2, "credit_tokens": random.uniform()}
        rule = SurvivalController(
            replace(SPACE, costs=costs), settings, {"0/1": (begins, heights)},
            {"0/1": ([0.8], gain)},
        )  # fmt: skip
        scores = sorted(random.uniform(-4, 0, int(random.integers(1, 7))), reverse=True)
        known = Confidence(scores[:2], 1.0, 0.5, scores)
        here = state(1, len(scores), known, remaining_tokens=int(random.integers(3, 9)))

        def calibrated(score: float, begins: list[float], heights: list[float]) -> float:
            below = [h for b, h in zip(begins, heights, strict=True) if b <= score]
            return below[-1] if below else heights[0]

        room, credit = here.remaining_tokens - 1, 1 + settings["credit_tokens"]
        nodes = [calibrated(score, begins, heights) for score in scores]
        expected = [min(sum(nodes[:size]), room) for size in GRID]
        spent = 0.5 + 0.9 * costs.first_pass
        stop = [
            (credit + tokens) / (spent + 1.2 * costs.verify[min(size, len(scores))])
            for tokens, size in zip(expected, GRID, strict=True)
        ]
        row = gain[sum(map(math.exp, scores[:2])) >= 0.8]
        go = [
            (credit + min(tokens + more, room))
            / (spent + 0.9 * costs.draft_pass + 1.2 * costs.verify[size])
            for tokens, more, size in zip(expected, row, GRID, strict=True)
        ]
        assert rule.choose_size(here) == GRID[int(np.argmax(stop))]
        assert rule.draft_again(here) == (max(go) > max(stop))
        said.add((rule.draft_again(here), rule.choose_size(here)))
    assert len(said) >= 6


def test_a_classifier_finds_a_planted_boundary() -> None:
    random = np.random.default_rng(1)
    inputs = random.uniform(-1, 1, (4000, 2)) * (1.0, 50.0) + (0.0, 7.0)
    planted = inputs[:, 0] + (inputs[:, 1] - 7.0) / 50.0 > 0.2
    data = fit_classifier(inputs, planted, np.ones(len(inputs)), 0)
    classify = Classifier(json.loads(json.dumps(data)))
    found = np.array([classify(row) for row in inputs[:1000].tolist()]) > 0.5
    assert (found == planted[:1000]).mean() > 0.97
    rare = fit_classifier(inputs, planted, np.where(planted, 1e-3, 1.0), 0)
    assert np.mean([Classifier(rare)(row) < 0.5 for row in inputs[:200].tolist()]) > 0.95


@pytest.mark.parametrize(("name", "threshold"), [("disco", 0.5), ("specdecpp", 0.6)])
def test_classifiers_stop_where_the_draft_is_wrong(
    fitted: dict[str, Fitted], name: str, threshold: float
) -> None:
    settings = {"threshold": threshold, "look_up": 1.0, "size": 4}
    found = cells(RULES[name].controller(SPACE, settings, fitted[name], 0))
    assert found[BAD] == {(1, 4)}
    assert {depth for depth, _ in found[GOOD]} == {3}, "right until the second, tried the third"
    always = RULES[name].controller(SPACE, {**settings, "threshold": {"disco": 0.0}.get(name, 1.0)},
                                    fitted[name], 0)  # fmt: skip
    assert {depth for depth, _ in set().union(*cells(always).values())} == {DEEPEST}


def test_pruning_keeps_the_nodes_that_are_right(fitted: dict[str, Fitted]) -> None:
    settings = {"threshold": 0.5, "most_depth": 2}
    found = cells(RULES["c2t"].controller(SPACE, settings, fitted["c2t"], 0))
    assert found[BAD] == {(1, 0)}
    assert found[GOOD] == {(2, 2)}
    assert found[COPIED] == {(2, 4)}


@pytest.mark.parametrize("name", LEARNED)
def test_fitting_again_gives_the_same_plain_data(fitted: dict[str, Fitted], name: str) -> None:
    again = RULES[name].fit(TRACE, TIMES, SPACE, 0)
    assert json.loads(json.dumps(again)) == json.loads(json.dumps(fitted[name]))
    stored = json.loads(json.dumps(fitted[name]))
    settings = RULES[name].grid(SPACE)[0]
    fresh, kept = (
        RULES[name].controller(SPACE, settings, data, 0) for data in (fitted[name], stored)
    )
    assert cells(fresh) == cells(kept)
    single = TRACE.select(np.array([0]))
    assert json.dumps(RULES[name].fit(single, TIMES, SPACE, 0)), "few rows are enough"


def test_learning_to_draft_sees_what_its_paper_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ROLLOUTS * SIZE_PPO.rollout_steps * TURNS // 2 == pytest.approx(100_000, rel=0.01)
    monkeypatch.setattr(learning_to_draft, "ROLLOUTS", 2)
    arguments = ["--trace", write(tmp_path / "trace"), "--table", table_file(tmp_path)]
    assert command.main([*arguments, "--output", str(tmp_path / "out"), "--as-published"]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["held_out"]["over_tuned_cell"] > 0 and line["held_out"]["prompts"] > 0
    policy = load(line["policy"], PAIR).policy
    assert policy.reward == {"kind": "throughput"}
    assert policy.training["method"] == "learning to draft"
    assert policy.size is not None and policy.depth is not None
    assert (policy.size.hidden, policy.depth.hidden) == ((1024, 256), (1024,))
    hidden = set(unseen(policy.layout))
    assert {"accepted_1", "entropy", "draft_pass_over_plain"} <= hidden
    for head, names in (
        (policy.size, policy.layout.size_names),
        (policy.depth, policy.layout.depth_names),
    ):
        told = {name for name, column in zip(names, head.weights[0].T, strict=True) if column.any()}
        assert told == set(names) - hidden
    assert {name.rstrip("0123456789") for name in told} == {
        "frontier_score_", "context_fraction", "depth"
    }  # fmt: skip
