"""Replays against live environments over a session that reads the same trace."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as gymnasium_check
from stable_baselines3.common.env_checker import check_env as sb3_check

from draftgym.decoder.controllers import FixedController
from draftgym.features import FeatureLayout
from draftgym.runtime import (
    DecisionSeconds,
    ExportedBatch,
    ExportedController,
    ExportedPolicy,
    Normaliser,
    PolicyHead,
)
from draftgym.traces.controllers import FixedBatch
from draftgym.traces.replay import ReplayBatch
from envs.base import SessionEnv
from envs.batch_rewards import BatchRate
from envs.depth import DraftDepthEnv
from envs.replay import DepthReplayVecEnv, ReplayVecEnv, SizeReplayVecEnv
from envs.replay_single import DraftDepthReplayEnv, ReplayEnv, VerifySizeReplayEnv
from envs.rewards import REWARD_KINDS, RateTracker, RewardKind
from envs.size import VerifySizeEnv
from tests.unit.trace_session import (
    COSTS,
    LAYOUT,
    LENGTHS,
    TickTimes,
    TraceSession,
    believable_trace,
)

TRACE, SCORES = believable_trace()
PROMPTS = [[index] for index in range(len(LENGTHS))]
DECISION = DecisionSeconds(depth=5 / 2**15, size=3 / 2**15)


def random_head(features: int, actions: int) -> PolicyHead:
    random = np.random.default_rng(features)
    widths = (features, 16, 16, actions)
    shapes = list(zip(widths[1:], widths[:-1], strict=True))
    return PolicyHead(
        weights=tuple(random.normal(0, 0.7, shape).astype(np.float32) for shape in shapes),
        biases=tuple(random.normal(0, 0.3, out).astype(np.float32) for out, _ in shapes),
        normaliser=Normaliser(
            random.uniform(0, 1, features).astype(np.float32),
            random.uniform(0.05, 1, features).astype(np.float32),
            5.0,
        ),
    )


POLICY = ExportedPolicy(
    LAYOUT,
    depth=random_head(len(LAYOUT.depth_names), 2),
    size=random_head(len(LAYOUT.size_names), len(LAYOUT.size_grid)),
)
OTHERS = {
    "fixed": (FixedController(2, 2), FixedBatch(2, 2)),
    "plain": (FixedController(0, 0), FixedBatch(0, 0)),
    "policy": (ExportedController(POLICY), ExportedBatch(POLICY)),
}
KINDS = pytest.mark.parametrize("kind", ["depth", "size"])


def live(kind: str, other: Any, **changes: Any) -> SessionEnv:
    made: type[Any] = DraftDepthEnv if kind == "depth" else VerifySizeEnv
    name = "size_controller" if kind == "depth" else "depth_controller"
    return made(
        TraceSession(TRACE, SCORES),
        PROMPTS,
        layout=LAYOUT,
        decision_seconds=DECISION,
        **{name: other, "seed": 0, **changes},
    )


def single(kind: str, other: Any = None, **changes: Any) -> ReplayEnv:
    made: type[Any] = DraftDepthReplayEnv if kind == "depth" else VerifySizeReplayEnv
    name = "size_controller" if kind == "depth" else "depth_controller"
    times = TickTimes(DECISION)
    return made(TRACE, times, layout=LAYOUT, costs=COSTS, **{name: other, "seed": 0, **changes})


def many(kind: str, environments: int, other: Any, **changes: Any) -> ReplayVecEnv:
    made: type[Any] = DepthReplayVecEnv if kind == "depth" else SizeReplayVecEnv
    batch = ReplayBatch(TRACE, TickTimes(DECISION), LAYOUT, environments, costs=COSTS)
    return made(batch, other, **{"seed": 0, **changes})


def same(seen: Any, expected: Any) -> None:
    np.testing.assert_allclose(seen, expected, rtol=3e-7, atol=0.0)


# --- one request ------------------------------------------------------------------------


@pytest.mark.parametrize("other", list(OTHERS))
@pytest.mark.parametrize("reward", REWARD_KINDS)
@KINDS
def test_a_replay_is_the_live_environment(kind: str, reward: RewardKind, other: str) -> None:
    expected = live(kind, OTHERS[other][0], reward=reward, rate=RateTracker(5))
    seen = single(kind, OTHERS[other][1], reward=reward, rate=BatchRate(5))
    random = np.random.default_rng(3)
    forced = 0
    for episode in range(14):
        seed = 11 if episode in (0, 9) else None
        (first, info), (first_seen, info_seen) = expected.reset(seed=seed), seen.reset(seed=seed)
        same(first_seen, first)
        assert info_seen == info
        terminated = False
        while not terminated:
            action = int(random.integers(expected.action_space.n))
            step, step_seen = expected.step(action), seen.step(action)
            same(step_seen[0], step[0])
            assert step_seen[1] == pytest.approx(step[1], rel=1e-12, abs=1e-15)
            assert step_seen[2:4] == step[2:4]
            assert step_seen[4] == step[4], "records, clamps, forced rounds and totals"
            terminated = step[2]
            forced += len(step[4].get("forced_rounds", ()))
    assert (forced > 0) == (kind == "depth")


@KINDS
def test_both_checkers_are_clean(kind: str) -> None:
    name = {"depth": "DraftGym/DraftDepthReplay-v0", "size": "DraftGym/VerifySizeReplay-v0"}[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = gymnasium.make(name, trace=lambda: TRACE, times=TickTimes(), layout=LAYOUT)
        gymnasium_check(made.unwrapped)
        sb3_check(made.unwrapped)
    assert made.spec is not None
    assert made.spec.nondeterministic is True


@KINDS
def test_what_is_refused_is_what_live_environments_refuse(kind: str) -> None:
    env = single(kind)
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(0)
    with pytest.raises(ValueError, match="options: unknown 'promt'; accepted: prompt"):
        env.reset(options={"promt": 1})
    with pytest.raises(ValueError, match=r"options\['prompt'\]: must be 0 to 5"):
        env.reset(options={"prompt": 6})
    with pytest.raises(ValueError, match="ends before any decision"):
        env.reset(options={"prompt": 2})
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(0)
    assert env.reset(options={"prompt": 4})[1]["prompt"] == 4
    with pytest.raises(ValueError, match="action: must be 0 to"):
        env.step(9)


def test_sequences_without_any_decision_are_an_error_not_a_loop() -> None:
    batch = ReplayBatch(TRACE.select(np.array([2, 3])), TickTimes(), LAYOUT, 2)
    with pytest.raises(RuntimeError, match="no sequence of the trace leads to a decision"):
        DepthReplayVecEnv(batch, FixedBatch(0, 2)).reset()


def test_a_trace_without_passes_has_no_depth_to_learn() -> None:
    batch = ReplayBatch(believable_trace(levels=1)[0], TickTimes(), LAYOUT, 1)
    with pytest.raises(ValueError, match="makes no passes"):
        DepthReplayVecEnv(batch, FixedBatch(0, 2))
    env = SizeReplayVecEnv(batch, FixedBatch(3, 0))
    env.reset()
    env.step(np.array([3]))
    assert env.rounds[0].depth.tolist() == [0]


@pytest.mark.parametrize(
    ("layout", "match"),
    [
        (FeatureLayout(max_depth=2, size_grid=(0, 1)), r"layout\.max_depth: 2, .* allows 3"),
        (FeatureLayout(max_depth=3, size_grid=(0, 3)), r"layout\.size_grid: 3 is not a size"),
    ],
)
def test_a_layout_that_the_trace_cannot_show_is_refused(layout: FeatureLayout, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ReplayBatch(TRACE, TickTimes(), layout, 1)


# --- many requests ----------------------------------------------------------------------


@pytest.mark.parametrize("other", list(OTHERS))
@pytest.mark.parametrize(("kind", "reward"), [("depth", "time_cost"), ("size", "rate")])
def test_many_replays_are_as_many_live_environments(
    kind: str, reward: RewardKind, other: str
) -> None:
    """In the size environment they share the pace, in the order of their numbers."""
    count, rate = 5, RateTracker(7)
    vec = many(kind, count, OTHERS[other][1], reward=reward, rate=BatchRate(7))
    lives = [live(kind, OTHERS[other][0], reward=reward, rate=rate) for _ in range(count)]
    random = np.random.default_rng(4)
    observations = vec.reset()
    playing = [info["sequence"] for info in vec.reset_infos]
    for env, sequence, observation in zip(lives, playing, observations, strict=True):
        same(observation, env.reset(options={"prompt": sequence})[0])
    episodes = 0
    for _ in range(120):
        actions = random.integers(vec.action_space.n, size=count)
        before = observations.copy()
        kept = observations
        observations, rewards, dones, infos = vec.step(actions)
        assert np.array_equal(kept, before), "an observation that was handed out stays"
        for index, env in enumerate(lives):
            observation, reward_expected, terminated, _, info = env.step(int(actions[index]))
            assert rewards[index] == pytest.approx(reward_expected, rel=1e-6, abs=1e-9)
            assert dones[index] == terminated
            assert vec.round_ended[index] == ("round" in info)
            if terminated:
                episodes += 1
                same(infos[index]["terminal_observation"], observation)
                assert infos[index]["sequence"] == info["prompt"]
                sequence = int(vec._game.batch.sequence[index])
                observation = env.reset(options={"prompt": sequence})[0]
            else:
                assert infos[index] == {}
            same(observations[index], observation)
    assert episodes > 20


@KINDS
def test_seeds_fix_everything_and_environments_share_no_stream(kind: str) -> None:
    runs = []
    for _ in range(2):
        vec = many(kind, 6, ExportedBatch(POLICY), seed=None)
        vec.seed(5)
        orders: list[list[int]] = [[] for _ in range(6)]
        rewards, start = [], vec.reset()
        for index, info in enumerate(vec.reset_infos):
            orders[index].append(info["sequence"])
        for _ in range(60):
            _, reward, dones, infos = vec.step(np.zeros(6, np.int64))
            rewards.append(reward.tolist())
            for index in np.flatnonzero(dones):
                orders[index].append(infos[index]["sequence"])
        runs.append((start.tolist(), rewards, orders))
    assert runs[0] == runs[1]
    assert len({tuple(order) for order in runs[0][2]}) > 1
    other = many(kind, 6, ExportedBatch(POLICY), seed=None)
    other.seed(6)
    other.reset()
    assert [info["sequence"] for info in other.reset_infos] != [o[0] for o in runs[0][2]]


@KINDS
def test_vec_env_interface(kind: str) -> None:
    vec = many(kind, 3, FixedBatch(1, 1))
    assert vec.get_attr("render_mode", indices=[0, 2]) == [None, None]
    assert vec.env_is_wrapped(gymnasium.Wrapper) == [False] * 3
    vec.set_attr("mark", 4)
    assert vec.get_attr("mark") == [4, 4, 4]
    with pytest.raises(ValueError, match="mark: replay environments share"):
        vec.set_attr("mark", 4, indices=1)
    with pytest.raises(AttributeError, match="no methods of their own"):
        vec.env_method("step", 1)
    with pytest.raises(ResetNeeded, match="reset"):
        vec.step(np.zeros(3, np.int64))
    observation = vec.reset()
    assert observation.dtype == np.float32
    assert all(vec.observation_space.contains(row) for row in observation)
    for actions in (np.zeros(2, np.int64), np.zeros(3), np.array([0, 0, 99]), np.array([0, -1, 0])):
        with pytest.raises(ValueError, match="actions: must be"):
            vec.step(actions)
    vec.close()
