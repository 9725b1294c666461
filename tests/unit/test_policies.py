"""Configuration, schedules, rollouts, checkpoints and logs of the policies."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from draftgym.benchmark.untrained import untrained_controller
from draftgym.configuration import validate as validate_config
from draftgym.errors import ConfigurationError
from draftgym.features import FeatureLayout
from draftgym.runtime import Normaliser
from draftgym.runtime.network import Network
from draftgym.state import RoundRecord
from policies.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    ppo_tensors,
    random_states,
    restore_ppo,
    restore_random_states,
    save_checkpoint,
)
from policies.config import (
    NormaliserConfig,
    PhaseConfig,
    PPOConfig,
    PretrainingConfig,
    TrainConfig,
    WandbConfig,
)
from policies.export import PolicyCard, export_head, export_policy
from policies.learner import Learner
from policies.logging import MetricsLog, NullTracker, WandbTracker, open_tracker, wandb_mode
from policies.normaliser import RunningNormaliser
from policies.ppo import build_ppo, update
from policies.rollout import Collector, RolloutStatistics, RoundRolloutBuffer
from policies.schedule import LinearSchedule, policy_progress
from policies.training import reward_scale, rollout_seed
from policies.warm_start import (
    fixed_actions,
    imitate,
    spread,
    survival_cost_actions,
    teacher_actions,
)
from tests.wandb_records import records

SMALL = PPOConfig(rollout_steps=64, batch_size=32, epochs=4, learning_rate=3e-3)


def record(depth: int = 1, size: int = 1, accepted: int = 1, seconds: float = 0.04) -> RoundRecord:
    return RoundRecord(
        depth=depth,
        nodes=4,
        requested_size=size,
        size=size,
        accepted=accepted,
        tokens=tuple(range(accepted + 1)),
        context_tokens=10,
        uningested_tokens=1,
        clamped=False,
        draft_seconds=0.002 * depth,
        pass_seconds=(0.002,) * depth,
        verify_seconds=0.03,
        commit_seconds=0.001,
        policy_seconds=0.0001,
        seconds=seconds,
    )


class DepthToy(gymnasium.Env[Any, Any]):
    """Drafting pays while the observed number is positive; a round ends on 0 or after 4 passes."""

    def __init__(self, rounds: int = 10) -> None:
        self.observation_space = spaces.Box(-100, 100, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._rounds = rounds
        self.resets: list[int | None] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.resets.append(seed)
        self._round, self._depth = 0, 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 0.0
        if action == 1:
            reward = 1.0 if self._good else -1.0
            self._depth += 1
        if action == 1 and self._depth < 4:
            return self._look(), reward, False, False, {}
        info = {"round": record(depth=self._depth)}
        self._round += 1
        self._depth = 0
        return self._look(), reward, self._round == self._rounds, False, info

    def _look(self) -> Any:
        signal = self.np_random.normal()
        self._good = signal > 0
        # A large offset: learning it needs the normaliser.
        return np.array([50.0 + signal, self._depth, 0.0], np.float32)


def make_learner() -> tuple[Any, RunningNormaliser, Collector]:
    model = build_ppo(SMALL, features=3, actions=2, seed=1, device="cpu")
    normaliser = RunningNormaliser(3, NormaliserConfig())
    return model, normaliser, Collector(model, normaliser, 1.0, 10.0, "round")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"seed": -1}, "seed"),
        ({"run": "../up"}, "run"),
        ({"size_ppo": {"rollout_steps": 100, "batch_size": 64}}, "batch_size"),
        ({"size_ppo": {"clip_range": 2}}, "clip_range"),
        ({"schedule": [{"policy": "size"}]}, "steps, seconds"),
        (
            {
                "schedule": [
                    {"policy": "size", "steps": 1},
                    {"policy": "depth", "seconds": 1},
                ]
            },
            "schedule",
        ),
        ({"layout": {"size_grid": [1, 2]}}, "size_grid"),
        ({"layout": {"max_depth": 4}}, "layout.max_depth"),
        ({"fixed_size": 99}, "fixed_size"),
        ({"pair": {"drafter": {"kind": "ngram"}}}, "schedule"),
        (
            {"pair": {"drafter": {"kind": "lm"}}, "pretraining": {"enabled": True}},
            "pretraining.enabled",
        ),
        ({"normaliser": {"enabled": False}}, "normaliser.enabled"),
        ({"size_ppo": {"hidden_sizes": [32]}}, "depth_ppo.hidden_sizes"),
    ],
)
def test_bad_configuration_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        validate_config(change, TrainConfig, "test")


def test_every_field_has_a_description() -> None:
    for model in (
        TrainConfig, PPOConfig, PhaseConfig, NormaliserConfig, PretrainingConfig, WandbConfig,
    ):  # fmt: skip
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


def test_learning_rate_warms_up_then_decays_linearly() -> None:
    schedule = LinearSchedule(peak=1e-3, warmup_fraction=0.2, final_fraction=0.1)
    assert schedule(1.0) == pytest.approx(1e-4)
    assert schedule(0.9) == pytest.approx(5e-4)
    assert schedule(0.8) == pytest.approx(1e-3)
    assert schedule(0.4) == pytest.approx(5.5e-4)
    assert schedule(0.0) == pytest.approx(1e-4)


def test_progress_counts_only_the_policys_own_phases() -> None:
    phases = [
        PhaseConfig(policy="size", steps=100),
        PhaseConfig(policy="depth", steps=500),
        PhaseConfig(policy="size", steps=300),
    ]
    assert policy_progress(phases, "size", 0, 50) == pytest.approx(0.125)
    assert policy_progress(phases, "size", 2, 100) == pytest.approx(0.5)
    assert policy_progress(phases, "depth", 1, 250) == pytest.approx(0.5)
    assert policy_progress(phases, "size", 3, 0) == 1.0


def test_row_53_rollout_seeds_of_neighbouring_runs_are_disjoint() -> None:
    seeds = [{rollout_seed(run, index) for index in range(50)} for run in range(4)]
    assert len(set.union(*seeds)) == 200


def test_rewards_are_counted_in_plain_steps() -> None:
    assert reward_scale("rate", 0.04) == pytest.approx(25)
    assert reward_scale("throughput", 0.04) == pytest.approx(0.04)
    assert reward_scale("emitted", 0.04) == 1.0


def test_normaliser_merges_batches_like_one_batch() -> None:
    data = np.random.default_rng(0).normal(3, 2, (300, 5)).astype(np.float32)
    data[:, 4] = 7.0
    one, many = (RunningNormaliser(5, NormaliserConfig()) for _ in range(2))
    one.update(data)
    for batch in np.split(data, [7, 100, 101]):
        many.update(batch)
    np.testing.assert_allclose(one.mean, many.mean, rtol=1e-10)
    np.testing.assert_allclose(one.variance, many.variance, rtol=1e-8, atol=1e-9)
    normal = many(data[0])
    assert normal.dtype == np.float32
    np.testing.assert_allclose(normal[:4], (data[0, :4] - 3) / 2, atol=0.4)
    # A feature that was constant until now stays small when it moves a little.
    moved = data[0].copy()
    moved[4] += 0.05
    assert abs(many(moved)[4]) < 2


def test_row_21_frozen_statistics_survive_a_change_of_scale() -> None:
    """Statistics are the training's: they are never refitted to what they are applied to."""
    normaliser = RunningNormaliser(2, NormaliserConfig())
    normaliser.update(np.array([[0.0, 1.0], [2.0, 3.0]], np.float32))
    restored = RunningNormaliser(2, NormaliserConfig())
    restored.load(normaliser.state())
    large = np.array([100.0, 300.0], np.float32)
    np.testing.assert_array_equal(restored(large), normaliser(large))
    edge = np.full(2, NormaliserConfig().clip, np.float32)
    np.testing.assert_array_equal(restored(large), edge)


def test_returns_end_at_round_boundaries_without_bootstrap() -> None:
    buffer = RoundRolloutBuffer(
        5,
        spaces.Box(-1, 1, (1,), np.float32),
        spaces.Discrete(2),
        device="cpu",
        gae_lambda=1.0,
        gamma=1.0,
    )
    starts = [True, False, True, False, False]
    rewards = [-1.0, 3.0, -2.0, -0.5, 10.0]
    for start, reward in zip(starts, rewards, strict=True):
        buffer.add(
            np.zeros((1, 1)),
            np.zeros(1),
            np.array([reward]),
            np.array([start]),
            torch.tensor([7.0]),
            torch.tensor([0.0]),
        )
    buffer.extend_last(0.25)
    buffer.close(horizon_ended=True, last_value=99.0)
    np.testing.assert_allclose(buffer.returns[:, 0], [2.0, 3.0, 7.75, 9.75, 10.25])
    np.testing.assert_allclose(buffer.advantages[:, 0], buffer.returns[:, 0] - 7.0)


def test_collector_finishes_the_round_that_the_buffers_end_cuts() -> None:
    model, _, collector = make_learner()
    environment = DepthToy()
    statistics, raw = collector.collect(environment, seed=5)
    assert raw.shape == (64, 3)
    assert statistics.decisions == 64
    buffer = model.rollout_buffer
    # Every decision's return is the rest of its own round, so the rewards add up exactly.
    starts = buffer.episode_starts[:, 0].astype(bool)
    assert buffer.returns[:, 0][starts].sum() == pytest.approx(statistics.reward)
    assert statistics.rounds == starts.sum()
    assert environment.resets[0] == 5
    assert set(environment.resets[1:]) == {None}


def test_a_stalled_round_does_not_drown_the_others() -> None:
    class Stalls(DepthToy):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, reward, ended, cut, info = super().step(action)
            return observation, reward - 1000.0 * (self._round == 3), ended, cut, info

    model, _, collector = make_learner()
    statistics, _ = collector.collect(Stalls(), seed=5)
    assert np.abs(model.rollout_buffer.rewards).max() <= 20.0
    assert statistics.reward < -500.0


def test_ppo_learns_a_toy_and_the_value_function_fits() -> None:
    model, normaliser, collector = make_learner()
    first = last = 0.0
    for index in range(30):
        statistics, raw = collector.collect(DepthToy(), seed=index)
        metrics = update(model, index / 30)
        normaliser.update(raw)
        first = statistics.reward / statistics.rounds if index == 0 else first
        last = statistics.reward / statistics.rounds
    assert last > first + 0.4
    assert {"approx_kl", "explained_variance", "entropy_loss"} <= metrics.keys()


def test_learning_rate_reaches_the_optimiser() -> None:
    model, _, collector = make_learner()
    collector.collect(DepthToy(), seed=0)
    update(model, progress=1.0)
    assert model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(3e-4)


def test_statistics_count_tokens_not_ratios() -> None:
    statistics = RolloutStatistics()
    statistics.add(record(accepted=0, seconds=0.03))
    statistics.add(record(depth=3, size=6, accepted=2, seconds=0.05))
    row = statistics.metrics()
    assert row["seconds_per_token"] == pytest.approx(0.08 / 4)
    assert row["tau_emitted"] == pytest.approx(2.0)
    assert row["depths"] == {"1": 1, "3": 1}
    assert row["sizes"] == {"1": 1, "6": 1}


def test_checkpoint_restores_training_exactly(tmp_path: Path) -> None:
    model, normaliser, collector = make_learner()
    for index in range(2):
        _, raw = collector.collect(DepthToy(), seed=index)
        update(model, 0.1)
        normaliser.update(raw)
    random_tensors, random_plain = random_states()
    tensors = {f"size.{k}": v for k, v in ppo_tensors(model).items()}
    tensors |= {f"random.{k}": v for k, v in random_tensors.items()}
    path = tmp_path / "latest.safetensors"
    state = {"random": random_plain, "updates": model._n_updates, "third": 1 / 3}
    save_checkpoint(path, Checkpoint(tensors, state))

    def finish(model: Any, normaliser: RunningNormaliser) -> dict[str, torch.Tensor]:
        Collector(model, normaliser, 1.0, 10.0, "round").collect(DepthToy(), seed=9)
        update(model, 0.2)
        return ppo_tensors(model)

    statistics = normaliser.state()
    expected = finish(model, normaliser)
    draws = random.random(), np.random.random(), torch.rand(1).item()

    loaded = load_checkpoint(path)
    assert loaded.state["third"] == 1 / 3
    other = build_ppo(SMALL, features=3, actions=2, seed=77, device="cpu")
    again = RunningNormaliser(3, NormaliserConfig())
    again.load(statistics)
    restore_ppo(other, loaded.part("size"), loaded.state["updates"])
    restore_random_states(loaded.part("random"), loaded.state["random"])
    got = finish(other, again)
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name
    assert draws == (random.random(), np.random.random(), torch.rand(1).item())
    assert other._n_updates == model._n_updates


@pytest.mark.parametrize("damage", ["missing", "cut", "foreign", "misfit"])
def test_row_43_bad_checkpoints_are_named_errors(tmp_path: Path, damage: str) -> None:
    model, _, _ = make_learner()
    path = tmp_path / "latest.safetensors"
    save_checkpoint(path, Checkpoint(ppo_tensors(model), {}))
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif damage == "foreign":
        from safetensors.torch import save_file

        save_file({"a": torch.zeros(1)}, path)
    if damage == "misfit":
        wide = build_ppo(SMALL, features=4, actions=2, seed=0, device="cpu")
        with pytest.raises(CheckpointError, match="does not fit"):
            restore_ppo(wide, load_checkpoint(path).tensors, 0)
    else:
        with pytest.raises(CheckpointError, match=r"latest\.safetensors"):
            load_checkpoint(path)


def test_row_45_metrics_keep_every_row_over_resume_and_earlier_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, NullTracker())
    log.log("rollout", 1000, {"reward": 1.0})
    # Not closed: the process dies here, in the middle of another row.
    with path.open("a") as file:
        file.write('{"kind": "rollo')
    resumed = MetricsLog(path, NullTracker())
    resumed.log("validation", 800, {"speedup": float("nan")})
    resumed.log("rollout", 1000, {"reward": 2.0})
    resumed.close()
    log.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["step"] for row in rows] == [1000, 800, 1000]
    assert rows[1] == {"kind": "validation", "step": 800, "speedup": None}


@pytest.fixture
def no_wandb_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))


@pytest.mark.usefixtures("no_wandb_login")
def test_row_45_wandb_mode_without_a_login() -> None:
    assert wandb_mode(WandbConfig(mode="auto")) == "offline"
    assert wandb_mode(WandbConfig(mode="disabled")) == "disabled"
    with pytest.raises(ConfigurationError, match=r"wandb\.mode.*wandb login"):
        wandb_mode(WandbConfig(mode="online"))


@pytest.mark.usefixtures("no_wandb_login")
def test_wandb_mode_with_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert wandb_mode(WandbConfig(mode="auto")) == "online"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert wandb_mode(WandbConfig(mode="auto")) == "offline"
    assert isinstance(open_tracker(WandbConfig(), "disabled", Path(), "r", {}), NullTracker)


@pytest.mark.usefixtures("no_wandb_login")
def test_wandb_offline_takes_rows_and_the_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = WandbConfig(mode="auto")
    tracker = open_tracker(config, wandb_mode(config), tmp_path, "test", {"seed": 0})
    assert isinstance(tracker, WandbTracker)
    log = MetricsLog(tmp_path / "metrics.jsonl", tracker)
    log.log("rollout", 1000, {"reward": 1.0, "depths": {"0": 3, "2": 1}})
    log.log("validation", 800, {"speedup": None})
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "policy.json").write_text("{}")
    log.policy(tmp_path / "policy", {"steps": 1})
    log.close()
    assert "W&B could not" not in capsys.readouterr().err
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    started = next(record.run for record in records(file) if record.HasField("run"))
    assert (started.run_group, started.job_type) == ("test", "train")
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_wandb_failure_ends_wandb_not_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        calls = 0

        def log(self, values: Any) -> None:
            self.calls += 1
            raise ConnectionError("gone")

    run = Broken()
    log = MetricsLog(tmp_path / "metrics.jsonl", WandbTracker(run, wandb=None))
    log.log("rollout", 1, {"reward": 1.0})
    log.log("rollout", 2, {"reward": 1.0})
    log.close()
    assert run.calls == 1
    assert "gone" in capsys.readouterr().err
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_default_layout_matches_the_features() -> None:
    assert TrainConfig().layout.features() == FeatureLayout()


@pytest.mark.parametrize(("features", "actions"), [(46, 2), (57, 11)])
def test_exported_head_decides_as_sb3_predicts(features: int, actions: int) -> None:
    model = build_ppo(PPOConfig(), features, actions, seed=4, device="cpu")
    with torch.no_grad():
        # PPO starts with a nearly flat action layer; a sharp one uses every action.
        model.policy.get_parameter("action_net.weight").mul_(300)
    random = np.random.default_rng(1)
    observations = random.uniform(-1, 1, (1000, features)).astype(np.float32)
    normaliser = RunningNormaliser(features, NormaliserConfig())
    normaliser.update(observations[:100] * random.uniform(0.1, 2, features).astype(np.float32))
    head = export_head(ppo_tensors(model), normaliser.frozen)
    expected, _ = model.predict(
        np.stack([normaliser(row) for row in observations]), deterministic=True
    )
    network = Network(head)
    assert [network.act(row) for row in observations] == expected.tolist()
    assert len(set(expected.tolist())) == actions


def test_untrained_decision_is_exported_as_its_fixed_value() -> None:
    config = TrainConfig(
        schedule=(PhaseConfig(policy="size", other="fixed", steps=64),),
        fixed_depth=2,
        pretraining=PretrainingConfig(enabled=False),
    )
    layout = config.layout.features()
    learner = Learner("size", config, layout, 1.0)
    policy = export_policy(
        layout, config, {"size": learner.tensors()}, PolicyCard({}, {}, {}), {"steps": 0}
    )
    assert policy.depth is None
    assert policy.fallback == {"depth": 2}
    assert policy.training == {"steps": 0, "costs": {}, "law": "greedy"}


@pytest.mark.parametrize(
    ("change", "pretrains"),
    [
        ({}, True),
        ({"pretraining": {"enabled": False}}, False),
        ({"pair": {"drafter": {"kind": "eagle3"}}}, True),
        ({"pair": {"drafter": {"kind": "lm"}}}, False),
        ({"pair": {"sampling": {"temperature": 1.0}}}, True),
        ({"pair": {"sampling": {"temperature": 1.0, "rule": "rejection"}}}, False),
    ],
)
def test_pretraining_is_on_where_a_trace_can_be_made(
    change: dict[str, Any], pretrains: bool
) -> None:
    config = validate_config(change, TrainConfig, "test")
    assert config.pretrains is pretrains
    only_size = validate_config(
        {**change, "schedule": [{"policy": "size", "steps": 64}]}, TrainConfig, "test"
    )
    assert only_size.learned == (("size", "depth") if pretrains else ("size",))


@pytest.mark.parametrize("name", ["size", "depth"])
def test_a_learner_goes_on_from_an_exported_head(name: Any) -> None:
    config = TrainConfig()
    layout = config.layout.features()
    head = untrained_controller(8, 4, seed=3).policy.head(name)
    assert head is not None
    random = np.random.default_rng(0)
    features = len(head.weights[0][0])
    statistics = Normaliser(
        random.normal(size=features).astype(np.float32),
        random.uniform(0.5, 2.0, features).astype(np.float32),
        clip=config.normaliser.clip,
    )
    head = replace(head, normaliser=statistics)
    learner = Learner(name, config, layout, 1.0)
    assert not learner.knows
    learner.start_from(head)
    assert learner.knows
    again = export_head(learner.tensors(), learner.normaliser.frozen)
    for mine, theirs in zip(again.weights + again.biases, head.weights + head.biases, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert again.normaliser is not None
    np.testing.assert_array_equal(again.normaliser.mean, statistics.mean)
    np.testing.assert_array_equal(again.normaliser.variance, statistics.variance)
    raw = random.normal(size=(1000, features)).astype(np.float32)
    chosen, _ = learner.model.predict(learner.normaliser(raw), deterministic=True)
    network = Network(head)
    assert [network.act(row) for row in raw] == chosen.tolist()
    # A whole run's observations, all far off, hardly move the statistics.
    learner.normaliser.update(np.full((5000, features), 9.0, np.float32))
    assert np.abs(learner.normaliser.mean - statistics.mean).max() < 0.1


@pytest.mark.parametrize("hidden", [(16,), (64, 64)])
def test_what_the_trace_left_out_stays_out_of_fine_tuning(hidden: tuple[int, ...]) -> None:
    ppo = {"hidden_sizes": hidden, "rollout_steps": 64, "batch_size": 32}
    config = validate_config({"size_ppo": ppo, "depth_ppo": ppo}, TrainConfig, "test")
    learner = Learner("depth", config, config.layout.features(), 1.0)
    head = untrained_controller(8, 4, hidden=hidden, seed=3).policy.depth
    assert head is not None
    left_out = [5, 36, 37]
    weight = head.weights[0].copy()
    weight[:, left_out] = 0.0
    learner.start_from(replace(head, weights=(weight, *head.weights[1:])))
    random = np.random.default_rng(1)
    inputs = torch.from_numpy(random.normal(size=(64, weight.shape[1])).astype(np.float32))
    optimiser = learner.model.policy.optimizer
    for _ in range(5):
        _, log_probability, _ = learner.model.policy.evaluate_actions(inputs, torch.ones(64))
        optimiser.zero_grad()
        (-log_probability.mean()).backward()
        optimiser.step()
    tuned = export_head(learner.tensors(), None).weights[0]
    assert (tuned[:, left_out] == 0.0).all()
    changed = np.delete(tuned != weight, left_out, axis=1)
    assert changed.mean() > 0.9


@pytest.mark.parametrize("name", ["size", "depth"])
def test_warm_start_begins_at_the_fixed_cell(name: Any) -> None:
    config = TrainConfig(fixed_depth=2, fixed_size=5)
    layout = config.layout.features()
    low, high = (
        (layout.size_low, layout.size_high)
        if name == "size"
        else (layout.depth_low, layout.depth_high)
    )
    random = np.random.default_rng(0)
    raw = random.uniform(low, high, (256, len(low))).astype(np.float32)
    # Passes made so far are whole numbers, mostly few.
    column = layout.depth_names.index("depth")
    raw[:, column] = random.integers(0, 5, len(raw)) / layout.max_depth
    learner = Learner(name, config, layout, 1.0)
    learner.normaliser.update(raw)
    actions = fixed_actions(name, layout, raw, config.fixed_depth, config.fixed_size)
    if name == "size":
        assert set(actions.tolist()) == {layout.size_grid.index(4)}
    else:
        assert actions.tolist() == [int(round(8 * row[column]) < 2) for row in raw]
    value_before = learner.model.policy.get_parameter("value_net.weight").clone()
    imitate(learner.model, learner.normaliser(raw), actions, config.warm_start)
    chosen, _ = learner.model.predict(learner.normaliser(raw), deterministic=True)
    assert np.mean(chosen == actions) > 0.98
    with torch.no_grad():
        _, log_probabilities, _ = learner.model.policy.evaluate_actions(
            torch.from_numpy(learner.normaliser(raw)), torch.from_numpy(actions)
        )
    preferred = log_probabilities.exp()
    # Soft: everything else is still tried.
    assert preferred.mean().item() == pytest.approx(config.warm_start.probability, abs=0.1)
    assert torch.equal(learner.model.policy.get_parameter("value_net.weight"), value_before)


def observed(layout: FeatureLayout, name: str, **values: float) -> np.ndarray:
    """One raw observation; features not given are 0, frontier scores unlikely."""
    features = layout.size_features if name == "size" else layout.depth_features
    given = {"verify_slope_over_plain": 0.06, "draft_pass_over_plain": 0.08, **values}
    row = [
        given.get(f.name, -16.0 if f.name.startswith("frontier") else 0.0) * f.scale
        for f in features
    ]
    return np.array([row], np.float32)


@pytest.mark.parametrize(
    ("values", "action"),
    [
        ({}, 1),  # nothing is proposed yet: a cheap pass pays
        ({"best_path_probability": 0.95}, 0),  # the look-up is as good as certain
        ({"draft_pass_over_plain": 0.5}, 0),  # a pass costs half a step
        ({"depth": 1, "frontier_score_1": -0.1}, 0),  # a second pass must promise more
        ({"depth": 1, "frontier_score_1": -3.0}, 0),
        ({"depth": 1, "frontier_score_1": -0.5, "draft_pass_over_plain": 0.01}, 1),
    ],
)
def test_the_survival_rule_drafts_where_a_pass_pays(values: dict[str, float], action: int) -> None:
    layout = FeatureLayout()
    row = observed(layout, "depth", **values)
    assert survival_cost_actions("depth", layout, row).tolist() == [action]


def test_the_survival_rule_verifies_what_is_worth_its_cost() -> None:
    layout = FeatureLayout()
    grid = layout.size_grid
    likely = {f"expected_accepted_{size}": 0.9 * min(size, 6) for size in grid[1:]}
    chosen = survival_cost_actions("size", layout, observed(layout, "size", **likely))
    assert grid[chosen[0]] == 6
    unlikely = {f"expected_accepted_{size}": 0.01 * size for size in grid[1:]}
    chosen = survival_cost_actions("size", layout, observed(layout, "size", **unlikely))
    assert grid[chosen[0]] == 0


@pytest.mark.parametrize("name", ["size", "depth"])
def test_imitation_learns_the_rule_from_few_observations(name: Any) -> None:
    config = TrainConfig()
    layout = config.layout.features()
    env_like = np.random.default_rng(1)
    low, high = (
        (layout.size_low, layout.size_high)
        if name == "size"
        else (layout.depth_low, layout.depth_high)
    )
    raw = env_like.uniform(low, high, (64, len(low))).astype(np.float32)
    names = list(layout.size_names if name == "size" else layout.depth_names)
    raw[:, names.index("verify_slope_over_plain")] = 0.06
    raw[:, names.index("draft_pass_over_plain")] = 0.08
    shown = spread(raw, config.warm_start.rows, 3)
    assert shown.shape == (2 * config.warm_start.rows, len(low))
    actions = teacher_actions(config, name, layout, shown)
    assert len(set(actions.tolist())) > 1
    learner = Learner(name, config, layout, 1.0)
    learner.normaliser.update(raw)
    imitate(learner.model, learner.normaliser(shown), actions, config.warm_start)
    chosen, _ = learner.model.predict(learner.normaliser(shown), deterministic=True)
    assert np.mean(chosen == actions) > 0.9
