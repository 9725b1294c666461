"""A trace tells of every round what the live decoder does there, whatever it is asked for."""

from __future__ import annotations

import random

import numpy as np
import pytest

from draftgym.clock import FakeClock
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.rules import new_rule
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError
from draftgym.state import NO_CONFIDENCE, Confidence, RoundRecord, RoundState
from draftgym.traces.collect import Columns, Tracer
from draftgym.traces.trace import Trace, TracedSequence
from tests.exactness.worlds import WORLDS, World, build_pair, new_drafter, new_session

GRID = (0, 1, 2, 3, 5, 8, 13, 40)
LAWS = {
    "greedy": SamplingConfig(),
    "coupled": SamplingConfig(temperature=0.9, seed=5),
    "truncated": SamplingConfig(temperature=1.2, seed=6, top_k=5),
}


class Witness:
    """Any depth and size; keeps what it was shown at every level."""

    free = True

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.shown: list[list[tuple[int, Confidence]]] = []
        self.records: list[RoundRecord] = []
        self.limits: list[int] = []

    def reset(self) -> None:
        """Used once."""

    def _look(self, state: RoundState) -> None:
        seen = state.read_confidence() if state.nodes else NO_CONFIDENCE
        self.shown[-1].append((state.nodes, seen))

    def draft_again(self, state: RoundState) -> bool:
        if state.depth == 0:
            self._depth = self._random.randint(0, state.max_depth)
            self.shown.append([])
        self._look(state)
        return state.depth < self._depth

    def choose_size(self, state: RoundState) -> int:
        if state.depth == state.max_depth:  # not asked whether to go deeper
            if state.depth == 0:
                self.shown.append([])
            self._look(state)
        self.limits.append(state.max_depth)
        return self._random.choice(GRID)

    def observe(self, record: RoundRecord) -> None:
        self.records.append(record)


def traced(session: DecoderSession, tracer: Tracer, prompt: list[int], budget: int) -> Trace:
    tokens = tracer.decode(prompt, budget, sequence=3)
    request = TracedSequence("p", "code", "en", len(prompt), tuple(tokens), budget, 3)
    return as_trace(session, tracer, request, tracer.columns())


def as_trace(
    session: DecoderSession, tracer: Tracer, request: TracedSequence, columns: Columns
) -> Trace:
    zeros = np.zeros(len(request.tokens) - 1, np.int32)
    return Trace(
        shape=tracer.shape,
        sequences=(request,),
        context_limit=session.context_limit,
        source={},
        sequence=zeros,
        **columns,
    )


def tracing(world: World, drafter: str, law: str) -> tuple[DecoderSession, Tracer]:
    pair = build_pair(world)
    session = new_session(pair, world, drafter)
    session.rule = new_rule(LAWS[law])
    return session, Tracer(session, new_drafter(pair, drafter), GRID)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: f"world{world.seed}")
@pytest.mark.parametrize("drafter", ["hybrid", "eagle3", "ngram"])
@pytest.mark.parametrize("law", LAWS)
def test_every_round_of_a_random_controller(world: World, drafter: str, law: str) -> None:
    session, tracer = tracing(world, drafter, law)
    live = new_session(session.pair, world, drafter)
    live.rule = new_rule(LAWS[law])
    choices = random.Random(f"{world.seed}/{drafter}/{law}")
    kept = 0
    for budget in (37, 5, 2):
        motif = [choices.randrange(world.vocab) for _ in range(4)]
        prompt = (motif * 3)[: choices.randint(1, 11)]
        trace = traced(session, tracer, prompt, budget)
        witness = Witness(budget)
        live.start(prompt, budget, 3)
        live.run(witness)
        assert tuple(live.tokens) == trace.sequences[0].tokens
        emitted = 1
        rounds = zip(witness.records, witness.shown, witness.limits, strict=True)
        for record, shown, limit in rounds:
            compare(trace, emitted, record, shown, limit)
            emitted += record.emitted
            kept += record.accepted
        assert emitted == len(live.tokens)
    if drafter == "hybrid" or world.vocab == 16:  # elsewhere random heads are rarely right
        assert kept > 0, "nothing was accepted: nothing was tested"


def compare(
    trace: Trace,
    emitted: int,
    record: RoundRecord,
    shown: list[tuple[int, Confidence]],
    limit: int,
) -> None:
    at = emitted - 1
    row = np.array([at])
    assert trace.emitted[at] == emitted
    assert trace.depth_limit[at] == limit
    assert trace.nodes[at, record.depth] == record.nodes
    accepted = int(trace.accepted(row, np.array([record.depth]), np.array([record.size]))[0])
    assert accepted == record.accepted
    left = len(trace.sequences[0].tokens) - emitted
    assert record.emitted == min(accepted + 1, left)
    for level, (nodes, belief) in enumerate(shown):
        assert trace.nodes[at, level] == nodes
        width = len(belief.frontier_scores)
        frontier = trace.frontier[at, level]
        np.testing.assert_allclose(frontier[:width], belief.frontier_scores, atol=1e-4)
        assert np.isneginf(frontier[width:]).all()
        assert trace.entropy[at, level] == pytest.approx(belief.entropy, abs=1e-4)
        assert trace.margin[at, level] == pytest.approx(belief.margin, abs=1e-4)
        sums = np.cumsum([0.0, *np.exp(belief.node_scores)])
        wanted = sums[np.minimum(GRID, nodes)]
        np.testing.assert_allclose(trace.partial[at, level], wanted, atol=1e-4)
        assert trace.total[at, level] == pytest.approx(sums[-1], abs=1e-4)


def test_levels_past_the_limit_repeat_it() -> None:
    session, tracer = tracing(WORLDS[0], "hybrid", "greedy")
    trace = traced(session, tracer, [1, 2, 3], 6)
    limits = trace.depth_limit.tolist()
    assert limits == [4, 3, 2, 1, 0]
    for at, limit in enumerate(limits):
        for name in ("nodes", "frontier", "partial", "rank"):
            column = getattr(trace, name)[at]
            assert all(np.array_equal(column[limit], deeper) for deeper in column[limit:])


def test_what_cannot_be_traced_is_refused() -> None:
    world = WORLDS[0]
    pair = build_pair(world)
    session = new_session(pair, world, "eagle3")
    session.rule = new_rule(SamplingConfig(temperature=1.0, rule="rejection"))
    with pytest.raises(ConfigurationError, match="text depends on what is drafted"):
        Tracer(session, new_drafter(pair, "eagle3"), GRID)
    session = new_session(pair, world, "lm_itself")
    with pytest.raises(ConfigurationError, match="'lm' cannot be traced"):
        Tracer(session, new_drafter(pair, "lm_itself"), GRID)
    plain = DecoderSession(pair, None, clock=FakeClock())
    with pytest.raises(ConfigurationError, match="needs a drafter"):
        Tracer(plain, None, GRID)


def test_a_budget_beyond_the_drafter_is_refused() -> None:
    _, tracer = tracing(WORLDS[1], "eagle3", "greedy")
    with pytest.raises(ConfigurationError, match=r"max_new_tokens: 5 prompt tokens and 80"):
        tracer.decode([1] * 5, 80, 0)
