"""Rules on traces: the script is a live session, and tuning finds what is best."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from draftgym.controllers import RULES, Fitted, RoundCosts, Rule, Settings, Space, TunedRule, tune
from draftgym.controllers.base import GRID_LIMIT
from draftgym.decoder.controllers import FixedController
from draftgym.state import Controller, RoundRecord, RoundState
from draftgym.traces.scripted import ScriptedTrace, node_scores
from tests.unit.trace_session import (
    COSTS,
    LAYOUT,
    LENGTHS,
    TickTimes,
    TraceSession,
    believable_trace,
)

TRACE, SCORES = believable_trace()
TIMES = TickTimes()
SPACE = Space.of(TRACE.shape, True, RoundCosts.of(TIMES, TRACE, LAYOUT.max_size), COSTS)


def script() -> ScriptedTrace:
    return ScriptedTrace(TRACE, TIMES, COSTS, history=LAYOUT.history)


class Curious:
    """Reads all that it may; its answers hang on what it saw and on what it was told."""

    free = False

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []
        self.told: list[RoundRecord] = []

    def reset(self) -> None:
        self.told = []

    def draft_again(self, state: RoundState) -> bool:
        self._look(state)
        return (len(self.told) + state.depth) % 3 != 2

    def choose_size(self, state: RoundState) -> int:
        self._look(state)
        return (0, 2, 3, 4)[(len(self.told) + state.depth) % 4]

    def observe(self, record: RoundRecord) -> None:
        self.told.append(record)

    def _look(self, state: RoundState) -> None:
        known = state.read_confidence() if state.nodes else None
        self.seen.append((
            state.depth, state.nodes, state.max_depth, state.max_size, state.context_tokens,
            state.context_limit, state.remaining_tokens, state.max_new_tokens,
            state.uningested_tokens, tuple(state.history.accepted), state.costs,
            known and (tuple(map(np.float32, known.frontier_scores)), known.entropy, known.margin),
        ))  # fmt: skip


def live(controller: Controller) -> list[list[RoundRecord]]:
    session, found = TraceSession(TRACE, SCORES), []
    for sequence in range(len(LENGTHS)):
        session.start([sequence], 1)
        controller.reset()
        records = []
        while not session.finished:
            state = session.begin_round()
            while state.depth < state.max_depth and controller.draft_again(state):
                session.draft()
            records.append(session.end_round(controller.choose_size(state)))
            controller.observe(records[-1])
        found.append(records)
    return found


def test_a_script_shows_and_tells_what_a_session_does() -> None:
    scripted, session = Curious(), Curious()
    played = [script().play(sequence, scripted) for sequence in range(len(LENGTHS))]
    assert played == live(session)
    assert scripted.seen == session.seen and len(scripted.seen) > 40


def test_seconds_are_those_of_the_rounds() -> None:
    cell = FixedController(2, 3)
    expected = [math.fsum(record.seconds for record in records) for records in live(cell)]
    assert script().seconds(cell).tolist() == expected
    assert script().tokens.tolist() == [length - 1 for length in LENGTHS]


def test_node_scores_keep_the_sums_of_the_grid() -> None:
    for row in range(len(TRACE)):
        for depth in range(TRACE.shape.max_depth + 1):
            scores = node_scores(TRACE, row, depth)
            assert len(scores) == TRACE.nodes[row, depth]
            assert scores == sorted(scores, reverse=True) or np.allclose(
                scores, sorted(scores, reverse=True), atol=1e-5
            )
            sums = [sum(map(math.exp, scores[:size])) for size in TRACE.shape.size_grid]
            np.testing.assert_allclose(sums, TRACE.partial[row, depth], rtol=1e-5, atol=1e-6)


class Planted(Rule):
    """Fixed cells, one of which is the best by far."""

    name, title, source = "fixed", "planted", "test"

    def grid(self, space: Space) -> list[Settings]:
        return [{"depth": depth, "size": 2} for depth in (3, 0, 1)]

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        return FixedController(int(settings["depth"]), int(settings["size"]))


def test_tuning_ranks_by_time_per_token() -> None:
    steps = []
    tuned = tune(Planted(), {}, script(), SPACE, advance=lambda: steps.append(1))
    paces = [
        script().seconds(FixedController(int(trial.settings["depth"]), 2)).sum()
        / script().tokens.sum()
        for trial in tuned.trials
    ]
    assert [trial.seconds_per_token for trial in tuned.trials] == paces == sorted(paces)
    assert len(steps) == 3 and tuned.prompts == sum(length > 1 for length in LENGTHS)


class Greedy(Planted):
    def grid(self, space: Space) -> list[Settings]:
        return [{"depth": 1, "size": 2}] * (GRID_LIMIT + 1)


def test_no_rule_may_try_more_than_the_others() -> None:
    with pytest.raises(ValueError, match=f"fixed: {GRID_LIMIT + 1} settings"):
        tune(Greedy(), {}, script(), SPACE)


@pytest.mark.parametrize("name", list(RULES))
def test_every_rule_is_fitted_tuned_stored_and_played(name: str) -> None:
    rule = RULES[name]
    fitted = rule.fit(TRACE, TIMES, SPACE, 0)
    stored = json.loads(json.dumps(fitted))
    tuned = tune(rule, stored, script(), SPACE)
    again = TunedRule.from_data(json.loads(json.dumps(tuned.as_data())))
    assert again == tuned and again.as_data() == tuned.as_data()
    first = script().seconds(again.controller(SPACE, seed=3))
    second = script().seconds(tuned.controller(SPACE, seed=3))
    assert first.tolist() == second.tolist() and np.isfinite(first).all()
    assert rule.title and rule.source
    for settings in rule.grid(SPACE):
        assert all(math.isfinite(value) for value in settings.values())


@pytest.mark.parametrize("name", list(RULES))
def test_every_rule_decides_alike_however_often_it_is_asked(name: str) -> None:
    """Sizes are integers of at least 0; depths end."""
    rule = RULES[name]
    fitted = rule.fit(TRACE, TIMES, SPACE, 0)
    for settings in rule.grid(SPACE):
        controller = rule.controller(SPACE, settings, fitted, 0)
        for sequence in range(len(LENGTHS)):
            for record in script().play(sequence, controller):
                assert isinstance(record.requested_size, int) and record.requested_size >= 0


def test_round_costs_are_the_tables() -> None:
    costs = SPACE.costs
    assert len(costs.verify) == LAYOUT.max_size + 1
    assert costs.verify[3] - costs.verify[2] == pytest.approx(31 / 2**15)
    assert costs.draft_pass == pytest.approx(23 / 2**15, rel=0.2)
