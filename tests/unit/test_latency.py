"""The latency table: where its seconds come from, what it answers, what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgym.benchmark.runner import Request
from draftgym.clock import FakeClock
from draftgym.costs.fingerprint import fingerprint
from draftgym.costs.measure import (
    PAUSES,
    Run,
    cost_table,
    measure_rounds,
    pause_runs,
    reading_seconds,
    spread_by_length,
)
from draftgym.costs.plot import latency_plot
from draftgym.costs.samples import LatencyError, Samples
from draftgym.costs.table import LatencyTable
from draftgym.decoder.config import DrafterConfig
from draftgym.decoder.session import DecoderSession
from draftgym.errors import DraftGymError
from draftgym.runtime import DecisionSeconds
from draftgym.state import RoundRecord
from tests.tiny import tiny_pair

DECISIONS = DecisionSeconds(1e-4, 2e-4)
PRINT = {"pair": {"drafter_kind": "eagle3"}, "device": "cpu", "threads": 2}


def record(
    size: int = 0,
    verify: float = 0.03,
    *,
    passes: tuple[float, ...] = (),
    propose: float = 0.001,
    rest: float = 0.002,
    policy: float = 0.25,
    context: int = 100,
    uningested: int = 1,
) -> RoundRecord:
    draft = propose + sum(passes)
    return RoundRecord(
        depth=len(passes),
        nodes=size,
        requested_size=size,
        size=size,
        accepted=0,
        tokens=(7,),
        context_tokens=context,
        uningested_tokens=uningested,
        clamped=False,
        draft_seconds=draft,
        pass_seconds=passes,
        verify_seconds=verify,
        commit_seconds=0.9 * rest,
        policy_seconds=policy,
        seconds=draft + verify + policy + rest,
    )


def table(*records: RoundRecord, **options: Any) -> LatencyTable:
    return LatencyTable.from_records([record(), *records], PRINT, DECISIONS, **options)


def mean(made: LatencyTable, kind: Any, units: int, context: int = 100) -> float:
    return float(made.mean(kind, np.array([units]), np.array([context]))[0])


def test_a_round_is_split_into_its_kinds_of_work() -> None:
    made = table(record(4, 0.05, passes=(0.007, 0.002, 0.003), uningested=5))
    assert mean(made, "propose", 0) == pytest.approx(0.001)
    assert mean(made, "first", 5) == 0.007
    assert mean(made, "later", 0) == 0.0025
    assert (mean(made, "verify", 0), mean(made, "verify", 4)) == (0.03, 0.05)
    assert mean(made, "commit", 0) == pytest.approx(0.002)  # decisions are in no kind
    assert made.decision_seconds == DECISIONS


def test_sizes_are_exact_and_lines_between_them_not_made_to_grow() -> None:
    made = table(record(2, 0.08), record(2, 0.06), record(6, 0.05))
    sizes = np.array([0, 1, 2, 3, 4, 6, 40])
    # Between 2 and 6 the line falls, as measured; past the last size there is nothing to go by.
    expected = [0.03, 0.05, 0.07, 0.065, 0.06, 0.05, 0.05]
    assert made.mean("verify", sizes, np.full(7, 100)) == pytest.approx(expected)


def test_draws_are_raw_samples_of_the_neighbours_by_weight() -> None:
    made = table(record(2, 0.08), record(2, 0.06), record(6, 0.05))
    rng = np.random.default_rng(0)
    at_two = made.draw("verify", np.full(4000, 2), np.full(4000, 100), rng)
    assert set(at_two) == {0.06, 0.08}
    assert at_two.mean() == pytest.approx(0.07, abs=1e-3)
    at_five = made.draw("verify", np.full(4000, 5), np.full(4000, 100), rng)
    assert set(at_five) == {0.05, 0.06, 0.08}
    assert (at_five == 0.05).mean() == pytest.approx(0.75, abs=0.03)
    again = [made.draw("verify", [5] * 9, [1] * 9, np.random.default_rng(3)) for _ in range(2)]
    assert again[0].tolist() == again[1].tolist()


def test_tokens_to_ingest_count_in_powers_of_two_the_nearest_measured() -> None:
    made = table(
        record(passes=(0.001,), uningested=1),
        record(passes=(0.002,), uningested=4),
        record(passes=(0.004,), uningested=7),
        record(passes=(0.100,), uningested=64),
    )
    counts = np.array([0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 64, 127, 5000])
    # Buckets 2-3 and 16-31 lie half-way, and take the lower one.
    expected = [1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 100, 100, 100, 100]
    assert made.mean("first", counts, np.full(14, 100)) == pytest.approx(1e-3 * np.array(expected))
    assert [bucket.name for bucket in made.buckets("first")] == [
        "1 unread, context 0-255",
        "4-7 unread, context 0-255",
        "64-127 unread, context 0-255",
    ]


def test_an_empty_bucket_takes_the_nearest_context_of_its_own_size() -> None:
    made = table(
        record(0, 0.031, context=600),
        record(4, 0.05, context=130),
        record(4, 0.09, context=700),
        context_edges=(0, 128, 256, 512, 1024),
    )
    contexts = np.array([1, 128, 255, 256, 400, 511, 512, 9000])
    expected = [0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.09, 0.09]
    assert made.mean("verify", np.full(8, 4), contexts) == pytest.approx(expected)
    assert mean(made, "verify", 0, 300) == 0.031  # bucket 256 is next to 512, two from 0
    rng = np.random.default_rng(0)
    assert made.draw("verify", [4, 4], [300, 600], rng).tolist() == [0.05, 0.09]


def test_a_size_that_clamping_left_thin_is_no_knot() -> None:
    often = [record(size, 0.01 * size + 0.03) for size in (2, 4) for _ in range(20)]
    made = table(*often, *[record() for _ in range(30)], record(3, 9.0))
    assert mean(made, "verify", 3) == pytest.approx(0.06)
    assert {bucket.units for bucket in made.buckets("verify")} == {0, 2, 4}
    # The raw sample is kept nevertheless.
    assert 9.0 in made.samples["verify"].seconds


@given(
    st.lists(st.tuples(st.integers(0, 70), st.integers(1, 5000)), min_size=1, max_size=30),
    st.sampled_from(["propose", "first", "later", "verify", "commit"]),
    st.integers(0, 5),
)
def test_arrays_are_answered_entry_by_entry(
    asked: list[tuple[int, int]], kind: Any, seed: int
) -> None:
    random = np.random.default_rng(seed)
    made = table(
        *(
            record(
                int(random.integers(0, 9)),
                float(random.uniform(0.01, 0.1)),
                passes=tuple(random.uniform(0.001, 0.01, 2)),
                context=int(random.integers(1, 3000)),
                uningested=int(random.integers(1, 40)),
            )
            for _ in range(40)
        )
    )
    units, contexts = (np.array(column) for column in zip(*asked, strict=True))
    together = made.mean(kind, units, contexts)
    assert together.dtype == np.float64
    assert together.tolist() == [mean(made, kind, *entry) for entry in asked]
    grid = made.mean(kind, units[:, None], contexts)
    assert grid.shape == (len(asked), len(asked))
    assert np.diagonal(grid).tolist() == together.tolist()
    drawn = made.draw(kind, units[:, None], contexts, random)
    assert drawn.shape == grid.shape
    assert set(drawn.ravel()) <= set(made.samples[kind].steady)
    assert made.mean(kind, 3, 50).shape == made.draw(kind, 3, 50, random).shape == ()


def test_the_mean_of_draws_is_the_mean() -> None:
    random = np.random.default_rng(1)
    made = table(*(record(int(v), float(random.uniform(0.01, 0.1))) for v in [0, 4, 9] * 30))
    sizes = np.arange(10)
    drawn = made.draw("verify", sizes, np.full((20_000, 1), 100), random)
    assert drawn.mean(0) == pytest.approx(made.mean("verify", sizes, 100), rel=0.02)


def test_openings_give_their_first_pass_alone() -> None:
    opening = record(8, 9.0, passes=(0.02, 9.0), propose=9.0, rest=9.0, uningested=300)
    made = table(record(passes=(0.001, 0.002)), openings=[opening])
    assert mean(made, "first", 300) == 0.02
    for kind in ("propose", "later", "verify", "commit"):
        assert made.samples[kind].seconds.max() < 1  # type: ignore[index]


def test_drafters_without_passes_lack_their_kinds() -> None:
    made = table(record(2))
    assert made.kinds == ("propose", "verify", "commit")
    with pytest.raises(LatencyError, match="later: not measured; this table has propose, verify"):
        made.mean("later", 0, 1)
    with pytest.raises(LatencyError, match="first: not measured"):
        made.draw("first", 1, 1, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (record(verify=float("nan")), "verify: seconds: holds a value that is negative or not"),
        (record(verify=float("inf")), "verify: seconds"),
        (record(verify=-0.01), "verify: seconds"),
        (record(propose=-0.01), "propose: seconds"),
        (record(rest=-0.01), "commit: seconds"),
        (record(passes=(-0.01,)), "first: seconds"),
        (record(passes=(0.01, float("nan"))), "later: seconds|propose: seconds"),
        (record(context=-1), "propose: context"),
    ],
)
def test_times_that_cannot_be_are_refused(broken: RoundRecord, message: str) -> None:
    with pytest.raises(LatencyError, match=message):
        table(broken)


def test_rounding_below_zero_is_zero() -> None:
    assert mean(table(replace(record(), draft_seconds=-1e-12)), "propose", 0) >= 0


def test_tables_without_what_every_round_has_are_refused() -> None:
    with pytest.raises(LatencyError, match="records: no round was measured"):
        LatencyTable.from_records([], PRINT, DECISIONS)
    with pytest.raises(LatencyError, match=r"verify: no plain step \(size 0\)"):
        LatencyTable.from_records([record(2)], PRINT, DECISIONS)
    made = table()
    with pytest.raises(LatencyError, match="commit: no sample"):
        LatencyTable({kind: made.samples[kind] for kind in ("propose", "verify")}, PRINT, DECISIONS)
    with pytest.raises(LatencyError, match="units: no sample"):
        Samples(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    with pytest.raises(LatencyError, match=r"units: shape \[2\], expected \[1\]"):
        Samples(np.zeros(2, np.int64), np.zeros(1, np.int64), np.zeros(1), np.ones(1))
    with pytest.raises(LatencyError, match=r"decision_seconds\.size"):
        LatencyTable(made.samples, PRINT, DecisionSeconds(0.0, float("nan")))
    with pytest.raises(LatencyError, match=r"context_edges: must increase from 0, got \[1, 5\]"):
        table(context_edges=(1, 5))


def test_a_saved_table_answers_the_same(tmp_path: Path) -> None:
    made = table(
        record(3, 0.1 / 3, passes=(1 / 3, 0.2 / 7), context=700, uningested=9),
        context_edges=(0, 500),
    )
    read = LatencyTable.load(made.save(tmp_path / "deep" / "latency.json"), PRINT)
    assert (read.kinds, read.context_edges) == (made.kinds, (0, 500))
    assert read.decision_seconds == DECISIONS
    units, context = np.arange(12), np.linspace(1, 900, 12).astype(int)
    for kind in made.kinds:
        assert read.mean(kind, units, context).tolist() == made.mean(kind, units, context).tolist()
        draws = [t.draw(kind, units, context, np.random.default_rng(2)) for t in (made, read)]
        assert draws[0].tolist() == draws[1].tolist()


def test_a_table_of_another_machine_is_refused(tmp_path: Path) -> None:
    file = table().save(tmp_path / "latency.json")
    LatencyTable.load(file)
    here = {**PRINT, "pair": {"drafter_kind": "hybrid"}, "threads": 4}
    with pytest.raises(
        LatencyError,
        match=r"latency.json: measured elsewhere: fingerprint.pair.drafter_kind: the table has "
        "'eagle3', this is 'hybrid'",
    ):
        LatencyTable.load(file, here)
    with pytest.raises(LatencyError, match=r"fingerprint\.threads: the table has 2, this is 4"):
        LatencyTable.load(file, {**PRINT, "threads": 4})


def test_fingerprint_names_what_makes_time() -> None:
    made = fingerprint({"drafter_kind": "eagle3"}, "cpu", "torch.float32", 2)
    assert set(made) == {
        "pair", "law", "device", "gpu", "dtype", "threads", "cpu", "cores", "versions",
    }  # fmt: skip
    assert made["law"] == "greedy"
    assert (made["dtype"], made["device"], made["gpu"], made["threads"]) == (
        "float32", "cpu", None, 2,
    )  # fmt: skip
    assert set(made["versions"]) == {"draftgym", "torch", "transformers", "numpy"}
    assert json.loads(json.dumps(made)) == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "draftgym.latency/9"}, "schema: expected 'draftgym.latency/2'"),
        (
            {
                "samples": {
                    "dance": {"units": [0], "context": [1], "seconds": [0.1], "slowness": [1]}
                }
            },
            "dance",
        ),
        ({"samples": {"verify": {"units": [0], "context": [1]}}}, "damaged: KeyError"),
        (
            {"samples": {"verify": {"units": [0.5], "context": [1], "seconds": [0.1]}}},
            "samples.verify.units: must hold numbers",
        ),
        (
            {
                "samples": {
                    "verify": {"units": [0], "context": [1], "seconds": [None], "slowness": [1]}
                }
            },
            "samples.verify.seconds: must hold numbers",
        ),
        (
            {
                "samples": {
                    "verify": {
                        "units": [0],
                        "context": [1],
                        "seconds": [float("nan")],
                        "slowness": [1],
                    }
                }
            },
            "samples.verify.seconds: holds a value",
        ),
        ({"decision_seconds": {"depth": 0.0}}, "decision_seconds|propose"),
        ({"decision_seconds": [0.0]}, "damaged"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = table().save(tmp_path / "latency.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    if "decision_seconds" in change and isinstance(change["decision_seconds"], dict):
        # A decision left out costs nothing, as everywhere.
        assert LatencyTable.load(file).decision_seconds == DecisionSeconds()
        return
    with pytest.raises(LatencyError, match=message) as caught:
        LatencyTable.load(file)
    assert str(file) in str(caught.value)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LatencyError, match="no such latency table"):
        LatencyTable.load(tmp_path / "none.json")
    for content in (b"\x80\x04K\x01.", b"{", b"[]", b"[" * 100_000):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(LatencyError, match=r"bad\.json: damaged"):
            LatencyTable.load(tmp_path / "bad.json")


def test_measured_rounds_cost_what_the_clock_says() -> None:
    pair = tiny_pair(eos=frozenset())
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    requests = [Request(f"p{n}", "d", tuple(range(3, 3 + n))) for n in (3, 40)]
    drafter = pair.config.drafter
    singles: list[Run] = [(setting,) for setting in cost_table(drafter, (0, 1, 4, 8, 32))]
    measured = measure_rounds(session, requests, 4 * singles + pause_runs(drafter), repeats=3)
    assert {record.uningested_tokens for record in measured.openings} == {3, 40}
    assert 3 not in {record.context_tokens - 1 for record in measured.records}
    made = LatencyTable.from_records(measured.records, PRINT, DECISIONS, openings=measured.openings)
    for size in (0, 1, 4, 8, 32):
        assert mean(made, "verify", size, 30) == pytest.approx(30e-3 + 5e-4 * size)
    assert mean(made, "verify", 16, 30) == pytest.approx(38e-3)
    assert mean(made, "later", 0, 30) == pytest.approx(2.05e-3)
    assert mean(made, "propose", 0) == 0.0
    assert mean(made, "commit", 0) == pytest.approx(1e-4)
    first = made.samples["first"]
    assert first.seconds == pytest.approx(2e-3 + 5e-5 * first.units)
    # Pauses leave all powers of two unread, the covering rounds the tokens of one or two rounds.
    assert {bucket.units for bucket in made.buckets("first")} == {1, 2, 4, 8, 16, 32}
    plain = sum(record.size == 0 for record in measured.records)
    assert plain >= 3 * (8 + sum(PAUSES))
    assert mean(made, "first", 1, 30) == pytest.approx(2.05e-3)
    assert first.units.max() >= 40  # the first pass of a prompt, whenever it was made


def test_pauses_are_for_drafters_with_passes() -> None:
    assert pause_runs(DrafterConfig(kind="ngram")) == []
    assert pause_runs(DrafterConfig(kind="eagle3", max_depth=1, beam_width=2), (1, 3)) == [
        ((0, 0), (1, 2)),
        ((0, 0), (0, 0), (0, 0), (1, 2)),
    ]


def test_requests_of_all_lengths_are_chosen() -> None:
    requests = [Request(f"p{n}", "d", (1,) * n) for n in (9, 2, 5, 7, 3, 8, 4, 6, 1)]

    def lengths(count: int) -> list[int]:
        return [len(request.tokens) for request in spread_by_length(requests, count)]

    assert lengths(3) == [1, 5, 9]
    assert lengths(1) == [1]
    assert lengths(99) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_reading_the_confidence_is_timed_once_per_tree() -> None:
    pair = tiny_pair(eos=frozenset())
    clock = FakeClock(fixed_seconds={**FakeClock.FIXED, "read": 3e-5})
    session = DecoderSession(pair, pair.new_drafter(), clock=clock)
    requests = [Request("p", "d", (3, 4, 5))]
    assert reading_seconds(session, requests, reads=7) == pytest.approx(3e-5)
    with pytest.raises(DraftGymError, match="before a drafted tree can be read"):
        reading_seconds(DecoderSession(pair, None, clock=clock), requests, reads=3)


def test_the_plot_shows_every_kind() -> None:
    picture = latency_plot(table(record(4, 0.05, passes=(0.007, 0.002), propose=0.0)))
    assert picture.startswith(b"\x89PNG")


def test_a_delay_in_one_bucket_is_shared_by_all() -> None:
    """A tenth of one size's samples is five times too long: its mean would be off by 40 %."""
    random = np.random.default_rng(0)
    records = [
        record(size, (0.03 + 0.01 * size) * random.uniform(0.9, 1.1) * (5.0 if late else 1.0))
        for index in range(400)
        for size in (0, 1)
        for late in [size == 1 and index % 10 == 0]
    ]
    made = LatencyTable.from_records(records, PRINT, DECISIONS)
    samples = made.samples["verify"]
    raw = [samples.steady[samples.units == size].mean() for size in (0, 1)]
    assert raw[1] / raw[0] > 1.6
    ratio = mean(made, "verify", 1) / mean(made, "verify", 0)
    assert ratio == pytest.approx(4 / 3, rel=0.06)
    # Nothing is lost: all rounds together take as long as they did.
    both = 400 * (mean(made, "verify", 0) + mean(made, "verify", 1))
    assert both == pytest.approx(samples.steady.sum())
    drawn = made.draw("verify", np.full(500, 1), np.full(500, 100), random)
    assert drawn.max() > 2 * np.median(drawn)  # raw samples, delays included
