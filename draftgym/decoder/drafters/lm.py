"""A small language model as drafter, over a tree grown level by level.

Any causal model of the supported architectures with the target's tokenizer. Entries it made for
its own guesses are overwritten in the next round; committed tokens are ingested again, all that
are new in one pass, so its state is a function of the committed prefix.

Source: Leviathan et al. 2023 (arXiv 2211.17192); the tree is EAGLE-2's (arXiv 2406.16858).
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftgym.decoder.drafters.base import Committed
from draftgym.decoder.drafters.growth import extend
from draftgym.decoder.rules.base import Rule
from draftgym.decoder.target import TargetModel
from draftgym.decoder.tree import DraftTree

INGEST_CHUNK_TOKENS = 512
"""Bounds the attention mask of a long ingestion."""


class LmDrafter:
    """Tree drafter over a causal language model.

    Args:
        model: The small model; its vocabulary may be padded differently from the target's.
        target_vocab_size: Ids past it are never proposed.
        beam_width: Frontier nodes per pass, `W`; 1 drafts a chain.
        max_depth: Passes per round.
        context_limit: Committed tokens to prepare for.

    Raises:
        ValueError: The model cannot fill the beam.
    """

    name = "lm"
    draws = True
    feature_layers: tuple[int, ...] = ()

    def __init__(
        self,
        model: TargetModel,
        target_vocab_size: int,
        *,
        beam_width: int,
        max_depth: int,
        context_limit: int,
    ) -> None:
        self._vocabulary = min(model.vocab_size, target_vocab_size)
        if beam_width > self._vocabulary:
            raise ValueError(f"beam_width {beam_width} exceeds the vocabulary {self._vocabulary}")
        self._model, self._width = model, beam_width
        self.max_depth = max_depth
        self.max_nodes = beam_width + max(0, max_depth - 1) * beam_width**2
        # Drafted entries sit at most max_depth positions past the root.
        self.context_limit = min(context_limit, model.context_limit - max_depth)
        drafted = max(0, max_depth - 1) * beam_width
        self._cache = model.new_cache(self.context_limit + drafted)
        self._positions = torch.arange(model.context_limit, device=model.device)
        self._slot_nodes = torch.zeros(max(1, drafted), dtype=torch.long, device=model.device)

    def start(self, committed: Committed, rule: Rule) -> None:
        self._committed, self._rule = committed, rule
        self._ingested = 0

    @property
    def uningested(self) -> int:
        """All committed tokens, the root included, that have no entry yet."""
        return len(self._committed.ids) - self._ingested

    def propose(self, tree: DraftTree, max_depth: int) -> None:
        """Nothing is free."""

    @torch.inference_mode()
    def expand(self, tree: DraftTree) -> None:
        logits = self._ingest() if tree.passes == 0 else self._expand_frontier(tree)
        root = self._committed.cached
        extend(tree, self._rule, logits[:, : self._vocabulary], root, self._width)

    def _ingest(self) -> Tensor:
        """Read all new committed tokens, the root last; returns its logits, [1, vocabulary]."""
        stop = len(self._committed.ids)
        logits = None
        for start in range(self._ingested, stop, INGEST_CHUNK_TOKENS):
            end = min(stop, start + INGEST_CHUNK_TOKENS)
            rows = self._positions[: end - start]
            logits = self._model.forward(
                self._committed.device_ids[start:end],
                self._positions[start:end],
                self._cache,
                start,
                rows[:, None] >= rows if end - start > 1 else None,
                last_only=True,
            )
        self._ingested = stop
        assert logits is not None
        return logits

    def _expand_frontier(self, tree: DraftTree) -> Tensor:
        """Run the model on the frontier nodes; returns their logits, [W, vocabulary]."""
        nodes, stop = tree.frontier, len(self._committed.ids)
        count, used = nodes.shape[0], (tree.passes - 1) * self._width
        self._slot_nodes[used : used + count] = nodes
        visible = tree.ancestors[nodes][:, self._slot_nodes[: used + count]]  # [W, slots]
        return self._model.forward(
            tree.tokens[nodes],
            self._positions[stop - 1 + tree.passes].expand(count),
            self._cache,
            stop + used,
            visible,
        )
