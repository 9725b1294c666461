"""Fits and tunes published rules on traces, once per output folder, and says what bounds allow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from draftgym.benchmark.config import EvaluateConfig
from draftgym.commands._inputs import RUNS, Inputs
from draftgym.commands.bound import summary
from draftgym.console import progress, say
from draftgym.controllers import RoundCosts, Space, TunedRule, rule_named
from draftgym.controllers.tuning import Tuning, tune_all
from draftgym.costs.ratios import cost_ratios
from draftgym.costs.table import LatencyTable
from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.controllers import PlainController
from draftgym.errors import ConfigurationError
from draftgym.prompts import Split
from draftgym.provenance import provenance
from draftgym.runtime.folder import first_difference
from draftgym.storage import dump_json, write_json
from draftgym.theory.bounds import FOLDS, bounds, fold_of
from draftgym.theory.reliability import by_pass
from draftgym.traces.find import newest_trace
from draftgym.traces.scripted import ScriptedTrace
from draftgym.traces.store import MANIFEST, load_trace
from draftgym.traces.trace import Trace

SCHEMA = "draftgym.rules/1"
FILE = "rules.json"


def tuning_of(config: EvaluateConfig, folder: Path, inputs: Inputs) -> Tuning:
    """What an evaluation's rules are, tuned now or read back.

    Args:
        config: Names the rules and what they are tuned on.
        folder: Of the evaluation; keeps them.
        inputs: Finds or makes traces and the latency table.

    Raises:
        DraftGymError: A trace or table cannot be used.
    """
    sources = config.tuned_on
    paths = {
        "policy_trace": inputs.trace(sources.policy_trace, "policy"),
        "validation_trace": inputs.trace(sources.validation_trace, "validation"),
    }
    policy = checked_trace(config, inputs, paths["policy_trace"], "policy")
    validation = checked_trace(config, inputs, paths["validation_trace"], "validation")
    table_file = inputs.table(sources.table, validation)
    table = LatencyTable.load(table_file, inputs.fingerprint())
    space = space_of(validation, table)
    judged_on = _bounds_trace(config, inputs, paths["validation_trace"])
    key = tuning_key(config, [*paths.values(), judged_on], table_file)
    origin = {**paths, "table": table_file, "key": key}
    known = _read(folder / FILE, origin["key"])
    if known is None:
        script = ScriptedTrace(validation, table, space.ratios)
        rules = _tune(config, policy, script, table, space)
        details = _details(load_trace(Path(judged_on)), table, space, rules)
        if details["bounds"] is not None:
            details["bounds"] |= {"table": table_file, "trace": judged_on}
        plain = script.seconds(PlainController()).sum() / script.tokens.sum()
        known = {
            "rules": [rule.as_data() for rule in rules],
            "plain_seconds_per_token": float(plain),
            "details": details,
        }
        write_json(folder / FILE, {"schema": SCHEMA, **known, "origin": origin})
        say(f"tuned rules: {folder / FILE}")
    return Tuning(
        space,
        tuple(TunedRule.from_data(rule) for rule in known["rules"]),
        _requests(policy),
        _requests(validation),
        known["plain_seconds_per_token"],
        origin,
        known["details"],
    )


def checked_trace(config: EvaluateConfig, inputs: Inputs, path: str, split: Split) -> Trace:
    """A trace of the evaluation's pair, law and split.

    Args:
        config: Of the evaluation.
        inputs: Hold the pair.
        path: Folder of the trace.
        split: That its prompts must come from.

    Raises:
        ConfigurationError: It is another one; names the field of `tuned_on`.
    """
    trace = load_trace(Path(path))
    plan, field = trace.source["plan"], f"tuned_on.{split}_trace: {path}"
    if plan["split"] != split:
        raise ConfigurationError(f"{field}: made of the {plan['split']} split; accepted: {split}")
    pair = inputs.pair(config.pair)
    difference = first_difference(plan["fingerprint"], pair.fingerprint(), "pair", "the trace")
    if difference is not None:
        raise ConfigurationError(f"{field}: of another pair: {difference}")
    law = SamplingConfig.model_validate(plan["pair"]["sampling"]).law
    if law != config.pair.sampling.law:
        raise ConfigurationError(
            f"{field}: traced under {law!r}; accepted: {config.pair.sampling.law!r}"
        )
    drafter, shape = config.pair.drafter, trace.shape
    if shape.max_depth > drafter.max_depth or shape.size_grid[-1] > drafter.max_size:
        raise ConfigurationError(
            f"{field}: depths to {shape.max_depth} and sizes to {shape.size_grid[-1]}; the drafter "
            f"stops at {drafter.max_depth} and {drafter.max_size}"
        )
    return trace


def _requests(trace: Trace) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry.request_id or entry.prompt_id for entry in trace.sequences))


def with_paths(config: EvaluateConfig, tuning: Tuning) -> EvaluateConfig:
    """The configuration with the traces and the table that rules were tuned by.

    Args:
        config: Of the evaluation.
        tuning: Of its rules.
    """
    found = {name: tuning.origin[name] for name in ("policy_trace", "validation_trace", "table")}
    return config.model_copy(update={"tuned_on": config.tuned_on.model_copy(update=found)})


def space_of(trace: Trace, table: LatencyTable) -> Space:
    """What a trace's rounds allow, and what a latency table says they cost."""
    shape = trace.shape
    context = int(np.median([entry.prompt_tokens for entry in trace.sequences]))
    return Space.of(
        shape,
        bool((trace.nodes[:, 0] > 0).any()),
        RoundCosts.of(table, trace, shape.size_grid[-1]),
        cost_ratios(table, shape.size_grid, context, max_depth=shape.max_depth),
    )


def _tune(
    config: EvaluateConfig,
    policy: Trace,
    script: ScriptedTrace,
    table: LatencyTable,
    space: Space,
) -> tuple[TunedRule, ...]:
    settings = sum(len(rule_named(name).grid(space)) for name in config.rules)
    with progress("tune rules", settings) as bar:
        return tune_all(
            config.rules, policy, script, table, space,
            seed=config.seeds.order, advance=bar.advance,
        )  # fmt: skip


def _details(
    trace: Trace, table: LatencyTable, space: Space, rules: Sequence[TunedRule]
) -> dict[str, Any]:
    """Bounds and rules on one trace, how true confidence is there, and what work costs."""
    script = ScriptedTrace(trace, table, space.ratios)
    costs = space.costs
    details: dict[str, Any] = {
        "cost_curves": {
            "plain_ms": 1e3 * (costs.verify[0] + costs.rest),
            "draft_pass_ms": 1e3 * costs.draft_pass if space.max_depth > 1 else None,
            "verify_ms": {str(size): 1e3 * costs.verify[size] for size in space.size_grid},
        },
        "reliability": {
            "bins": {
                str(depth): [
                    {"predicted": p, "observed": o, "rounds": n}
                    for p, o, n in zip(
                        found.predicted.tolist(),
                        found.realised.tolist(),
                        found.count.tolist(),
                        strict=True,
                    )
                ]
                for depth, found in by_pass(trace).items()
            }
        },
        "bounds": None,
    }
    if len(np.unique(fold_of(trace))) == FOLDS:
        say(f"bounds on {len(trace.sequences)} traced prompts")
        found = bounds(trace, table)
        simulated = {
            f"{rule_named(rule.name).title}, simulated": script.seconds(rule.controller(space))
            for rule in rules
        }
        found = replace(found, seconds={**found.seconds, **simulated})
        told = summary(trace, found, 0)
        details["bounds"] = {name: told[name] for name in ("methods", "prompts", "positions")}
        details["bounds"]["split"] = trace.source["plan"]["split"]
    return details


def _bounds_trace(config: EvaluateConfig, inputs: Inputs, validation: str) -> str:
    """A test trace if there is one: bounds are told of it, nothing is tuned on it."""
    if config.tuned_on.test_trace is not None:
        return config.tuned_on.test_trace
    plan = inputs.trace_config("test").plan(inputs.pair(config.pair).fingerprint())
    found = newest_trace(RUNS, {name: plan[name] for name in plan.keys() - {"count", "seed"}})
    return validation if found is None else str(found)


def tuning_key(config: EvaluateConfig, traces: Sequence[str], table: str) -> str:
    """Hash of all that tuning and learning hang on.

    Args:
        config: Of the evaluation.
        traces: Folders.
        table: File of the latency table.
    """
    origin = provenance()
    files = [*(Path(path) / MANIFEST for path in traces), Path(table)]
    parts = {
        "rules": list(config.rules),
        "seed": config.seeds.order,
        "files": [hashlib.sha256(file.read_bytes()).hexdigest() for file in files],
        "code": {name: origin[name] for name in ("commit", "uncommitted_changes")},
    }
    return hashlib.sha256(dump_json(parts).encode()).hexdigest()[:16]


def _read(file: Path, key: str) -> dict[str, Any] | None:
    """What was tuned before, if it hangs on the same."""
    try:
        known: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if known["schema"] != SCHEMA or known["origin"]["key"] != key:
            return None
        for rule in known["rules"]:
            TunedRule.from_data(rule)
        return {name: known[name] for name in ("rules", "plain_seconds_per_token", "details")}
    except (OSError, ValueError, KeyError, TypeError):
        return None  # none yet, or damaged: a minute's work
