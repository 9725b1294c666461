"""From measured figures to a verdict, its reasons and what to change, in plain words.

Causes are told by what-ifs on the same texts: had passes, or checking, cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from draftgym.benchmark.runner import BUSY_LOAD
from draftgym.benchmark.statistics import Interval
from draftgym.doctor.cells import Cells

Verdict = Literal["speculate", "do not speculate", "too close to call"]

UNSTEADY = 1.25
"""The machine's slow stretches over its quick ones, above which figures are not to be trusted."""

WORTH_CHANGING = 1.1
"""A what-if that gains less is no cause."""

SAME = 0.97
"""Of the best cell's speed: as good as it, at this precision."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured besides the cells.

    Attributes:
        plain_seconds: One plain decoding step.
        draft_pass_over_plain: One draft pass; 0 for drafters without passes.
        verify_over_plain: A round that checks so many tokens, without its draft, over a plain step.
        acceptance_by_position: Share of rounds whose first 1, 2, ... drafted tokens are all right,
            one entry at least.
        unsteadiness: The machine's slow stretches over its quick ones.
        load: Other processes per core before anything was measured.
    """

    plain_seconds: float
    draft_pass_over_plain: float
    verify_over_plain: Mapping[int, float]
    acceptance_by_position: Sequence[float]
    unsteadiness: float
    load: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer.

    Attributes:
        verdict: Whether to speculate.
        speedup: Expected of the best fixed cell over plain decoding, with 95% limits.
        cell: Its depth and size.
        summary: The answer as one sentence.
        why: Reasons, a sentence each.
        advice: What to change, a sentence each.
    """

    verdict: Verdict
    speedup: Interval
    cell: tuple[int, int]
    summary: str
    why: tuple[str, ...]
    advice: tuple[str, ...]


def diagnose(cells: Cells, figures: Figures, *, error: float = 0.0) -> Diagnosis:
    """Judge the best fixed cell.

    Args:
        cells: What each takes.
        figures: Costs and acceptance.
        error: As `Cells.speedup`.

    Raises:
        StatisticsError: Fewer than two requests.
    """
    speedup, cell = cells.speedup(error), cells.cells[cells.best]
    verdict = _verdict(speedup)
    words = {
        "speculate": "Speculation pays here: about {} times as fast as plain decoding",
        "do not speculate": "Speculation does not pay here: at best {} times the speed of plain "
        "decoding",
        "too close to call": "Too close to call: {} times the speed of plain decoding",
    }[verdict]
    summary = (
        f"{words.format(f'{speedup.estimate:.2f}')} (95% range {speedup.low:.2f} to "
        f"{speedup.high:.2f}), with {_setting(cell)} in every round."
    )
    why = [*_costs(cells, figures), *_acceptance(figures), *_places(cells)]
    advice = [*_trust(figures), *_changes(cells, figures, verdict)]
    return Diagnosis(verdict, speedup, cell, summary, tuple(why), tuple(advice))


def _verdict(speedup: Interval) -> Verdict:
    if speedup.low > 1:
        return "speculate"
    return "do not speculate" if speedup.high < 1 else "too close to call"


def _setting(cell: tuple[int, int]) -> str:
    depth, size = cell
    passes = {0: "no draft pass", 1: "1 draft pass"}.get(depth, f"{depth} draft passes")
    return f"{passes} and up to {size} drafted token{'s' * (size > 1)} checked"


def _costs(cells: Cells, figures: Figures) -> list[str]:
    plain, cost = 1e3 * figures.plain_seconds, figures.draft_pass_over_plain
    limit = cells.pass_limit
    found = [f"Without drafting a token takes {plain:.1f} ms, a plain step."]
    if cost > 0 and limit is not None:
        passes = "beside look-ups passes" if any(not d for d, _ in cells.cells) else "passes"
        told = (
            f"{passes} pay here while one takes less than {limit * cost:.2f}"
            if limit * cost >= 0.005  # else it reads as 0.00
            else f"at this acceptance {passes} would not pay even if they were free"
        )
        found.append(f"A draft pass takes {cost:.2f} plain steps ({cost * plain:.1f} ms); {told}.")
    else:
        found.append("Drafting takes no pass: tokens are looked up in the text.")
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if size in figures.verify_over_plain]
    curve = ", ".join(f"{figures.verify_over_plain[size]:.2f}" for size in sizes)
    names = ", ".join(map(str, sizes))
    found.append(f"Checking {names} drafted tokens in one pass takes {curve} plain steps.")
    return found


def _acceptance(figures: Figures) -> list[str]:
    shares = dict(enumerate(figures.acceptance_by_position, 1))
    shown = [place for place in (2, 4, 8) if place in shares]
    further = [f"the first {place} in {shares[place]:.0%}" for place in shown]
    first = f"In the largest drafts the first token is right in {shares[1]:.0%} of rounds"
    return [", ".join([first, *further]) + "."]


def _places(cells: Cells) -> list[str]:
    domains = list(cells.by_domain().items())
    if len(domains) < 2:
        return []
    (slowest, low), (fastest, high) = domains[0], domains[-1]
    return [
        f"It depends on the text: from {low:.2f} times plain on {slowest} to {high:.2f} on "
        f"{fastest}, by a few prompts each."
    ]


def _changes(cells: Cells, figures: Figures, verdict: Verdict) -> list[str]:
    best = cells.over_plain(cells.seconds)
    lookups = cells.over_plain(cells.seconds, depths=(0,))
    deepest = max(depth for depth, _ in cells.cells)
    found = []
    if verdict == "speculate":
        depth, size = cells.cells[cells.best]
        if deepest and lookups >= SAME * best:
            found.append(
                f"Look-ups alone reach {lookups / best:.0%} of that speed, because the text "
                "repeats: `drafter: {kind: ngram}` needs no draft model."
            )
        found.append(
            f"Try the setting: `python -m draftgym generate --depth {depth} --size {size}`. "
            "`python train.py` learns when to do more and when less."
        )
        return found
    free_passes = cells.over_plain(cells.seconds - cells.drafting)
    free_checks = cells.over_plain(cells.seconds - cells.checking)
    needed = WORTH_CHANGING * max(best, 1.0)
    limit, cost = cells.pass_limit, figures.draft_pass_over_plain
    if limit is not None and free_passes > needed:
        found.append(
            f"Drafter too slow: a pass takes {cost:.2f} plain steps; above {limit * cost:.2f} "
            f"passes do not pay at this acceptance, and free ones would reach {free_passes:.2f}. "
            "Use a smaller draft model, or look-ups alone (`drafter: {kind: ngram}`)."
        )
    if free_checks > needed:
        size, cost = max(
            (entry for entry in figures.verify_over_plain.items() if entry[0] <= 8),
            default=(0, 1.0),
        )
        found.append(
            f"Checking is dear: {size} tokens take {cost:.2f} plain steps; were it free, "
            f"{free_checks:.2f} would be reached. It is cheaper where the target waits for memory "
            "rather than for arithmetic: a larger target, or a GPU that serves one request."
        )
    if not found:
        share = figures.acceptance_by_position[0]
        found.append(
            f"Acceptance too low ({share:.0%} at the first token): free passes or free checking "
            "would change little. Train the draft model on such text "
            "(`python -m draftgym train-drafter`), or use another."
        )
    if verdict == "too close to call":
        found.append("A longer look narrows the range: `--seconds 300`.")
    return found


def _trust(figures: Figures) -> list[str]:
    reasons = []
    if figures.load > BUSY_LOAD:
        reasons.append(f"{figures.load:.1f} processes per core before it began")
    if figures.unsteadiness > UNSTEADY:
        reasons.append(f"its pace changed by {figures.unsteadiness - 1:.0%} during the measurement")
    if not reasons:
        return []
    return [
        f"The machine is busy ({', '.join(reasons)}), so the figures are unreliable: run this "
        "again while nothing else runs."
    ]
