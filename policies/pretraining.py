"""All-action learning with a held-out share of the prompts, which says when to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from draftgym.console import Bar, say
from draftgym.costs.times import Times
from draftgym.features import FeatureLayout
from draftgym.runtime import ExportedPolicy
from draftgym.runtime.batch import ExportedBatch
from draftgym.state import MeasuredCosts
from draftgym.theory.bounds import fold_of
from draftgym.theory.fixed import fixed
from draftgym.traces.judge import MeanTimes, judge
from draftgym.traces.trace import Trace
from policies.all_action import AllActionConfig, AllActionTrainer
from policies.export import PolicyCard, export_heads

CHECKS = 10
"""How often the present policies are judged on held-out prompts."""


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
    bar: Bar,
    tell: Callable[[str], None] = say,
) -> Pretrained:
    """Learn from most prompts of a trace, keep what is best on the others.

    Args:
        trace: Of the policy split.
        times: Mean seconds of work and of decisions.
        layout: Observations and actions.
        costs: Cost ratios that policies are shown.
        config: How long and how fast.
        card: Origin of the exported policy.
        bar: Advanced by steps.
        tell: Told of every check.

    Raises:
        ValueError: The prompts are too few to hold some out.
    """
    ours, theirs = hold_out(trace)
    trainer = AllActionTrainer(ours, times, layout, costs, config)
    tokens = float((theirs.lengths - 1).clip(min=0).sum())
    depth, size = trainer.cell
    reference = float(fixed(theirs, times, depth, size).sum())
    fallback = {
        name: value
        for name, value in (("depth", config.fixed_depth), ("size", config.fixed_size))
        if value is not None
    }
    charged = MeanTimes(times, config.charged(times.decision_seconds))
    best_heads, best_seconds = trainer.heads(), np.inf
    curve = []
    checks = min(CHECKS, config.steps)
    for check in range(checks):
        steps = config.steps * (check + 1) // checks - config.steps * check // checks
        trainer.train(steps)
        heads = trainer.heads()
        present = ExportedPolicy(
            layout=layout, depth=heads["depth"], size=heads["size"], fallback=fallback
        )
        seconds = float(judge(theirs, charged, layout, ExportedBatch(present), costs).sum())
        curve.append(reference / seconds)
        tell(
            f"held-out prompts: {1e3 * seconds / tokens:.2f} ms per token, "
            f"{reference / seconds:.3f} of the tuned cell's speed (D={depth}, V={size})"
        )
        if seconds < best_seconds:
            best_heads, best_seconds = heads, seconds
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
    learned = {name: head for name, head in best_heads.items() if head is not None}
    reward = {"kind": config.reward}
    policy = export_heads(layout, learned, reward, card, training, fallback)
    return Pretrained(policy, held_out)


def hold_out(trace: Trace, fold: int = 0) -> tuple[Trace, Trace]:
    """Prompts to learn from, and a fold of them to choose by.

    Args:
        trace: Of the policy split.
        fold: Which fold is held out, counted around.

    Raises:
        ValueError: The prompts are too few to hold some out.
    """
    folds = fold_of(trace)
    names = np.unique(folds)
    held = folds == names[fold % len(names)]
    if held.all():
        raise ValueError("prompts: all in one fold, none to hold out; trace more prompts")
    return trace.select(np.flatnonzero(~held)), trace.select(np.flatnonzero(held))
