"""EAGLE-3 drafting: a head over the target's features, a tree grown level by level.

Follows EAGLE-3 (arXiv 2503.01840) and the dynamic tree of EAGLE-2 (arXiv 2406.16858). Keys and
features that the head made for its own guesses are overwritten in the next round; committed
tokens are ingested with the target's features, all that are new in one pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from draftgym.decoder.drafters.base import Committed
from draftgym.decoder.drafters.eagle3_head import Eagle3Head
from draftgym.decoder.drafters.growth import DraftVocabulary, extend
from draftgym.decoder.rules.base import Rule
from draftgym.decoder.tree import DraftTree

INGEST_CHUNK_TOKENS = 512
"""Bounds the attention mask of a long ingestion."""


class Eagle3Drafter:
    """Tree drafter over an `Eagle3Head`.

    Args:
        head: Its linear layers are packed in place for decoding.
        embedding: The target's embedding, shape [vocab, hidden].
        beam_width: Frontier nodes per pass, `W`.
        max_depth: Passes per round.
        context_limit: Committed tokens to prepare for.

    Attributes:
        head: The head.
        embedding: The target's embedding.
        vocabulary: What the head can propose.
        width: `W`.

    Raises:
        ValueError: The head does not fit the embedding, or cannot fill the beam.
    """

    name = "eagle3"
    draws = True

    def __init__(
        self,
        head: Eagle3Head,
        embedding: Tensor,
        *,
        beam_width: int,
        max_depth: int,
        context_limit: int,
    ) -> None:
        config = head.config
        if tuple(embedding.shape) != (config.target_vocab_size, config.hidden_size):
            raise ValueError(
                f"draft head expects target embeddings [{config.target_vocab_size}, "
                f"{config.hidden_size}], the target has {list(embedding.shape)}"
            )
        if beam_width > config.draft_vocab_size:
            raise ValueError(
                f"beam_width {beam_width} exceeds draft_vocab_size {config.draft_vocab_size}"
            )
        head.pack()
        self.head, self.embedding = head, embedding
        self.vocabulary = DraftVocabulary(
            head.target_ids().to(embedding.device), config.target_vocab_size
        )
        self.width = beam_width
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.max_depth = max_depth
        self.max_nodes = beam_width + max(0, max_depth - 1) * beam_width**2
        self.feature_layers = config.feature_layers
        # Drafted entries sit at most max_depth positions past the root.
        self.context_limit = min(context_limit, config.max_position_embeddings - max_depth - 1)
        self._slots_capacity = max(0, max_depth - 1) * beam_width
        shape = (2, self._kv_heads, self.context_limit + self._slots_capacity, config.head_dim)
        self._cache = torch.zeros(shape, device=embedding.device, dtype=embedding.dtype)
        self._positions = torch.arange(config.max_position_embeddings, device=embedding.device)
        self._slot_nodes = torch.zeros(
            max(1, self._slots_capacity), dtype=torch.long, device=embedding.device
        )

    def start(self, committed: Committed, rule: Rule) -> None:
        self._committed, self._rule = committed, rule
        self._ingested = 0

    @property
    def uningested(self) -> int:
        return self._committed.cached - self._ingested

    def propose(self, tree: DraftTree, max_depth: int) -> None:
        """Nothing is free."""

    @torch.inference_mode()
    def expand(self, tree: DraftTree) -> None:
        hidden = self.ingest()[-1:] if tree.passes == 0 else self._expand_frontier(tree)
        root = self._committed.cached
        rows = extend(tree, self._rule, self.head.logits(hidden), root, self.width, self.vocabulary)
        self._hidden = hidden[rows]

    def ingest(self) -> Tensor:
        """Read all new committed tokens.

        Returns:
            The head's hidden states, [n, hidden]: row i is what a root one past the i-th new
            entry expands from; the last row is the present root's.
        """
        committed, stop = self._committed, self._committed.cached
        assert committed.features is not None
        chunks = []
        for start in range(self._ingested, stop, INGEST_CHUNK_TOKENS):
            end = min(stop, start + INGEST_CHUNK_TOKENS)
            embeddings = F.embedding(committed.device_ids[start + 1 : end + 1], self.embedding)
            fused = self.head.fuse(committed.features[start:end])
            positions = torch.arange(start, end, device=embeddings.device)
            mask = None
            if end - start > 1:
                earlier = torch.arange(end, device=positions.device)
                mask = self._additive(positions[:, None] >= earlier)
            chunks.append(self._decode(embeddings, fused, positions, start, mask))
        self._ingested = stop
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks)

    @property
    def entries(self) -> Tensor:
        """Keys and values of the ingested tokens, [2, key-value heads, ingested, head width]."""
        return self._cache[:, :, : self._ingested]

    def _expand_frontier(self, tree: DraftTree) -> Tensor:
        """Run the head on the frontier nodes; returns their hidden states, [W, hidden]."""
        nodes, root = tree.frontier, self._committed.cached
        count, used = nodes.shape[0], (tree.passes - 1) * self.width
        self._slot_nodes[used : used + count] = nodes
        path = tree.ancestors[nodes][:, self._slot_nodes[: used + count]]  # [W, slots]
        mask = F.pad(self._additive(path), (root, 0))
        positions = self._positions[root - 1 + tree.passes].expand(count)
        embeddings = F.embedding(tree.tokens[nodes], self.embedding)
        return self._decode(embeddings, self._hidden, positions, root + used, mask)

    def _additive(self, visible: Tensor) -> Tensor:
        mask = torch.zeros(visible.shape, device=visible.device, dtype=self.embedding.dtype)
        return mask.masked_fill_(~visible, float("-inf"))

    def _decode(
        self, embeddings: Tensor, hidden: Tensor, positions: Tensor, start: int, mask: Tensor | None
    ) -> Tensor:
        length = embeddings.shape[0]
        stop, groups = start + length, self._heads // self._kv_heads
        tiled = None if mask is None else mask.repeat(groups, 1)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self._cache[0, :, start:stop] = key.transpose(0, 1)
            self._cache[1, :, start:stop] = value.transpose(0, 1)
            keys, values = self._cache[:, None, :, :stop]
            folded = query.view(length, self._kv_heads, groups, -1).permute(1, 2, 0, 3)
            folded = folded.reshape(1, self._kv_heads, groups * length, -1)
            out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=tiled)
            out = out.view(self._kv_heads, groups, length, -1).permute(2, 0, 1, 3)
            return out.reshape(length, self._heads, -1)

        return self.head.decode(embeddings, hidden, positions, attend)
