"""Verification rules: what the target says about a tree, and which path it accepts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def choose_greedy(logits: Tensor, positions: Sequence[int], *extra: Tensor) -> list[list[int]]:
    """Read the target's argmax of each row, and `extra` with it, in one transfer.

    Ties go to the lowest id: in the plain step, the chain and the tree alike.

    Args:
        logits: Shape [rows, vocab].
        positions: Context position of each row, for the error message.
        extra: Integer tensors of shape [rows].

    Returns:
        One list of length `rows` for the argmax and one for each extra tensor.

    Raises:
        FloatingPointError: A row is NaN or has no finite value; names its position.
    """
    values, best = logits.max(-1)
    rows = torch.stack((torch.isfinite(values).to(best.dtype), best, *extra))
    finite, *answers = rows.tolist()
    if not all(finite):
        position = positions[finite.index(0)]
        raise FloatingPointError(
            f"the target's logits after position {position} are NaN or hold no finite maximum"
        )
    return [list(answer) for answer in answers]


def greedy_accept(
    tokens: Sequence[int], parents: Sequence[int], target_tokens: Sequence[int]
) -> list[int]:
    """Follow the target's argmax from the root as far as the tree goes.

    Args:
        tokens: Token of each slot, length V + 1; slot 0 is the root.
        parents: Slot of each node's parent.
        target_tokens: The target's argmax after each slot.

    Returns:
        Accepted slots from the root down, the root left out. The token to emit after them is
        `target_tokens` at the last accepted slot (at the root if there is none).

    Source: Leviathan et al. 2023 (arXiv 2211.17192) at temperature 0, on a tree as in
    SpecInfer (arXiv 2305.09781).
    """
    path: list[int] = []
    current = 0
    for slot in range(1, len(tokens)):  # parents precede children in the total order
        if parents[slot] == current and tokens[slot] == target_tokens[current]:
            path.append(slot)
            current = slot
    return path
