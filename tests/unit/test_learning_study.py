"""Ways to learn beside each other: PPO on a trace learns, runs are read, efforts are counted."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftgym.commands import _learning
from draftgym.commands import study as command
from draftgym.commands._learning import ALL_ACTIONS, FINE_TUNED, LIVE, ON_TRACE, ppo_on_trace
from draftgym.console import QuietBar
from draftgym.errors import ConfigurationError, DraftGymError
from draftgym.features import FeatureLayout
from draftgym.runtime import DecisionSeconds, ExportedPolicy, Normaliser, PolicyHead, save_policy
from draftgym.theory.fixed import best_fixed, fixed
from draftgym.theory.follow import follow
from draftgym.traces.trace import Trace
from policies.checkpoint import Checkpoint, save_checkpoint
from policies.config import PPOConfig
from policies.export import PolicyCard
from policies.finished_runs import RunError, read_run
from policies.learners import judged
from policies.ppo_replay import ReplayPPOConfig
from policies.study import StudyError
from policies.variants import Setting
from tests.unit.test_all_action import COSTS, told_from_the_start
from tests.unit.test_all_action import LAYOUT as PLANTED
from tests.unit.test_bound import PAIR
from tests.unit.test_information import SimpleTimes
from tests.unit.test_study import LAYOUT, arguments

SMALL = PPOConfig(
    rollout_steps=512, batch_size=128, epochs=4, learning_rate=5e-3, hidden_sizes=(16,)
)
CARD = PolicyCard({}, {}, {"draft_pass_over_plain": 0.1, "verify_slope_over_plain": 0.1})


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_learning, "REQUESTS", 32)
    monkeypatch.setattr(_learning, "ReplayPPOConfig", partial(ReplayPPOConfig, ppo=SMALL, turns=4))


def planted(steps: int) -> Setting:
    """A trace whose first level tells whether a pass will be right."""
    trace, times = told_from_the_start(), SimpleTimes()
    return Setting(trace, trace, times, PLANTED, COSTS, CARD, steps, best_fixed(trace, times))


def ideal_seconds(trace: Trace) -> float:
    right = trace.rank[:, 1, 0] == 0
    told = follow(trace, SimpleTimes(), lambda rows, _: (right[rows] * 1, right[rows] * 4))
    return float(told.sum())


def ppo(setting: Setting, seed: int) -> tuple[ExportedPolicy, int]:
    return ppo_on_trace(1)(setting, seed, QuietBar("", None))


def test_ppo_on_a_trace_learns_what_is_planted() -> None:
    setting = planted(steps=64)
    policy, decisions = ppo(setting, 0)
    assert decisions == 24 * 1024, "whole rollouts, as many as asked for"
    reached = judged(policy, setting).sum()
    cell = fixed(setting.trace, setting.times, *setting.cell).sum()
    best = ideal_seconds(setting.trace)
    assert best < 0.9 * cell
    assert reached < 1.04 * best
    begun, _ = ppo(planted(steps=1), 0)
    assert judged(begun, setting).sum() > 1.04 * best


def weights(policy: ExportedPolicy) -> list[np.ndarray[Any, Any]]:
    assert policy.depth is not None and policy.size is not None
    return [*policy.depth.weights, *policy.size.weights]


def test_a_seed_learns_the_same_again_and_another_one_does_not() -> None:
    first, again, other = (weights(ppo(planted(2), seed)[0]) for seed in (3, 3, 4))
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(first[0], other[0])


def constant(layout: FeatureLayout, training: dict[str, Any], pair: Any = None) -> ExportedPolicy:
    """Drafts whenever it is asked, and verifies the largest size."""

    def head(features: int, actions: int) -> PolicyHead:
        bias = np.zeros(actions, np.float32)
        bias[-1] = 1.0
        ones = np.ones(features, np.float32)
        return PolicyHead(
            (np.zeros((actions, features), np.float32),), (bias,), Normaliser(0 * ones, ones, 10.0)
        )

    depth = head(len(layout.depth_names), 2)
    size = head(len(layout.size_names), len(layout.size_grid))
    return ExportedPolicy(
        layout, depth, size, pair=PAIR if pair is None else pair, training=training
    )


def test_policies_are_judged_with_their_decisions() -> None:
    setting = planted(1)
    policy = constant(PLANTED, {})
    cell = fixed(setting.trace, setting.times, 1, 4)
    np.testing.assert_allclose(judged(policy, setting), cell)
    setting.times.decision_seconds = DecisionSeconds(1e3, 1e6)  # type: ignore[misc]
    extra = judged(policy, setting) - cell
    assert (extra > 1e6).all()
    alone = ExportedPolicy(PLANTED, policy.depth, None, fallback={"size": 4})
    assert (judged(alone, setting) - cell < 1e6).all(), "what is not decided is not charged"


def run_folder(
    folder: Path,
    *,
    pretrained: bool = False,
    layout: FeatureLayout = LAYOUT,
    pair: Any = None,
    seconds: float = 12.5,
) -> str:
    """What `train.py` leaves behind, as far as the study reads it."""
    taught = {"pretraining": {"steps": 7}} if pretrained else {}
    training = {**taught, "steps": {"size": 30, "depth": 40}, "best_step": 0}
    save_policy(folder / "policy", constant(layout, training, pair))
    state = {"position": {"train_seconds": seconds}}
    (folder / "checkpoints").mkdir()
    save_checkpoint(
        folder / "checkpoints" / "latest.safetensors", Checkpoint({"x": torch.zeros(1)}, state)
    )
    return str(folder)


def with_runs(folder: Path) -> list[str]:
    live = [run_folder(folder / f"live-{i}", seconds=10.0 + i) for i in range(3)]
    tuned = run_folder(folder / "tuned", pretrained=True)
    return [*arguments(folder, "learning"), "--runs", *live, "--runs", tuned]


def test_the_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(with_runs(tmp_path)) == 0
    captured = capsys.readouterr()
    line = json.loads(captured.out.splitlines()[-1])
    rows = {row["name"]: row for row in line["variants"]}
    assert list(rows) == [ALL_ACTIONS, ON_TRACE, f"{ON_TRACE}, 3 x as long", LIVE, FINE_TUNED]
    assert [row["seeds"] for row in rows.values()] == [2, 2, 2, 3, 1]
    assert rows[LIVE]["decisions"] == {"median": 70, "per_seed": [70] * 3}
    assert rows[LIVE]["learning_seconds"]["median"] == 11.0
    assert rows[FINE_TUNED]["learning_seconds"]["per_seed"] == [12.5]
    assert rows[ALL_ACTIONS]["decisions"]["median"] == 3 * 32
    assert rows[ON_TRACE]["decisions"]["median"] == 4 * 512
    for row in rows.values():
        over = row["over_tuned"]
        assert over["median"] == pytest.approx(np.median(over["per_seed"]))
        assert row["ms_per_token"] > 0 and row["learning_seconds"]["median"] > 0
    assert f"{LIVE:<{len(ON_TRACE) + 13}} 3 seeds, medians: 70 decisions, 11 s" in captured.err
    assert [run["pretrained"] for run in line["runs"]] == [False, False, False, True]


def test_a_study_goes_on_and_its_policies_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = arguments(tmp_path, "learning")
    assert command.main(given) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])

    def dies(*_: Any, **__: Any) -> None:
        raise AssertionError("learned twice")

    with monkeypatch.context() as patch:
        patch.setattr(_learning, "pretrain", dies)
        patch.setattr(_learning, "learn_on_replays", dies)
        assert command.main(given) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["variants"] == first["variants"]
    place = tmp_path / "out" / "learning" / "PPO_on_the_trace" / "seed-1"
    assert {file.name for file in place.iterdir()} >= {"policy.json", "policy.safetensors"}
    (place / "effort.json").write_text("{}")
    with pytest.raises(StudyError, match=r"seed-1/effort\.json: decisions, seconds"):
        command.main(given)


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    def read(name: str, **changes: Any) -> None:
        read_run(Path(run_folder(tmp_path / name, **changes)), LAYOUT, PAIR)

    with pytest.raises(RunError, match=r"nothing/policy/policy\.json: missing.*no finished run"):
        read_run(tmp_path / "nothing", LAYOUT, PAIR)
    foreign = FeatureLayout(max_depth=1, beam_width=2, size_grid=LAYOUT.size_grid)
    with pytest.raises(RunError, match=r"layout\.max_depth: the run has 1, this is 2"):
        read("foreign", layout=foreign)
    with pytest.raises(RunError, match=r"pair\.target: the run has 'other', this is 'tiny'"):
        read("pair", pair={"target": "other"})
    unmeasured = Path(run_folder(tmp_path / "unmeasured"))
    (unmeasured / "checkpoints" / "latest.safetensors").unlink()
    with pytest.raises(RunError, match=r"latest\.safetensors: position\.train_seconds: .*no such"):
        read_run(unmeasured, LAYOUT, PAIR)
    save_policy(unmeasured / "policy", constant(LAYOUT, {"steps": 5}))
    run_folder(tmp_path / "whole")
    save_policy(tmp_path / "whole" / "policy", constant(LAYOUT, {"steps": 5}))
    with pytest.raises(RunError, match=r"training\.steps: must count decisions by policy, found 5"):
        read_run(tmp_path / "whole", LAYOUT, PAIR)


def test_the_verb_refuses_runs_where_they_mean_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--runs: only for `learning`, not for `networks`"):
        command.main([*arguments(tmp_path), "--runs", str(tmp_path)])
    with pytest.raises(DraftGymError, match="no finished run"):
        command.main([*arguments(tmp_path, "learning"), "--runs", str(tmp_path)])
