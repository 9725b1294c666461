"""The figures of a method: by hand on a few rounds, and by a tiny pair under a fake clock."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from draftgym.benchmark.divergence import Divergence
from draftgym.benchmark.measures import (
    acceptance_by_position,
    decisions_by_domain,
    figures,
    inter_token_seconds,
    measures,
    over_time,
)
from draftgym.benchmark.methods import HuggingFaceMethod, SessionMethod
from draftgym.benchmark.runner import Measurement, Request, Sample
from draftgym.clock import FakeClock
from draftgym.decoder.controllers import FixedController, PlainController
from draftgym.decoder.session import DecoderSession
from draftgym.state import RoundRecord
from tests.tiny import tiny_model, tiny_pair

FIRST = RoundRecord(
    depth=2, nodes=8, requested_size=4, size=4, accepted=2, tokens=(1, 2, 3), context_tokens=5,
    uningested_tokens=1, clamped=False, draft_seconds=0.004, pass_seconds=(0.002, 0.002),
    verify_seconds=0.03, commit_seconds=0.001, policy_seconds=0.002, seconds=0.04, decisions=3,
)  # fmt: skip
SECOND = replace(
    FIRST, depth=0, nodes=0, size=0, accepted=0, tokens=(4,), seconds=0.02, decisions=2
)


def two_rounds(prompt: str = "a", method: str = "m") -> Sample:
    measured = Measurement(
        output=(9, 1, 2, 3, 4), seconds=0.06, emitted=4, records=(FIRST, SECOND),
        first_token_seconds=0.05, joules=2.5, peak_bytes=3 * 2**20,
    )  # fmt: skip
    return Sample(method, prompt, 0, measured)


def test_figures_by_hand() -> None:
    found = figures([two_rounds()])
    assert found["ms_per_token"] == pytest.approx(15)
    assert found["tokens_per_second_decode"] == pytest.approx(1000 / 15)
    assert found["tokens_per_second_end_to_end"] == pytest.approx(5 / 0.11)
    assert found["first_token_ms"] == pytest.approx({"p50": 50, "p95": 50})
    assert found["tau_emitted"] == 2 and found["accepted_per_round"] == 1
    assert found["drafted_per_token"] == 2 and found["verified_per_token"] == 1
    assert found["wasted_per_token"] == 0.5
    assert found["target_rows_per_token"] == 6 / 4
    assert found["draft_passes_per_token"] == 0.5
    assert found["policy_ms_per_round"] == pytest.approx(2)
    assert found["policy_share"] == pytest.approx(4 / 60)
    assert found["decisions_per_round"] == 2.5
    assert found["joules_per_token"] == 0.5 and found["peak_memory_mib"] == 3
    assert found["identical_outputs"] == found["prompts"] == 1
    split = found["time_split_ms_per_token"]
    assert set(split) == {"draft", "verify", "commit", "policy", "other"}


def test_a_streaming_reader_waits_once_a_round() -> None:
    waits = inter_token_seconds(two_rounds().measurement)
    assert waits.tolist() == [0.04, 0.0, 0.0, 0.02]
    found = figures([two_rounds()])["inter_token_ms"]
    assert found["p50"] == pytest.approx(np.percentile([40, 0, 0, 20], 50))
    streamed = Measurement((1, 2, 3), 0.03, 2, gaps_seconds=(0.03, 0.0))
    assert inter_token_seconds(streamed).tolist() == [0.03, 0.0]


def test_acceptance_by_position_counts_rounds_that_verified_that_far() -> None:
    records = [replace(FIRST, size=3, accepted=2), replace(FIRST, size=1, accepted=1), SECOND]
    assert acceptance_by_position(records) == [1.0, 1.0, 0.0]
    assert acceptance_by_position([SECOND]) == []


def test_what_a_method_cannot_have_is_none() -> None:
    found = figures([Sample("hf", "a", 0, Measurement((1, 2), 0.03, 1, gaps_seconds=(0.03,)))])
    for name in ("tau_emitted", "acceptance_by_position", "time_split_ms_per_token",
                 "policy_share", "joules_per_token", "peak_memory_mib", "first_token_ms",
                 "tokens_per_second_end_to_end"):  # fmt: skip
        assert found[name] is None, name
    assert found["inter_token_ms"]["p99"] == pytest.approx(30)
    assert set(found) == set(figures([two_rounds()]))


def test_by_method_and_domain() -> None:
    samples = [two_rounds(p, m) for p in "abc" for m in ("m", "n")]
    strata = {"a": "x", "b": "x", "c": "y"}
    wrong = Divergence("n", "b", 1, 3, 4, 2.0, near_tie=False)
    found = measures(samples, strata, [wrong, replace(wrong, prompt_id="c", near_tie=True)], "mn")
    assert set(found) == {"m", "n"} and set(found["m"]["domains"]) == {"x", "y"}
    assert found["m"]["all"]["identical_outputs"] == 3
    assert found["n"]["all"]["identical_outputs"] == 2
    assert found["n"]["domains"]["x"]["identical_outputs"] == 1
    assert found["n"]["domains"]["x"]["prompts"] == 2
    json.dumps(found, allow_nan=False)


def test_over_time_and_by_domain() -> None:
    longer = replace(two_rounds("b").measurement, records=(FIRST, FIRST, FIRST))
    samples = [two_rounds("a"), Sample("m", "b", 0, longer),
               Sample("hf", "a", 0, Measurement((1, 2), 0.1, 1))]  # fmt: skip
    assert over_time(samples, ["m", "hf"]) == {
        "m": {"depth": [2, 1, 2], "size": [4, 2, 4]}, "hf": {"depth": [], "size": []}
    }  # fmt: skip
    assert decisions_by_domain(samples, {"a": "x", "b": "y"}, ["m", "hf"]) == {
        "m": {"x": {"depth": 1, "size": 2}, "y": {"depth": 2, "size": 4}},
        "hf": {},
    }


class Thinker(FixedController):
    """Fixed, but charged for its decisions."""

    free = False


def test_plain_fixed_and_transformers_on_a_tiny_pair() -> None:
    pair = tiny_pair(eos=frozenset())
    clock = FakeClock()
    session = DecoderSession(pair, pair.new_drafter(), clock=clock, max_depth=3)
    methods = [
        SessionMethod("plain", DecoderSession(pair, None, clock=clock), PlainController()),
        SessionMethod("free", session, FixedController(2, 3)),
        SessionMethod("charged", session, Thinker(2, 3)),
        HuggingFaceMethod(tiny_model(), clock, name="hf"),
    ]
    requests = [Request(p, "d", (5, 6, 7 + i)) for i, p in enumerate("abc")]
    samples = [Sample(m.name, r.prompt_id, 0, m.measure(r, 20)) for m in methods for r in requests]
    found = measures(samples, dict.fromkeys("abc", "d"), [], [m.name for m in methods])
    plain = found["plain"]["all"]
    assert plain["target_rows_per_token"] == 1 and plain["wasted_per_token"] == 0
    assert plain["inter_token_ms"] == pytest.approx({"p50": 30.1, "p95": 30.1, "p99": 30.1})
    assert plain["first_token_ms"]["p50"] == pytest.approx(50)
    assert found["free"]["all"]["decisions_per_round"] == 0
    # Two passes and the answer "stop" before a third, then the size; fewer where the budget ends.
    assert 3 < found["charged"]["all"]["decisions_per_round"] <= 4
    assert found["charged"]["all"]["policy_ms_per_round"] == pytest.approx(
        0.02 * found["charged"]["all"]["decisions_per_round"], rel=1e-6
    )
    assert found["hf"]["all"]["ms_per_token"] == pytest.approx(30.5)
    assert found["hf"]["all"]["first_token_ms"]["p50"] == pytest.approx(30.5)
