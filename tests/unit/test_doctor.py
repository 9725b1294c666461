"""The doctor's arithmetic and words, on traces and costs made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftgym.benchmark.runner import Measurement, Sample
from draftgym.benchmark.statistics import StatisticsError
from draftgym.benchmark.summary import PLAIN
from draftgym.doctor.cells import (
    Cells,
    acceptance_by_position,
    cost_error,
    measured_cells,
    traced_cells,
)
from draftgym.doctor.diagnosis import Diagnosis, Figures, diagnose
from draftgym.state import RoundRecord
from draftgym.theory.landscape import LinearTimes
from draftgym.traces.trace import ABSENT, Trace
from tests.unit.traces import make_trace

TOKENS = 33


def drafted(*right: float, requests: int = 8, free: float = 0.0, seed: int = 1) -> Trace:
    """A trace of three levels whose j-th pass is right as often as told, given the one before.

    Args:
        right: Of each pass, two of them.
        requests: Texts.
        free: How often a look-up of one token is right.
        seed: Of the luck.
    """
    random = np.random.default_rng(seed)
    rows = requests * (TOKENS - 1)
    rank = np.full((rows, 3, 2), ABSENT, np.int16)
    lookup = random.random(rows) < free
    first = lookup | (random.random(rows) < right[0])
    second = first & (random.random(rows) < right[1])
    rank[lookup, 0, 0] = 0
    rank[first, 1:, 0] = 0
    rank[second, 2, 1] = 1
    trace = make_trace(rank, [TOKENS] * requests, budget=40)
    if not free:
        trace.nodes.flags.writeable = True
        trace.nodes[:, 0] = 0
    return trace


def figures(
    draft: float, slope: float, acceptance: tuple[float, ...] = (0.5,), **changes: float
) -> Figures:
    known = {"unsteadiness": 1.05, "load": 0.1, **changes}
    curve = {size: 1 + slope * size for size in (1, 2, 4, 8)}
    return Figures(0.04, draft, curve, acceptance, **known)


def answer(trace: Trace, draft: float, slope: float, **changes: float) -> Diagnosis:
    cells = traced_cells(trace, LinearTimes(draft, slope))
    acceptance = tuple(acceptance_by_position(trace, 2))
    return diagnose(cells, figures(draft, slope, acceptance, **changes))


def test_cheap_and_accepted_drafts_pay() -> None:
    found = answer(drafted(0.8, 0.7), draft=0.05, slope=0.02)
    assert found.verdict == "speculate"
    assert found.cell == (2, 2)
    # A round costs two passes and two checked tokens, and keeps 0.8 + 0.8 * 0.7 tokens.
    assert found.speedup.estimate == pytest.approx((1 + 0.8 + 0.56) / 1.14, rel=0.06)
    assert 1 < found.speedup.low < found.speedup.estimate < found.speedup.high
    assert found.summary.startswith("Speculation pays here: about 1.9")
    assert "2 draft passes and up to 2 drafted tokens checked" in found.summary
    assert len(found.advice) == 1
    assert "generate --depth 2 --size 2" in found.advice[0]


def test_a_slow_drafter_is_named_with_its_limit() -> None:
    trace = drafted(0.5, 0.1)
    found = answer(trace, draft=0.9, slope=0.01)
    assert found.verdict == "do not speculate"
    assert found.speedup.high < 1
    assert len(found.advice) == 1 and "Drafter too slow: a pass takes 0.90" in found.advice[0]
    cells = traced_cells(trace, LinearTimes(0.9, 0.01))
    assert cells.pass_limit is not None
    highest = 0.9 * cells.pass_limit
    assert f"above {highest:.2f} passes" in found.advice[0]
    # At the limit the best cell that drafts is as fast as plain decoding.
    at_limit = traced_cells(trace, LinearTimes(highest, 0.01))
    assert at_limit.over_plain(at_limit.seconds) == pytest.approx(1.0)


def test_low_acceptance_is_told_from_a_slow_drafter() -> None:
    found = answer(drafted(0.02, 0.0), draft=0.05, slope=0.04)
    assert found.verdict == "do not speculate"
    assert "Acceptance too low (" in found.advice[0]
    assert "passes would not pay even if they were free" in found.why[1]


def test_dear_checking_is_told_from_a_slow_drafter() -> None:
    found = answer(drafted(0.6, 0.5), draft=0.02, slope=0.9)
    assert found.verdict == "do not speculate"
    assert len(found.advice) == 1
    assert "Checking is dear: 8 tokens take 8.20 plain steps" in found.advice[0]


def test_a_range_over_one_is_too_close_to_call() -> None:
    trace = drafted(0.5, 0.5)
    draft = 0.45
    cells = traced_cells(trace, LinearTimes(draft, 0.02))
    found = diagnose(cells, figures(draft, 0.02), error=0.2)
    assert found.verdict == "too close to call"
    assert found.speedup.low < 1 < found.speedup.high
    assert "--seconds" in found.advice[-1]


def test_look_ups_alone_are_recommended_where_passes_add_nothing() -> None:
    found = answer(drafted(0.0, 0.0, free=0.8), draft=0.2, slope=0.02)
    assert found.verdict == "speculate" and found.cell[0] == 0
    assert "no draft pass and up to 1 drafted token checked" in found.summary
    assert "Look-ups alone reach 100% of that speed" in found.advice[0]
    assert "beside look-ups passes would not pay even if they were free" in found.why[1]


def test_a_drafter_that_never_drafts_is_answered() -> None:
    trace = make_trace(np.full((64, 1, 1), ABSENT), [17] * 4)
    trace.nodes.flags.writeable = True
    trace.nodes[:] = 0
    cells = traced_cells(trace, LinearTimes(0.0, 0.1))
    found = diagnose(cells, figures(0.0, 0.1, (0.0,)), error=0.05)
    assert found.verdict == "too close to call" and found.speedup.estimate == 1
    assert "Acceptance too low (0% at the first token)" in found.advice[0]
    assert "Drafting takes no pass" in found.why[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"load": 1.4}, "1.4 processes per core"), ({"unsteadiness": 1.5}, "pace changed by 50%")],
)
def test_a_busy_machine_is_said(changes: dict[str, float], words: str) -> None:
    found = answer(drafted(0.8, 0.7), draft=0.05, slope=0.02, **changes)
    assert words in found.advice[0] and "unreliable" in found.advice[0]


def test_the_cell_of_a_request_is_chosen_on_the_others() -> None:
    # Each cell is very good on its own request and poor elsewhere: hindsight sees no loss.
    seconds = np.array([[0.1, 1.5, 1.5], [1.5, 0.1, 1.5], [1.5, 1.5, 0.1]])
    none = np.zeros((3, 3))
    cells = Cells(
        ((1, 1), (1, 2), (1, 4)), seconds, none, none, np.ones(3), np.full(3, 10.0),
        ("a", "b", "c"), ("x", "x", "x"),
    )  # fmt: skip
    assert cells.over_plain(seconds) == pytest.approx(3 / 3.1)
    assert cells.speedup().estimate == pytest.approx(1 / 1.5)


def test_shared_errors_widen_the_range() -> None:
    cells = traced_cells(drafted(0.8, 0.7), LinearTimes(0.05, 0.02))
    narrow, wide = cells.speedup(), cells.speedup(0.5)
    assert wide.estimate == narrow.estimate
    for before, after in zip(narrow.limits, wide.limits, strict=True):
        expected = math.hypot(math.log(before / narrow.estimate), 0.5)
        assert abs(math.log(after / narrow.estimate)) == pytest.approx(expected)


def test_the_error_of_costs_is_that_of_the_mean_of_four_parts() -> None:
    trace = drafted(0.8, 0.7)
    steady = LinearTimes(0.05, 0.02)
    assert cost_error(trace, [steady] * 4, (2, 2)) == 0
    parts = [LinearTimes(draft, 0.02) for draft in (0.04, 0.05, 0.05, 0.06)]
    speeds = [traced_cells(trace, part) for part in parts]
    logs = [math.log(s.plain.sum() / s.seconds[s.cells.index((2, 2))].sum()) for s in speeds]
    expected = 3.18 * float(np.std(logs, ddof=1)) / 2
    assert cost_error(trace, parts, (2, 2)) == pytest.approx(expected)


def test_acceptance_counts_tokens_in_a_row() -> None:
    trace = make_trace([[[0, 1], [0, 1]], [[0, 9], [0, 9]], [[9, 1], [9, 1]], [[1, 0], [1, 0]]] * 3)
    # Whole positions only: the last two of the text have too little text ahead.
    assert acceptance_by_position(trace, 1) == pytest.approx([0.8, 0.5])


def test_translations_of_a_request_count_once() -> None:
    trace = make_trace(np.zeros((12, 2, 1)), [5, 5, 5])
    cells = traced_cells(trace, LinearTimes(0.1, 0.1))
    assert cells.tokens.tolist() == [4, 4, 4]
    for entry in trace.sequences:
        object.__setattr__(entry, "request_id", "same")
    merged = traced_cells(trace, LinearTimes(0.1, 0.1))
    assert merged.tokens.tolist() == [12] and merged.requests == ("same",)
    np.testing.assert_allclose(merged.seconds[:, 0], cells.seconds.sum(1))
    with pytest.raises(StatisticsError, match="2 prompts"):
        merged.speedup()


def test_texts_without_a_round_are_an_error() -> None:
    trace = make_trace(np.zeros((4, 2, 1)), [5, 1])
    assert traced_cells(trace, LinearTimes(0.1, 0.1)).requests == ("prompt-0",)
    with pytest.raises(ValueError, match="first token"):
        traced_cells(trace.select(np.array([1])), LinearTimes(0.1, 0.1))


def record(accepted: int, draft: float, verify: float) -> RoundRecord:
    return RoundRecord(
        depth=1, nodes=2, requested_size=2, size=2, accepted=accepted, tokens=(5,) * (accepted + 1),
        context_tokens=9, uningested_tokens=1, clamped=False, draft_seconds=draft, pass_seconds=(),
        verify_seconds=verify, commit_seconds=0.0, policy_seconds=0.0, seconds=draft + verify,
    )  # fmt: skip


def test_measured_cells_tell_drafting_and_checking_apart() -> None:
    def sample(method: str, prompt: str, *rounds: RoundRecord) -> Sample:
        seconds, emitted = sum(r.seconds for r in rounds), sum(r.emitted for r in rounds)
        return Sample(method, prompt, 0, Measurement((), seconds, emitted, rounds))

    plain = record(0, 0.0, 1.0)
    samples = [
        *(sample(PLAIN, prompt, *[plain] * 4) for prompt in "ab"),
        sample("one", "a", *[record(1, 0.2, 1.1)] * 2),
        sample("one", "b", record(3, 0.2, 1.5)),
        *(sample(method, "silent") for method in (PLAIN, "one")),
    ]
    domains = {"a": "chat", "b": "code", "silent": "chat"}
    cells = measured_cells(samples, {"one": (1, 2)}, domains)
    assert cells.requests == ("a", "b") and cells.domains == ("chat", "code")
    assert cells.plain.tolist() == [4, 4] and cells.tokens.tolist() == [4, 4]
    np.testing.assert_allclose(cells.seconds, [[2.6, 1.7]])
    np.testing.assert_allclose(cells.drafting, [[0.4, 0.2]])
    np.testing.assert_allclose(cells.checking, [[0.2, 0.5]])
    # Eight plain seconds; 4.3 with drafts, 0.6 of them in passes.
    assert cells.pass_limit == pytest.approx((8 - 3.7) / 0.6)
    assert cells.by_domain() == pytest.approx({"chat": 4 / 2.6, "code": 4 / 1.7})
