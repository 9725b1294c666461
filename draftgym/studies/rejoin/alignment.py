"""Where a rejected tail agrees with what was written after the correction.

Two sequences of token ids, the escrow E and the continuation C. `agreement(E, C, k, b)` is how many
tokens of E from index k on agree with C from index b on: k is slack on the escrow's side (tokens of
it left out), b on the text's (tokens written in between).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftgym.errors import ConfigurationError
from draftgym.studies.rejoin.rejections import Rejection

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class Reach:
    """How far an alignment may look.

    Attributes:
        slack: Tokens skipped at most on either side.
        trim: Front tokens of the escrow left out at most by candidates.
        bridge: Fresh tokens at most before the tail is tried again.
    """

    slack: int
    trim: int
    bridge: int


@dataclass(frozen=True, slots=True)
class Run:
    """A common run: its length, and where it begins in escrow and continuation."""

    length: int
    escrow_start: int
    text_start: int


@dataclass(frozen=True, slots=True)
class Alignment:
    """What would have survived of one escrow.

    Attributes:
        direct: Leading tokens, right after the correction.
        trimmed: The most with front tokens left out: candidates in one tree.
        bridged: The most after fresh tokens that were right, front tokens left out or not.
        by_bridge: The most after exactly 1, 2, ... fresh tokens; None where one of them is wrong.
        longest: The longest common run within the slack, the least slack among equals.
        either: The longest one that needs slack on one side at most.
    """

    direct: int
    trimmed: int
    bridged: int
    by_bridge: tuple[int | None, ...]
    longest: Run
    either: int


def common_prefix(one: Tokens, other: Tokens) -> int:
    """Leading tokens that two sequences share."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def agreements(
    escrow: Tokens, text: Tokens, slack: int
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Agreement at every pair of starts.

    Args:
        escrow: Token ids.
        text: Token ids; the run may go on to its end.
        slack: Largest start on either side.

    Returns:
        [k, b], shape [slack + 1, slack + 1]; 0 past an end.
    """
    table = np.zeros((max(len(escrow), slack + 1) + 1, max(len(text), slack + 1) + 1), np.int64)
    equal = np.equal.outer(np.asarray(escrow, np.int64), np.asarray(text, np.int64))
    for k in range(len(escrow) - 1, -1, -1):
        table[k, : len(text)] = np.where(equal[k], table[k + 1, 1 : len(text) + 1] + 1, 0)
    return table[: slack + 1, : slack + 1]


def longest_run(escrow: Tokens, text: Tokens, slack: int) -> Run:
    """The longest common run with slack on both sides, the least slack in sum among equals."""
    table = agreements(escrow, text, slack)
    length = int(table.max())
    if not length:
        return Run(0, 0, 0)
    starts = [(int(k), int(b)) for k, b in np.argwhere(table == length)]
    return Run(length, *min(starts, key=lambda start: (sum(start), start)))


def align(escrow: Tokens, text: Tokens, fresh: Tokens, reach: Reach) -> Alignment:
    """Compare one escrow with a continuation.

    Args:
        escrow: The rejected tail.
        text: Committed tokens after the correction.
        fresh: What was drafted anew after the correction.
        reach: How far to look.
    """
    text = text[: len(escrow) + max(reach.slack, reach.bridge)]
    widest = max(reach.slack, reach.trim, reach.bridge)
    table = agreements(escrow, text, widest)
    best = table[: reach.trim + 1].max(0)  # [b]: with front tokens left out or not
    right = common_prefix(fresh, text)
    within = table[: reach.slack + 1, : reach.slack + 1]
    return Alignment(
        direct=int(table[0, 0]),
        trimmed=int(best[0]),
        bridged=int(best[: min(right, reach.bridge) + 1].max()),
        by_bridge=tuple(int(best[b]) if b <= right else None for b in range(1, reach.bridge + 1)),
        longest=longest_run(escrow, text, reach.slack),
        either=int(max(within[0].max(), within[:, 0].max())),
    )


def aligned(events: Sequence[Rejection], reach: Reach) -> list[Alignment]:
    """Every rejection against its own continuation."""
    return [
        align(event.escrow, event.continuation, event.following.drafted, reach) for event in events
    ]


def against_others(
    events: Sequence[Rejection], slack: int, draws: int, seed: int
) -> list[list[Run]]:
    """Every rejection against continuations of other requests: what chance finds.

    Args:
        events: At least two requests.
        slack: As of the right continuation.
        draws: Wrong continuations each.
        seed: Of the choice.

    Raises:
        ConfigurationError: All rejections are of one request.
    """
    if len({event.cluster for event in events}) < 2:
        raise ConfigurationError(
            "prompts: all rejections are of one request, and chance needs those of two; decode more"
        )
    generator = np.random.default_rng(seed)
    found = []
    for event in events:
        runs: list[Run] = []
        while len(runs) < draws:
            other = events[int(generator.integers(len(events)))]
            if other.cluster != event.cluster:
                text = other.continuation[: len(event.escrow) + slack]
                runs.append(longest_run(event.escrow, text, slack))
        found.append(runs)
    return found


def against_shuffled(
    events: Sequence[Rejection], slack: int, draws: int, seed: int
) -> list[list[Run]]:
    """Every rejection against its own continuation in a random order; arguments as above."""
    generator = np.random.default_rng(seed)
    found = []
    for event in events:
        text = np.asarray(event.continuation[: len(event.escrow) + slack])
        orders = (generator.permutation(text).tolist() for _ in range(draws))
        found.append([longest_run(event.escrow, order, slack) for order in orders])
    return found
