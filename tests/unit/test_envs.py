"""Both environments over a real, tiny session: actions, rewards, seeds, episode ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as gymnasium_check
from stable_baselines3.common.env_checker import check_env as sb3_check

import envs.defaults
from draftgym.clock import Clock, FakeClock
from draftgym.decoder.controllers import FixedController, RandomController
from draftgym.decoder.session import DecoderSession
from draftgym.feature_list import Feature
from draftgym.features import FeatureLayout
from draftgym.runtime import DecisionSeconds
from draftgym.state import RoundRecord, RoundState
from envs.base import SessionEnv
from envs.depth import DraftDepthEnv
from envs.interface import as_index
from envs.rewards import REWARD_KINDS, RateTracker, RewardKind, RoundReward
from envs.size import VerifySizeEnv
from envs.totals import EpisodeTotals
from tests.tiny import tiny_pair
from tests.unit.records import timed_round

IDS = ("DraftGym/DraftDepth-v0", "DraftGym/VerifySize-v0")
PROMPTS = [[2 + (7 * index + step) % 60 for step in range(6 + index % 3)] for index in range(12)]
PAIR = tiny_pair()
LAYOUT = FeatureLayout(max_depth=3, size_grid=(0, 2, 4, 8))
BUDGET = 20


def make_session(
    clock: Clock | None = None,
    pair: Any = PAIR,
    max_depth: int = 3,
    max_size: int = 8,
    ignore_eos: bool = True,
) -> DecoderSession:
    return DecoderSession(
        pair,
        pair.new_drafter(),
        clock=clock or FakeClock(),
        max_depth=max_depth,
        max_size=max_size,
        ignore_eos=ignore_eos,
    )


def depth_env(session: DecoderSession | None = None, **changes: Any) -> DraftDepthEnv:
    fields: dict[str, Any] = {
        "max_new_tokens": BUDGET,
        "layout": LAYOUT,
        "seed": 0,
        "size_controller": FixedController(0, 4),
    }
    return DraftDepthEnv(session or make_session(), PROMPTS, **(fields | changes))


def size_env(session: DecoderSession | None = None, **changes: Any) -> VerifySizeEnv:
    fields: dict[str, Any] = {
        "max_new_tokens": BUDGET,
        "layout": LAYOUT,
        "seed": 0,
        "depth_controller": RandomController(0, LAYOUT.max_depth, LAYOUT.size_grid),
    }
    return VerifySizeEnv(session or make_session(), PROMPTS, **(fields | changes))


BOTH = pytest.mark.parametrize("make", [depth_env, size_env])


def play(env: SessionEnv, actions: Sequence[int]) -> list[dict[str, Any]]:
    """Infos of one episode, actions repeated in order; rewards added under `reward`."""
    infos = []
    terminated, step = False, 0
    while not terminated:
        _, reward, terminated, truncated, info = env.step(actions[step % len(actions)])
        assert truncated is False
        infos.append(info | {"reward": reward})
        step += 1
    return infos


def rounds(infos: Sequence[dict[str, Any]]) -> list[RoundRecord]:
    """All records of an episode, in order."""
    return [
        record
        for info in infos
        if "round" in info
        for record in (info["round"], *info["forced_rounds"])
    ]


# --- the interface ----------------------------------------------------------------------


@pytest.mark.parametrize("name", IDS)
def test_row_17_both_checkers_are_clean(name: str) -> None:
    """CASES 17."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = gymnasium.make(
            name, session=make_session, prompts=PROMPTS, layout=LAYOUT, max_new_tokens=BUDGET
        )
        gymnasium_check(made.unwrapped)
        sb3_check(made.unwrapped)
    assert made.spec is not None
    assert made.spec.nondeterministic is True


def test_importing_the_package_registers_and_loads_nothing_heavy() -> None:
    program = """
import sys
import gymnasium, envs
names = [name for name in gymnasium.registry if name.startswith("DraftGym/")]
kinds = ("DraftDepth", "DraftDepthReplay", "VerifySize", "VerifySizeReplay")
assert sorted(names) == [f"DraftGym/{kind}-v0" for kind in kinds], names
heavy = {"torch", "transformers", "stable_baselines3", "wandb"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", IDS)
def test_make_without_arguments_builds_the_default_pair(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = tiny_pair(seed=3)
    pair.tokenizer = lambda text: {"input_ids": [2 + ord(letter) % 60 for letter in text[:12]]}
    asked: list[Any] = []

    def load(config: Any) -> Any:
        asked.append(config)
        return pair

    monkeypatch.setattr(envs.defaults, "load_pair", load)
    made = gymnasium.make(name)
    observation, info = made.reset(seed=1)
    assert made.observation_space.contains(observation)
    assert info["prompt"] >= 0
    drafter = asked[0].drafter
    assert (drafter.kind, drafter.max_depth, drafter.beam_width, drafter.max_size) == (
        "hybrid",
        8,
        4,
        32,
    )


@pytest.mark.parametrize("name", ["depth", "size"])
def test_docstring_table_is_the_default_layout(name: str) -> None:
    layout = FeatureLayout()
    features: Sequence[Feature] = layout.depth_features
    text = DraftDepthEnv.__doc__ or ""
    if name == "size":
        features, text = layout.size_features, VerifySizeEnv.__doc__ or ""
    first_words = re.compile(r"\| (\d+)(?:-(\d+))? \| (\w+).* \| (\S+) \| (\S+) \| (.+) \|$")
    covered: list[int] = [] if name == "depth" else list(range(47))
    for line in text.splitlines():
        row = first_words.match(line.strip())
        if row is None or len(row[0].split("|")) != 7:
            continue
        first, last = int(row[1]), int(row[2] or row[1])
        covered.extend(range(first, last + 1))
        assert features[first].name == row[3]
        for feature in features[first : last + 1]:
            assert (feature.low, feature.high) == (float(row[4]), float(row[5]))
            assert feature.unit == row[6]
    assert covered == list(range(len(features)))


@BOTH
def test_observations_stay_in_the_space_and_are_not_reused(make: Any) -> None:
    env = make()
    observation, _ = env.reset()
    for _ in range(60):
        kept = observation.copy()
        before = observation
        observation, _, terminated, _, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        assert np.array_equal(before, kept)
        if terminated:
            observation, _ = env.reset()


@BOTH
def test_the_text_does_not_depend_on_the_actions(make: Any) -> None:
    texts = set()
    for actions in ([0], [1], [1, 0], [0, 1, 1, 1]):
        env = make()
        env.reset(options={"prompt": 4})
        play(env, actions)
        texts.add(tuple(env.session.tokens))
    assert len(texts) == 1


@pytest.mark.parametrize("value", [1, np.int64(1), np.array(1), np.array([1])])
@BOTH
def test_row_55_every_way_to_say_an_action(make: Any, value: Any) -> None:
    """CASES 55."""
    outcomes = []
    for action in (1, value):
        env = make()
        env.reset(seed=5)
        observation, reward, *_ = env.step(action)
        outcomes.append((observation.tolist(), reward))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("value", [99, -1, np.array([0, 1]), 1.0, "1", None])
@BOTH
def test_row_55_anything_but_one_action_in_range_raises(make: Any, value: Any) -> None:
    """CASES 55."""
    env = make()
    env.reset()
    with pytest.raises(ValueError, match="action: must be"):
        env.step(value)
    env.step(0)


@BOTH
def test_stepping_without_an_episode_raises(make: Any) -> None:
    env = make()
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(0)
    env.reset()
    play(env, [0])
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(0)


# --- seeds and prompts ------------------------------------------------------------------


def prompt_order(env: SessionEnv, count: int, seed: int | None = None) -> list[int]:
    first = env.reset(seed=seed)[1]["prompt"]
    return [first, *(env.reset()[1]["prompt"] for _ in range(count - 1))]


@BOTH
def test_row_35_reset_honours_seed_and_goes_on_without(make: Any) -> None:
    """CASES 35."""
    orders = []
    for _ in range(2):
        env = make(seed=None)
        order = [env.reset(seed=7)[1]["prompt"]]
        order.append(env.reset()[1]["prompt"])
        order.append(env.reset(options={})[1]["prompt"])
        orders.append(order)
    assert orders[0] == orders[1]
    assert len(set(orders[0])) == 3


@BOTH
def test_a_seed_fixes_the_whole_episode_under_a_simulated_clock(make: Any) -> None:
    """Also the random depths of the other controller, and in the same instance."""
    env = make(reward="time_cost")
    runs = []
    for _ in range(2):
        env.reset(seed=11)
        runs.append([(info["reward"], info.get("round")) for info in play(env, [1, 0, 1])])
    assert runs[0] == runs[1]


@BOTH
def test_row_35_options_pick_a_prompt_and_unknown_ones_raise(make: Any) -> None:
    """CASES 35."""
    env = make()
    expected = prompt_order(make(), 3, seed=2)
    order = [env.reset(seed=2)[1]["prompt"]]
    assert env.reset(options={"prompt": np.int64(9)})[1]["prompt"] == 9
    order += [env.reset()[1]["prompt"] for _ in range(2)]
    assert order == expected, "asking for one prompt must leave the order alone"
    for _ in range(2):
        with pytest.raises(ValueError, match="options: unknown 'promt'; accepted: prompt"):
            env.reset(options={"promt": 1})
    with pytest.raises(ValueError, match=r"options\['prompt'\]: must be 0 to 11"):
        env.reset(options={"prompt": 12})


@BOTH
def test_every_prompt_comes_up_equally_often(make: Any) -> None:
    order = prompt_order(make(), 3 * len(PROMPTS), seed=0)
    epochs = [order[start : start + len(PROMPTS)] for start in range(0, len(order), len(PROMPTS))]
    assert all(sorted(epoch) == list(range(len(PROMPTS))) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_row_53_workers_and_neighbouring_runs_share_no_stream() -> None:
    """CASES 53: SB3 seeds worker i with seed + i, so runs 0 and 1 would share three of four."""
    session = make_session()
    shares: list[set[int]] = []
    orders: list[list[int]] = []
    for run_seed in (0, 1):
        shares = []
        for worker in range(4):
            env = depth_env(session, worker=worker, workers=4)
            order = prompt_order(env, 12, seed=run_seed + worker)
            shares.append(set(order))
            orders.append([worker, *order])
        assert set().union(*shares) == set(range(len(PROMPTS)))
        assert sum(map(len, shares)) == len(PROMPTS), "workers' prompts are disjoint"
    # Compared as positions within a share: equal numbers mean equal random draws.
    draws = [[(index - worker) // 4 for index in order] for worker, *order in orders]
    assert len({tuple(draw) for draw in draws}) == len(draws)


# --- the depth decision -----------------------------------------------------------------


def test_asked_before_every_pass_and_stopped_at_the_deepest() -> None:
    env = depth_env()
    env.reset()
    assert "round" not in env.step(1)[4]
    assert "round" not in env.step(1)[4]
    record = env.step(1)[4]["round"]  # the third pass is the last allowed: no question after it
    assert (record.depth, record.requested_size) == (3, 4)
    plain = env.step(0)[4]["round"]
    assert (plain.depth, plain.size, plain.emitted) == (0, 0, 1)


def test_beyond_its_own_deepest_draft_nobody_is_asked_or_charged() -> None:
    env = depth_env(deepest=2)
    env.reset()
    assert "round" not in env.step(1)[4]
    assert env.step(1)[4]["round"].depth == 2
    with pytest.raises(ValueError, match="deepest: must be at least 1, got 0"):
        depth_env(deepest=0)


def test_rate_charges_each_pass_at_its_decision() -> None:
    rate = RateTracker(initial_seconds_per_token=0.03)
    env = depth_env(rate=rate, decision_seconds=DecisionSeconds(depth=1e-3, size=5e-3))
    env.reset()
    first = env.step(1)[1]
    second = env.step(1)[1]
    _, last, _, _, info = env.step(0)
    record = info["round"]
    assert record.policy_seconds == pytest.approx(3e-3), "a free size controller is not charged"
    assert first == pytest.approx(-(record.pass_seconds[0] + 1e-3))
    assert second == pytest.approx(-(record.pass_seconds[1] + 1e-3))
    assert first + second + last == pytest.approx(record.emitted * 0.03 - record.seconds)


@pytest.mark.parametrize("kind", REWARD_KINDS)
@BOTH
def test_rewards_of_an_episode_sum_to_their_definition(make: Any, kind: RewardKind) -> None:
    rate = RateTracker(window_rounds=4, initial_seconds_per_token=0.02)
    env = make(reward=kind, rate=rate, decision_seconds=2e-4)
    env.reset(seed=3)
    infos = play(env, [1, 0, 1, 1])
    expected = 0.0
    again = RateTracker(window_rounds=4, initial_seconds_per_token=0.02)
    for record in rounds(infos):
        e, t = record.emitted, record.seconds
        pace = again.seconds_per_token
        assert pace is not None
        again.add(record)
        expected += {
            "rate": e * pace - t,
            "throughput": e / t,
            "time_per_token": -t / e,
            "emitted": e,
            "time_cost": -t,
        }[kind]
    assert sum(info["reward"] for info in infos) == pytest.approx(expected)


def test_a_round_without_a_choice_is_played_and_credited_to_the_step_before() -> None:
    env = depth_env(max_new_tokens=3, reward="time_cost")
    env.reset()
    _, reward, terminated, _, info = env.step(0)
    # One token is left: nothing can be drafted that could still be kept.
    (forced,) = info["forced_rounds"]
    assert (forced.depth, forced.size) == (0, 0)
    assert reward == pytest.approx(-info["round"].seconds - forced.seconds)
    assert terminated
    assert info["totals"].rounds == 2


def test_a_budget_without_any_choice_is_an_error_not_a_loop() -> None:
    with pytest.raises(RuntimeError, match="no prompt leads to a decision"):
        depth_env(max_new_tokens=2).reset()
    size_env(max_new_tokens=2).reset()


def test_a_drafter_without_passes_has_no_depth_to_learn() -> None:
    ngram = tiny_pair(drafter="ngram")
    with pytest.raises(ValueError, match="makes no passes"):
        depth_env(make_session(pair=ngram))
    env = size_env(make_session(pair=ngram), max_new_tokens=100)
    env.reset(seed=0)
    records = rounds(play(env, [3]))
    assert {record.depth for record in records} == {0}
    assert sum(record.accepted for record in records) > 0, "free proposals are verified"


class Learned(FixedController):
    """A controller whose decisions are not free; counts them."""

    free = False

    def __init__(self, depth: int, size: int) -> None:
        super().__init__(depth, size)
        self.asked = 0

    def draft_again(self, state: RoundState) -> bool:
        self.asked += 1
        return super().draft_again(state)

    def choose_size(self, state: RoundState) -> int:
        self.asked += 1
        return super().choose_size(state)


def test_the_other_policy_is_charged_too() -> None:
    cost = DecisionSeconds(depth=1e-3, size=7e-3)
    env = depth_env(size_controller=Learned(0, 4), decision_seconds=cost)
    env.reset()
    env.step(1)
    assert env.step(0)[4]["round"].policy_seconds == pytest.approx(2e-3 + 7e-3)
    assert env.step(0)[4]["round"].policy_seconds == pytest.approx(1e-3), "empty tree: one answer"
    other = Learned(2, 0)
    sizes = size_env(depth_controller=other, decision_seconds=cost)
    sizes.reset()
    record = sizes.step(1)[4]["round"]
    assert record.policy_seconds == pytest.approx(3e-3 + 7e-3)
    assert other.asked == 6, "three for this round, three for the next"


# --- the size decision ------------------------------------------------------------------


def test_one_step_is_one_round_with_the_size_of_the_grid() -> None:
    env = size_env(depth_controller=FixedController(3, 0))
    env.reset()
    for action, size in enumerate(LAYOUT.size_grid):
        record = env.step(action)[4]["round"]
        assert (record.requested_size, record.size, record.depth) == (size, size, 3)


def test_a_size_beyond_the_tree_is_clamped_and_says_so() -> None:
    env = size_env(depth_controller=FixedController(1, 0))
    env.reset()
    info = env.step(3)[4]
    assert info["clamped"] is True
    assert (info["round"].requested_size, info["round"].size) == (8, 4)
    assert env.step(2)[4]["clamped"] is False


def test_an_empty_tree_is_not_charged_for_its_size() -> None:
    env = size_env(depth_controller=FixedController(0, 0), decision_seconds=1e-3)
    env.reset()
    assert env.step(2)[4]["round"].policy_seconds == 0.0


# --- episodes ---------------------------------------------------------------------------


@BOTH
def test_totals_are_sums_over_the_rounds(make: Any) -> None:
    env = make()
    env.reset()
    infos = play(env, [1, 1, 0])
    records = rounds(infos)
    found = infos[-1]["totals"]
    assert isinstance(found, EpisodeTotals)
    assert found.tokens == sum(record.emitted for record in records) == BUDGET - 1
    assert found.seconds == pytest.approx(sum(record.seconds for record in records))
    assert found.tau_emitted == pytest.approx(found.tokens / len(records))
    assert found.seconds_per_token == pytest.approx(found.seconds / found.tokens)
    assert sum(found.depths.values()) == sum(found.sizes.values()) == found.rounds == len(records)
    assert found.stop_reason == "budget"
    assert all("totals" not in info for info in infos[:-1])


def first_tokens() -> list[int]:
    session = make_session()
    tokens = []
    for prompt in PROMPTS:
        session.start(prompt, 2)
        tokens.append(session.tokens[0])
    return tokens


@BOTH
def test_an_answer_that_ends_at_once_is_passed_over(make: Any) -> None:
    firsts = first_tokens()
    stop = firsts[0]
    silent = {index for index, token in enumerate(firsts) if token == stop}
    assert 0 < len(silent) < len(PROMPTS)
    env = make(make_session(pair=tiny_pair(eos=frozenset({stop})), ignore_eos=False))
    seen, skipped = set(), set()
    for _ in range(2 * len(PROMPTS)):
        _, info = env.reset()
        seen.add(info["prompt"])
        skipped |= set(info["skipped_prompts"])
    assert skipped == silent
    assert not seen & silent
    with pytest.raises(ValueError, match="ends before any decision"):
        env.reset(options={"prompt": 0})


@BOTH
def test_prompts_that_all_end_at_once_are_an_error_not_a_loop(make: Any) -> None:
    session = make_session(pair=tiny_pair(eos=frozenset(range(64))), ignore_eos=False)
    env = make(session)
    with pytest.raises(RuntimeError, match="no prompt leads to a decision"):
        env.reset()


@BOTH
def test_end_of_sequence_terminates(make: Any) -> None:
    session = make_session()
    session.start(PROMPTS[2], 12)
    session.run(FixedController(0, 0))
    stop = next(token for token in session.tokens if token != session.tokens[0])
    length = session.tokens.index(stop) + 1
    env = make(make_session(pair=tiny_pair(eos=frozenset({stop})), ignore_eos=False))
    env.reset(options={"prompt": 2})
    infos = play(env, [1, 0])
    assert infos[-1]["totals"].stop_reason == "eos"
    assert len(env.session.tokens) == length


@BOTH
def test_row_11_time_outside_the_session_never_moves_the_reward(make: Any) -> None:
    """CASES 11: a slow agent, logger or tokenizer is not what a user waits for."""
    runs = []
    for delay in (0.0, 0.0625):
        clock = FakeClock()
        env = make(make_session(clock), reward="time_cost", decision_seconds=1e-3)
        env.reset(seed=6)
        rewards: list[float] = []
        terminated = False
        while not terminated:
            clock.set_to(clock.boundary() + delay)  # also in the middle of a round
            _, reward, terminated, _, _ = env.step(len(rewards) % 2)
            rewards.append(reward)
        runs.append(rewards)
    assert runs[0] == runs[1]
    assert sum(runs[0]) < 0.0


# --- resume -----------------------------------------------------------------------------


@BOTH
def test_state_continues_in_another_instance(make: Any) -> None:
    env = make()
    env.reset(seed=4)
    play(env, [1, 0])
    env.reset()
    env.step(1)  # a running episode is not part of the state
    saved = json.loads(json.dumps(env.state_dict()))
    env.load_state_dict(saved)

    def go_on(one: SessionEnv) -> list[Any]:
        told = []
        for _ in range(3):
            told.append(one.reset()[1]["prompt"])
            told.extend(round(info["reward"], 12) for info in play(one, [1, 1, 0]))
        return told

    other = make(seed=99)
    other.load_state_dict(saved)
    with pytest.raises(ResetNeeded):
        other.step(0)
    assert go_on(other) == go_on(env)


def test_a_state_of_other_prompts_is_refused() -> None:
    env = depth_env()
    env.reset()
    with pytest.raises(ValueError, match="other prompts"):
        depth_env(worker=1, workers=2).load_state_dict(env.state_dict())


# --- rewards and the pace ---------------------------------------------------------------


def test_pace_is_a_ratio_of_sums_over_the_window() -> None:
    rate = RateTracker(window_rounds=2)
    assert rate.seconds_per_token is None
    for seconds, tokens in ((9.0, 1), (1.0, 1), (1.0, 3)):
        rate.add(timed_round(seconds, tokens))
    assert rate.seconds_per_token == pytest.approx(2.0 / 4)
    other = RateTracker(window_rounds=2)
    other.load_state_dict(json.loads(json.dumps(rate.state_dict())))
    assert other.seconds_per_token == rate.seconds_per_token


def test_before_any_pace_a_round_is_its_own_yardstick() -> None:
    reward = RoundReward("rate", RateTracker())
    reward.begin()
    assert reward.draft_pass(0.25) + reward.end(timed_round(1.0, 2)) == pytest.approx(0.0)
    reward.begin()
    assert reward.end(timed_round(0.5, 2)) == pytest.approx(2 * 0.5 - 0.5)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"reward": "speed"}, "reward: unknown 'speed'; accepted: rate"),
        ({"max_new_tokens": 1}, "max_new_tokens: must be at least 2"),
        ({"worker": 3, "workers": 2}, "worker: must be 0 to 1"),
        ({"workers": 100}, "prompts: at least one per worker"),
        ({"layout": FeatureLayout(max_depth=2)}, r"layout\.max_depth: 2, but the session allows 3"),
        ({"layout": FeatureLayout(size_grid=(0, 4))}, r"layout\.max_size: 4, .* allows 8"),
        ({"prompts": None}, "prompts: missing"),
        ({"session": None}, "session: missing"),
    ],
)
@pytest.mark.parametrize("kind", [DraftDepthEnv, VerifySizeEnv])
def test_a_bad_argument_is_named(kind: Any, change: dict[str, Any], match: str) -> None:
    fields: dict[str, Any] = {"session": make_session(), "prompts": PROMPTS, "layout": LAYOUT}
    with pytest.raises(ValueError, match=match):
        kind(**(fields | change))


@pytest.mark.parametrize("arguments", [{"window_rounds": 0}, {"initial_seconds_per_token": -1.0}])
def test_a_bad_pace_is_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        RateTracker(**arguments)


def test_as_index_names_what_it_checks() -> None:
    with pytest.raises(ValueError, match="thing: must be 0 to 2, got 3"):
        as_index(3, 3, "thing")


def test_sampled_episodes_differ_and_repeat_with_the_seed() -> None:
    from draftgym.clock import FakeClock
    from draftgym.decoder.config import SamplingConfig
    from draftgym.decoder.controllers import FixedController
    from draftgym.decoder.session import DecoderSession

    pair = tiny_pair(1, "hybrid", eos=frozenset(), sampling=SamplingConfig(temperature=1.0))

    def texts(seed: int) -> list[list[int]]:
        session = DecoderSession(pair, pair.new_drafter(), clock=FakeClock())
        env = VerifySizeEnv(
            session, [[3, 5, 7]], depth_controller=FixedController(1, 4), max_new_tokens=12
        )
        found = []
        for episode in range(3):
            env.reset(seed=seed if episode == 0 else None)
            over = False
            while not over:
                _, _, over, _, _ = env.step(4)
            found.append(list(session.tokens))
        return found

    first = texts(1)
    assert first == texts(1)
    assert len({tuple(text) for text in first}) == 3
    assert first != texts(2)
