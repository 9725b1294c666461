"""A report as CSV: one line per method and domain, nested measures as flat columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from draftgym.benchmark.report.facts import ALL, Facts
from draftgym.benchmark.summary import PLAIN

Line = dict[str, Any]


def csv_text(facts: Facts) -> str:
    """Every method on all prompts and on each domain; empty where there is no number."""
    lines = [
        _line(facts, name, domain) for name in facts.methods for domain in (ALL, *facts.domains)
    ]
    # Methods differ in what they have, so the heading is the union in order of appearance.
    columns = list(dict.fromkeys(column for line in lines for column in line))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _line(facts: Facts, method: str, domain: str) -> Line:
    line: Line = {"method": method, "domain": domain, "kind": facts.kind(method)}
    over = facts.versus(PLAIN, method) if domain == ALL else facts.domain(method, domain)
    if over is not None:
        line |= {"speedup": over.ratio, "speedup_low": over.low, "speedup_high": over.high}
    if domain == ALL:
        row = next(row for row in facts.rows if row["method"] == method)
        low, high = row["ci95"]
        line |= {
            "ms_per_token": row["ms_per_token"],
            "ms_per_token_low": low,
            "ms_per_token_high": high,
            "tau_emitted": row["tau_emitted"],
        }
    return line | _flat(facts.measure(method, domain))


def _flat(measures: Mapping[str, Any], prefix: str = "") -> Line:
    """Nested entries by joined names; lists are numbered from 1."""
    line: Line = {}
    for key, value in measures.items():
        name = f"{prefix}{key}"
        if isinstance(value, list | tuple):
            value = {str(place): item for place, item in enumerate(value, 1)}
        line |= _flat(value, f"{name}_") if isinstance(value, Mapping) else {name: value}
    return line
