"""A trace against the live decoder: what fixed cells keep, round by round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from draftgym.benchmark.config import Cell
from draftgym.console import Bar
from draftgym.decoder.controllers import FixedController
from draftgym.decoder.session import DecoderSession
from draftgym.state import RoundRecord, RoundState
from draftgym.traces.trace import Trace

NEAR_TIE_NATS = 1e-4
"""Batched and single passes round differently: nodes whose scores are closer may swap ranks."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A round in which the trace is wrong.

    Attributes:
        prompt_id: Of the request.
        cell: The fixed cell.
        emitted: Tokens emitted when the round started.
        traced: Nodes and accepted tokens by the trace.
        live: The same by the decoder.
        gap: Nats between the last verified node and the first one left out; infinite when all
            were verified.
    """

    prompt_id: str
    cell: str
    emitted: int
    traced: tuple[int, int]
    live: tuple[int, int]
    gap: float

    @property
    def near_tie(self) -> bool:
        """Whether rounding may decide which nodes were verified."""
        return self.gap < NEAR_TIE_NATS


@dataclass(slots=True)
class Agreement:
    """Live rounds compared with the trace."""

    rounds: int = 0
    accepted: int = 0
    other_texts: list[str] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Something was kept, and nothing but near-ties differs."""
        wrong = any(not entry.near_tie for entry in self.mismatches)
        return self.accepted > 0 and not self.other_texts and not wrong


class _Watched(FixedController):
    """A fixed cell that remembers how close the nodes at the edge of each round were."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell.depth, cell.size)
        self.gaps: list[float] = []

    def choose_size(self, state: RoundState) -> int:
        size = min(self.size, state.max_size)
        scores = state.read_confidence().node_scores if state.nodes > size > 0 else ()
        self.gaps.append(scores[size - 1] - scores[size] if scores else math.inf)
        return self.size


def compare_with_live(
    trace: Trace,
    session: DecoderSession,
    prompts: Sequence[Sequence[int]],
    cells: Sequence[Cell],
    bar: Bar | None = None,
) -> Agreement:
    """Decode every request with every cell and compare all rounds.

    A trace is a simulator only if this holds: same text, nodes and accepted tokens.

    Args:
        trace: The trace; request i of it has prompt i.
        session: Of the trace's pair, law and limits.
        prompts: Token ids.
        cells: Fixed settings, within the trace's depth.
        bar: Advanced once per decoded request.
    """
    found, first = Agreement(), trace.first
    for number, prompt in enumerate(prompts):
        request = trace.sequences[number]
        for cell in cells:
            controller = _Watched(cell)
            session.start(prompt, request.max_new_tokens, request.sequence)
            records = session.run(controller)
            if tuple(session.tokens) != request.tokens:
                found.other_texts.append(f"{request.prompt_id} under {cell.name}")
            else:
                _compare(found, trace, int(first[number]), request.prompt_id, cell.name, records,
                         controller.gaps)  # fmt: skip
            if bar is not None:
                bar.advance()
    return found


def _compare(
    found: Agreement,
    trace: Trace,
    first: int,
    prompt_id: str,
    cell: str,
    records: Sequence[RoundRecord],
    gaps: Sequence[float],
) -> None:
    emitted = 1 + np.cumsum([0, *(record.emitted for record in records)])[:-1]
    rows = first + emitted - 1
    depth = np.array([record.depth for record in records])
    size = np.array([record.size for record in records])
    accepted = trace.accepted(rows, depth, size)
    nodes = trace.nodes[rows, depth]
    found.rounds += len(records)
    for i, record in enumerate(records):
        found.accepted += record.accepted
        traced, live = (int(nodes[i]), int(accepted[i])), (record.nodes, record.accepted)
        if traced != live:
            found.mismatches.append(
                Mismatch(prompt_id, cell, int(emitted[i]), traced, live, gaps[i])
            )
