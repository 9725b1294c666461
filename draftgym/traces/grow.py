"""Draft trees at many positions of one text, the head's passes batched over positions.

Point 6 of a round (draft state is a function of the committed prefix) makes this possible: the
head reads the whole text once, and what it read up to a position is all that a live drafter
would know there. Levels are added by the live drafter's own `extend`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from draftgym.decoder.drafters.base import Committed
from draftgym.decoder.drafters.eagle3 import Eagle3Drafter
from draftgym.decoder.drafters.growth import extend
from draftgym.decoder.rules import Rule
from draftgym.decoder.tree import DraftTree

OnLevel = Callable[[int], None]


class PositionGrower:
    """Grows trees at positions of one text after another.

    Args:
        drafter: Its head is run; it keeps no state between texts.
    """

    def __init__(self, drafter: Eagle3Drafter) -> None:
        self._drafter = drafter
        config = drafter.head.config
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._slots = max(0, drafter.max_depth - 1) * drafter.width

    @torch.inference_mode()
    def read(self, committed: Committed, rule: Rule) -> None:
        """Read a whole text, its last token left out.

        Args:
            committed: Text and features.
            rule: Ranks continuations; started for this text.
        """
        self._rule = rule
        self._drafter.start(committed, rule)
        self._hidden = self._drafter.ingest()  # [text - 1, hidden]
        self._entries = self._drafter.entries

    @torch.inference_mode()
    def grow(
        self,
        roots: Sequence[int],
        trees: Sequence[DraftTree],
        depths: Sequence[int],
        on_level: OnLevel,
    ) -> None:
        """Grow every tree as deep as it may be.

        Args:
            roots: Index in the text of each tree's root, at least 1.
            trees: They hold their root and free proposals.
            depths: Passes of each; at most the drafter's `max_depth`.
            on_level: Called with a tree's number after each of its passes.
        """
        running = [i for i, depth in enumerate(depths) if depth > 0]
        if not running:
            return
        places = torch.tensor(roots, device=self._hidden.device)
        slots = _Slots(self._entries, places, self._slots)
        rows = self._hidden[places - 1]
        # After each pass, a tree's hidden states at its frontier.
        hidden: dict[int, Tensor] = {i: rows[i : i + 1] for i in running}
        while running:
            if trees[running[0]].passes:
                self._expand(running, trees, places, slots, hidden)
            logits = self._drafter.head.logits(torch.cat([hidden[i] for i in running]))
            blocks = logits.split([hidden[i].shape[0] for i in running])
            for i, block in zip(running, blocks, strict=True):
                width, vocabulary = self._drafter.width, self._drafter.vocabulary
                picked = extend(trees[i], self._rule, block, roots[i], width, vocabulary)
                hidden[i] = hidden[i][picked]
                on_level(i)
            running = [i for i in running if trees[i].passes < depths[i]]

    def _expand(
        self,
        running: Sequence[int],
        trees: Sequence[DraftTree],
        places: Tensor,
        slots: _Slots,
        hidden: dict[int, Tensor],
    ) -> None:
        """Run the head on the frontiers of all running trees; replaces their hidden states."""
        drafter, passes = self._drafter, trees[running[0]].passes
        width, used = drafter.width, (passes - 1) * drafter.width
        nodes = torch.stack([trees[i].frontier for i in running])  # [B, W]
        rows = torch.tensor(running, device=places.device)
        visible = slots.visible(rows, nodes, used, [trees[i].ancestors for i in running])
        tokens = torch.cat([trees[i].tokens[trees[i].frontier] for i in running])
        count, groups = len(running), self._heads // self._kv_heads
        mask = torch.zeros(visible.shape, device=visible.device, dtype=drafter.embedding.dtype)
        mask = mask.masked_fill_(~visible, float("-inf")).repeat(1, groups, 1)[:, None]

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = slots.extend(rows, key, value, used, width)
            folded = query.view(count, width, self._kv_heads, groups, -1).permute(0, 2, 3, 1, 4)
            folded = folded.reshape(count, self._kv_heads, groups * width, -1)
            out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
            out = out.view(count, self._kv_heads, groups, width, -1).permute(0, 3, 1, 2, 4)
            return out.reshape(count * width, self._heads, -1)

        states = drafter.head.decode(
            F.embedding(tokens, drafter.embedding),
            torch.cat([hidden[i] for i in running]),
            (places[rows] - 1 + passes).repeat_interleave(width),
            attend,
        )
        hidden.update(zip(running, states.split(width), strict=True))


class _Slots:
    """Keys and values that each tree sees: the text's up to its root, then its own nodes'.

    Args:
        entries: Of the text, [2, key-value heads, text, head width].
        places: Root of each tree, [B].
        slots: Most own entries per tree.
    """

    def __init__(self, entries: Tensor, places: Tensor, slots: int) -> None:
        self._places, self._text = places, int(places.max())
        kinds, heads, _, size = entries.shape
        shape = (kinds, len(places), heads, self._text + slots, size)
        self._cache = torch.zeros(shape, device=entries.device, dtype=entries.dtype)
        self._cache[:, :, :, : self._text] = entries[:, None, :, : self._text]
        self._nodes = torch.zeros((len(places), slots), device=entries.device, dtype=torch.long)

    def visible(
        self, rows: Tensor, nodes: Tensor, used: int, ancestors: Sequence[Tensor]
    ) -> Tensor:
        """What frontier nodes see, [rows, W, text + used + W]; their slots are taken."""
        stop = used + nodes.shape[1]
        self._nodes[rows, used:stop] = nodes
        text = torch.arange(self._text, device=nodes.device) < self._places[rows, None]
        mine = self._nodes[rows, :stop]
        own = [table[at][:, seen] for table, at, seen in zip(ancestors, nodes, mine, strict=True)]
        return torch.cat((text[:, None].expand(-1, nodes.shape[1], -1), torch.stack(own)), -1)

    def extend(
        self, rows: Tensor, key: Tensor, value: Tensor, used: int, width: int
    ) -> tuple[Tensor, Tensor]:
        """Store the frontiers' keys and values, [rows * W, heads, size]; returns all of them."""
        start, stop = self._text + used, self._text + used + width
        for table, new in zip(self._cache, (key, value), strict=True):
            blocks = new.reshape(len(rows), width, *new.shape[1:])
            table[rows, :, start:stop] = blocks.transpose(1, 2)
        keys, values = self._cache[:, rows, :, :stop]
        return keys, values
