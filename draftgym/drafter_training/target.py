"""The target model as the trainer sees it: weights, fingerprint, greedy answers."""

import hashlib

from torch import nn

_VALUES_PER_TENSOR = 64


def fingerprint(model: nn.Module) -> str:
    """Name a model's weights: the same weights give the same name in every process.

    Args:
        model: A loaded model.

    Returns:
        16 hexadecimal digits over every tensor's name, shape and leading values.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        leading = tensor.detach().flatten()[:_VALUES_PER_TENSOR].float().cpu().numpy()
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(leading.tobytes())
    return digest.hexdigest()[:16]
