"""The warped distribution: temperature, top-k, top-p and min-p, once, in float32.

Nothing here waits for the device: no value is read on the host and no shape depends on one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftgym.decoder.sampling.settings import SamplingSettings

_REMOVED = -float("inf")


def warp(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Log-probabilities of the distribution that is sampled from.

    Follows `transformers/generation/logits_process.py` (`TemperatureLogitsWarper`,
    `TopKLogitsWarper`, `TopPLogitsWarper`, `MinPLogitsWarper`) in the order of `generate`, on
    float32 scores as there, with at least one token kept. Top-k keeps every token tied with the
    k-th; top-p is nucleus sampling (Holtzman et al. 2019, arXiv 1904.09751) and, of tokens tied at
    its edge, removes lower ids first, where Transformers leaves that to its sort; min-p is
    Nguyen et al. 2024 (arXiv 2407.01082).

    Args:
        logits: Shape [rows, vocab], any float type; left unchanged.
        settings: Sampling settings; its seed is not used.

    Returns:
        float32 of shape [rows, vocab]; a removed token is -inf. A row that holds NaN or +inf, or
        nothing but -inf, is NaN in every token left: the caller raises, which takes a transfer.

    Raises:
        ValueError: Temperature 0, which has no distribution, or logits of another shape.
    """
    if settings.greedy:
        raise ValueError("warp: temperature must be above 0; temperature 0 takes the argmax")
    if logits.dim() != 2:
        raise ValueError(f"warp: logits must be [rows, vocab], got shape {tuple(logits.shape)}")
    scores = logits.float()
    if settings.temperature != 1:
        scores = scores / settings.temperature
    if settings.top_k > 0:
        scores = _keep_top_k(scores, settings.top_k)
    if settings.top_p < 1:
        scores = _keep_top_p(scores, settings.top_p)
    if settings.min_p > 0:
        scores = _keep_min_p(scores, settings.min_p)
    return scores.log_softmax(-1)


def _keep_top_k(scores: Tensor, top_k: int) -> Tensor:
    kept = min(top_k, scores.shape[-1])
    return scores.masked_fill(scores < scores.topk(kept).values[:, -1:], _REMOVED)


def _keep_top_p(scores: Tensor, top_p: float) -> Tensor:
    # Stable, so that a tie at the edge resolves alike however many rows are warped together.
    ordered, ids = scores.sort(dim=-1, stable=True)  # ascending, [rows, vocab]
    removed = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
    removed[:, -1:] = False
    return scores.masked_fill(torch.empty_like(removed).scatter_(1, ids, removed), _REMOVED)


def _keep_min_p(scores: Tensor, min_p: float) -> Tensor:
    probabilities = scores.softmax(-1)
    # The best token stays without a guard: min_p <= 1, so its bound never exceeds it.
    bound = min_p * probabilities.amax(-1, keepdim=True)
    return scores.masked_fill(probabilities < bound, _REMOVED)
