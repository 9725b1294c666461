"""What the studies on traces compare: each variant learns on one trace and is timed on another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from draftgym.console import Bar
from draftgym.costs.times import Float64Array, Times
from draftgym.features import FeatureLayout
from draftgym.runtime.batch import ExportedBatch
from draftgym.state import MeasuredCosts
from draftgym.traces.judge import MeanTimes, judge, judge_rounds
from draftgym.traces.trace import Trace
from policies.all_action import AllActionConfig
from policies.export import PolicyCard
from policies.feature_groups import feature_groups, untold
from policies.joint import JOINT_ENTROPY, learn_joint
from policies.objectives import OBJECTIVES
from policies.pretraining import pretrain
from policies.table import ROWS, TableChoice, learn_table


@dataclass(frozen=True, eq=False)
class Setting:
    """What all variants of a study share.

    Attributes:
        trace: They learn here; of the policy split.
        test: They are timed here; of other prompts.
        times: Mean seconds of work and of decisions.
        layout: Observations and actions.
        costs: Cost ratios that policies are shown.
        card: Origin of exported policies.
        steps: Gradient steps of each.
        cell: Depth and size of the best fixed cell on `trace`.
    """

    trace: Trace
    test: Trace
    times: Times
    layout: FeatureLayout
    costs: MeasuredCosts
    card: PolicyCard
    steps: int
    cell: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Variant:
    """One row of a study.

    Attributes:
        name: In results.
        seconds: Learns with a seed, advances a bar by `Setting.steps` in all, and returns the
            seconds of each test sequence, decisions charged, [sequences].
    """

    name: str
    seconds: Callable[[Setting, int, Bar], Float64Array]


def objectives(setting: Setting) -> list[Variant]:
    """Every objective, the default first."""
    return [networks_variant(kind, AllActionConfig(reward=kind)) for kind in OBJECTIVES]


def observations(setting: Setting) -> list[Variant]:
    """The default ones, all, the default ones without each group, and the confidence alone."""
    groups, hidden = feature_groups(setting.layout), untold(setting.layout)
    alone = tuple(name for group in groups if group != "confidence" for name in groups[group])
    return [
        networks_variant("default", AllActionConfig()),
        networks_variant("all", AllActionConfig(unseen=())),
        *(
            networks_variant(f"without {group}", AllActionConfig(unseen=(*hidden, *names)))
            for group, names in groups.items()
            if group != "costs"  # one table holds them constant
        ),
        networks_variant("confidence only", AllActionConfig(unseen=(*hidden, *alone))),
    ]


def networks(setting: Setting) -> list[Variant]:
    """Hidden layers, the default first."""
    shapes: tuple[tuple[int, ...], ...] = ((64, 64), (), (16,), (32, 32), (128, 128))
    return [
        networks_variant(" x ".join(map(str, hidden)) or "linear", AllActionConfig(hidden=hidden))
        for hidden in shapes
    ]


def deciding(setting: Setting) -> list[Variant]:
    """Both decisions learned, one of them, one for both at each round's start, and a table."""
    depth, size = setting.cell
    return [
        networks_variant("both networks", AllActionConfig()),
        networks_variant(f"depth network, V={size}", AllActionConfig(fixed_size=size)),
        networks_variant(f"size network, D={depth}", AllActionConfig(fixed_depth=depth)),
        *(joint_variant(every) for every in (1, 4, 16)),
        table_variant(),
    ]


def joint_variant(every: int) -> Variant:
    """One network for both decisions, kept for some rounds, in training as when timed."""

    def seconds(setting: Setting, seed: int, bar: Bar) -> Float64Array:
        config = AllActionConfig(steps=setting.steps, seed=seed, entropy=JOINT_ENTROPY)
        shared = (setting.times, setting.layout)
        policy = learn_joint(setting.trace, *shared, setting.costs, config, every, bar)
        return judge_rounds(setting.test, *shared, policy, setting.costs, every=every)

    return Variant("one decision a round" if every == 1 else f"one in {every} rounds", seconds)


def table_variant() -> Variant:
    """A threshold table, the same with every seed."""

    def seconds(setting: Setting, seed: int, bar: Bar) -> Float64Array:
        shared = (setting.times, setting.layout)
        table = learn_table(setting.trace, *shared, setting.costs)
        bar.advance(setting.steps)
        return judge_rounds(setting.test, *shared, TableChoice(table), setting.costs)

    return Variant(f"table of {ROWS} rows", seconds)


def networks_variant(name: str, config: AllActionConfig) -> Variant:
    """Both networks, or one beside a fixed decision, learned from every action.

    Args:
        name: Of the row.
        config: Its steps and seed are the study's.
    """

    def seconds(setting: Setting, seed: int, bar: Bar) -> Float64Array:
        mine = replace(config, steps=setting.steps, seed=seed)
        learned = pretrain(
            setting.trace, setting.times, setting.layout, setting.costs, mine, setting.card,
            bar=bar, tell=lambda _: None,
        )  # fmt: skip
        times = MeanTimes(setting.times, mine.charged(setting.times.decision_seconds))
        controller = ExportedBatch(learned.policy)
        return judge(setting.test, times, setting.layout, controller, setting.costs)

    return Variant(name, seconds)


STUDIES: Mapping[str, Callable[[Setting], list[Variant]]] = {
    "objectives": objectives,
    "observations": observations,
    "networks": networks,
    "deciding": deciding,
}
"""Variants by study; the first of each is its reference."""
