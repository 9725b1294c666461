"""Comparisons with many baselines: Holm's correction and what rows say."""

from __future__ import annotations

import numpy as np
import pytest

from draftgym.benchmark.comparisons import comparisons, domain_speedups_with_limits, holm, read_p
from draftgym.benchmark.runner import Measurement, Sample
from draftgym.benchmark.summary import Intervals

PACES = {"plain": 0.030, "fixed": 0.020, "twin": 0.020, "policy": 0.018}


def samples(prompts: int = 12, noise: float = 0.05, seed: int = 0) -> list[Sample]:
    generator = np.random.default_rng(seed)
    return [
        Sample(method, f"p{i:02d}", repeat, Measurement(
            (1,) * 33, pace * 32 * float(np.exp(noise * generator.standard_normal())), 32))
        for method, pace in PACES.items() for i in range(prompts) for repeat in range(3)
    ]  # fmt: skip


def intervals(prompts: int = 12, per_domain: int = 4) -> Intervals:
    strata = {f"p{i:02d}": f"d{i // per_domain}" for i in range(prompts)}
    return Intervals(samples(prompts), strata, 1000, 0)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_chance_of_any_false_verdict_in_a_family_is_held() -> None:
    generator = np.random.default_rng(1)
    families = generator.uniform(size=(2000, 10))
    false = np.mean([min(holm(list(family))) < 0.05 for family in families])
    assert false == pytest.approx(0.05, abs=0.015)
    assert np.mean(families.min(axis=1) < 0.05) > 0.3, "uncorrected, a third are wrong"


def test_verdicts() -> None:
    assert read_p(1.1, 0.01) == "faster" and read_p(0.9, 0.01) == "slower"
    assert read_p(1.1, 0.05) == "no significant difference"


def test_rows_of_comparisons() -> None:
    rows = comparisons(intervals(), list(PACES), ["fixed", "plain"])
    assert [(row["baseline"], row["method"]) for row in rows] == [
        ("fixed", "plain"), ("fixed", "twin"), ("fixed", "policy"),
        ("plain", "fixed"), ("plain", "twin"), ("plain", "policy"),
    ]  # fmt: skip
    for row in rows:
        assert row["p"] <= row["p_holm"] <= 3 * row["p"] + 1e-12
        assert row["ci95"][0] <= row["ratio"] <= row["ci95"][1]
    found = [row["verdict"] for row in rows]
    assert found == ["slower", "no significant difference"] + 4 * ["faster"]


def test_domains_have_limits_where_prompts_are_enough() -> None:
    found = domain_speedups_with_limits(intervals(11, per_domain=4), ["policy", "plain"])
    assert set(found["policy"]) == {"d0", "d1", "d2"}
    low, high = found["policy"]["d0"]["ci95"]
    assert low < found["policy"]["d0"]["speedup"] < high
    assert found["plain"]["d2"]["speedup"] == 1.0
    scarce = domain_speedups_with_limits(intervals(10, per_domain=4), ["policy"])
    assert scarce["policy"]["d2"]["ci95"] is None
