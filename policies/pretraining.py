"""All-action learning with a held-out share of the prompts, which says when to stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from draftgym.console import progress, say
from draftgym.costs.times import Times
from draftgym.features import FeatureLayout
from draftgym.runtime import ExportedPolicy, PolicyHead
from draftgym.runtime.batch import ExportedBatch
from draftgym.state import MeasuredCosts
from draftgym.theory.bounds import fold_of
from draftgym.theory.fixed import best_fixed, fixed
from draftgym.traces.judge import judge
from draftgym.traces.trace import Trace
from policies.all_action import AllActionConfig, AllActionTrainer
from policies.config import PolicyName
from policies.export import PolicyCard, export_heads


@dataclass(frozen=True, eq=False)
class Pretrained:
    """What came out.

    Attributes:
        policy: The pair of networks that was best on held-out prompts.
        held_out: Figures on these, plain data.
    """

    policy: ExportedPolicy
    held_out: Mapping[str, Any]


def pretrain(
    trace: Trace,
    times: Times,
    layout: FeatureLayout,
    costs: MeasuredCosts,
    config: AllActionConfig,
    card: PolicyCard,
    *,
    checks: int = 10,
) -> Pretrained:
    """Learn from most prompts of a trace, keep what is best on the others.

    Args:
        trace: Of the policy split.
        times: Mean seconds of work and of decisions.
        layout: Observations and actions.
        costs: Cost ratios that policies are shown.
        config: How long and how fast.
        card: Origin of the exported policy.
        checks: How often the present policies are judged.

    Raises:
        ValueError: The prompts are too few to hold some out.
    """
    folds = fold_of(trace)
    held = folds == np.unique(folds)[0]
    if held.all():
        raise ValueError("prompts: all in one fold, none to hold out; trace more prompts")
    ours, theirs = trace.select(np.flatnonzero(~held)), trace.select(np.flatnonzero(held))
    trainer = AllActionTrainer(ours, times, layout, costs, config)
    tokens = float((theirs.lengths - 1).clip(min=0).sum())
    depth, size = best_fixed(ours, times)
    reference = float(fixed(theirs, times, depth, size).sum())
    best_heads, best_seconds = trainer.heads(), np.inf
    curve = []
    with progress("learn", config.steps) as bar:
        for check in range(checks):
            steps = config.steps * (check + 1) // checks - config.steps * check // checks
            trainer.train(steps)
            present = trainer.heads()
            seconds = _judged(theirs, times, layout, present, costs)
            curve.append(reference / seconds)
            say(
                f"held-out prompts: {1e3 * seconds / tokens:.2f} ms per token, "
                f"{reference / seconds:.3f} of the tuned cell's speed (D={depth}, V={size})"
            )
            if seconds < best_seconds:
                best_heads, best_seconds = present, seconds
            bar.advance(steps)
    held_out = {
        "ms_per_token": 1e3 * best_seconds / tokens,
        "over_tuned_cell": reference / best_seconds,
        "tuned_cell": {"depth": depth, "size": size},
        "prompts": len(theirs.sequences),
        "curve": curve,
    }
    training = {
        "method": "all-action",
        **asdict(config),
        "trace_positions": len(ours),
        "decision_seconds": asdict(times.decision_seconds),
        "held_out": held_out,
    }
    heads: dict[PolicyName, PolicyHead] = {
        "depth": best_heads["depth"],
        "size": best_heads["size"],
    }
    policy = export_heads(layout, heads, {"kind": "rate"}, card, training)
    return Pretrained(policy, held_out)


def _judged(
    trace: Trace,
    times: Times,
    layout: FeatureLayout,
    heads: Mapping[str, PolicyHead],
    costs: MeasuredCosts,
) -> float:
    policy = ExportedPolicy(layout=layout, depth=heads["depth"], size=heads["size"])
    return float(judge(trace, times, layout, ExportedBatch(policy), costs).sum())
