"""Reports of an evaluation: JSON and CSV for programs, a page and Markdown for people.

Every file replaces its predecessor in one step, so a reader never sees half a report.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftgym.benchmark.report.charts import plots
from draftgym.benchmark.report.facts import Facts
from draftgym.benchmark.report.html import html
from draftgym.benchmark.report.markdown import markdown
from draftgym.benchmark.report.rows import csv_text
from draftgym.benchmark.report.sections import sections
from draftgym.storage import write_bytes, write_json, write_text


def write_report(
    folder: Path, payload: Mapping[str, Any], details: Mapping[str, Any]
) -> list[Path]:
    """Write `report.json`, `report.csv`, `report.md`, `report.html` and `plots/*.png`.

    Args:
        folder: Where to.
        payload: The result line.
        details: What the result line has no room for: `validation` rows, `speedups` by
            method, `domains`, `divergences`, `decisions` (depths and sizes per method),
            `time_split` per method, `left_out` prompts, `config`; where they were found out,
            `measures`, `comparisons`, `over_time`, `decisions_by_domain`, `rules`, `bounds`,
            `cost_curves` and `reliability`.

    Returns:
        The files written.
    """
    facts = Facts(payload, details)
    content = sections(facts)
    charts = plots(payload, details)
    files = [
        write_json(folder / "report.json", {**payload, "details": details}),
        write_text(folder / "report.csv", csv_text(facts)),
    ]
    # Before the texts that show them.
    for name, chart in charts.items():
        files.append(write_bytes(folder / "plots" / f"{name}.png", chart.png))
    files.append(write_text(folder / "report.md", markdown(facts, content, charts)))
    files.append(write_text(folder / "report.html", html(facts, content, charts)))
    return files
