"""What the session needs of a target model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from draftgym.decoder.cache import KVCache


class TargetModel(Protocol):
    """A causal language model that verifies a block of tokens in one pass.

    Attributes:
        vocab_size: Rows of the output layer.
        hidden_size: Width of the residual stream.
        weight_bytes: Bytes of weights that one decoding step streams.
        context_limit: Positions the model was made for.
        layer_count: Decoder layers.
    """

    vocab_size: int
    hidden_size: int
    weight_bytes: int
    context_limit: int
    layer_count: int
    device: torch.device
    dtype: torch.dtype

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for `capacity` positions, drafted ones included."""

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: KVCache,
        start: int,
        visible: Tensor | None = None,
        *,
        last_only: bool = False,
        features: Tensor | None = None,
        feature_layers: Sequence[int] = (),
    ) -> Tensor:
        """One pass over a block of tokens written to the cache at `start`.

        Args:
            tokens: Token ids, shape [T].
            positions: Positions for the rotary embedding, shape [T].
            cache: Holds `start` valid entries; entries `start..start+T` are written.
            start: Committed entries in the cache.
            visible: Bool, shape [T, K + T]: which of the last K + T entries each token attends
                to, itself included; all earlier ones always are. K = 0 in a verification; a
                drafter's later passes see K drafted entries. None means one token that sees all.
            last_only: Compute logits of the last row only.
            features: If given, shape [T, layers * hidden]: receives the hidden states at the
                entry of the feature layers, concatenated.
            feature_layers: Which layers, lowest first.

        Returns:
            Logits, shape [T, vocab] (or [1, vocab] with `last_only`), in the model's dtype.
        """
