"""A report as Markdown, for terminals and repositories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftgym.benchmark.report.facts import Facts, Versus
from draftgym.benchmark.report.section import Chart, Entry, Section, Table
from draftgym.benchmark.report.words import headline, number, warning
from draftgym.benchmark.summary import PLAIN, POLICY


def markdown(facts: Facts, content: Sequence[Section], charts: Mapping[str, Chart]) -> str:
    """The report as Markdown text.

    Args:
        facts: The evaluation.
        content: Its sections.
        charts: By name; each lies in `plots/NAME.png`.
    """
    opening = filter(None, [*headline(facts), warning(facts)])
    lines = ["# Evaluation", "", _safe(" ".join(opening)), "", *_verdicts(facts)]
    for section in content:
        lines += ["", f"## {section.title}"]
        for sentence in section.sentences:
            lines += ["", _safe(sentence)]
        for name in section.charts:
            if name in charts:
                lines += ["", f"![{charts[name].title}](plots/{name}.png)"]
        for table in section.tables:
            lines += ["", *_table(table)]
    return "\n".join(lines) + "\n"


def _verdicts(facts: Facts) -> list[str]:
    """The comparisons that matter most, one line each."""
    lines = []
    for baseline, words in ((facts.tuned, "the best fixed cell"), (PLAIN, "plain decoding")):
        entry = facts.versus(baseline, POLICY) if facts.judged else None
        if entry is not None:
            lines.append(_verdict("The policy", words, entry))
    for path in facts.payload["beside_vs_best_fixed"]:
        entry = facts.versus(facts.tuned, path)
        if entry is not None:
            lines.append(_verdict(f"`{path}`", "the best fixed cell", entry))
    return lines


def _verdict(who: str, baseline: str, entry: Versus) -> str:
    between = "" if entry.low is None else f" [{number(entry.low)}, {number(entry.high)}]"
    return f"- {who} against {baseline}: **{entry.verdict}** (ratio {entry.ratio:.3f}{between})."


def _table(table: Table) -> list[str]:
    lines = [f"{_safe(table.title)}:", "", _row(table.columns)]
    lines.append("|---" * len(table.columns) + "|")
    for first, *others in table.rows:
        lines.append(_row([_cell(first, ", "), *map(_cell, others)]))
    return lines


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(entry: Entry, between: str = " ") -> str:
    text = _safe(entry.text)
    text = f"**{text}**" if entry.strong else text
    return between.join([text, *map(_safe, filter(None, entry.notes))])


def _safe(text: str) -> str:
    """Text that neither ends a cell nor starts a tag."""
    flat = " ".join(text.split())
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
