"""Rewards of many rounds that end together are those of the rounds one after the other."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from draftgym.traces.replay import FinishedRounds
from envs.batch_rewards import BatchRate, BatchReward
from envs.rewards import REWARD_KINDS, RateTracker, RewardKind, RoundReward
from tests.unit.records import timed_round


def finished(who: np.ndarray, seconds: np.ndarray, emitted: np.ndarray) -> FinishedRounds:
    """Rounds of which a reward reads only these."""
    columns = {entry.name: np.zeros(len(who)) for entry in fields(FinishedRounds)}
    return FinishedRounds(**(columns | {"who": who, "seconds": seconds, "emitted": emitted}))


@pytest.mark.parametrize("kind", REWARD_KINDS)
@pytest.mark.parametrize("initial", [None, 0.02])
@pytest.mark.parametrize("window", [1, 3, 40])
def test_as_round_by_round(kind: RewardKind, initial: float | None, window: int) -> None:
    environments = 6
    random = np.random.default_rng(window)
    batch = BatchReward(kind, BatchRate(window, initial), environments)
    rate = RateTracker(window, initial)
    singles = [RoundReward(kind, rate) for _ in range(environments)]
    for _ in range(200):
        who = np.flatnonzero(random.random(environments) < 0.6)
        batch.begin(who)
        for index in who:
            singles[index].begin()
        for _ in range(2):
            drafting = who[random.random(len(who)) < 0.5]
            spent = random.exponential(0.01, len(drafting))
            expected = [singles[i].draft_pass(s) for i, s in zip(drafting, spent, strict=True)]
            assert batch.draft_pass(drafting, spent).tolist() == expected
        seconds, emitted = random.exponential(0.05, len(who)), random.integers(1, 9, len(who))
        expected = [
            singles[i].end(timed_round(float(s), int(e)))
            for i, s, e in zip(who, seconds, emitted, strict=True)
        ]
        seen = batch.end(finished(who, seconds, emitted))
        np.testing.assert_allclose(seen, expected, rtol=1e-10, atol=1e-14)
        assert batch.rate.seconds_per_token == pytest.approx(rate.seconds_per_token, rel=1e-12)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="window_rounds"):
        BatchRate(0)
    with pytest.raises(ValueError, match="initial_seconds_per_token"):
        BatchRate(1, -1.0)
    with pytest.raises(ValueError, match="reward: unknown 'speed'"):
        BatchReward("speed", BatchRate(), 1)  # type: ignore[arg-type]
