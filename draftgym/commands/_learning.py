"""The study of how to learn: PPO live, PPO on a trace, all actions of a trace, and both in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from draftgym.batch_state import BatchController
from draftgym.clock import WallClock
from draftgym.console import Bar, say
from draftgym.costs.ratios import plain_step_seconds
from draftgym.runtime import ExportedPolicy, PolicyHead
from draftgym.runtime.batch import ExportedBatch
from draftgym.traces.judge import MeanTimes, judge
from draftgym.traces.replay import ReplayBatch
from draftgym.traces.trace import Trace
from envs.batch_rewards import BatchRate
from envs.replay import DepthReplayVecEnv, ReplayVecEnv, SizeReplayVecEnv
from policies.all_action import AllActionConfig
from policies.config import PolicyName
from policies.export import export_heads
from policies.finished_runs import FinishedRun, read_run
from policies.learners import (
    Effort,
    Learn,
    effort_lines,
    effort_of,
    judged,
    learned_variant,
    with_efforts,
)
from policies.ppo_replay import Environments, ReplayPPOConfig, learn_on_replays
from policies.pretraining import hold_out, pretrain
from policies.study import run_study, summary, table_lines
from policies.variants import Setting

REQUESTS = 256
DECISIONS_PER_STEP = 384
"""Of PPO, for each gradient step of all-action learning: both then take about as long."""

PACE_ROUNDS = 4096
"""That make up the present pace: sixteen of each request."""

LONGER = 3
ALL_ACTIONS, ON_TRACE, LIVE, FINE_TUNED = (
    "all-action", "PPO on the trace", "PPO live", "all-action + PPO live"
)  # fmt: skip


def learning(
    setting: Setting,
    seeds: int,
    folder: Path,
    plan: Mapping[str, Any],
    runs: Sequence[str],
    pair: Mapping[str, Any],
) -> dict[str, Any]:
    """Learn in every way that needs no decoder, and judge finished runs beside them.

    Args:
        setting: Traces, times and the extent of all-action learning.
        seeds: Of each way.
        folder: Of results and learned policies.
        plan: What the results hang on.
        runs: Folders of finished runs of `train.py`.
        pair: Fingerprint of the model pair.

    Returns:
        The result line.

    Raises:
        RunError: A folder holds no finished run, or one that cannot be compared.
        StudyError: The folder holds another study.
    """
    finished = [read_run(Path(run), setting.layout, pair) for run in runs]
    ways = {
        ALL_ACTIONS: all_actions,
        ON_TRACE: ppo_on_trace(1),
        f"{ON_TRACE}, {LONGER} x as long": ppo_on_trace(LONGER),
    }
    clock, places = WallClock(), {name: folder / _slug(name) for name in ways}
    variants = [learned_variant(name, ways[name], places[name], clock) for name in ways]
    seconds = run_study(variants, setting, seeds, folder, plan)
    efforts = {
        name: [effort_of(place, seed) for seed in range(seeds)] for name, place in places.items()
    }
    for name, group in _groups(finished).items():
        seconds[name] = [judged(run.policy, setting) for run in group]
        efforts[name] = [Effort(run.decisions, run.seconds) for run in group]
    found = summary(seconds, setting)
    result = with_efforts(found, efforts)
    for line in (*table_lines(found), *effort_lines(result)):
        say(line)
    return {**result, "runs": _described(runs, finished)}


def all_actions(setting: Setting, seed: int, bar: Bar) -> tuple[ExportedPolicy, int]:
    """From all actions of every round, as `learn` does.

    Args:
        setting: Of the study.
        seed: Of networks and rounds.
        bar: Advanced by `Setting.steps`.
    """
    config = AllActionConfig(steps=setting.steps, requests=REQUESTS, seed=seed)
    learned = pretrain(
        setting.trace, setting.times, setting.layout, setting.costs, config, setting.card,
        bar=bar, tell=lambda _: None,
    )  # fmt: skip
    return learned.policy, config.steps * config.requests


def ppo_on_trace(times_as_long: int) -> Learn:
    """By PPO on replays of the trace, both policies in turn.

    Args:
        times_as_long: As all-action learning, roughly.
    """

    def learn(setting: Setting, seed: int, bar: Bar) -> tuple[ExportedPolicy, int]:
        once = ReplayPPOConfig(rollouts=1, seed=seed)
        wanted = times_as_long * setting.steps * DECISIONS_PER_STEP
        config = replace(once, rollouts=max(1, round(wanted / once.decisions)))
        ours, theirs = hold_out(setting.trace)
        unit = plain_step_seconds(setting.times, _median_prompt(ours))

        def held_out(policy: ExportedPolicy) -> float:
            batch = ExportedBatch(policy)
            return float(judge(theirs, setting.times, setting.layout, batch, setting.costs).sum())

        policy = learn_on_replays(
            replays(ours, setting, unit, seed), held_out, setting.layout, config, unit,
            bar, setting.steps, tell=lambda _: None,
        )  # fmt: skip
        training = {"method": "ppo on a trace", "decisions": config.decisions, "seed": seed}
        assert policy.size is not None and policy.depth is not None  # both have learned
        heads: dict[PolicyName, PolicyHead] = {"size": policy.size, "depth": policy.depth}
        exported = export_heads(setting.layout, heads, {"kind": "rate"}, setting.card, training)
        return exported, config.decisions

    return learn


def replays(trace: Trace, setting: Setting, pace: float, seed: int) -> Environments:
    """Environments over a trace by mean costs, one pace for all of them.

    Args:
        trace: To replay.
        setting: Times, layout and cost ratios.
        pace: Seconds per token before any round.
        seed: Of the order of requests.
    """
    rate = BatchRate(PACE_ROUNDS, pace)

    def environments(name: PolicyName, other: BatchController) -> ReplayVecEnv:
        batch = ReplayBatch(
            trace, MeanTimes(setting.times), setting.layout, REQUESTS,
            costs=setting.costs, seed=seed,
        )  # fmt: skip
        kind = SizeReplayVecEnv if name == "size" else DepthReplayVecEnv
        return kind(batch, other, rate=rate, seed=seed)

    return environments


def _groups(runs: Sequence[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """Runs by what they did; a group without runs is left out."""
    groups: dict[str, list[FinishedRun]] = {}
    for name, pretrained in ((LIVE, False), (FINE_TUNED, True)):
        mine = [run for run in runs if run.pretrained == pretrained]
        if mine:
            groups[name] = mine
    return groups


def _described(folders: Sequence[str], runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    return [
        {
            "folder": folder,
            "pretrained": run.pretrained,
            "decisions": run.decisions,
            "seconds": run.seconds,
            "best_decisions": run.best_decisions,
        }
        for folder, run in zip(folders, runs, strict=True)
    ]


def _median_prompt(trace: Trace) -> int:
    return int(np.median([entry.prompt_tokens for entry in trace.sequences]))


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)
