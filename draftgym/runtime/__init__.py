"""Exported controllers without torch or any RL library: numpy and safetensors only."""

from draftgym.runtime.batch import ExportedBatch
from draftgym.runtime.controller import ExportedController
from draftgym.runtime.folder import POLICY_SCHEMA, load, read_policy, save_policy
from draftgym.runtime.loading import LearnedController, load_controller
from draftgym.runtime.policy import ExportedPolicy, Normaliser, PolicyError, PolicyHead
from draftgym.runtime.table import (
    TABLE_SCHEMA,
    TableController,
    TableRow,
    TableSplit,
    ThresholdTable,
    load_table,
    save_table,
)
from draftgym.runtime.timing import DecisionSeconds, decision_seconds, representative_state

__all__ = [
    "POLICY_SCHEMA",
    "TABLE_SCHEMA",
    "DecisionSeconds",
    "ExportedBatch",
    "ExportedController",
    "ExportedPolicy",
    "LearnedController",
    "Normaliser",
    "PolicyError",
    "PolicyHead",
    "TableController",
    "TableRow",
    "TableSplit",
    "ThresholdTable",
    "decision_seconds",
    "load",
    "load_controller",
    "load_table",
    "read_policy",
    "representative_state",
    "save_policy",
    "save_table",
]
