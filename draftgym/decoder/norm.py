"""Root-mean-square normalisation for decoding, in four kernels instead of nine."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


class DecodeNorm:
    """`x * weight / sqrt(mean(x²) + eps)` over the last dimension, inference only.

    In float32 it is computed as `x * (weight * sqrt(n)) / hypot(|x|, sqrt(n * eps))`: the same
    value to rounding, with fewer kernel calls, of which a decoding step makes two per layer.

    Args:
        weight: Shape [n].
        eps: Added to the mean square.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight, self._eps = weight.detach(), eps
        size = weight.numel()
        self._fast = weight.dtype == torch.float32
        self._scaled = self._weight * size**0.5
        self._floor = torch.tensor((size * eps) ** 0.5, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:  # [..., n] -> [..., n]
        if not self._fast:
            return F.rms_norm(x, self._weight.shape, self._weight, self._eps)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        normed: Tensor = (x * self._scaled).div_(torch.hypot(length, self._floor))
        return normed
