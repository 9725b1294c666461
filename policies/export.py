"""From trained networks to the folder any decoder loads: plain arrays, no RL library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draftgym.features import FeatureLayout
from draftgym.runtime import ExportedPolicy, Normaliser, PolicyHead
from policies.config import PolicyName, TrainConfig
from policies.normaliser import RunningNormaliser

_HIDDEN = re.compile(r"network\.mlp_extractor\.policy_net\.(\d+)\.weight")


@dataclass(frozen=True, slots=True)
class PolicyCard:
    """Where a policy comes from; plain data without dates, so that equal runs give equal bytes.

    Attributes:
        pair: Fingerprint of the model pair.
        hardware: Fingerprint of the machine.
        costs: Costs measured before training.
        law: How tokens were decided, `SamplingConfig.law`.
    """

    pair: Mapping[str, Any]
    hardware: Mapping[str, Any]
    costs: Mapping[str, Any]
    law: str = "greedy"


def export_head(tensors: Mapping[str, torch.Tensor], normaliser: Normaliser | None) -> PolicyHead:
    """The acting half of an SB3 MlpPolicy; the value network stays behind.

    Args:
        tensors: `network.*` tensors of a learner, as in its checkpoint.
        normaliser: Frozen observation statistics; None when it saw raw observations.

    Returns:
        Tanh layers and the action layer, float32.
    """
    layers = sorted(int(found[1]) for name in tensors if (found := _HIDDEN.fullmatch(name)))
    names = [f"network.mlp_extractor.policy_net.{layer}" for layer in layers]
    names.append("network.action_net")
    return PolicyHead(
        weights=tuple(_array(tensors[f"{name}.weight"]) for name in names),
        biases=tuple(_array(tensors[f"{name}.bias"]) for name in names),
        normaliser=normaliser,
    )


def head_tensors(head: PolicyHead) -> dict[str, torch.Tensor]:
    """The inverse of `export_head`: `network.*` tensors of an SB3 MlpPolicy's acting half."""
    # Tanh layers without parameters lie in between.
    names = [f"mlp_extractor.policy_net.{2 * layer}" for layer in range(len(head.hidden))]
    arrays: dict[str, NDArray[np.float32]] = {}
    for name, weight, bias in zip((*names, "action_net"), head.weights, head.biases, strict=True):
        arrays |= {f"network.{name}.weight": weight, f"network.{name}.bias": bias}
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


def export_heads(
    layout: FeatureLayout,
    heads: Mapping[PolicyName, PolicyHead],
    reward: Mapping[str, Any],
    card: PolicyCard,
    summary: Mapping[str, Any],
    fallback: Mapping[str, int] | None = None,
    deepest: int | None = None,
) -> ExportedPolicy:
    """Whatever was learned, however it was learned, as one exported policy.

    Args:
        layout: Observations and actions.
        heads: By policy name.
        reward: Kind and its settings, plain data.
        card: Origin.
        summary: Of the training.
        fallback: Fixed decision of a missing head.
        deepest: Draft passes after which the depth head is not asked.

    Returns:
        What `draftgym.runtime.save_policy` writes.
    """
    return ExportedPolicy(
        layout=layout,
        depth=heads.get("depth"),
        size=heads.get("size"),
        reward=reward,
        pair=card.pair,
        hardware=card.hardware,
        training={**summary, "costs": dict(card.costs), "law": card.law},
        fallback=dict(fallback or {}),
        deepest=deepest,
    )


def export_policy(
    layout: FeatureLayout,
    config: TrainConfig,
    heads: Mapping[PolicyName, Mapping[str, torch.Tensor]],
    card: PolicyCard,
    summary: Mapping[str, Any],
    deepest: int | None = None,
) -> ExportedPolicy:
    """Both decisions as one exported policy.

    Args:
        layout: Observations and actions.
        config: Of the run.
        heads: By policy name, `network.*` and `statistics.*` tensors. A policy that the
            run never learns is exported as its fixed decision.
        card: Origin.
        summary: Of the training run.
        deepest: Draft passes after which the depth head is not asked.

    Returns:
        What `draftgym.runtime.save_policy` writes.
    """
    exported = {
        name: export_head(heads[name], _statistics(heads[name], config)) for name in config.learned
    }
    fixed = {"depth": config.fixed_depth, "size": config.fixed_size}
    fallback = {name: value for name, value in fixed.items() if name not in exported}
    reward = config.reward.model_dump(mode="json")
    return export_heads(layout, exported, reward, card, summary, fallback, deepest)


def _statistics(tensors: Mapping[str, torch.Tensor], config: TrainConfig) -> Normaliser | None:
    mean = tensors["statistics.mean"]
    running = RunningNormaliser(len(mean), config.normaliser)
    running.load({name: tensors[f"statistics.{name}"].numpy() for name in running.state()})
    return running.frozen


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return tensor.detach().cpu().numpy().astype(np.float32)
