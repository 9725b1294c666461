"""From cached rows to padded batches, and the order in which an epoch visits them."""

import random
from collections.abc import Sequence

import numpy as np
import torch

from draftgym.drafter_training.data import TokenRow, group_by_length
from draftgym.drafter_training.features import FeatureCache
from draftgym.drafter_training.ttt import Batch

_POOL_ROWS = 256
"""Rows sorted by length together: enough for little padding, few enough to stay random."""


def plan_epoch(
    rows: Sequence[TokenRow], batch_tokens: int, seed: int, epoch: int
) -> list[list[TokenRow]]:
    """Return the batches of one epoch; the same arguments give the same plan.

    Args:
        rows: Rows to train on; each occurs exactly once.
        batch_tokens: Most padded tokens per batch (a longer row makes its own batch).
        seed: Seed of the run.
        epoch: Number of the epoch.
    """
    order = random.Random(f"{seed}/{epoch}")
    shuffled = list(rows)
    order.shuffle(shuffled)
    batches: list[list[TokenRow]] = []
    for start in range(0, len(shuffled), _POOL_ROWS):
        pool = shuffled[start : start + _POOL_ROWS]
        batches.extend(group_by_length(pool, batch_tokens))
    order.shuffle(batches)
    return batches


def schedule(
    rows: Sequence[TokenRow], batch_tokens: int, seed: int, epochs: float
) -> list[list[TokenRow]]:
    """Return every batch of a run in order; the last epoch may be cut short."""
    batches: list[list[TokenRow]] = []
    whole = int(epochs)
    for epoch in range(whole):
        batches.extend(plan_epoch(rows, batch_tokens, seed, epoch))
    last = plan_epoch(rows, batch_tokens, seed, whole)
    batches.extend(last[: round((epochs - whole) * len(last))])
    return batches


def make_batch(
    cache: FeatureCache, rows: Sequence[TokenRow], skip_tokens: int, answers_only: bool = False
) -> Batch:
    """Read rows from the cache into one right-padded float32 batch.

    Args:
        cache: Holds every row.
        rows: Rows of the batch.
        skip_tokens: Leading tokens that all rows share; predicting them teaches nothing.
        answers_only: Judge only predictions of answer tokens: what decoding will see.

    Returns:
        The batch; position j is judged when it predicts a token that counts.
    """
    shape = (len(rows), max(len(row.tokens) for row in rows))
    width, layers = cache.hidden_size, len(cache.feature_layers)
    tokens = np.zeros(shape, np.int64)
    best = np.zeros(shape, np.int64)
    features = np.zeros((*shape, layers * width), np.float32)
    final = np.zeros((*shape, width), np.float32)
    judged = np.zeros(shape, np.bool_)
    for index, row in enumerate(rows):
        cached = cache.read(row)
        length = len(cached.tokens)
        tokens[index, :length] = cached.tokens
        best[index, :length] = cached.best
        features[index, :length] = cached.features
        final[index, :length] = cached.final
        first = len(row.prompt_tokens) if answers_only else skip_tokens
        judged[index, max(0, first - 1) : length] = True
    arrays = (tokens, features, final, best, judged)
    return Batch(*(torch.from_numpy(array) for array in arrays))
