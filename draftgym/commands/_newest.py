"""Policies that an evaluation wants without naming a path: a run's, or learned on the spot."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from draftgym.benchmark.config import EvaluateConfig
from draftgym.commands._inputs import RUNS, Inputs
from draftgym.commands._rules import checked_trace, tuning_key
from draftgym.commands._traced import open_learning
from draftgym.commands.learn import learn
from draftgym.console import say
from draftgym.decoder.pair import ModelPair
from draftgym.provenance import hardware
from draftgym.runtime import PolicyError, load_controller
from draftgym.storage import write_json
from policies.learning_to_draft import METHOD as PUBLISHED_METHOD

TABLE_LABEL = "learned table"
PUBLISHED_LABEL = "Learning to Draft, as published"
TABLE_ROWS = 8
"""Of the threshold table that is learned beside networks."""
ORIGIN = "origin.json"
"""Says what a policy that an evaluation learned hangs on."""


def with_newest(config: EvaluateConfig, folder: Path, inputs: Inputs) -> EvaluateConfig:
    """The configuration with a policy of this pair and machine, and the table beside it.

    Args:
        config: Of the evaluation.
        folder: Of the evaluation; a policy that must be learned goes to its `learned/`.
        inputs: Finds or makes what is learned from.
    """
    pair = inputs.pair(config.pair)
    files = sorted(
        RUNS.glob("*/policy/policy.json"), key=lambda file: file.stat().st_mtime, reverse=True
    )
    found = next((file.parent for file in files if _is_ours(file.parent, pair)), None)
    if found is None:
        say("no policy of this pair, law and machine under runs/: learning one")
        found = _learned(config, folder / "learned", inputs, table_rows=TABLE_ROWS)
    say(f"policy: {found}")
    table = str(found.parent / "table.json")
    beside = [path for path in config.beside if path not in (str(found), table)]
    changes: dict[str, Any] = {"policy": str(found), "beside": tuple(beside)}
    if Path(table).is_file():
        changes["beside"] = (table, *beside)
        changes["labels"] = {table: TABLE_LABEL, **config.labels}
    return EvaluateConfig.model_validate({**dict(config), **changes})


def with_published(config: EvaluateConfig, folder: Path, inputs: Inputs) -> EvaluateConfig:
    """The configuration with Learning to Draft beside the policy.

    Args:
        config: Of the evaluation.
        folder: Of the evaluation; the policy goes to its `learning_to_draft/`.
        inputs: Finds or makes what is learned from.
    """
    path = _learned(config, folder / "learning_to_draft", inputs, as_published=True)
    changes = {
        "learning_to_draft": False,  # it is beside now
        "beside": (*config.beside, str(path)),
        "labels": {**config.labels, str(path): PUBLISHED_LABEL},
    }
    return EvaluateConfig.model_validate({**dict(config), **changes})


def _learned(config: EvaluateConfig, home: Path, inputs: Inputs, **how: Any) -> Path:
    """A policy learned from the policy trace, once for the same trace, costs and code."""
    trace = inputs.trace(config.tuned_on.policy_trace, "policy")
    table = inputs.table(config.tuned_on.table, checked_trace(config, inputs, trace, "policy"))
    key = tuning_key(config, [trace], table)
    if not _has_key(home / ORIGIN, key):
        say(f"learning a policy into {home}, a minute or two")
        learn(open_learning(trace, table, inputs), home, seed=config.seeds.order, **how)
        write_json(home / ORIGIN, {"key": key, "trace": trace, "table": table})
    return home / "policy"


def _has_key(file: Path, key: str) -> bool:
    try:
        return bool(json.loads(file.read_text(encoding="utf-8"))["key"] == key)
    except (OSError, ValueError, KeyError, TypeError):
        return False  # none, or damaged


def _is_ours(path: Path, pair: ModelPair) -> bool:
    """Whether a policy is of this pair, law and machine, and no rival."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # another machine is only warned about
        try:
            found = load_controller(path, pair.fingerprint(), hardware(pair.device, pair.dtype))
        except (PolicyError, UserWarning):
            return False
    told = found.training
    return (
        told.get("law", "greedy") == pair.config.sampling.law
        and told.get("method") != PUBLISHED_METHOD
    )
