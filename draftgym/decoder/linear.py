"""Linear layers for decoding: a handful of rows against weights that never change.

On a CPU in float32 the weights are packed once for oneDNN. Decoding multiplies 1 to 33 rows,
where an unpacked product costs about twice as much at two rows as at one; packed, the cost
stays near the time to stream the weights (docs/log.md has the measurement).
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN packing applies to this weight on this build of torch."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


class DecodeLinear(nn.Module):
    """`y = x W^T + b`, inference only.

    Args:
        weight: Shape [out, in].
        bias: Shape [out], or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight_bytes = weight.numel() * weight.element_size()
        self._packed = can_pack(weight)
        data = weight.detach().contiguous()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(data) if self._packed else data
        self._bias = None if bias is None else bias.detach().contiguous()

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """`x` [..., in] to [..., out]; adds `residual` of the result's shape in the same kernel."""
        if self._packed and residual is not None:
            added: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
                x, residual, self._weight, self._bias, "add"
            )
            return added
        if self._packed:
            packed: Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._weight, self._bias, "none", [], ""
            )
            return packed
        y = F.linear(x, self._weight, self._bias)
        return y if residual is None else residual + y


def can_halve(weight: Tensor) -> bool:
    """Whether FBGEMM can keep this weight in half precision and compute in float32."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.quantized.engine in ("fbgemm", "x86")
        and hasattr(torch.ops.quantized, "linear_dynamic_fp16")
        and bool(weight.abs().max() <= torch.finfo(torch.float16).max)
    )


class DraftLinear(nn.Module):
    """`y = x W^T + b` for a drafter: a guess may be rounded, so its weights may be halved.

    On a CPU that computes in float32, weights are kept in float16 where that is possible: a draft
    pass streams half the bytes, and bytes are most of its time (docs/log.md has the measurement).
    Elsewhere it is a `DecodeLinear`. Never for a target: its output law is the contract.

    Args:
        weight: Shape [out, in].
        bias: Shape [out], or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self._exact = None if can_halve(weight) else DecodeLinear(weight, bias)
        if self._exact is None:
            bias = None if bias is None else bias.detach()
            self._half = torch.ops.quantized.linear_prepack_fp16(weight.detach(), bias)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., in] to [..., out]."""
        if self._exact is not None:
            exact: Tensor = self._exact(x)
            return exact
        y: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._half)
        return y


Linear = TypeVar("Linear", DecodeLinear, DraftLinear)


def fuse_linears(kind: type[Linear], *linears: nn.Linear) -> Linear:
    """One layer that computes several with the same input; their outputs lie side by side."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    if linears[0].bias is None:
        return kind(weight)
    return kind(weight, torch.cat([linear.bias.detach() for linear in linears]))


def pack_linears(kind: type[DecodeLinear | DraftLinear], module: nn.Module) -> int:
    """Replace every `nn.Linear` below `module` for decoding; returns how many were replaced."""
    replaced = 0
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, kind(child.weight, child.bias))
            replaced += 1
        else:
            replaced += pack_linears(kind, child)
    return replaced
