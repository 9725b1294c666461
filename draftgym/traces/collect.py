"""Decodes a request once, then grows the deepest tree at each of its positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draftgym.decoder.confidence import read_confidence
from draftgym.decoder.controllers import FixedController
from draftgym.decoder.drafters.base import Committed, Drafter
from draftgym.decoder.drafters.eagle3 import Eagle3Drafter
from draftgym.decoder.drafters.hybrid import HybridDrafter
from draftgym.decoder.drafters.ngram import NgramDrafter
from draftgym.decoder.drafters.rejoin import RejoinDrafter
from draftgym.decoder.rules import IdenticalRule
from draftgym.decoder.session import DecoderSession
from draftgym.decoder.tree import DraftTree
from draftgym.errors import ConfigurationError
from draftgym.traces.grow import PositionGrower
from draftgym.traces.rows import GrownTree, Level, row
from draftgym.traces.trace import TraceShape

Columns = dict[str, NDArray[Any]]

BATCH_POSITIONS = 32
"""Positions whose trees grow together; bounds the memory of their keys and values."""

READ_CELL = (1, 16)
"""Depth and size by which the text is decoded: the text is the same under any."""


class Tracer:
    """Makes the columns of one request after another.

    Args:
        session: Decodes the text; its rule must keep it independent of what is drafted, and its
            budget of passes and sizes is that of the rounds to be replayed.
        drafter: Grows the trees: `eagle3`, `ngram` or `hybrid`, not the session's own, and none
            that carries rejected tokens from round to round.
        size_grid: Verification sizes of the partial sums.

    Raises:
        ConfigurationError: A rule or drafter that cannot be traced.
    """

    def __init__(
        self, session: DecoderSession, drafter: Drafter | None, size_grid: Sequence[int]
    ) -> None:
        if not isinstance(session.rule, IdenticalRule):
            raise ConfigurationError(
                f"sampling.rule: under {session.rule.name!r} the text depends on what is drafted; "
                "traces need greedy or coupled"
            )
        if drafter is None or drafter is session.drafter:
            raise ConfigurationError("drafter: a trace needs a drafter of its own")
        self._free, self._model = _parts(drafter)
        self._session, self._drafter = session, drafter
        self._grower = None if self._model is None else PositionGrower(self._model)
        path = max(session.max_depth, self._free.max_nodes if self._free else 0)
        width = 1 if self._model is None else self._model.width
        self.shape = TraceShape(session.max_depth, width, tuple(size_grid), path)

    def decode(self, prompt: Sequence[int], max_new_tokens: int, sequence: int) -> list[int]:
        """Decode one request.

        Args:
            prompt: Its token ids.
            max_new_tokens: Its budget.
            sequence: Keys the noise of sampling.

        Returns:
            Emitted tokens, the first included.

        Raises:
            ConfigurationError: The drafter does not reach the end of the budget.
        """
        if len(prompt) + max_new_tokens > self._drafter.context_limit:
            raise ConfigurationError(
                f"max_new_tokens: {len(prompt)} prompt tokens and {max_new_tokens} new ones exceed "
                f"the {self._drafter.context_limit} that the drafter can follow"
            )
        self._prompt = len(prompt)
        self._session.start(prompt, max_new_tokens, sequence)
        self._session.run(FixedController(*READ_CELL))
        return list(self._session.tokens)

    def columns(self) -> Columns:
        """Columns of the n - 1 positions of the request decoded last, `sequence` left out."""
        session, text = self._session, self._session.committed
        if self._grower is not None and len(session.tokens) > 1:
            self._grower.read(text, session.rule)
        if self._free is not None:
            # A prefix that grows token by token, as look-ups read it live.
            self._prefix = Committed(torch.empty_like(text.device_ids), None)
            self._prefix.append(text.ids[: self._prompt])
            self._free.start(self._prefix, session.rule)
        count = len(session.tokens)
        rows = [
            entry
            for start in range(1, count, BATCH_POSITIONS)
            for entry in self._block(range(start, min(start + BATCH_POSITIONS, count)))
        ]
        kinds = {name: kind for name, kind in self.shape.columns().items() if name != "sequence"}
        if not rows:
            return {name: np.empty((0, *shape), kind) for name, (kind, shape) in kinds.items()}
        return {name: np.stack([entry[name] for entry in rows]) for name in kinds}

    def _block(self, emitted: range) -> list[Columns]:
        """Rows of the positions at which so many tokens are emitted."""
        session, ids, prompt = self._session, self._session.committed.ids, self._prompt
        room = min(session.max_new_tokens, session.context_limit - prompt)
        roots = [prompt + count - 1 for count in emitted]
        limits = [min(self.shape.max_depth, room - count - 1) for count in emitted]
        trees = [self._seed(root, room - count) for root, count in zip(roots, emitted, strict=True)]
        levels = [[_level(tree)] for tree in trees]
        if self._grower is not None:
            self._grower.grow(roots, trees, limits, lambda i: levels[i].append(_level(trees[i])))
        rows = []
        for i, (root, tree) in enumerate(zip(roots, trees, strict=True)):
            # At most so many drafted tokens are kept: the target's pass emits one itself.
            text = ids[root + 1 : root + 1 + max(0, room - emitted[i] - 1)]
            columns = row(_grown(tree, levels[i]), text, self.shape)
            columns["emitted"] = np.asarray(emitted[i], np.int32)
            columns["depth_limit"] = np.asarray(max(0, limits[i]), np.int16)
            rows.append(columns)
        return rows

    def _seed(self, root: int, room: int) -> DraftTree:
        """A tree that holds its root and free proposals."""
        text = self._session.committed
        tree = DraftTree(self._drafter.max_nodes, text.device_ids.device)
        tree.reset(text.device_ids[root])
        if self._free is not None:
            self._prefix.append([text.ids[root]])
            if room > 1:
                self._free.propose(tree, room - 1)
        return tree


def _parts(drafter: Drafter) -> tuple[NgramDrafter | None, Eagle3Drafter | None]:
    if isinstance(drafter, HybridDrafter):
        return drafter.free, drafter.model
    if isinstance(drafter, NgramDrafter):
        return drafter, None
    if isinstance(drafter, Eagle3Drafter):
        return None, drafter
    if isinstance(drafter, RejoinDrafter):
        raise ConfigurationError(
            "drafter.rejoin: what it proposes depends on the drafts of earlier rounds, so no tree "
            "belongs to a position; traces need a drafter without it"
        )
    raise ConfigurationError(
        f"drafter.kind: {drafter.name!r} cannot be traced; accepted: eagle3, ngram, hybrid"
    )


def _level(tree: DraftTree) -> Level:
    scores = tree.scores[1 : tree.size + 1]
    return Level(np.array(scores.cpu().numpy()), read_confidence(tree))


def _grown(tree: DraftTree, levels: Sequence[Level]) -> GrownTree:
    count = tree.size + 1
    tokens, parents, depths = (
        values[:count].cpu().numpy() for values in (tree.tokens, tree.parents, tree.depths)
    )
    return GrownTree(tokens, parents, depths, levels)
