"""Sections on where figures come from: what was tuned on what, who was judged, by what command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftgym.benchmark.report.facts import Facts
from draftgym.benchmark.report.section import Entry, Section, Table
from draftgym.benchmark.report.words import NONE, number, times

BEST_CELLS = 12
"""Of those that were simulated: dozens are tried, and most are far behind."""
_LONG = 6  # numbers that a line can hold


def tuning(facts: Facts) -> Section:
    """Fixed settings and rules, and what they were tuned on."""
    best, hindsight = facts.payload["best_fixed"], facts.payload["best_fixed_hindsight"]
    tables = [_cells(facts)]
    if facts.rules:
        tables.append(_rules(facts))
    return Section(
        "What was tuned on what",
        (
            f"Best fixed setting, tuned on validation prompts: D = {best['depth']}, "
            f"V = {best['size']}. Best of the finalists in hindsight, on test prompts: "
            f"D = {hindsight['depth']}, V = {hindsight['size']}, {times(hindsight['speedup'])} "
            "over plain decoding.",
        ),
        ("validation",),
        tables,
    )


def provenance(facts: Facts) -> Section:
    """What the evaluation ran as, and the policies that it judged."""
    told = {name: value for name, value in facts.payload["provenance"].items() if name != _JUDGED}
    rows = [[Entry(name.replace("_", " ")), Entry(as_text(value))] for name, value in told.items()]
    table = Table("Where the figures come from", ["what", "value"], rows, 2)
    return Section("Provenance", tables=(table, *_policies(facts)))


def as_text(value: Any) -> str:
    """A nested entry for people: a list of names and values."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {as_text(inner)}" for name, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(as_text, value))
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _cells(facts: Facts) -> Table:
    found = facts.details["validation"]
    title, shown = "Fixed settings on validation prompts", found
    if facts.tuned_on_traces:
        shown = found[:BEST_CELLS]
        which = f"the best {len(shown)} of {len(found)}, " if len(shown) < len(found) else ""
        title += f": {which}simulated on traces, mean costs"
    rows = [
        [
            Entry(row["method"], strong=row["method"] == facts.tuned),
            Entry(str(row["prompts"])),
            Entry(number(row["ms_per_token"], " ms")),
            Entry(number(row["tau_emitted"])),
            Entry(times(row["speedup"])),
        ]
        for row in shown
    ]
    columns = ["setting", "prompts", "ms per token", "tokens per round", "over plain decoding"]
    return Table(title, columns, rows)


def _rules(facts: Facts) -> Table:
    rows = []
    for rule in facts.rules.values():
        tuned = rule.get("tuned_on") or {}
        fitted, title = tuned.get("fitted_on_prompts"), rule.get("title")
        rows.append(
            [
                Entry(rule["name"], () if title in (None, rule["name"]) else (title,)),
                Entry(rule.get("source") or NONE),
                Entry(as_text(rule.get("settings") or {}) or NONE),
                Entry(
                    f"{tuned.get('prompts', NONE)} prompts",
                    () if fitted is None else (f"fitted on {fitted}",),
                ),
                Entry(str(tuned.get("settings_tried", NONE))),
                Entry(number(tuned.get("ms_per_token_simulated"), " ms")),
                Entry(str(tuned.get("trace") or NONE)),
            ]
        )
    columns = [
        "rule", "source", "settings", "tuned on", "settings tried",
        "ms per token, simulated", "trace",
    ]  # fmt: skip
    return Table("Published rules, tuned on traces", columns, rows, 3)


_JUDGED = "policies"


def _policies(facts: Facts) -> Iterator[Table]:
    """Where each judged policy lies and how it was trained; what was not set is left out."""
    for name, policy in (facts.payload["provenance"].get(_JUDGED) or {}).items():
        told = {"path": policy.get("path"), **dict(_leaves(policy.get("training") or {}))}
        rows = [
            [Entry(what.replace("_", " ")), Entry(_listed(value))]
            for what, value in told.items()
            if value is not None
        ]
        yield Table(f"What “{name}” is", ["what", "value"], rows, 2, folded=True)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested entries by joined names."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}: ")
        else:
            yield f"{prefix}{name}", value


def _listed(value: Any) -> str:
    """Long lists by their ends."""
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) > _LONG:
        return f"{as_text(value[0])} … {as_text(value[-1])} ({len(value)} values)"
    return as_text(value)
