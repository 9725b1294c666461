"""Every chart of a report. A chart whose data are missing is not drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Any

from draftgym.benchmark.plots import inline_svg, new_figure, png
from draftgym.benchmark.report import lines
from draftgym.benchmark.report.facts import PARTS, Facts, Versus, known
from draftgym.benchmark.report.section import Chart
from draftgym.benchmark.report.style import (
    FAR,
    INK,
    KINDS,
    MARKERS,
    MUTED,
    PAGE_COLOURS,
    PAPER,
    SERIES,
    SETTINGS,
    WIDTH,
    legend,
    literal,
    outside,
    rows_figure,
)

LEAST_SHARE = 0.01
"""Of rounds, for a depth or size to be drawn."""
MOST_VALUES = 8
"""Depths or sizes beside each other; the most used ones."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to make a chart, and its words.

    Attributes:
        draw: Returns None without data.
        title: Short, above it.
        caption: How to read it.
        alt: What it shows, for those who do not see it.
        more: End of the caption, which hangs on the evaluation.
    """

    draw: Callable[[Facts], Any]
    title: str
    caption: str
    alt: str
    more: Callable[[Facts], str] = lambda facts: ""


def plots(payload: Mapping[str, Any], details: Mapping[str, Any]) -> dict[str, Chart]:
    """Draw every chart whose data are there.

    Args:
        payload: The result line.
        details: As `write_report` takes them.

    Returns:
        Charts by name.
    """
    from matplotlib import rc_context

    facts = Facts(payload, details)
    charts = {}
    with rc_context(SETTINGS):
        for name, plan in PLANS.items():
            figure = plan.draw(facts)
            if figure is not None:
                svg = inline_svg(figure, name, PAGE_COLOURS)
                figure.set_layout_engine("none")  # laid out already, which is slow
                caption = plan.caption + plan.more(facts)
                charts[name] = Chart(plan.title, caption, plan.alt, svg, png(figure))
    return charts


def _time_per_token(facts: Facts) -> Any:
    figure, axes = rows_figure([facts.label(name) for name in facts.methods])
    shown: dict[str, Any] = {}
    right = FAR * median(row["ms_per_token"] for row in facts.rows)
    for place, row in enumerate(facts.rows):
        kind = facts.kind(row["method"])
        colour, marker = KINDS[kind]
        low, high = (min(max(end, 0.0), right) for end in row["ci95"])
        axes.hlines(place, low, high, color=colour, linewidth=1.4)
        if row["ms_per_token"] <= right:
            (shown[kind],) = axes.plot(row["ms_per_token"], place, marker, color=colour)
        else:
            outside(axes, place, right, row["ms_per_token"])
    axes.set_xlabel("ms per token (left is faster)")
    legend(figure, list(shown.values()), list(shown))
    return figure


def _over_tuned(facts: Facts) -> Any:
    if not facts.details.get("comparisons"):
        return None
    found = {name: facts.versus(facts.tuned, name) for name in facts.contenders}
    return _ratios(facts, {name: over for name, over in found.items() if over is not None})


def _bounds(facts: Facts) -> Any:
    rows = {row["method"]: over for row, over in facts.bounds if over is not None}
    return _ratios(facts, rows)


def _ratios(facts: Facts, entries: Mapping[str, Versus]) -> Any:
    """Ratios with intervals around 1: filled where the verdict is sure, or nobody judged."""
    if not entries:
        return None
    figure, axes = rows_figure([facts.label(name) for name in entries], 0.7)
    axes.axvline(1, color=MUTED, linewidth=1)
    right = FAR * median(entry.ratio for entry in entries.values())
    for place, entry in enumerate(entries.values()):
        if entry.ratio > right:
            outside(axes, place, right, entry.ratio)
            continue
        unsure = entry.verdict == "no significant difference"
        colour = MUTED if unsure else SERIES[0] if entry.ratio >= 1 else SERIES[1]
        if entry.low is not None and entry.high is not None:
            axes.hlines(place, entry.low, min(entry.high, right), color=colour, linewidth=1.4)
        fill = PAPER if unsure else colour
        axes.plot(entry.ratio, place, "D", color=colour, markerfacecolor=fill)
    axes.set_xlabel("speed over the tuned setting, ×")
    return figure


def _decisions(facts: Facts) -> Any:
    if not facts.featured:
        return None
    names = facts.featured
    figure, panels = new_figure(WIDTH, 2 * (0.36 * len(names) + 0.6), rows=2)
    for axes, kind in zip(panels, ("depth", "size"), strict=True):
        shares = [_shares(facts.details["decisions"][name][kind]) for name in names]
        total = sum(shares, Counter[int]())
        used = sorted(value for value, _ in total.most_common(MOST_VALUES))
        for row, part in enumerate(shares):
            for column, value in enumerate(used):
                if part[value]:
                    area = 180 * part[value]  # square points
                    axes.scatter(column, row, area, color=SERIES[0], linewidth=0)
                    axes.annotate(
                        f"{100 * part[value]:.0f}",
                        (column, row),
                        (0, -2 - sqrt(area) / 2),
                        textcoords="offset points",
                        ha="center",
                        va="top",
                        fontsize=8,
                        color=INK,
                    )
        axes.set_xticks(range(len(used)), [str(value) for value in used])
        axes.set_xlim(-0.5, len(used) - 0.5)
        axes.set_yticks(range(len(names)), [literal(facts.label(name)) for name in names])
        axes.set_ylim(len(names) - 0.25, -0.6)
        axes.set_xlabel(f"{kind} of the round, % of rounds")
    return figure


def _shares(values: Sequence[int]) -> Counter[int]:
    """Share of each value, those that are rare left out: many rare sizes would hide the rest."""
    counts = Counter(values)
    least = LEAST_SHARE * len(values)
    shares: Counter[Any] = Counter()
    shares.update({v: count / len(values) for v, count in counts.items() if count >= least})
    return shares


def _time_split(facts: Facts) -> Any:
    names = list(facts.split)
    if not names:
        return None
    figure, axes = rows_figure([facts.label(name) for name in names])
    left = [0.0] * len(names)
    bars = []
    for part, colour in zip(PARTS, SERIES, strict=True):
        values = [known(facts.split[name].get(part)) or 0.0 for name in names]
        bars.append(
            axes.barh(range(len(names)), values, 0.72, left, color=colour, edgecolor=PAPER, lw=0.4)
        )
        left = [start + value for start, value in zip(left, values, strict=True)]
    axes.set_xlabel("ms per token")
    legend(figure, bars, PARTS)
    return figure


_TOKENS = {
    "drafted_per_token": "drafted",
    "verified_per_token": "verified",
    "wasted_per_token": "wasted",
}


def _tokens(facts: Facts) -> Any:
    names = [
        name
        for name in facts.contenders
        if any(known(facts.measure(name).get(key)) is not None for key in _TOKENS)
    ]
    if not names:
        return None
    figure, axes = rows_figure([facts.label(name) for name in names])
    points, every = [], []
    for number, key in enumerate(_TOKENS):
        found = [(known(facts.measure(name).get(key)), row) for row, name in enumerate(names)]
        there = [(value, row) for value, row in found if value is not None]
        every += [value for value, _ in there]
        xs, ys = zip(*there, strict=True) if there else ((), ())
        points += axes.plot(xs, ys, MARKERS[number], color=SERIES[number], linestyle="none")
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens per token of text")
    legend(figure, points, list(_TOKENS.values()))
    return figure


PLANS = {
    "time_per_token": Plan(
        _time_per_token,
        "Time per token",
        "A point is the measured time, its line the 95 % interval over prompts. Intervals of two "
        "methods may overlap although one is surely faster: they met the same prompts.",
        "Points with intervals: milliseconds per token of every method, fastest on top.",
    ),
    "over_tuned": Plan(
        _over_tuned,
        "Against the best fixed setting",
        "Right of 1 is faster. Filled: surely different after correction for the number of "
        "methods. Hollow and grey: no significant difference.",
        "Points with intervals: speed of every method over the tuned fixed setting.",
    ),
    "decisions": Plan(
        _decisions,
        "Depths and sizes used",
        f"The area of a dot is its share of rounds. At most {MOST_VALUES} values, from "
        f"{LEAST_SHARE:.0%} of rounds on.",
        "Dots: share of rounds by draft depth and by verification size, for a few methods.",
    ),
    "over_time": Plan(
        lines.over_time,
        "Decisions over the length of a text",
        "Means over texts by the number of the round.",
        "Lines: mean depth and mean size against the round, for a few methods.",
    ),
    "acceptance": Plan(
        lines.acceptance,
        "Acceptance by position",
        "Of rounds that verified at least that many tokens, the share in which the 1st, 2nd, ... "
        "drafted token was kept.",
        "Lines: share of rounds that keep a 1st, 2nd, ... drafted token, for a few methods.",
    ),
    "reliability": Plan(
        lines.reliability,
        "Is the drafter's confidence true?",
        "On the dotted line it is. Below, a pass promises more tokens than the target keeps. "
        "Larger points hold more rounds.",
        "Lines: tokens kept of what each pass adds against the drafter's promise, by draft depth.",
    ),
    "cost_curves": Plan(
        lines.cost_curves,
        "What a round costs",
        "A target pass that checks more drafted tokens takes longer; one without any is plain "
        "decoding.",
        "Line: milliseconds of a target pass against the number of verified tokens.",
    ),
    "bounds": Plan(
        _bounds,
        "How much there is to gain",
        "On traces, by mean measured costs. No policy can know what the clairvoyant bound knows; "
        "the information bound estimates the most that what a policy sees allows.",
        "Points: speed of the bounds over the tuned fixed setting.",
    ),
    "time_split": Plan(
        _time_split,
        "Where the time goes",
        "From left to right in the order of the legend, of methods that decode in rounds.",
        "Stacked bars: milliseconds per token by part of the round.",
    ),
    "tokens": Plan(
        _tokens,
        "Tokens of work",
        "Drafted, verified, and verified in vain, for each token of text.",
        "Points: drafted, verified and wasted tokens per token of text, for every method.",
    ),
    "validation": Plan(
        lines.validation,
        "Tuning of fixed settings",
        "On validation prompts, by depth D.",
        "Lines: speedup over plain decoding against verified tokens, one line per depth.",
        lambda facts: (
            " Simulated on traces, mean costs."
            if facts.tuned_on_traces
            else " Cells that left the race early met fewer prompts."
        ),
    ),
}
