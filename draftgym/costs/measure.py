"""Rounds measured for their cost, in ordinary rounds of the session itself.

So the figures hold for what a user waits for. It does not know what becomes of the rounds.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftgym.benchmark.config import depths, largest_size
from draftgym.benchmark.exactness import Setting
from draftgym.benchmark.runner import Request, quiet_process
from draftgym.console import Bar
from draftgym.decoder.config import DrafterConfig
from draftgym.decoder.session import DecoderSession
from draftgym.errors import DraftGymError
from draftgym.state import RoundRecord, RoundState

Run = tuple[Setting, ...]
"""Settings of consecutive rounds."""

PAUSES = (2, 4, 8, 16, 32)
"""Plain steps before a draft pass, which then finds about so many tokens unread."""


@dataclass(frozen=True, slots=True)
class MeasuredRounds:
    """Rounds with the seconds of every draft pass.

    Attributes:
        records: Settings interleaved; a prompt's first round is colder and not among them.
        openings: Those first rounds; only they show a first pass over a whole prompt.
    """

    records: tuple[RoundRecord, ...]
    openings: tuple[RoundRecord, ...]


def cost_table(drafter: DrafterConfig, size_grid: Sequence[int]) -> list[Setting]:
    """Settings that measure every size of the grid, each with the shallowest draft that fills it.

    Args:
        drafter: Its configuration.
        size_grid: Sizes V; those that no draft can fill are left out.
    """
    # Plain steps are the denominator of every ratio, so they are measured twice as often.
    table: list[Setting] = [(0, 0), (0, 0)]
    for size in sorted(set(size_grid) - {0}):
        for depth in depths(drafter):
            if size <= largest_size(drafter, depth):
                # Two passes at least: a single pass would never show what a later one costs.
                table.append((max(depth, min(2, depths(drafter)[-1])), size))
                break
    return table


def pause_runs(drafter: DrafterConfig, pauses: Sequence[int] = PAUSES) -> list[Run]:
    """Runs that show first passes over more tokens than a single round commits.

    Args:
        drafter: Its configuration.
        pauses: Plain steps of each run.

    Returns:
        Runs of plain steps and a round that drafts; none for drafters without passes.
    """
    deepest = depths(drafter)[-1]
    if deepest == 0:
        return []
    depth = min(2, deepest)
    drafting = (depth, min(4, largest_size(drafter, depth)))
    return [(*((0, 0),) * pause, drafting) for pause in pauses]


def measure_rounds(
    session: DecoderSession,
    requests: Sequence[Request],
    runs: Sequence[Run],
    *,
    repeats: int = 12,
    max_new_tokens: int = 64,
    seed: int = 0,
    bar: Bar | None = None,
) -> MeasuredRounds:
    """Play runs, shuffled anew in every cycle, until each has been played often enough.

    Args:
        session: With a drafter; its clock must mark draft passes.
        requests: Prompts, gone round as often as needed.
        runs: Runs of a cycle; those that need more rounds than others may occur more than once.
        repeats: Cycles.
        max_new_tokens: Budget per prompt.
        seed: Of the order of runs.
        bar: Advanced once per round.

    Raises:
        DraftGymError: If the prompts end too early to ever reach the number of rounds.
    """
    controller = _RunController(runs, seed)
    wanted = repeats * sum(map(len, runs))
    records: list[RoundRecord] = []
    openings: list[RoundRecord] = []
    with quiet_process():
        session.start(requests[0].tokens, min(16, max_new_tokens))
        session.run(controller)
        turn = 0
        while len(records) < wanted:
            session.start(requests[turn % len(requests)].tokens, max_new_tokens)
            found = session.run(controller)
            if bar is not None:
                bar.advance(min(max(len(found) - 1, 0), wanted - len(records)))
            openings += found[:1]
            records += found[1:]
            turn += 1
            if turn >= 4 * wanted:
                raise DraftGymError("the prompts end before costs can be measured; use others")
    return MeasuredRounds(tuple(records), tuple(openings))


def spread_by_length(requests: Sequence[Request], count: int) -> list[Request]:
    """Prompts of all lengths, so that contexts and tokens to ingest vary.

    Args:
        requests: To choose from.
        count: Prompts wanted, at least 1.

    Returns:
        Evenly spaced quantiles of the lengths, shortest first; all where there are no more.
    """
    ordered = sorted(requests, key=lambda request: len(request.tokens))
    if len(ordered) <= count:
        return ordered
    step = (len(ordered) - 1) / max(count - 1, 1)
    return [ordered[round(index * step)] for index in range(count)]


def reading_seconds(
    session: DecoderSession, requests: Sequence[Request], *, reads: int = 50
) -> float:
    """Median seconds to read the confidence of a tree from the device, after one draft pass.

    Args:
        session: With a drafter.
        requests: Prompts, gone round as often as needed.
        reads: Readings.

    Raises:
        DraftGymError: If nothing is ever drafted.
    """
    clock = session.clock
    seconds: list[float] = []
    with quiet_process():
        for turn in range(4 * reads):
            session.start(requests[turn % len(requests)].tokens, 2 + reads)
            while not session.finished and len(seconds) < reads:
                state = session.begin_round()
                if state.max_depth:
                    session.draft()
                if state.nodes:
                    begin = clock.boundary()  # what the device still drafts is not the reading
                    session.read_confidence()
                    clock.note("read")
                    seconds.append(clock.boundary() - begin)
                session.end_round(0)
            if len(seconds) == reads:
                return statistics.median(seconds)
    raise DraftGymError("the prompts end before a drafted tree can be read; use others")


class _RunController:
    """Plays runs in shuffled cycles, a setting per round.

    It reads nothing, but asks for the marks of single passes, which free controllers forgo.
    """

    free = False

    def __init__(self, runs: Sequence[Run], seed: int) -> None:
        self._settings = self._shuffled(list(runs), random.Random(f"covering {seed}"))
        self._depth, self._size = next(self._settings)

    @staticmethod
    def _shuffled(runs: list[Run], generator: random.Random) -> Iterator[Setting]:
        while True:
            generator.shuffle(runs)
            for run in runs:
                yield from run

    def reset(self) -> None:
        """Nothing to forget: the cycle goes on over prompts."""

    def draft_again(self, state: RoundState) -> bool:
        return state.depth < self._depth

    def choose_size(self, state: RoundState) -> int:
        return self._size

    def observe(self, record: RoundRecord) -> None:
        self._depth, self._size = next(self._settings)
