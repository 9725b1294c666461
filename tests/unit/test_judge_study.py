"""The study of the statistics: on timings whose law is known, and as a verb."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftgym.benchmark.judge_study import (
    Experiments,
    JudgeStudyError,
    judge_statistics,
    opposite_verdicts,
    pool_of,
)
from draftgym.benchmark.runner import Measurement, Sample
from draftgym.benchmark.samples import SampleStore, load_timings
from draftgym.commands import study as command
from draftgym.errors import ConfigurationError

METHODS = {"plain": 1.0, "fixed": 0.5, "policy": 0.48}


def timings(
    seed: int = 0, *, prompts: int = 40, repeats: int = 3, own: float = 0.04, shared: float = 0.15,
    paces: dict[str, float] = METHODS,
) -> list[Sample]:  # fmt: skip
    """Prompts differ by 30%, blocks by `shared`, single runs by `own`; methods gain differently."""
    generator = np.random.default_rng(seed)
    found = []
    for i in range(prompts):
        pace, gains = generator.normal(0, 0.3), generator.normal(0, 0.1, len(paces))
        for repeat in range(repeats):
            mood = generator.normal(0, shared)
            for (method, factor), gain in zip(paces.items(), gains, strict=True):
                log = pace + gain + mood + generator.normal(0, own)
                seconds = 0.03 * 48 * factor * float(np.exp(log))
                measured = Measurement((1,) * 49, seconds, 48)
                found.append(Sample(method, f"p{i:03d}", repeat, measured))
    return found


STRATA = {f"p{i:03d}": f"d{i % 4}" for i in range(40)}


def test_a_pool_tells_prompts_from_chance() -> None:
    pool = pool_of(timings(own=0.05, shared=0.1, prompts=40), STRATA)
    assert pool.pace.shape == (3, 40) and pool.noise.shape == (3, 40, 3)
    assert pool.noise.std() == pytest.approx(np.hypot(0.05, 0.1), rel=0.15)
    apart = pool.noise[0] - pool.noise[1]
    assert apart.std() == pytest.approx(0.05 * np.sqrt(2), rel=0.2), "blocks share their mood"
    assert np.exp(pool.noise).mean((1, 2)) == pytest.approx(np.ones(3))


def test_coverage_and_power_where_the_law_is_known() -> None:
    experiments = Experiments(pool_of(timings(), STRATA), 40, 3, resamples=1000)
    found = judge_statistics(experiments, trials=150)
    assert found["same_method"]["ok"] and found["two_methods"]["ok"] and found["planted"]["ok"]
    assert 0.91 <= found["same_method"]["coverage"] <= 0.99
    # 2.8 standard errors: two arms, own noise of 4%, 120 runs each, prompts of unequal weight.
    error = 0.04 * np.sqrt(2 / 120)
    assert 2.8 * error < np.log(found["planted"]["smallest_found"]) < 1.5 * 2.8 * error


def test_what_cannot_be_found_is_not_claimed() -> None:
    noisy = pool_of(timings(own=0.3), STRATA)
    found = judge_statistics(Experiments(noisy, 40, 1, resamples=500), trials=60)
    assert found["planted"]["found"] < 0.4 and not found["planted"]["ok"]
    small = judge_statistics(Experiments(noisy, 40, 1, resamples=500), trials=40, slowdown=2.0)
    assert small["planted"]["ok"]


def test_the_truth_weighs_strata_as_experiments_do() -> None:
    pool = pool_of(timings(), STRATA)
    whole = Experiments(pool, 40, 1).truth(0, 1)
    sums = (pool.pace * pool.tokens).sum(1) / pool.tokens.sum(1)
    assert whole == pytest.approx(sums[0] / sums[1])
    first = [i for i, p in enumerate(pool.prompt_ids) if STRATA[p] in ("d0", "d1")]
    some = pool.pace[:, first].mean(1)
    assert Experiments(pool, 2, 1).truth(0, 1) == pytest.approx(some[0] / some[1])


def test_runs_that_contradict_each_other_are_told() -> None:
    run = timings(1)
    again = timings(2)
    turned = timings(3, paces={**METHODS, "plain": 0.2})
    assert opposite_verdicts([run, again], STRATA, 500) == {
        "pairs": 3, "contradictions": [], "ok": True
    }  # fmt: skip
    found = opposite_verdicts([run, turned], STRATA, 500)
    assert not found["ok"] and ["fixed", "plain"] in found["contradictions"]


@pytest.mark.parametrize(
    ("samples", "what"),
    [
        (timings(repeats=1), "repeats: at least 2"),
        (timings(prompts=1), "complete prompts: at least 2"),
        ([s for s in timings() if s.method == "plain"], "methods: at least 2"),
    ],
)
def test_too_few_timings_are_refused(samples: Sequence[Sample], what: str) -> None:
    with pytest.raises(JudgeStudyError, match=what):
        pool_of(samples, STRATA)


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for seed in (4, 5):
        store = SampleStore(tmp_path / str(seed) / "samples.jsonl", "new")
        store.append("validation", timings(9, prompts=2))
        store.append("test", timings(seed))
        files.append(str(tmp_path / str(seed) / "samples.jsonl"))
    (tmp_path / "4" / "config.json").write_text('{"prompts": [{"source": "bundled"}]}')
    wanted = ["judge", "--samples", files[0], "--samples", files[1], "--trials", "60",
              "--output", str(tmp_path / "out")]  # fmt: skip
    assert command.main(wanted) == 0
    captured = capsys.readouterr()
    line = json.loads(captured.out.splitlines()[-1])
    assert line["schema"] == "draftgym.study_judge/1" and line["study"] == "judge"
    assert [row["samples"] for row in line["runs"]] == files
    assert line["runs"][0]["prompts"] == 40 and line["runs"][0]["repeats"] == 3
    assert line["across_runs"]["pairs"] == 3
    assert "a slowdown of 3% is found in" in captured.err
    stored = json.loads((tmp_path / "out" / "judge" / "result.json").read_text())
    assert stored["runs"] == line["runs"]


def test_arguments_of_the_verb_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--samples: needed by `judge`"):
        command.main(["judge"])
    with pytest.raises(ConfigurationError, match="--samples: needed by `judge`"):
        command.main(["scaling", "--samples", "x"])
    few = tmp_path / "few.jsonl"
    SampleStore(few, "key").append("test", timings(prompts=3, repeats=1))
    with pytest.raises(JudgeStudyError, match=r"few\.jsonl: repeats: at least 2"):
        command.main(["judge", "--samples", str(few), "--output", str(tmp_path / "out")])
    with pytest.raises(ConfigurationError, match="--prompts: must be 2 or more, got 1"):
        command.main(["judge", "--samples", "x", "--prompts", "1", "--output", str(tmp_path)])


def test_a_run_of_one_repeat_is_only_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for name, repeats in (("whole", 2), ("quick", 1)):
        files += ["--samples", str(tmp_path / name / "samples.jsonl")]
        store = SampleStore(Path(files[-1]), "key")
        store.append("test", timings(repeats=repeats))
    command.main(["judge", *files, "--trials", "4"])
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(line["runs"]) == 1 and line["across_runs"]["pairs"] == 3


def test_only_the_newest_plan_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    SampleStore(path, "old").append("test", timings(1, prompts=3))
    SampleStore(path, "new").append("test", timings(2, prompts=2))
    found = load_timings(path)
    assert {s.prompt_id for s in found} == {"p000", "p001"}
    assert [s.measurement.seconds for s in found] == [
        s.measurement.seconds for s in timings(2, prompts=2)
    ]
    path.write_text('{"phase": "test", "key": "k"}\n')
    with pytest.raises(ConfigurationError, match=r"samples\.jsonl, line 1: not a sample"):
        load_timings(path)
    with pytest.raises(ConfigurationError, match=r"samples\.jsonl: no samples of the final phase"):
        load_timings(path, "final")
    with pytest.raises(ConfigurationError, match=r"absent\.jsonl: cannot be read"):
        load_timings(tmp_path / "absent.jsonl")


def test_unfinished_blocks_are_left_out_and_the_last_of_two_lines_counts(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    store, run = SampleStore(path, "key"), timings(1, prompts=3, repeats=1)
    torn, again = run[3:5], [replace(s, measurement=replace(s.measurement, seconds=7.0))
                             for s in run[3:6]]  # fmt: skip
    store.append("test", run[:3])
    store.append("test", torn)  # killed within the second block
    found = load_timings(path)
    assert {s.prompt_id for s in found} == {"p000"} and len(found) == 3
    store.append("test", again)
    store.append("test", run[6:8])
    found = load_timings(path)
    assert [s.prompt_id for s in found] == 3 * ["p000"] + 3 * ["p001"]
    assert [s.measurement.seconds for s in found[3:]] == 3 * [7.0]
