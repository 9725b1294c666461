"""How much there is to gain on a trace: fixed cells, the information bound, clairvoyance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from draftgym.benchmark.statistics import Interval, PromptTotals, paired_ratio, time_per_token
from draftgym.commands._calibration import Calibration
from draftgym.commands._inputs import TABLE, TEST_TRACE, Inputs
from draftgym.commands._traced import check_same_pair
from draftgym.console import print_result, progress, say
from draftgym.costs.table import LatencyTable
from draftgym.costs.times import Float64Array
from draftgym.errors import ConfigurationError
from draftgym.features import FeatureLayout
from draftgym.provenance import HARDWARE, provenance
from draftgym.runtime import LearnedController, TableController, load_controller
from draftgym.runtime.batch import ExportedBatch
from draftgym.theory.bounds import (
    CLAIRVOYANT,
    FOLDS,
    INFORMATION,
    TUNED,
    Bounds,
    bounds,
    closed_gaps,
)
from draftgym.traces.judge import judge, judge_rounds
from draftgym.traces.store import load_trace
from draftgym.traces.trace import Trace

SCHEMA = "draftgym.bound/1"
POLICY = "policy {}, decisions included"
MEAN = "mean of {} pairs of networks"


@dataclass(frozen=True)
class Arguments:
    """Bounds by mean measured costs; only policies pay for their decisions.

    Fixed cells are tuned, and the information bound is fitted, on other prompts than they are
    judged on. Intervals are 95% from a paired bootstrap over prompts.
    """

    trace: Annotated[str | None, TEST_TRACE] = None
    table: Annotated[str | None, TABLE] = None
    policy: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(help="A policy folder or a table's JSON file, judged too; repeatable."),
    ] = ()
    more: Annotated[
        str | None,
        tyro.conf.arg(help="Trace of other prompts that the information bound learns from too."),
    ] = None
    learn: Annotated[
        bool, tyro.conf.arg(help="Learn networks and a table, too, cross-fitted like the bound.")
    ] = False
    seed: Annotated[int, tyro.conf.arg(help="Of networks and intervals.")] = 0


def main(argv: Sequence[str]) -> int:
    """Work out the bounds; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym bound")
    inputs = Inputs()
    source = inputs.trace(arguments.trace, "test")
    trace = load_trace(Path(source))
    file = inputs.table(arguments.table, trace)
    table = LatencyTable.load(file)
    check_same_pair(trace, table, source, file)
    policies = {path: _policy(path, table) for path in arguments.policy}
    more = None if arguments.more is None else _other_prompts(arguments.more, trace)
    try:
        found = bounds(trace, table, more=more, seed=arguments.seed)
    except ValueError as error:
        raise ConfigurationError(f"{source}: {error}; trace more prompts") from error
    judged = {
        POLICY.format(path): _seconds(trace, table, policy) for path, policy in policies.items()
    }
    networks = [
        judged[POLICY.format(path)]
        for path, policy in policies.items()
        if not isinstance(policy, TableController)
    ]
    if len(networks) > 1:
        judged[MEAN.format(len(networks))] = np.mean(networks, axis=0)
    if arguments.learn:
        judged |= _learned(trace, table, more, arguments.seed)
    found = replace(found, seconds={**found.seconds, **judged})
    payload = {
        **summary(trace, found, arguments.seed),
        "shares": {name: _closed(trace, found, name) for name in judged},
    }
    for row in payload["methods"]:
        low, high = row["over_tuned"]["ci95"]
        say(
            f"{row['method']:<36} {row['ms_per_token']:7.2f} ms per token, "
            f"{row['over_tuned']['ratio']:.3f} [{low:.3f}, {high:.3f}] of the tuned cell's speed"
        )
    origin = provenance(extra={"trace": dict(trace.source), "table": table.fingerprint})
    print_result(SCHEMA, {**payload, "provenance": origin})
    return 0


def summary(trace: Trace, found: Bounds, seed: int) -> dict[str, Any]:
    """The result line.

    Args:
        trace: Gives prompts, domains and tokens.
        found: The bounds.
        seed: Of the intervals.
    """
    used = np.flatnonzero(trace.lengths > 1)
    totals = {name: _totals(trace, seconds, used) for name, seconds in found.seconds.items()}
    strata = {entry.prompt_id: entry.domain for entry in trace.sequences}
    depth, size = found.cell
    rows = []
    for name, total in totals.items():
        pace = time_per_token(total, strata, seed=seed)
        over = paired_ratio(totals[TUNED], total, strata, seed=seed)
        rows.append(
            {
                "method": name,
                "ms_per_token": 1e3 * pace.estimate,
                "ci95": [1e3 * value for value in pace.limits],
                "over_tuned": _plain(over),
            }
        )
    return {
        "methods": rows,
        "best_fixed_hindsight": {"depth": depth, "size": size},
        "domains": {
            domain: {
                name: _share(trace, seconds, domain) for name, seconds in found.seconds.items()
            }
            for domain in sorted(set(strata.values()))
        },
        "information_share_of_clairvoyant_gap": _gap_share(totals),
        "prompts": len(used),
        "positions": len(trace),
    }


def _other_prompts(folder: str, trace: Trace) -> Trace:
    """Another trace, which must share no prompt with the one that is judged."""
    more = load_trace(Path(folder))
    common = {e.prompt_id for e in more.sequences} & {e.prompt_id for e in trace.sequences}
    if common:
        raise ConfigurationError(
            f"--more: {folder} holds prompts that are judged, such as {min(common)!r}"
        )
    return more


def _closed(trace: Trace, found: Bounds, name: str) -> dict[str, float | None]:
    """Shares of the gaps from the tuned cell to the bounds that a policy closes."""
    used = trace.lengths > 1
    seconds = {key: float(values[used].sum()) for key, values in found.seconds.items()}
    shares = closed_gaps(seconds, name)
    return {"information": shares[INFORMATION], "clairvoyant": shares[CLAIRVOYANT]}


def _policy(path: str, table: LatencyTable) -> LearnedController:
    here = {name: table.fingerprint[name] for name in HARDWARE}
    return load_controller(path, table.fingerprint["pair"], here)


def _seconds(trace: Trace, table: LatencyTable, policy: LearnedController) -> Float64Array:
    """Of every sequence under a policy folder's networks, or under a threshold table."""
    from policies.table import TableChoice

    if isinstance(policy, TableController):
        choice = TableChoice(policy.table)
        return judge_rounds(trace, table, policy.layout, choice, policy.costs)
    return judge(trace, table, policy.layout, ExportedBatch(policy.policy), policy.costs)


def _learned(
    trace: Trace, table: LatencyTable, more: Trace | None, seed: int
) -> dict[str, Float64Array]:
    """Networks and a table that learned from the trace's other prompts."""
    from policies.all_action import AllActionConfig
    from policies.cross_fit import cross_fitted_policies

    shape = trace.shape
    layout = FeatureLayout(shape.max_depth, shape.beam_width, size_grid=shape.size_grid)
    lengths = [entry.prompt_tokens for entry in trace.sequences]
    costs = Calibration.of(table, shape.size_grid, lengths, shape.max_depth).costs
    config = AllActionConfig(seed=seed)
    with progress("learn", FOLDS * config.steps) as bar:
        return cross_fitted_policies(trace, table, layout, costs, config, more=more, bar=bar)


def _totals(trace: Trace, seconds: Float64Array, used: np.ndarray[Any, Any]) -> PromptTotals:
    ids = tuple(trace.sequences[i].prompt_id for i in used)
    return PromptTotals(ids, seconds[used], (trace.lengths[used] - 1).astype(np.float64))


def _share(trace: Trace, seconds: Float64Array, domain: str) -> float:
    """Milliseconds per token in one domain."""
    mine = np.array([entry.domain == domain for entry in trace.sequences])
    return float(1e3 * seconds[mine].sum() / (trace.lengths[mine] - 1).sum())


def _gap_share(totals: Mapping[str, PromptTotals]) -> float | None:
    tuned, informed, ideal = (
        totals[name].time_per_token for name in (TUNED, INFORMATION, CLAIRVOYANT)
    )
    return (tuned - informed) / (tuned - ideal) if tuned > ideal else None


def _plain(interval: Interval) -> dict[str, Any]:
    return {"ratio": interval.estimate, "ci95": interval.limits}
