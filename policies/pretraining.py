"""All-action learning; held-out prompts say how long and how deep, then all are learned from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from draftgym.console import Bar, say
from draftgym.costs.times import Float64Array, Times
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

NEAR_BEST = 0.005
"""Checks this close to the best one, as a share of its time, do not differ: the last is taken, and
of limits to the depth the one that asks least."""


@dataclass(frozen=True, eq=False)
class Pretrained:
    """What came out.

    Attributes:
        policy: The pair of networks that learned from all prompts.
        held_out: How the same learning fared on prompts that were held out of it, plain data.
        held_out_seconds: Of each of these (`hold_out`), decisions charged, [sequences].
    """

    policy: ExportedPolicy
    held_out: Mapping[str, Any]
    held_out_seconds: Float64Array


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
    """Find on held-out prompts how long to learn, then learn that long from all prompts.

    The same prompts say down to which depth to ask: a decision after a pass costs the more because
    the pass has emptied the caches, and spares nothing where deeper drafts hardly ever pay.

    Args:
        trace: Of the policy split.
        times: Mean seconds of work and of decisions.
        layout: Observations and actions.
        costs: Cost ratios that policies are shown.
        config: How long at most and how fast.
        card: Origin of the exported policy.
        bar: Advanced by steps, half of it while the length is found.
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
    lengths = np.unique(np.linspace(0, config.steps, CHECKS + 1).round().astype(int))
    curve: list[Float64Array] = []
    policies: list[ExportedPolicy] = []
    for begin, end in pairwise(lengths.tolist()):
        trainer.train(end - begin)
        heads = trainer.heads()
        policies.append(
            ExportedPolicy(
                layout=layout,
                depth=heads["depth"],
                size=heads["size"],
                fallback=fallback,
                deepest=config.deepest,
            )
        )
        curve.append(judge(theirs, charged, layout, ExportedBatch(policies[-1]), costs))
        seconds = float(curve[-1].sum())
        tell(
            f"held-out prompts: {1e3 * seconds / tokens:.2f} ms per token, "
            f"{reference / seconds:.3f} of the tuned cell's speed (D={depth}, V={size})"
        )
        bar.advance((end - begin) / 2)
    spent = np.array([part.sum() for part in curve])
    best = int(np.flatnonzero(spent <= (1 + NEAR_BEST) * spent.min())[-1])
    steps = int(lengths[best + 1])
    limits = {config.deepest: curve[best]}
    if config.deepest is None and config.fixed_depth is None:
        for limit in range(1, layout.max_depth):
            present = ExportedBatch(replace(policies[best], deepest=limit))
            limits[limit] = judge(theirs, charged, layout, present, costs)
    deepest = _least_asked({limit: float(part.sum()) for limit, part in limits.items()})
    tell(
        f"learning {steps} steps from all prompts, asking "
        + ("before every pass" if deepest is None else f"up to pass {deepest}")
    )
    final = AllActionTrainer(trace, times, layout, costs, replace(config, deepest=deepest))
    final.train(steps)
    bar.advance(config.steps / 2)
    held_out = {
        "ms_per_token": float(1e3 * limits[deepest].sum() / tokens),
        "over_tuned_cell": float(reference / limits[deepest].sum()),
        "tuned_cell": {"depth": depth, "size": size},
        "prompts": len(theirs.sequences),
        "steps": steps,
        "curve": (reference / spent).tolist(),
        "deepest": {
            "all" if limit is None else str(limit): float(reference / part.sum())
            for limit, part in limits.items()
        },
    }
    training = {
        "method": "all-action",
        **asdict(replace(config, deepest=deepest)),
        "trace_positions": len(trace),
        "decision_seconds": asdict(times.decision_seconds),
        "held_out": held_out,
    }
    learned = {name: head for name, head in final.heads().items() if head is not None}
    reward = {"kind": config.reward}
    policy = export_heads(layout, learned, reward, card, training, fallback, deepest)
    return Pretrained(policy, held_out, limits[deepest])


def _least_asked(seconds: Mapping[int | None, float]) -> int | None:
    """The limit that asks least of those near the best; None is no limit."""
    near = (1 + NEAR_BEST) * min(seconds.values())
    limits = [limit for limit, spent in seconds.items() if spent <= near]
    return min(limits, key=lambda limit: math.inf if limit is None else limit)


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
