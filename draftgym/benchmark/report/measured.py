"""Tables of measures over all test prompts: work, cost of deciding, waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftgym.benchmark.report.facts import Facts, known
from draftgym.benchmark.report.section import Entry, Table
from draftgym.benchmark.report.words import NONE, number

Columns = Mapping[str, tuple[str, str]]
"""By heading: where the measure is, and its unit; shares are written in percent."""

WORK: Columns = {
    "target rows per token": ("target_rows_per_token", ""),
    "draft passes per token": ("draft_passes_per_token", ""),
    "drafted per token": ("drafted_per_token", ""),
    "verified per token": ("verified_per_token", ""),
    "wasted per token": ("wasted_per_token", ""),
    "accepted per round": ("accepted_per_round", ""),
    "decisions per round": ("decisions_per_round", ""),
    "deciding, per round": ("policy_ms_per_round", " ms"),
    "deciding, share of time": ("policy_share", " %"),
    "peak memory": ("peak_memory_mib", " MiB"),
    "energy per token": ("joules_per_token", " J"),
}
WAITING: Columns = {
    "first token, median": ("first_token_ms.p50", " ms"),
    "first token, 95th percentile": ("first_token_ms.p95", " ms"),
    "between tokens, median": ("inter_token_ms.p50", " ms"),
    "between tokens, 95th percentile": ("inter_token_ms.p95", " ms"),
    "between tokens, 99th percentile": ("inter_token_ms.p99", " ms"),
}


def measure_table(facts: Facts, title: str, columns: Columns) -> Table:
    """Measures of every method; the title names those that no method has.

    Args:
        facts: The evaluation.
        title: Caption.
        columns: What to show.
    """
    cells = {
        heading: [_entry(facts.measure(name), *column) for name in facts.methods]
        for heading, column in columns.items()
    }
    missing = [head for head, column in cells.items() if all(cell == _NONE for cell in column)]
    kept = [heading for heading in cells if heading not in missing]
    rows = [
        [Entry(name), *(cells[heading][index] for heading in kept)]
        for index, name in enumerate(facts.methods)
    ]
    absent = f" (not measured: {', '.join(missing)})" if missing else ""
    return Table(title + absent, ["method", *kept], rows)


_NONE = Entry(NONE)


def _entry(measures: Mapping[str, Any], path: str, unit: str) -> Entry:
    value: Any = measures
    for key in path.split("."):
        value = (value or {}).get(key)
    found = known(value)
    return Entry(number(100 * found if found is not None and unit == " %" else found, unit))
