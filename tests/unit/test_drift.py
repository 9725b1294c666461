"""Drift of the machine is told apart from the costs of settings and contexts."""

from __future__ import annotations

import numpy as np
import pytest

from draftgym.costs.drift import slowness
from draftgym.costs.table import LatencyTable
from draftgym.runtime import DecisionSeconds
from draftgym.state import RoundRecord
from tests.unit.test_latency import record

COSTS = {0: 0.03, 4: 0.045, 16: 0.07}


def rounds(
    pace: np.ndarray, context: np.ndarray, per_token: float = 0.0, seed: int = 0
) -> list[RoundRecord]:
    """Interleaved rounds of three sizes on a machine of changing pace."""
    sizes = np.random.default_rng(seed).choice(list(COSTS), len(pace))
    return [
        record(
            int(size), slow * (COSTS[int(size)] + per_token * tokens),
            propose=0.0, rest=slow * 0.001, context=int(tokens),
        )
        for size, slow, tokens in zip(sizes, pace, context, strict=True)
    ]  # fmt: skip


def ratio(records: list[RoundRecord], size: int) -> float:
    table = LatencyTable.from_records(records, {}, DecisionSeconds(0.0, 0.0))
    return float(table.mean("verify", size, 100) / table.mean("verify", 0, 100))


def test_a_steady_machine_has_no_drift() -> None:
    found = slowness(rounds(np.ones(240), np.full(240, 100)))
    assert found == pytest.approx(np.ones(240), abs=1e-9)
    assert slowness(rounds(np.array([1.0, 3.0]), np.full(2, 100))).tolist() == [1.0, 1.0]


def test_costs_are_those_of_the_usual_machine() -> None:
    pace = 1.0 + 0.4 * (np.arange(480) // 24 % 3)
    noise = np.random.default_rng(1).normal(1.0, 0.03, len(pace))
    made = rounds(pace * noise, np.full(len(pace), 100))
    assert ratio(made, 4) == pytest.approx(COSTS[4] / COSTS[0], rel=0.01)
    assert ratio(made, 16) == pytest.approx(COSTS[16] / COSTS[0], rel=0.01)
    factors = slowness(made)
    assert np.corrcoef(factors, pace)[0, 1] > 0.99
    seconds = np.array([entry.seconds - entry.policy_seconds for entry in made])
    assert (seconds / factors).sum() == pytest.approx(seconds.sum())


def test_what_a_context_costs_is_kept() -> None:
    context = np.tile(np.arange(100, 500, 4), 6)
    made = rounds(np.ones(len(context)), context, per_token=3e-5)
    steady = np.array([entry.verify_seconds for entry in made]) / slowness(made)
    plain = np.array([entry.size == 0 for entry in made])
    slope = np.polyfit(context[plain], steady[plain], 1)[0]
    assert slope == pytest.approx(3e-5, rel=0.2)
