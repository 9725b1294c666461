"""The small tanh networks of all-action learning: made, masked, exported."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from draftgym.runtime import Normaliser, PolicyHead
from draftgym.state import Float32Array

MINIMUM_VARIANCE = 1e-3
CLIP = 5.0


def tanh_network(
    seen: Float32Array, hidden: Sequence[int], actions: int, generator: torch.Generator
) -> nn.Sequential:
    """A network that starts out indifferent and blind to some entries.

    A weight on an entry that is always zero has no gradient, so it stays at its zero.

    Args:
        seen: 1 for entries that it may see, 0 for the others, [features].
        hidden: Units per tanh layer; none makes it linear.
        actions: Logits.
        generator: Of the first weights.
    """
    layers: list[nn.Module] = []
    for width, out in pairwise((len(seen), *hidden)):
        layers += [nn.Linear(width, out), nn.Tanh()]
    layers.append(nn.Linear(hidden[-1] if hidden else len(seen), actions))
    for layer in layers:
        if isinstance(layer, nn.Linear):
            last = layer is layers[-1]
            nn.init.orthogonal_(layer.weight, 0.01 if last else 2**0.5, generator=generator)
            nn.init.zeros_(layer.bias)
    first = layers[0]
    assert isinstance(first, nn.Linear)
    with torch.no_grad():
        first.weight *= torch.from_numpy(seen)
    return nn.Sequential(*layers)


def seen_entries(names: Sequence[str], unseen: Collection[str]) -> Float32Array:
    """1 for the entries that stay, 0 for those named in `unseen`, [features]."""
    return np.array([name not in unseen for name in names], np.float32)


def exported(network: nn.Sequential, normaliser: Normaliser) -> PolicyHead:
    """The network as a policy folder holds it; a copy."""
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    return PolicyHead(
        weights=tuple(layer.weight.detach().numpy().copy() for layer in linear),
        biases=tuple(layer.bias.detach().numpy().copy() for layer in linear),
        normaliser=normaliser,
    )


def statistics(
    observations: Float32Array, minimum_variance: float = MINIMUM_VARIANCE, clip: float = CLIP
) -> Normaliser:
    """Mean and floored variance of observations, [n, features]."""
    variance = np.maximum(observations.var(0, dtype=np.float64), minimum_variance)
    mean = observations.mean(0, dtype=np.float64)
    return Normaliser(mean.astype(np.float32), variance.astype(np.float32), clip)


def entropy(log_law: Tensor) -> Tensor:
    """Of log-probabilities, [..., actions] to [...], nats."""
    return -(log_law.exp() * log_law).sum(-1)
