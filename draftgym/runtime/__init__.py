"""Exported controllers without torch or any RL library: numpy and safetensors only."""

from draftgym.runtime.batch import ExportedBatch
from draftgym.runtime.controller import ExportedController
from draftgym.runtime.folder import POLICY_SCHEMA, load, read_policy, save_policy
from draftgym.runtime.policy import ExportedPolicy, Normaliser, PolicyError, PolicyHead
from draftgym.runtime.timing import DecisionSeconds, decision_seconds, representative_state

__all__ = [
    "POLICY_SCHEMA",
    "DecisionSeconds",
    "ExportedBatch",
    "ExportedController",
    "ExportedPolicy",
    "Normaliser",
    "PolicyError",
    "PolicyHead",
    "decision_seconds",
    "load",
    "read_policy",
    "representative_state",
    "save_policy",
]
