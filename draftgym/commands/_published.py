"""Composes Learning to Draft as published with replays of a trace."""

from __future__ import annotations

from typing import Any

from draftgym.batch_state import BatchController
from draftgym.commands._traced import Learning
from draftgym.console import Bar
from draftgym.runtime import ExportedPolicy
from draftgym.runtime.batch import ExportedBatch
from draftgym.theory.fixed import best_fixed, fixed
from draftgym.traces.judge import MeanTimes, judge
from draftgym.traces.replay import ReplayBatch
from envs.replay import DepthReplayVecEnv, ReplayVecEnv, SizeReplayVecEnv
from policies.config import PolicyName
from policies.learning_to_draft import REQUESTS, learn_as_published
from policies.pretraining import hold_out


def published(known: Learning, seed: int, bar: Bar) -> tuple[ExportedPolicy, dict[str, Any]]:
    """Learn, and judge on held-out prompts.

    Args:
        known: Trace, table and layout.
        seed: Of networks, prompts and decisions.
        bar: Advanced by `policies.learning_to_draft.TURNS`.

    Returns:
        The policy, and how it fares on the prompts by which it was chosen, plain data.

    Raises:
        ValueError: The prompts are too few to hold some out.
    """
    ours, theirs = hold_out(known.trace)
    times = MeanTimes(known.table)

    def environments(name: PolicyName, other: BatchController) -> ReplayVecEnv:
        batch = ReplayBatch(ours, times, known.layout, REQUESTS, costs=known.costs, seed=seed)
        kind = SizeReplayVecEnv if name == "size" else DepthReplayVecEnv
        return kind(batch, other, reward="throughput", seed=seed)

    def held_out_seconds(policy: ExportedPolicy) -> float:
        return float(judge(theirs, times, known.layout, ExportedBatch(policy), known.costs).sum())

    policy = learn_as_published(environments, held_out_seconds, known.layout, known.card, seed, bar)
    depth, size = best_fixed(ours, times)
    seconds, tokens = held_out_seconds(policy), float((theirs.lengths - 1).clip(min=0).sum())
    return policy, {
        "ms_per_token": 1e3 * seconds / tokens,
        "over_tuned_cell": float(fixed(theirs, times, depth, size).sum()) / seconds,
        "tuned_cell": {"depth": depth, "size": size},
        "prompts": len(theirs.sequences),
    }
