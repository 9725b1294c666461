"""Training-time test: the head learns on its own features, several steps ahead.

Pure functions after EAGLE-3 (arXiv 2503.01840, section 3.2). At step k the query of index i sits
at position i + k, reads the embedding of token i + 1 + k and the head's own output of step
k - 1 at index i, and predicts token i + 2 + k. It attends to the keys that it would find when
really drafting from prefix i: the step-0 keys of indices up to i, made from the target's
features, and its own keys of steps 1..k at index i.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftgym.decoder.drafters.eagle3_head import Eagle3Head

_LOSS_CHUNK = 512
"""Positions scored at once: 512 x 6,144 float32 scores are 12 MiB and stay near the cache."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded rows with what the target made of them.

    Attributes:
        tokens: Token ids, int64 ``[B, n]``.
        features: Hidden states of the chosen layers, ``[B, n, L * H]``.
        final: Final normed hidden states, ``[B, n, H]``.
        best: The target's most likely next token after each position, int64 ``[B, n]``.
        judged: Bool ``[B, n]``: whether the prediction made after a position counts; false on
            padding.
    """

    tokens: Tensor
    features: Tensor
    final: Tensor
    best: Tensor
    judged: Tensor


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one test-time step predicted at the judged positions it can reach.

    Attributes:
        loss: Summed soft cross-entropy in nats; positions whose best token the head cannot
            propose are left out.
        kept: Number of positions in the sum, a float scalar.
        rows: Flat index into ``[B * n]`` of the target position judged, int64 ``[N]``.
        hits: Whether the head's first choice is the target's, bool ``[N]``.
    """

    loss: Tensor
    kept: Tensor
    rows: Tensor
    hits: Tensor


def step_attention(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Attend as drafting from every prefix at once would.

    Args:
        query: Rotated queries of step k, ``[B, n, heads, dim]``.
        keys: Rotated keys of steps 0..k, each ``[B, n, kv_heads, dim]``.
        values: Values of steps 0..k, each ``[B, n, kv_heads, dim]``.

    Returns:
        ``[B, n, heads, dim]``: index i attends to step-0 entries 0..i and to its own entries of
        steps 1..k.
    """
    batch, length, heads, dim = query.shape
    kv_heads = keys[0].shape[2]
    group = heads // kv_heads
    # Query heads that share a key head become extra rows of one matrix product.
    grouped = (query * dim**-0.5).unflatten(2, (kv_heads, group)).permute(0, 2, 3, 1, 4)
    rows = grouped.reshape(batch, kv_heads, group * length, dim)
    past = (rows @ keys[0].permute(0, 2, 3, 1)).view(batch, kv_heads, group, length, length)
    future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    past = past.masked_fill(future, float("-inf"))
    own = [
        (grouped * key.transpose(1, 2).unsqueeze(2)).sum(-1, keepdim=True) for key in keys[1:]
    ]  # each [B, kv_heads, group, n, 1]
    weights = torch.cat((past, *own), dim=-1).softmax(-1)
    on_past = weights[..., :length].reshape(batch, kv_heads, group * length, length)
    output = (on_past @ values[0].transpose(1, 2)).view_as(grouped)
    for step, value in enumerate(values[1:]):
        weight = weights[..., length + step : length + step + 1]
        output = output + weight * value.transpose(1, 2).unsqueeze(2)
    return output.permute(0, 3, 1, 2, 4).reshape(batch, length, heads, dim)


class _SoftCrossEntropy(torch.autograd.Function):
    """Cross-entropy with a frozen output matrix: the gradient is made in the forward pass.

    Scores live for one chunk only, so neither they nor their gradient ever fill memory.
    """

    @staticmethod
    def forward(
        ctx: Any, normed: Tensor, output_rows: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        loss = normed.new_zeros(())
        gradient, choices = torch.empty_like(normed), []
        for start in range(0, len(normed), _LOSS_CHUNK):
            span = slice(start, start + _LOSS_CHUNK)
            scores = normed[span] @ output_rows.T  # [chunk, draft_vocab]
            choices.append(scores.argmax(-1))
            expected = torch.linalg.vecdot(targets[span], scores)
            loss += (weights[span] * (scores.logsumexp(-1) - expected)).sum()
            error = scores.softmax(-1).sub_(targets[span]).mul_(weights[span].unsqueeze(-1))
            gradient[span] = error @ output_rows
        ctx.save_for_backward(gradient)
        chosen = torch.cat(choices) if choices else normed.new_empty(0, dtype=torch.int64)
        ctx.mark_non_differentiable(chosen)
        return loss, chosen

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None, None, None


def soft_cross_entropy(
    normed: Tensor, output_rows: Tensor, targets: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return Σ w · (logsumexp(z) - Σ p z) for scores z = normed · output_rowsᵀ.

    Args:
        normed: Head outputs after the final norm, ``[N, H]``; the only differentiable argument.
        output_rows: Frozen output matrix, ``[draft_vocab, H]``.
        targets: Target probabilities p over the draft vocabulary, ``[N, draft_vocab]``.
        weights: Weight of each position, ``[N]``.

    Returns:
        The summed loss in nats, a scalar, and the first choice at each position as a draft id,
        int64 ``[N]``.
    """
    loss, choices = _SoftCrossEntropy.apply(  # type: ignore[no-untyped-call]
        normed, output_rows, targets, weights
    )
    return loss, choices


def run_steps(head: Eagle3Head, embedding: Tensor, batch: Batch, steps: int) -> list[StepOutput]:
    """Run the training-time test.

    Args:
        head: The head; its ``lm_head`` is taken as frozen.
        embedding: The target's embedding matrix, ``[target_vocab, H]``.
        batch: Rows of the target.
        steps: Number of steps, at least 1.

    Returns:
        One output per step; step k judges predictions made k + 1 tokens past a true feature.
    """
    length = batch.tokens.shape[1]
    judged = batch.judged.flatten().nonzero().flatten()
    column = judged % length
    targets = (batch.final.flatten(0, 1)[judged] @ head.lm_head.weight.T).softmax(-1).detach()
    proposable = head.t2d[batch.best.flatten()[judged]]
    target_ids = head.target_ids()

    embedded = F.embedding(batch.tokens, embedding)  # [B, n, H]
    positions = torch.arange(length, device=batch.tokens.device).expand_as(batch.tokens)
    hidden = head.fuse(batch.features)
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys.append(key)
        values.append(value)
        return step_attention(query, keys, values)

    outputs = []
    for step in range(steps):
        # Index i reads token i + 1 + step; the tail has none and is never judged.
        shifted = F.pad(embedded[:, 1 + step :], (0, 0, 0, min(1 + step, length)))
        hidden = head.decode(shifted, hidden, positions + step, attend)
        reached = column >= 1 + step
        rows = judged[reached]
        normed = head.norm(hidden.flatten(0, 1)[rows - 1 - step])
        weights = proposable[reached].to(normed.dtype)
        loss, choices = soft_cross_entropy(normed, head.lm_head.weight, targets[reached], weights)
        hits = target_ids[choices] == batch.best.flatten()[rows]
        outputs.append(StepOutput(loss, weights.sum(), rows, hits))
    return outputs


def total_loss(outputs: Sequence[StepOutput], decay: float) -> Tensor:
    """Return Σ_k decay^k · loss_k / Σ_k decay^k, summed over positions."""
    weights = [decay**step for step in range(len(outputs))]
    summed = sum(
        (weight * output.loss for weight, output in zip(weights, outputs, strict=True)),
        start=torch.zeros(()),
    )
    return summed / sum(weights)
