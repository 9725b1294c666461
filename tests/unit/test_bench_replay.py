"""The replay benchmark: its result line, and the made-up trace that it times."""

from __future__ import annotations

import json

import numpy as np
import pytest

from draftgym.commands.bench_replay import main
from draftgym.errors import ConfigurationError
from draftgym.features import FeatureLayout
from draftgym.traces.replay import ReplayBatch
from draftgym.traces.synthetic import SyntheticTimes, synthetic_trace


def test_result_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--environments", "4", "--seconds", "0.01"]) == 0
    out = capsys.readouterr().out.splitlines()
    result = json.loads(out[-1])
    assert len(out) == 1
    assert result["schema"] == "draftgym.bench_replay/1"
    assert (result["environments"], result["trace"]) == (4, "synthetic")
    for figure in ("size_decisions_per_s", "depth_decisions_per_s", "ppo_steps_per_s"):
        assert result[figure] > 0
    assert result["provenance"]["command"]


@pytest.mark.parametrize(
    ("option", "value"), [("--environments", "0"), ("--seconds", "0"), ("--seconds", "nan")]
)
def test_a_bad_option_is_named(option: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=option):
        main([option, value])


def test_the_made_up_trace_is_well_formed() -> None:
    layout = FeatureLayout(max_depth=4, beam_width=2, size_grid=(0, 1, 4, 8))
    trace = synthetic_trace(layout, sequences=20, tokens=30, seed=1)
    assert trace.source["synthetic"] is True
    assert len(trace) == trace.first[-1] == 20 * 29
    rows = np.arange(len(trace))
    ones = np.ones_like(rows)
    kept = [[trace.accepted(rows, d * ones, v * ones) for v in (0, 1, 4, 8)] for d in range(5)]
    assert (np.diff(kept, axis=1) >= 0).all(), "more verified, no less kept"
    assert (np.diff(kept, axis=0) >= 0).all(), "here, deeper trees keep what shallow ones do"
    assert np.mean(kept[0][3]) < np.mean(kept[1][3]) < np.mean(kept[4][3])
    assert (np.diff(trace.partial, axis=2) >= 0).all()
    assert (trace.partial[:, :, -1] <= trace.total).all()
    assert (np.diff(trace.frontier[:, 1:], axis=2) <= 0).all()


def test_made_up_seconds_spread_around_their_mean() -> None:
    times = SyntheticTimes()
    units, context = np.full(4000, 8), np.full(4000, 100)
    drawn = times.draw("verify", units, context, np.random.default_rng(0))
    mean = times.mean("verify", units, context)
    assert drawn.std() > 0.02 * mean[0]
    assert drawn.mean() == pytest.approx(mean[0], rel=0.01)


def test_timed_at_once_or_pass_by_pass_is_the_same_law() -> None:
    layout = FeatureLayout()
    trace = synthetic_trace(layout, sequences=4, tokens=40)
    batch = ReplayBatch(trace, SyntheticTimes(), layout, 600, seed=3)
    who = np.arange(600)
    seconds = []
    for at_once in (True, False):
        batch.start(who, who % 4)
        batch.open(who)
        for _ in range(3):
            if at_once:
                batch.deepen(who)
            else:
                batch.draft(who)
        if at_once:
            batch.time_passes(who)
        rounds = batch.close(who, np.zeros(600, np.int64))
        assert (rounds.pass_seconds[:, :3] > 0).all()
        assert (rounds.pass_seconds[:, 3:] == 0).all()
        seconds.append(rounds.pass_seconds[:, :3])
    # A standard error of 0.2 percent.
    np.testing.assert_allclose(seconds[0].mean(0), seconds[1].mean(0), rtol=0.012)
    batch.open(who)
    for _ in range(8):
        batch.deepen(who)
    with pytest.raises(RuntimeError, match="deepest pass"):
        batch.draft(who)
