"""Ways to learn a pair of policies, compared: what came out, after how many decisions and seconds.

What a way has learned is kept in a folder as soon as it is done, as a policy that a decoder loads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftgym.clock import Clock
from draftgym.console import Bar
from draftgym.costs.times import Float64Array
from draftgym.runtime import DecisionSeconds, ExportedPolicy, save_policy
from draftgym.runtime.batch import ExportedBatch
from draftgym.runtime.controller import known_costs
from draftgym.storage import write_json
from draftgym.traces.judge import MeanTimes, judge
from policies.study import StudyError
from policies.variants import Setting, Variant

EFFORT = "effort.json"

Learn = Callable[[Setting, int, Bar], tuple[ExportedPolicy, int]]
"""(setting, seed, bar) to a policy and the decisions that it was learned from."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What learning took.

    Attributes:
        decisions: Sampled and learned from; where all actions of a round are, its rounds.
        seconds: Of this machine's time.
    """

    decisions: int
    seconds: float


def learned_variant(name: str, learn: Learn, folder: Path, clock: Clock) -> Variant:
    """A way to learn as a row of a study; its policies and efforts stay in the folder.

    Args:
        name: Of the row.
        learn: Learns one pair; advances the bar by `Setting.steps`.
        folder: Of this way; gets one policy folder per seed.
        clock: Times it.
    """

    def seconds(setting: Setting, seed: int, bar: Bar) -> Float64Array:
        begin = clock.boundary()
        policy, decisions = learn(setting, seed, bar)
        effort = Effort(decisions, clock.boundary() - begin)
        kept = save_policy(folder / f"seed-{seed}", policy)
        write_json(kept / EFFORT, asdict(effort))
        return judged(policy, setting)

    return Variant(name, seconds)


def judged(policy: ExportedPolicy, setting: Setting) -> Float64Array:
    """Seconds of each test sequence under a policy, with the costs that it would be shown.

    Args:
        policy: Of the setting's layout; only decisions that it learned are charged.
        setting: Test trace and times.
    """
    decision = setting.times.decision_seconds
    charged = DecisionSeconds(
        0.0 if policy.depth is None else decision.depth,
        0.0 if policy.size is None else decision.size,
    )
    times, costs = MeanTimes(setting.times, charged), known_costs(policy.training)
    return judge(setting.test, times, policy.layout, ExportedBatch(policy), costs)


def effort_of(folder: Path, seed: int) -> Effort:
    """What `learned_variant` noted.

    Args:
        folder: Of the way.
        seed: Of the policy.

    Raises:
        StudyError: Nothing there, or damaged.
    """
    file = folder / f"seed-{seed}" / EFFORT
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return Effort(int(found["decisions"]), float(found["seconds"]))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise StudyError(
            f"{file}: decisions, seconds: {error}; remove the study's folder"
        ) from error


def with_efforts(
    result: Mapping[str, Any], efforts: Mapping[str, Sequence[Effort]]
) -> dict[str, Any]:
    """The summary of a study with what each row took, and medians over its seeds.

    Args:
        result: From `policies.study.summary`.
        efforts: Of each row's seeds, in their order.
    """
    rows = []
    for row in result["variants"]:
        mine = efforts[row["name"]]
        over = row["over_tuned"]
        rows.append(
            {
                **row,
                "over_tuned": {**over, "median": float(np.median(over["per_seed"]))},
                "seeds": len(mine),
                "decisions": _spread([effort.decisions for effort in mine]),
                "learning_seconds": _spread([effort.seconds for effort in mine]),
            }
        )
    return {**{name: value for name, value in result.items() if name != "seeds"}, "variants": rows}


def effort_lines(result: Mapping[str, Any]) -> list[str]:
    """What each row took, as text."""
    width = max(len(row["name"]) for row in result["variants"])
    return [
        f"{row['name']:<{width}} {row['seeds']} seeds, medians: {row['decisions']['median']:,.0f} "
        f"decisions, {row['learning_seconds']['median']:.0f} s, over tuned "
        f"{row['over_tuned']['median']:.3f}"
        for row in result["variants"]
    ]


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {"median": float(np.median(values)), "per_seed": list(values)}
