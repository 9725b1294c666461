"""Models whose laws are written in a table, so that the law of a whole text is a product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftgym.decoder.config import DrafterConfig, PairConfig, SamplingConfig
from draftgym.decoder.drafters.growth import DraftVocabulary, extend
from draftgym.decoder.drafters.lm import LmDrafter
from draftgym.decoder.generation import GenerationSettings
from draftgym.decoder.pair import ModelPair
from draftgym.decoder.tree import DraftTree

Table = Callable[[tuple[int, ...]], tuple[float, ...]]
"""The next token's law after a prefix, prompt included."""


def random_table(seed: int, vocab: int, holes: float = 0.0) -> Table:
    """A law of its own for every prefix, some far from uniform; `holes` of the entries are 0."""

    @cache
    def law(prefix: tuple[int, ...]) -> tuple[float, ...]:
        generator = np.random.default_rng([seed, *prefix])
        weights = generator.dirichlet(np.ones(vocab)) + 0.02
        dropped = generator.random(vocab) < holes
        if not dropped.all():
            weights[dropped] = 0
        return tuple((weights / weights.sum()).tolist())

    return law


def forced_first(table: Table, prompt: Sequence[int]) -> Table:
    """The same laws, but the token after the prompt is 0: fewer texts, no fewer rounds."""
    first = tuple(prompt)

    def law(prefix: tuple[int, ...]) -> tuple[float, ...]:
        rest = table(prefix)
        return (1.0, *([0.0] * (len(rest) - 1))) if prefix == first else rest

    return law


class TableCache:
    """Tokens in place of keys and values; what was dropped must never be read."""

    def __init__(self, capacity: int) -> None:
        self.tokens = [-1] * capacity

    def compact(self, start: int, slots: Sequence[int]) -> None:
        kept = [self.tokens[start + slot] for slot in slots]
        self.tokens[start:] = [-1] * (len(self.tokens) - start)
        self.tokens[start : start + len(kept)] = kept


class TableModel:
    """A `TargetModel` that looks the path of every row up in a table.

    A row's path is what its mask shows of the cache, so a stale entry, a wrong mask or a wrong
    position changes its law or fails.
    """

    hidden_size, weight_bytes, layer_count = 1, 1, 1
    device, dtype = torch.device("cpu"), torch.float32
    embedding = torch.zeros(1, 1)

    def __init__(self, table: Table, vocab: int, context: int = 32) -> None:
        self.table, self.vocab_size, self.context_limit = table, vocab, context

    def new_cache(self, capacity: int) -> Any:
        return TableCache(capacity)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: Any,
        start: int,
        visible: Tensor | None = None,
        *,
        last_only: bool = False,
        features: Tensor | None = None,
        feature_layers: Sequence[int] = (),
    ) -> Tensor:
        count = len(tokens)
        cache.tokens[start : start + count] = tokens.tolist()
        seen = [[True]] if visible is None else visible.tolist()
        base = start + count - len(seen[0])
        laws = []
        for row, position in zip(seen, positions.tolist(), strict=True):
            shown = [cache.tokens[base + slot] for slot, shows in enumerate(row) if shows]
            path = (*cache.tokens[:base], *shown)
            assert min(path) >= 0, "a dropped cache entry was read"
            assert position == len(path) - 1, "a position is not the place in the sequence"
            laws.append(self.table(path))
        logits = torch.tensor(laws, dtype=torch.float64).log().float()
        return logits[-1:] if last_only else logits


class ReducedDrafter(LmDrafter):
    """Its ids are not the target's: `draft_ids` says which target id each one means."""

    draft_ids: tuple[int, ...] = ()
    target_vocab = 0

    @torch.inference_mode()
    def expand(self, tree: DraftTree) -> None:
        logits = self._ingest() if tree.passes == 0 else self._expand_frontier(tree)
        vocabulary = DraftVocabulary(torch.tensor(self.draft_ids), self.target_vocab)
        extend(tree, self._rule, logits, self._committed.cached, self._width, vocabulary)


def table_pair(
    target: Table,
    draft: Table,
    sampling: SamplingConfig,
    *,
    vocab: int = 4,
    draft_vocab: int | None = None,
    draft_ids: tuple[int, ...] = (),
    width: int = 1,
    depth: int = 2,
    eos: frozenset[int] = frozenset(),
) -> tuple[ModelPair, LmDrafter]:
    """A pair and its drafter over two tables.

    Args:
        target: Laws of the target.
        draft: Laws of the drafter; its prefixes hold target ids.
        sampling: Settings of both.
        vocab: Target ids.
        draft_vocab: Draft ids, the target's first ones; as many when None.
        draft_ids: Instead: the target id of every draft id.
        width: Beam width.
        depth: Passes per round.
        eos: Ids that end a text.
    """
    model: Any = TableModel(target, vocab)
    config = PairConfig(
        target="table",
        drafter=DrafterConfig(kind="lm", beam_width=width, max_depth=depth),
        sampling=sampling,
        device="cpu",
        dtype="float32",
    )
    pair = ModelPair(config, model, None, GenerationSettings(eos, 16), model.embedding)
    kind = ReducedDrafter if draft_ids else LmDrafter
    drafter = kind(
        TableModel(draft, len(draft_ids) or draft_vocab or vocab),
        vocab,
        beam_width=width,
        max_depth=depth,
        context_limit=16,
    )
    if isinstance(drafter, ReducedDrafter):
        drafter.draft_ids, drafter.target_vocab = draft_ids, vocab
    return pair, drafter


def text_law(
    target: Table,
    prompt: Sequence[int],
    tokens: int,
    *,
    temperature: float = 1.0,
    eos: frozenset[int] = frozenset(),
) -> dict[tuple[int, ...], float]:
    """Exact law of the text that plain sampling of a table writes, in float64."""
    done: dict[tuple[int, ...], float] = {}
    open_: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(tokens):
        longer: dict[tuple[int, ...], float] = {}
        for text, weight in open_.items():
            law = np.array(target((*prompt, *text))) ** (1 / temperature)
            for token, share in enumerate(law / law.sum()):
                if share > 0:
                    place = done if token in eos else longer
                    place[*text, token] = weight * float(share)
        open_ = longer
    return done | open_
