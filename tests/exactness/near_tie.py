"""How nearly the target might have chosen another token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftgym.decoder.config import SamplingConfig
from draftgym.decoder.rules import Rule
from draftgym.decoder.rules.coupled import CoupledRule
from draftgym.decoder.sampling.noise import gumbel
from draftgym.decoder.sampling.warp import warp
from draftgym.decoder.target import TargetModel

NEAR_TIE = 1e-4
"""Differences that the order of float32 sums may decide."""


@torch.inference_mode()
def top2_gap(target: TargetModel, ids: Sequence[int], rule: Rule, sequence: int) -> float:
    """Least change of a score after `ids` that changes the token, teacher-forced.

    Args:
        target: Read in one pass, apart from any session.
        ids: Prompt and the tokens before the one in question.
        rule: Greedy, or coupled with its noise.
        sequence: Keys the noise.

    Returns:
        The gap of the two best scores (of the perturbed ones under `coupled`), or the distance of
        a truncation's edge where that is nearer: rounding may let a token in or out.
    """
    count = len(ids)
    tokens = torch.tensor(ids, device=target.device)
    positions = torch.arange(count, device=target.device)
    visible = positions[:, None] >= positions if count > 1 else None
    logits = target.forward(
        tokens, positions, target.new_cache(count), 0, visible, last_only=True
    ).float()
    if not isinstance(rule, CoupledRule):
        return _gap(logits)
    settings = rule._sampling
    noise = gumbel(settings.seed, sequence, positions[-1:] + 1, vocab=logits.shape[-1])
    scores = warp(logits, settings) + noise
    return min(_gap(scores), _edge(logits, settings))


def _gap(scores: Tensor) -> float:
    """Gap of the two best different scores: an exact tie has a right answer, the lowest id."""
    best = scores.max()
    return float(best - scores[scores < best].max())


def _edge(logits: Tensor, settings: SamplingConfig) -> float:
    """Distance of the nearest token from being let in or out by a truncation."""
    edge = float("inf")
    ordered = (logits[0].double() / settings.temperature).sort(descending=True).values
    if 0 < settings.top_k < len(ordered):
        edge = float(ordered[settings.top_k - 1] - ordered[settings.top_k])
        ordered = ordered[: settings.top_k]
    if settings.top_p < 1:
        below = ordered.flip(0).softmax(0).cumsum(0)
        edge = min(edge, float((below - (1 - settings.top_p)).abs().min()))
    if settings.min_p > 0:
        laws = ordered.softmax(0)
        edge = min(edge, float((laws / laws[0] - settings.min_p).abs().min()))
    return edge
