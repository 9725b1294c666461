"""The losslessness check: speculative output against plain output, token for token.

Depth and size change every round, over the whole table of cells, so that no single setting
hides a fault that a change of setting would show.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from draftgym.benchmark.divergence import Divergence, Judge, differing_tokens
from draftgym.benchmark.methods import HuggingFaceMethod, SessionMethod
from draftgym.benchmark.runner import Method, Request
from draftgym.console import Bar
from draftgym.decoder.rules import IdenticalRule
from draftgym.state import RoundRecord, RoundState

Setting = tuple[int, int]
"""Requested (depth, size) of one round."""


class CoveringController:
    """Requests every (depth, size) of a table in a shuffled cycle, one per round.

    Independent draws would leave some cell unvisited in most runs; a cycle visits each as
    often as any other, and each cycle is shuffled anew so that cells meet in every order.

    Args:
        table: Settings to request.
        seed: Of the shuffling.
    """

    free = True

    def __init__(self, table: Sequence[Setting], seed: int = 0) -> None:
        self._cycle = self._shuffled(list(table), random.Random(f"covering {seed}"))
        self._current = next(self._cycle)
        self.visited: set[Setting] = set()

    @staticmethod
    def _shuffled(table: list[Setting], generator: random.Random) -> Iterator[Setting]:
        while True:
            generator.shuffle(table)
            yield from table

    def reset(self) -> None:
        """Nothing to forget: the cycle goes on over prompts."""

    def draft_again(self, state: RoundState) -> bool:
        """Draft until the requested depth."""
        return state.depth < self._current[0]

    def choose_size(self, state: RoundState) -> int:
        """The requested size; this is where a cell counts as requested."""
        self.visited.add(self._current)
        return self._current[1]

    def observe(self, record: RoundRecord) -> None:
        """Go on to the next cell."""
        self._current = next(self._cycle)


@dataclass(slots=True)
class CellCount:
    """What one drafter did under one law, in the words of the result line."""

    drafter: str
    rule: str
    temperature: float
    cells_total: int
    tokens: int = 0
    rounds: int = 0
    plain_rounds: int = 0
    accepted: int = 0
    cells_visited: int = 0
    differing_tokens: int = 0

    def add(self, records: Sequence[RoundRecord]) -> None:
        """Count the rounds of one prompt."""
        self.tokens += sum(record.emitted for record in records)
        self.rounds += len(records)
        self.plain_rounds += sum(record.size == 0 for record in records)
        self.accepted += sum(record.accepted for record in records)


@dataclass(slots=True)
class CheckResult:
    """Outcome of a check.

    Attributes:
        cells: One entry per drafter and rule.
        hf_differing_tokens: Positions at which plain decoding differs from Transformers.
        near_ties: Divergences that a near-tie of the target explains; not counted.
        faults: Divergences that nothing explains.
    """

    cells: list[CellCount]
    hf_differing_tokens: int = 0
    near_ties: list[Divergence] = field(default_factory=list)
    faults: list[Divergence] = field(default_factory=list)

    @property
    def differing_tokens(self) -> int:
        """Over all drafters and rules."""
        return sum(cell.differing_tokens for cell in self.cells)

    @property
    def ok(self) -> bool:
        """Nothing differs, every drafter accepted something, every cell was requested."""
        exact = self.differing_tokens == 0 and self.hf_differing_tokens == 0
        return exact and all(
            cell.accepted > 0 and cell.cells_visited == cell.cells_total for cell in self.cells
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """One drafter, ready to decode.

    Attributes:
        drafter: Its registered name.
        method: Its session under `controller`.
        controller: Chooses the cells.
        table: Cells that must be requested.
    """

    drafter: str
    method: SessionMethod
    controller: CoveringController
    table: tuple[Setting, ...]


@dataclass(frozen=True, slots=True)
class Law:
    """A law of the text and everything that must produce the same text under it.

    Attributes:
        rule: Gives near-ties their scores.
        temperature: 0 is greedy.
        plain: Plain decoding in the session.
        candidates: Drafters to check.
        reference: Transformers' `generate(do_sample=False)`, for greedy; None where Transformers
            draws in another way.
    """

    rule: IdenticalRule
    temperature: float
    plain: Method
    candidates: tuple[Candidate, ...]
    reference: HuggingFaceMethod | None = None

    def name(self, drafter: str) -> str:
        """As divergences name it."""
        at = f" T={self.temperature:g}" if self.temperature else ""
        return f"{drafter} {self.rule.name}{at}"


def check_exactness(
    laws: Sequence[Law],
    requests: Sequence[Request],
    max_new_tokens: int,
    judge: Judge,
    bar: Bar | None = None,
) -> CheckResult:
    """Compare every candidate with plain decoding of its law, and that with Transformers.

    After a divergence at a near-tie only the prefix before it is compared, because what
    follows continues another text.

    Args:
        laws: What to check.
        requests: Prompts.
        max_new_tokens: Tokens per prompt.
        judge: Reads the target's logits where outputs part.
        bar: Advanced once per decoded prompt.
    """
    result = CheckResult([])
    for law in laws:
        counts = [
            CellCount(candidate.drafter, law.rule.name, law.temperature, len(candidate.table))
            for candidate in law.candidates
        ]
        result.cells += counts
        for request in requests:
            _check_request(law, counts, request, max_new_tokens, judge, result, bar)
        for candidate, count in zip(law.candidates, counts, strict=True):
            count.cells_visited = len(candidate.controller.visited & set(candidate.table))
    return result


def _check_request(
    law: Law,
    counts: Sequence[CellCount],
    request: Request,
    max_new_tokens: int,
    judge: Judge,
    result: CheckResult,
    bar: Bar | None,
) -> None:
    def differing(name: str, want: Sequence[int], got: Sequence[int]) -> int:
        found = judge.compare(
            name, request.prompt_id, request.tokens, want, got, law.rule, request.sequence
        )
        if found is None:
            return 0
        (result.near_ties if found.near_tie else result.faults).append(found)
        return 0 if found.near_tie else differing_tokens(want, got)

    want = law.plain.measure(request, max_new_tokens).output
    _advance(bar, 1)
    if law.reference is not None:
        theirs = law.reference.measure(request, max_new_tokens).output
        result.hf_differing_tokens += differing("plain against transformers", theirs, want)
        _advance(bar, 1)
    for candidate, count in zip(law.candidates, counts, strict=True):
        measured = candidate.method.measure(request, max_new_tokens)
        count.add(measured.records)
        count.differing_tokens += differing(law.name(candidate.drafter), want, measured.output)
        _advance(bar, 1)


def _advance(bar: Bar | None, amount: int) -> None:
    if bar is not None:
        bar.advance(amount)
