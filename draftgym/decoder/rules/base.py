"""What a verification rule must do, and the walk that most of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from draftgym.decoder.sampling.noise import gumbel
from draftgym.decoder.tree import Selection
from draftgym.errors import BrokenLogitsError


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one target pass decided.

    Attributes:
        path: Accepted slots of the selection, from the root down, the root left out.
        tokens: Tokens to emit: those of the path, then the correction or bonus.
    """

    path: list[int]
    tokens: list[int]


class Rule(Protocol):
    """Keeps the target's law whatever is drafted and however much of it is verified.

    Attributes:
        name: Its name in the registry.
        draws_proposals: Drafted tokens are drawn at random. Then the draft is a chain and all of
            it is verified: discarding a drawn token would bias the law.
    """

    name: str
    draws_proposals: bool

    def start(self, sequence: int) -> None:
        """A new sequence begins; its id keys the noise."""

    def rank(self, logits: Tensor, position: int, ids: Tensor | None) -> Tensor:
        """Scores by which a drafter ranks continuations.

        Args:
            logits: The drafter's, shape [n, draft vocabulary].
            position: Index in the sequence of the tokens to draft.
            ids: Target id of every draft id, or None when they are the same.

        Returns:
            Log-probabilities (perturbed, if the rule says so), float32, same shape.
        """

    def verify(self, logits: Tensor, start: int, chosen: Selection | None) -> Verdict:
        """Decide what to emit, in one transfer from the device.

        Args:
            logits: The target's, shape [V + 1, vocabulary]; row 0 follows the root.
            start: Index in the sequence of the root.
            chosen: The verified nodes; None when nothing was drafted.

        Raises:
            BrokenLogitsError: NaN or no finite logit; names the position.
        """


@runtime_checkable
class IdenticalRule(Rule, Protocol):
    """A rule whose text does not depend on what was drafted: an argmax at every position."""

    def scores(self, logits: Tensor, start: int, chosen: Selection | None) -> Tensor:
        """What the argmax of each row is taken of; arguments as of `verify`."""


@runtime_checkable
class DrawingRule(Rule, Protocol):
    """A rule whose proposals are drawn; it remembers the laws they came from."""

    def draw(self, log_q: Tensor, position: int, ids: Tensor | None) -> Tensor:
        """Draw a proposal.

        Args:
            log_q: From `rank`, shape [1, draft vocabulary].
            position: Index in the sequence of the token to draft.
            ids: Target id of every draft id, or None when they are the same.

        Returns:
            The drawn draft id, shape [1].
        """


def perturbed(
    log_p: Tensor, start: int, chosen: Selection | None, seed: int, sequence: int, stream: int
) -> Tensor:
    """log p + G: the argmax of a row is a draw from its law.

    Noise is keyed by the index of the token to draw, so rows of one depth share it; it is made
    once per depth, which costs more than adding it.

    Args:
        log_p: Shape [V + 1, vocabulary].
        start: Index in the sequence of the root.
        chosen: The verified nodes.
        seed: The user's seed.
        sequence: Which sequence is decoded.
        stream: Draws of different streams are independent.

    Returns:
        float64, same shape.
    """
    deepest = 0 if chosen is None else chosen.deepest
    positions = torch.arange(start + 1, start + 2 + deepest, device=log_p.device)
    noise = gumbel(seed, sequence, positions, vocab=log_p.shape[-1], stream=stream)
    return (noise if chosen is None else noise[chosen.depths]).add_(log_p)


def follow(scores: Tensor, start: int, chosen: Selection | None) -> Verdict:
    """Take the best-scored token of every row and walk down the tree as far as they agree.

    Args:
        scores: Shape [V + 1, vocabulary]; the argmax of a row is its token.
        start: Index in the sequence of the root.
        chosen: The verified nodes.

    Raises:
        BrokenLogitsError: A row is NaN or has no finite maximum.
    """
    if chosen is None:
        return Verdict([], read_best(scores, [start])[0])
    rows = scores.shape[0]
    best, tokens, parents = read_best(
        scores, range(start, start + rows), chosen.tokens, chosen.parents
    )
    path = accepted_path(tokens, parents, best)
    last = path[-1] if path else 0
    return Verdict(path, [*(tokens[slot] for slot in path), best[last]])


def read_best(scores: Tensor, positions: Sequence[int], *extra: Tensor) -> list[list[int]]:
    """Read the argmax of each row, and `extra` with it, in one transfer.

    Ties go to the lowest id: in the plain step, the chain and the tree alike. `torch.max` over a
    dimension promises the first maximal index on every device (`topk` and `sort` do not).

    Args:
        scores: Shape [rows, vocab].
        positions: Context position of each row, for the error message.
        extra: Integer tensors of shape [rows].

    Returns:
        One list of length `rows` for the argmax and one for each extra tensor.

    Raises:
        BrokenLogitsError: A row is NaN or has no finite value; names its position.
    """
    values, best = scores.max(-1)
    rows = torch.stack((torch.isfinite(values).to(best.dtype), best, *extra))
    finite, *answers = rows.tolist()
    refuse_broken(finite, positions)
    return [list(answer) for answer in answers]


def refuse_broken(finite: Sequence[int], positions: Sequence[int]) -> None:
    """Raise for the first row that has no finite maximum.

    Raises:
        BrokenLogitsError: Names the position.
    """
    if not all(finite):
        position = positions[list(finite).index(0)]
        raise BrokenLogitsError(
            f"the target's logits after position {position} are NaN or hold no finite maximum"
        )


def accepted_path(
    tokens: Sequence[int], parents: Sequence[int], target_tokens: Sequence[int]
) -> list[int]:
    """Follow the target's tokens from the root as far as the tree goes.

    Args:
        tokens: Token of each slot, length V + 1; slot 0 is the root.
        parents: Slot of each node's parent.
        target_tokens: The target's token after each slot.

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
