"""Which prompts count for whom, and that the result line says what the report says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from draftgym.benchmark.comparisons import comparisons, domain_speedups_with_limits
from draftgym.benchmark.config import Cell, EvaluateConfig
from draftgym.benchmark.findings import Findings
from draftgym.benchmark.measures import measures
from draftgym.benchmark.runner import Measurement, Request, Sample
from draftgym.benchmark.summary import (
    PLAIN,
    POLICY,
    Intervals,
    Ranked,
    emitting_prompts,
    rank_cells,
)
from tests.unit.records import timed_round

PEER = "transformers generate, prompt look-up of 10"
BEST, OTHER, TABLE = Cell(depth=1, size=8), Cell(depth=2, size=8), "table"
PACES = {PLAIN: 0.03, BEST.name: 0.02, OTHER.name: 0.0205, TABLE: 0.0194, POLICY: 0.0194}
REQUESTS = [Request(f"p{i:02d}", f"d{i % 3}", (1,)) for i in range(12)]
STRATA = {request.prompt_id: request.domain for request in REQUESTS}


def session_sample(method: str, prompt: str, pace: float, tokens: int = 32) -> Sample:
    """Of one long round; no round where the first token ended the text."""
    rounds = (timed_round(pace * tokens, tokens),) if tokens else ()
    measured = Measurement((1,) * (1 + tokens), pace * tokens, tokens, rounds)
    return Sample(method, prompt, 0, measured)


def peer_sample(prompt: str, tokens: int = 30) -> Sample:
    """Without records; the first pass yields three tokens."""
    measured = Measurement(
        (1,) * (3 + tokens), 0.025 * tokens, tokens, gaps_seconds=(0.025,) * tokens
    )
    return Sample(PEER, prompt, 0, measured)


def sessions(
    *, silent: str = "", paces: Mapping[str, float] = PACES, noise: float = 0.05
) -> list[Sample]:
    """Timings of every session; the text of the prompt `silent` ends with its first token."""
    generator = np.random.default_rng(0)
    return [
        session_sample(
            method,
            request.prompt_id,
            pace * float(np.exp(noise * generator.standard_normal())),
            tokens=0 if request.prompt_id == silent else 32,
        )
        for request in REQUESTS
        for method, pace in paces.items()
    ]


def with_peer(short: set[str]) -> list[Sample]:
    """`p00` ends at once for everybody; the peer's first pass yields all of the `short` answers."""
    ended = short | {"p00"}
    peer = [peer_sample(r.prompt_id, 0 if r.prompt_id in ended else 30) for r in REQUESTS]
    return [*sessions(silent="p00"), *peer]


def findings(samples: list[Sample]) -> Findings:
    config = EvaluateConfig(
        cells=(BEST, OTHER), finalists=2, policy="policy", beside=(TABLE,), bootstrap_resamples=1000
    )
    ranked = [Ranked(cell, 12, PACES[cell.name], None, 1.5) for cell in (BEST, OTHER)]
    methods = list(dict.fromkeys(sample.method for sample in samples))
    return Findings(config, REQUESTS, samples, methods, ranked, [], None)


def test_a_prompt_that_only_a_peer_finished_in_its_first_pass_stays_for_all_others() -> None:
    samples = with_peer({"p01", "p02"})
    everything = {request.prompt_id for request in REQUESTS}
    assert emitting_prompts(samples) == everything - {"p00"}
    assert emitting_prompts(samples, PLAIN, POLICY) == everything - {"p00"}
    assert emitting_prompts(samples, PEER) == everything - {"p00", "p01", "p02"}
    with_it, without = findings(samples), findings(sessions(silent="p00"))
    mine, before = with_it.details(), without.details()
    assert mine["left_out"] == before["left_out"] == ["p00"]
    assert with_it.payload()["results"][:-1] == without.payload()["results"]
    for method in PACES:
        assert mine["measures"][method] == before["measures"][method]
        assert mine["domains"][method] == before["domains"][method]
        assert mine["speedups"][method] == before["speedups"][method]
    assert mine["measures"][PLAIN]["all"]["prompts"] == 11
    assert mine["measures"][PEER]["all"]["prompts"] == 9


def test_a_peer_is_compared_on_the_prompts_that_both_have() -> None:
    samples = with_peer({"p01", "p02"})
    # Plain decoding is dear where the peer has nothing: no ratio to the peer may know of it.
    dear = [
        replace(s, measurement=replace(s.measurement, seconds=100 * s.measurement.seconds))
        if s.method == PLAIN and s.prompt_id in ("p01", "p02")
        else s
        for s in samples
    ]
    for given, others in ((samples, False), (dear, True)):
        intervals = Intervals(given, STRATA, 1000, 0)
        rows = comparisons(intervals, [POLICY, PEER], [PLAIN])
        assert rows[1]["ratio"] == pytest.approx(0.03 / 0.025, rel=0.05)
        assert intervals.result(PEER)["speedup"] == rows[1]["ratio"]
        assert (rows[0]["ratio"] > 10) == others


def test_a_domain_in_which_a_peer_has_nothing_is_left_out_for_it() -> None:
    whole = {request.prompt_id for request in REQUESTS if request.domain == "d1"}
    samples = with_peer(whole | {"p02"})
    found = domain_speedups_with_limits(Intervals(samples, STRATA, 1000, 0), [PLAIN, PEER])
    assert set(found[PLAIN]) == {"d0", "d1", "d2"} and set(found[PEER]) == {"d0", "d2"}
    told = measures(samples, STRATA, [], [PLAIN, PEER])
    assert set(told[PEER]["domains"]) == {"d0", "d2"}
    assert told[PEER]["domains"]["d2"]["prompts"] == 3
    assert told[PLAIN]["domains"]["d1"]["prompts"] == 4


def test_cells_are_ranked_without_texts_that_end_at_once() -> None:
    ranked = rank_cells(with_peer({"p01"}), [OTHER, BEST])
    assert [entry.prompts for entry in ranked] == [11, 11]


def test_the_result_line_says_what_the_report_says() -> None:
    found = findings(sessions())
    line, rows = found.payload(), found.details()["comparisons"]
    told = {(row["baseline"], row["method"]): row for row in rows}
    entries = {
        (BEST.name, POLICY): line["policy_vs_best_fixed"],
        (PLAIN, POLICY): line["policy_vs_plain"],
        (BEST.name, TABLE): line["beside_vs_best_fixed"][TABLE],
    }
    for pair, entry in entries.items():
        assert set(entry) == {"ratio", "ci95", "p", "p_holm", "verdict"}
        assert all(entry[name] == told[pair][name] for name in entry), pair
    assert line["policy_vs_plain"]["verdict"] == "faster"


def test_verdicts_of_the_result_line_are_corrected() -> None:
    lines = [
        findings(sessions(paces={**PACES, POLICY: pace})).payload()["policy_vs_best_fixed"]
        for pace in np.linspace(0.018, 0.02, 15)
    ]
    torn = [line for line in lines if line["p"] < 0.05 <= line["p_holm"]]
    assert torn, "some difference is large enough for one question, not for four"
    for line in torn:
        assert line["ci95"][0] > 1 and line["verdict"] == "no significant difference"
