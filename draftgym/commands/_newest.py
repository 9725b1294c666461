"""Policies that an evaluation wants without naming a path: a run's, or learned on the spot."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from draftgym.benchmark.config import EvaluateConfig
from draftgym.commands._inputs import RUNS, Inputs
from draftgym.commands._traced import open_learning
from draftgym.commands.learn import learn
from draftgym.console import say
from draftgym.decoder.pair import ModelPair
from draftgym.provenance import hardware
from draftgym.runtime import PolicyError, load_controller

TABLE_LABEL = "learned table"
PUBLISHED_LABEL = "Learning to Draft, as published"
TABLE_ROWS = 8
"""Of the threshold table that is learned beside networks."""


def with_newest(config: EvaluateConfig, folder: Path, inputs: Inputs) -> EvaluateConfig:
    """The configuration with a policy of this pair and machine, and the table beside it.

    Args:
        config: Of the evaluation.
        folder: Of the evaluation; a policy that must be learned goes to its `learned/`.
        inputs: Finds or makes what is learned from.

    """
    pair = inputs.pair(config.pair)
    files = [*RUNS.glob("*/policy/policy.json"), *(folder / "learned").glob("policy/policy.json")]
    files.sort(key=lambda file: file.stat().st_mtime, reverse=True)
    found = next((file.parent for file in files if fits(file.parent, pair)), None)
    if found is None:
        say("no policy of this pair and machine under runs/: learning one from the policy trace")
        sources = config.tuned_on
        known = open_learning(sources.policy_trace, sources.table, inputs)
        found = learn(known, folder / "learned", table_rows=TABLE_ROWS).policy
    say(f"policy: {found}")
    table = found.parent / "table.json"
    changes: dict[str, Any] = {"policy": str(found)}
    if table.is_file() and str(table) not in config.beside:
        changes["beside"] = (str(table), *config.beside)
        changes["labels"] = {str(table): TABLE_LABEL, **config.labels}
    return EvaluateConfig.model_validate({**dict(config), **changes})


def with_published(config: EvaluateConfig, folder: Path, inputs: Inputs) -> EvaluateConfig:
    """The configuration with Learning to Draft beside the policy, learned once per folder.

    Args:
        config: Of the evaluation.
        folder: Of the evaluation; the policy goes to its `learning_to_draft/`.
        inputs: Finds or makes what is learned from.
    """
    home = folder / "learning_to_draft"
    path = home / "policy"
    if not fits(path, inputs.pair(config.pair)):
        say("learning as Learning to Draft does, some two minutes")
        known = open_learning(config.tuned_on.policy_trace, config.tuned_on.table, inputs)
        path = learn(known, home, as_published=True).policy
    changes = {
        "beside": (*config.beside, str(path)),
        "labels": {**config.labels, str(path): PUBLISHED_LABEL},
    }
    return EvaluateConfig.model_validate({**dict(config), **changes})


def fits(path: Path, pair: ModelPair) -> bool:
    """Whether a policy is of this pair and was learned on this machine.

    Args:
        path: Its folder.
        pair: Loaded.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # another machine is only warned about
        try:
            load_controller(path, pair.fingerprint(), hardware(pair.device, pair.dtype))
        except (PolicyError, UserWarning):
            return False
    return True
