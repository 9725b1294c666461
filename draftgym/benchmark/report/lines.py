"""Charts that draw one line per method, depth or kind of work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftgym.benchmark.plots import new_figure
from draftgym.benchmark.report.facts import Facts, known
from draftgym.benchmark.report.style import DASHES, MARKERS, MUTED, SERIES, WIDTH, legend

Points = Sequence[tuple[float, float]]
Line = tuple[str, Points]
"""With its name."""


def over_time(facts: Facts) -> Any:
    """Mean depth and size by round."""
    found = facts.details.get("over_time") or {}
    names = [name for name in facts.featured if (found.get(name) or {}).get("depth")]
    if not names:
        return None
    figure, panels = new_figure(WIDTH, 4.2, rows=2)
    handles: list[Any] = []
    for axes, kind in zip(panels, ("depth", "size"), strict=True):
        handles = [
            _line(axes, number, _numbered(found[name].get(kind)), 4)
            for number, name in enumerate(names)
        ]
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"mean {kind}, {'passes' if kind == 'depth' else 'tokens'}")
    panels[-1].set_xlabel("round of the text")
    legend(figure, handles, [facts.label(name) for name in names])
    return figure


def acceptance(facts: Facts) -> Any:
    """Share of rounds that keep the drafted token, by its position."""
    found = {name: facts.measure(name).get("acceptance_by_position") for name in facts.featured}
    lines = [
        (facts.label(name), [(place, 100 * share) for place, share in _numbered(shares)])
        for name, shares in found.items()
    ]
    return _chart(lines, "position in the draft", "kept, % of rounds", 0, 100)


def reliability(facts: Facts) -> Any:
    """Accepted against promised tokens by depth."""
    bins = (facts.details.get("reliability") or {}).get("bins") or {}
    shown = {depth: rows for depth, rows in list(bins.items())[: len(SERIES)] if rows}
    if not shown:
        return None
    figure, axes = new_figure(WIDTH, 3.8)
    handles, most = [], 0.0
    for number, rows in enumerate(shown.values()):
        points = [(row["predicted"], row["observed"]) for row in rows]
        handles.append(_line(axes, number, points, len(points) + 1))
        counts = [row["rounds"] for row in rows]
        areas = [4 + 46 * count / max(counts) for count in counts]
        axes.scatter(
            *zip(*points, strict=True), areas, color=SERIES[number], marker=MARKERS[number]
        )
        most = max(most, *map(max, points))
    axes.plot((0, most), (0, most), color=MUTED, linestyle=":", linewidth=1)
    axes.set_xlabel("promised: tokens that the pass adds")
    axes.set_ylabel("kept: tokens that the pass adds")
    legend(figure, handles, [f"depth {depth}" for depth in shown])
    return figure


def cost_curves(facts: Facts) -> Any:
    """Milliseconds of a target pass by verified tokens, and of a draft pass."""
    curves = facts.details.get("cost_curves")
    if not curves:
        return None
    verify = sorted((int(size), ms) for size, ms in curves["verify_ms"].items())
    lines: list[Line] = [("target pass", verify)]
    ends = (verify[0][0], verify[-1][0])
    for name, key in (("plain step", "plain_ms"), ("draft pass", "draft_pass_ms")):
        level = known(curves.get(key))
        if level:  # a drafter without passes has none
            lines.append((name, [(end, level) for end in ends]))
    return _chart(lines, "verified tokens V", "ms", 0)


def validation(facts: Facts) -> Any:
    """Speedup of fixed cells on validation prompts."""
    rows = facts.details["validation"]
    lines = [
        (
            f"D = {depth}",
            sorted((row["size"], row["speedup"]) for row in rows if row["depth"] == depth),
        )
        for depth in sorted({row["depth"] for row in rows})
    ]
    figure = _chart(lines, "verified tokens V", "speedup over plain decoding, ×")
    if figure is not None:
        figure.axes[0].axhline(1.0, color=MUTED, linewidth=1)
    return figure


def _numbered(values: Sequence[Any] | None) -> list[tuple[int, float]]:
    """Known values with their places, from 1."""
    found = [(place, known(value)) for place, value in enumerate(values or (), 1)]
    return [(place, value) for place, value in found if value is not None]


def _chart(
    lines: Sequence[Line],
    x: str,
    y: str,
    bottom: float | None = None,
    top: float | None = None,
) -> Any:
    """One panel of lines with a legend; None without any point."""
    drawn = [(name, points) for name, points in lines if points]
    if not drawn:
        return None
    figure, axes = new_figure(WIDTH, 3.2)
    handles = [_line(axes, number, points) for number, (_, points) in enumerate(drawn)]
    axes.set_ylim(bottom, top)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    legend(figure, handles, [name for name, _ in drawn])
    return figure


def _line(axes: Any, number: int, points: Points, every: int = 1) -> Any:
    """A line in the style of its number, with a marker on every so many points."""
    shape = number + number // len(SERIES)  # colours begin anew in other shapes
    style = {
        "color": SERIES[number % len(SERIES)],
        "marker": MARKERS[shape % len(MARKERS)],
        "linestyle": DASHES[shape % len(DASHES)],
        "markevery": every,
    }
    (line,) = axes.plot(*(zip(*points, strict=True) if points else ((), ())), **style)
    return line
