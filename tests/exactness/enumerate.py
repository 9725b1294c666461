"""Enumerates every random choice that a decode makes, with its exact probability.

The noise that the rules import is replaced by objects that pick for it: the argmax of a row of
log p + G is a draw from p, so a row is forced to one token at a time and weighs p of that token;
an acceptance weighs min(1, p/q). Depth first with replay: the whole decode runs again for each
combination. Only choices that were read are branched, so a verification pass costs the rows on
the accepted path and not the whole tree.

What is replaced is the noise alone. The session, the rules, the tree and the drafter are real.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from draftgym.decoder.rules import base, chain

Law = dict[tuple[int, ...], float]


@dataclass(slots=True)
class _Row:
    """One random choice that could be made: its options and which noise it would read."""

    tokens: list[int]
    weights: list[float]
    noise: tuple[Any, ...]
    pick: int = 0


class EnumeratedNoise:
    """Stands in for `gumbel` and `uniform` and walks through all combinations."""

    def __init__(self) -> None:
        self._trail: list[tuple[tuple[int, int], int, int]] = []  # row, pick, options
        self._begin()

    def _begin(self) -> None:
        self._forced = {row: pick for row, pick, _ in self._trail}
        self._rows: dict[tuple[int, int], _Row] = {}
        self._calls = 0
        self._read: list[tuple[int, int]] = []
        self._noise_read: set[tuple[Any, ...]] = set()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Replace the noise in every rule but `coupled`, and watch what is read."""
        for module in (base, chain):
            patch.setattr(module, "gumbel", self._gumbel)
        patch.setattr(chain, "uniform", self._uniform)
        read_best, rule = base.read_best, chain.ChainRejectionRule
        draw, verify = rule.draw, rule.verify

        def watched_read_best(*arguments: Any) -> list[Any]:
            best, *extra = read_best(*arguments)
            return [_WatchedList(best, self, self._calls - 1), *extra]

        def watched_draw(instance: Any, *arguments: Any) -> Tensor:
            pick = draw(instance, *arguments)
            self.read(self._calls - 1, 0)
            return pick

        def watched_verify(instance: Any, logits: Tensor, start: int, chosen: Any) -> Any:
            first = self._calls
            verdict = verify(instance, logits, start, chosen)
            if chosen is not None:  # else `read_best` is watched
                length, drawn = len(verdict.path), len(logits) - 1
                for row in range(min(length + 1, drawn)):
                    self.read(first + 1, row)
                self.read(first, length)
            return verdict

        patch.setattr(base, "read_best", watched_read_best)
        patch.setattr(rule, "draw", watched_draw)
        patch.setattr(rule, "verify", watched_verify)

    def law(self, decode: Callable[[], Sequence[int]]) -> Law:
        """The law of what `decode` returns.

        Args:
            decode: Deterministic but for the noise.

        Returns:
            Probability of every output.
        """
        law: Law = defaultdict(float)
        self._trail = []
        while True:
            self._begin()
            output, weight = tuple(decode()), 1.0
            for row in self._read:
                weight *= self._rows[row].weights[self._rows[row].pick]
            law[output] += weight
            trail = [(row, self._rows[row].pick, len(self._rows[row].tokens)) for row in self._read]
            while trail and trail[-1][1] + 1 == trail[-1][2]:
                trail.pop()
            if not trail:
                return dict(law)
            row, pick, options = trail.pop()
            self._trail = [*trail, (row, pick + 1, options)]

    def decide(self, call: int, row: int, weights: Sequence[float], noise: tuple[Any, ...]) -> int:
        """The option that this run takes; those of weight 0 are never taken."""
        total = sum(weights)
        tokens = [token for token, weight in enumerate(weights) if weight > 0]
        # The argmax of an unnormalised row draws from the normalised law.
        found = _Row(tokens, [weights[token] / total for token in tokens], noise)
        found.pick = self._forced.get((call, row), 0)
        self._rows[call, row] = found
        return tokens[found.pick]

    def read(self, call: int, row: int) -> None:
        """Note that the outcome depends on this choice.

        Raises:
            AssertionError: Another choice has read the same noise: the two are not independent.
        """
        key = (call, row)
        if key not in self._rows or key in self._read:
            return
        noise = self._rows[key].noise
        assert noise not in self._noise_read, f"noise {noise} decides twice"
        self._noise_read.add(noise)
        self._read.append(key)

    def _gumbel(
        self,
        seed: int,
        sequence: int,
        positions: Tensor,
        ids: Tensor | None = None,
        *,
        vocab: int | None = None,
        stream: int = 0,
    ) -> _Gumbel:
        self._calls += 1
        keys = [("gumbel", sequence, stream, at) for at in positions.tolist()]
        return _Gumbel(self, self._calls - 1, keys)

    def _uniform(self, seed: int, sequence: int, positions: Tensor, stream: int = 0) -> _Uniform:
        self._calls += 1
        keys = [("uniform", sequence, stream, at) for at in positions.tolist()]
        return _Uniform(self, self._calls - 1, keys)


@dataclass(slots=True)
class _Gumbel:
    """Noise of some positions; adding log-probabilities makes scores whose argmax is the pick."""

    source: EnumeratedNoise
    call: int
    keys: list[tuple[Any, ...]]

    def __getitem__(self, rows: Tensor) -> _Gumbel:
        return _Gumbel(self.source, self.call, [self.keys[row] for row in rows.tolist()])

    def add_(self, log_law: Tensor) -> Tensor:
        scores = torch.zeros(log_law.shape, dtype=torch.float64)
        laws = log_law.double().exp().tolist()
        for row, (law, key) in enumerate(zip(laws, self.keys, strict=True)):
            scores[row, self.source.decide(self.call, row, law, key)] = 1.0
        return scores


@dataclass(slots=True)
class _Uniform:
    """Uniform numbers of some positions, of which only comparisons are known."""

    source: EnumeratedNoise
    call: int
    keys: list[tuple[Any, ...]]

    def log(self) -> _Uniform:
        return self

    def __le__(self, bound: Tensor) -> Tensor:
        below = [min(1.0, value) for value in bound.double().exp().tolist()]
        return torch.tensor(
            [
                bool(self.source.decide(self.call, row, (1 - chance, chance), key))
                for row, (chance, key) in enumerate(zip(below, self.keys, strict=True))
            ]
        )


class _WatchedList(list[int]):
    """The argmax of every row; what is looked at is reported."""

    def __init__(self, values: Sequence[int], source: EnumeratedNoise, call: int) -> None:
        super().__init__(values)
        self._source, self._call = source, call

    def __getitem__(self, index: Any) -> Any:
        rows = range(len(self))[index]
        for row in rows if isinstance(rows, range) else (rows,):
            self._source.read(self._call, row)
        return super().__getitem__(index)
