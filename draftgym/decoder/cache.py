"""The target's key-value cache: one preallocated block, written in place, compacted in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftgym.decoder.transfer import to_device


class KVCache:
    """Keys and values of all layers in one tensor, so that compaction is one gather.

    Args:
        layers: Decoder layers.
        kv_heads: Key-value heads per layer.
        capacity: Positions, drafted ones included.
        head_dim: Size of a head.
        device: Where it lives.
        dtype: Its element type.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        shape = (layers, 2, kv_heads, capacity, head_dim)
        self._block = torch.zeros(shape, device=device, dtype=dtype)
        self.capacity = capacity

    def window(self, start: int, length: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Views for a pass over `length` tokens written at `start`, sliced for all layers at once.

        Returns:
            Per layer: where to write keys and values, shape [2, kv_heads, length, head_dim]; the
            keys and the values to attend to, each [1, kv_heads, start + length, head_dim].
        """
        slots = self._block.narrow(3, start, length).unbind(0)
        seen = self._block.narrow(3, 0, start + length).unsqueeze(2)
        return list(zip(slots, seen[:, 0].unbind(0), seen[:, 1].unbind(0), strict=True))

    def compact(self, start: int, slots: Sequence[int]) -> None:
        """Keep `slots` of the entries written at `start`, in order, and drop the others.

        Args:
            start: First position of the verified block.
            slots: Increasing offsets from `start`; slot 0 is the root.
        """
        first_moved = next((i for i, slot in enumerate(slots) if slot != i), len(slots))
        moved = slots[first_moved:]
        if not moved:
            return
        source = to_device(moved, self._block.device) + start
        target = start + first_moved
        self._block[:, :, :, target : target + len(moved)] = self._block.index_select(3, source)
