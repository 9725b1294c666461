"""What is learned from prompts of a trace itself, cross-fitted like the information bound.

A policy that was learned elsewhere also pays for meeting other kinds of text. Learned from the
trace's other prompts it does not, so the difference between the two is what more prompts of the
right kinds would bring, and what remains to the bound is what the policy cannot see or say.
"""

from __future__ import annotations

import numpy as np

from draftgym.console import Bar
from draftgym.costs.times import Float64Array, Times
from draftgym.features import FeatureLayout
from draftgym.runtime.batch import ExportedBatch
from draftgym.state import MeasuredCosts
from draftgym.theory.bounds import fold_of
from draftgym.traces.judge import judge, judge_rounds
from draftgym.traces.trace import Trace
from policies.all_action import AllActionConfig
from policies.export import PolicyCard
from policies.pretraining import pretrain
from policies.table import TableChoice, learn_table

NETWORKS, TABLE = "networks, cross-fitted", "threshold table, cross-fitted"


def cross_fitted_policies(
    trace: Trace,
    times: Times,
    layout: FeatureLayout,
    costs: MeasuredCosts,
    config: AllActionConfig,
    *,
    more: Trace | None = None,
    bar: Bar,
) -> dict[str, Float64Array]:
    """Learn on all folds but one, judge on that one; decisions charged.

    Args:
        trace: Positions.
        times: Mean seconds of work and of decisions.
        layout: Observations and actions.
        costs: Cost ratios that policies are shown.
        config: Of the networks.
        more: Positions of other prompts, to learn from too.
        bar: Advanced by `config.steps` for each fold.

    Returns:
        Seconds of each sequence by method, [sequences] each.

    Raises:
        ValueError: The prompts fall into fewer than three folds, or `more` is of another shape.
    """
    folds = fold_of(trace)
    names = np.unique(folds)
    if len(names) < 3:
        raise ValueError(f"folds: cross-fitting needs three or more, got {len(names)}")
    seconds = {name: np.zeros(len(folds)) for name in (NETWORKS, TABLE)}
    for fold in names:
        mine = folds == fold
        others = trace.select(np.flatnonzero(~mine))
        known = others if more is None else others.joined(more)
        theirs = trace.select(np.flatnonzero(mine))
        pair = pretrain(
            known, times, layout, costs, config, PolicyCard({}, {}, {}),
            bar=bar, tell=lambda _: None,
        ).policy  # fmt: skip
        seconds[NETWORKS][mine] = judge(theirs, times, layout, ExportedBatch(pair), costs)
        table = learn_table(known, times, layout, costs)
        seconds[TABLE][mine] = judge_rounds(theirs, times, layout, TableChoice(table), costs)
    return seconds
