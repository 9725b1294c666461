"""Faults planted in a comparison, each of which must be noticed.

A wrong token: `test_evaluate.py`; a table measured elsewhere: `test_latency.py` and
`test_fidelity.py`; overlapping splits of one configuration: `test_prompts.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from draftgym.benchmark.clock_check import ClockError, clock_fault
from draftgym.benchmark.config import Cell
from draftgym.benchmark.energy import Meter, rapl
from draftgym.benchmark.methods import SessionMethod
from draftgym.benchmark.runner import Measurement, Plan, Request, run_blocks
from draftgym.benchmark.samples import SampleStore
from draftgym.benchmark.summary import Ranked
from draftgym.benchmark.tuning import baseline_tuned, check_unseen
from draftgym.clock import FakeClock, WallClock
from draftgym.decoder.config import DrafterConfig
from draftgym.decoder.controllers import FixedController
from draftgym.decoder.session import DecoderSession
from draftgym.errors import ConfigurationError
from tests.tiny import tiny_pair

HONEST = Measurement((1, 2), 0.8, 1, first_token_seconds=0.1, request_seconds=0.95)


def test_slow_rounds_are_honest_whatever_they_took() -> None:
    assert clock_fault(HONEST) is None
    assert clock_fault(replace(HONEST, seconds=90.0, request_seconds=90.2)) is None
    assert clock_fault(replace(HONEST, request_seconds=None)) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": -0.1}, "took -0.1 s"),
        ({"seconds": math.nan}, "took nan s"),
        ({"gaps_seconds": (0.5, -0.5)}, "took -0.5 s"),
        ({"seconds": 60.0}, "its parts took 60.100 s, the whole request 0.950 s"),
        ({"request_seconds": 30.0}, "the request took 30.000 s, its parts only 0.900 s"),
    ],
)
def test_impossible_durations_are_named(change: dict[str, float], message: str) -> None:
    found = clock_fault(replace(HONEST, **change))
    assert found is not None and message in found


class Jumping(WallClock):
    """Jumps ahead by a minute at some of its readings."""

    def __init__(self, jumps: range) -> None:
        super().__init__()
        self._jumps, self._readings, self._ahead = jumps, 0, 0.0

    def boundary(self) -> float:
        self._readings += 1
        self._ahead += 60.0 * (self._readings in self._jumps)
        return super().boundary() + self._ahead


def jumping_method(jumps: range) -> SessionMethod:
    pair = tiny_pair(eos=frozenset())
    session = DecoderSession(pair, pair.new_drafter(), clock=Jumping(jumps))
    return SessionMethod("m", session, FixedController(1, 2))


def test_a_block_in_which_the_clock_jumped_is_measured_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    requests, plan = [Request("p", "d", (5, 6, 7))], Plan(8, warm_up_tokens=2)
    stored = []
    once = range(12, 13)  # after the warm-up
    (sample,) = run_blocks([jumping_method(once)], requests, plan, on_block=stored.extend)
    assert sample.measurement.seconds < 30 and stored == [sample]
    assert "p: the clock jumped (m: its parts took 6" in capsys.readouterr().err
    with pytest.raises(ClockError, match="p: the clock jumped in each of 3 tries"):
        run_blocks([jumping_method(range(1, 10_000))], requests, plan)


def test_meters_bracket_every_measurement(tmp_path: Path) -> None:
    readings = iter(range(0, 1000, 7))
    meter = Meter("cpu", lambda: float(next(readings)))
    pair = tiny_pair(eos=frozenset())
    session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
    method = SessionMethod("m", session, FixedController(1, 2))
    samples = run_blocks([method], [Request("p", "d", (5, 6, 7))], Plan(8, 2), meter=meter)
    assert [s.measurement.joules for s in samples] == [7.0, 7.0]
    assert all(s.measurement.peak_bytes is None for s in samples)
    store = SampleStore(tmp_path / "samples.jsonl", "key")
    store.append("test", samples)
    assert store.load("test", ["m"]) == samples


def test_a_line_of_an_older_program_is_named(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text('{"key": "k", "phase": "test", "method": "m", "rounds": [], "output": []}\n')
    with pytest.raises(ConfigurationError, match="line 1: not a sample of this program"):
        SampleStore(path, "k").load("test", ["m"])
    assert SampleStore(path, "another commit").load("test", ["m"]) == []


def rapl_zone(root: Path, name: str, kind: str, microjoules: int) -> Path:
    zone = root / name
    zone.mkdir(exist_ok=True)
    (zone / "name").write_text(f"{kind}\n")
    (zone / "max_energy_range_uj").write_text("1000000\n")
    (zone / "energy_uj").write_text(f"{microjoules}\n")
    return zone


def test_energy_of_all_packages_wraps_around(tmp_path: Path) -> None:
    assert rapl(tmp_path) is None
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    rapl_zone(tmp_path, "intel-rapl:0:0", "core", 5)
    rapl_zone(tmp_path, "intel-rapl:1", "package-1", 100_000)
    rapl_zone(tmp_path, "intel-rapl:2", "psys", 7)
    joules = rapl(tmp_path)
    assert joules is not None and joules() == 0
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", 100_000)
    rapl_zone(tmp_path, "intel-rapl:1", "package-1", 300_000)
    rapl_zone(tmp_path, "intel-rapl:0:0", "core", 700_000)
    assert joules() == pytest.approx(0.4)
    assert joules() == pytest.approx(0.4)


GRID = [Cell(depth=d, size=v) for d in (1, 2, 3) for v in (2, 4, 8)]


def ranked(depth: int, size: int, prompts: int = 12) -> Ranked:
    return Ranked(Cell(depth=depth, size=size), prompts, 0.02, 3.0, 2.0)


@pytest.mark.parametrize(
    ("best", "efforts", "why"),
    [
        (ranked(2, 4), {"rule": {"prompts": 12, "settings_tried": 9}}, ""),
        (ranked(3, 4), {}, "depth 3 is the largest tried; up to 8 is possible"),
        (ranked(1, 4), {}, "depth 1 is the smallest tried; down to 0 is possible"),
        (ranked(2, 8), {}, "size 8 is the largest tried; up to 32 is possible"),
        (ranked(2, 2), {}, "size 2 is the smallest tried; down to 1 is possible"),
        (ranked(2, 4), {"rule": {"prompts": 128}}, "rule was tuned on 128 prompts, the cell on 12"),
        (ranked(2, 4), {"rule": {"settings_tried": 40}}, "tuned on 40 settings, the cell on 9"),
    ],
)
def test_a_baseline_that_was_not_tuned_is_said(
    best: Ranked, efforts: dict[str, dict[str, int]], why: str
) -> None:
    found = baseline_tuned(best, GRID, DrafterConfig(), efforts)
    assert found["ok"] == (not why)
    assert why in found["why"]


def test_the_end_of_what_a_drafter_can_do_is_no_edge() -> None:
    grid = [Cell(depth=d, size=v) for d in (0, 1) for v in (1, 2, 4, 32)]
    drafter = DrafterConfig(kind="hybrid", max_depth=1)
    assert baseline_tuned(ranked(1, 32), [*grid], drafter)["ok"]
    assert baseline_tuned(ranked(0, 1), [*grid], drafter)["ok"]


def test_a_test_prompt_that_was_seen_is_named() -> None:
    check_unseen(["t1", "t2"], {"validation": ["v1"], "runs/trace": ["p1"]})
    with pytest.raises(ConfigurationError, match=r"runs/trace: prompt 't2' is a test prompt too"):
        check_unseen(["t1", "t2"], {"validation": ["v1"], "runs/trace": ["p1", "t2"]})
