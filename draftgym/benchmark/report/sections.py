"""The report's sections, in reading order; a section without data is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftgym.benchmark.report.facts import PARTS, Facts, Versus
from draftgym.benchmark.report.measured import WAITING, WORK, measure_table
from draftgym.benchmark.report.section import Entry, Section, Table
from draftgym.benchmark.report.words import NONE, limits, number, times
from draftgym.benchmark.summary import PLAIN

_LEVELS = ((0.8, "slow-2"), (0.97, "slow-1"), (1.03, "even"), (1.25, "fast-1"), (1.6, "fast-2"))
_LEVELS_END = ((2.2, "fast-3"), (float("inf"), "fast-4"))


def sections(facts: Facts) -> list[Section]:
    """Everything below the headline."""
    return [
        _methods(facts),
        _domains(facts),
        *_decisions(facts),
        *_costs(facts),
        *_bounds(facts),
        _tuning(facts),
        _outputs(facts),
        _provenance(facts),
        HOW_TO_READ,
    ]


HOW_TO_READ = Section(
    "How to read this",
    (
        "Time per token is the sum of seconds over the sum of tokens of all decoding rounds. "
        "Prefill, and the token that it yields, are only in the time to the first token and in "
        "tokens per second with prefill.",
        "Speedup is the baseline's time per token over the method's, both measured in this run on "
        "the same prompts: above 1 is faster.",
        "Brackets hold 95 % intervals from a bootstrap that resamples prompts and keeps each "
        "prompt's methods together. They say what other prompts of this kind would do on this "
        "machine, not what another machine would do.",
        "Verdicts are corrected for the number of comparisons with the same baseline (Holm), "
        "where corrected p is shown.",
        "D is the number of draft passes of a round, V the number of drafted tokens that the "
        "target checks in one pass. A fixed setting uses one pair for all rounds. It was tuned on "
        "validation prompts, everything here is judged on test prompts.",
    ),
)


def _methods(facts: Facts) -> Section:
    columns = [
        "method",
        "ms per token",
        "over plain decoding",
        "over the tuned setting",
        "tokens per round",
    ]
    measured = any(facts.measure(name) for name in facts.methods)
    if measured:
        columns += ["tokens per second, decoding", "tokens per second, with prefill", "same text"]
    rows = []
    for row in facts.rows:
        name = row["method"]
        cells = [
            Entry(name, (facts.kind(name),), strong=name in (facts.subject, facts.tuned, PLAIN)),
            Entry(number(row["ms_per_token"], " ms"), limits(*row["ci95"])),
            _ratio(facts.versus(PLAIN, name), name == PLAIN),
            _ratio(facts.versus(facts.tuned, name), name == facts.tuned),
            Entry(number(row["tau_emitted"])),
        ]
        if measured:
            found = facts.measure(name)
            same, of = found.get("identical_outputs"), found.get("prompts")
            cells += [
                Entry(number(found.get("tokens_per_second_decode"))),
                Entry(number(found.get("tokens_per_second_end_to_end"))),
                Entry(NONE if same is None else f"{same} of {of}", strong=same != of),
            ]
        rows.append(cells)
    payload, machine = facts.payload, facts.payload["provenance"]
    where = machine.get("gpu", {}).get("name") or machine["cpu"]
    return Section(
        "Methods",
        (
            f"{payload['prompts']} test prompts × {payload['repeats']} repeats on {where}, "
            f"{machine['device']}, {machine['dtype']}, {machine['threads']} threads.",
        ),
        ("time_per_token", "over_tuned"),
        (Table("Every method, fastest first", columns, rows),),
    )


def _ratio(entry: Versus | None, itself: bool) -> Entry:
    """A comparison: ratio, interval, verdict, corrected p."""
    if itself:
        return Entry("1×")
    if entry is None:
        return Entry(NONE)
    verdict = entry.verdict.replace("no significant difference", "not surely different")
    p = "" if entry.p_holm is None else f"p {_probability(entry.p_holm)}"
    judged = ", ".join(filter(None, (verdict, p)))
    return Entry(times(entry.ratio), (*limits(entry.low, entry.high), judged))


def _probability(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _domains(facts: Facts) -> Section:
    rows = []
    for name in facts.methods:
        found = [facts.domain(name, domain) for domain in facts.domains]
        rows.append([Entry(facts.label(name)), *map(_shaded, found)])
    return Section(
        "Speedup by domain",
        ("Over plain decoding, on the prompts of each domain alone.",),
        tables=(Table("Speedup over plain decoding", ["method", *facts.domains], rows),),
    )


def _shaded(entry: Versus | None) -> Entry:
    if entry is None:
        return Entry(NONE)
    level = next(name for end, name in (*_LEVELS, *_LEVELS_END) if entry.ratio < end)
    return Entry(times(entry.ratio), limits(entry.low, entry.high), level=level)


def _decisions(facts: Facts) -> list[Section]:
    by_domain = facts.details.get("decisions_by_domain") or {}
    names = [name for name in facts.methods if by_domain.get(name) and name != PLAIN]
    rows = [
        [
            Entry(facts.label(name)),
            *(_cell(by_domain[name].get(domain)) for domain in facts.domains),
        ]
        for name in names
    ]
    table = Table(
        "Mean depth D and size V by domain", ["method", *facts.domains], rows, folded=True
    )
    return [
        Section(
            "What was decided",
            charts=("decisions", "over_time", "acceptance", "reliability"),
            tables=(table,) if rows else (),
        )
    ]


def _cell(found: Mapping[str, Any] | None) -> Entry:
    if not found:
        return Entry(NONE)
    return Entry(f"D {number(found.get('depth'))}", (f"V {number(found.get('size'))}",))


def _costs(facts: Facts) -> list[Section]:
    parts = [
        [Entry(facts.label(name)), *(Entry(number(found.get(part), " ms")) for part in PARTS)]
        for name, found in facts.split.items()
    ]
    tables = [Table("Parts of the time per token", ["method", *PARTS], parts, folded=True)]
    title, charts = "Costs of a round", ("time_split", "tokens", "cost_curves")
    if not any(facts.measure(name) for name in facts.methods):
        return [Section(title, charts=charts, tables=tables)]
    return [
        Section(title, charts=charts, tables=[*tables, measure_table(facts, "Work", WORK)]),
        Section(
            "What a reader waits for",
            (
                "The tokens of one round arrive together: all but the first of them wait for "
                "nothing, so a median of 0 ms between tokens is right, and the longest waits are "
                "whole rounds. The first token waits for the prompt to be read.",
            ),
            tables=(measure_table(facts, "Waiting", WAITING),),
        ),
    ]


def _bounds(facts: Facts) -> list[Section]:
    if not facts.bounds:
        return []
    rows = [
        [Entry(row["method"]), Entry(number(row["ms_per_token"], " ms")), _ratio(over, False)]
        for row, over in facts.bounds
    ]
    columns = ["on traces", "ms per token", "over the tuned setting"]
    return [
        Section(
            "Distance to the bounds",
            (f"By the measured costs in {as_text(facts.details['bounds'].get('table'))}.",),
            charts=("bounds",),
            tables=(Table("By mean measured costs, not live", columns, rows),),
        )
    ]


def _tuning(facts: Facts) -> Section:
    best, hindsight = facts.payload["best_fixed"], facts.payload["best_fixed_hindsight"]
    cells = [
        [
            Entry(row["method"], strong=row["method"] == facts.tuned),
            Entry(str(row["prompts"])),
            Entry(number(row["ms_per_token"], " ms")),
            Entry(number(row["tau_emitted"])),
            Entry(times(row["speedup"])),
        ]
        for row in facts.details["validation"]
    ]
    columns = ["setting", "prompts", "ms per token", "tokens per round", "over plain decoding"]
    tables = [Table("Fixed settings on validation prompts", columns, cells)]
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


def _rules(facts: Facts) -> Table:
    rows = []
    for rule in facts.rules.values():
        tuned = rule.get("tuned_on") or {}
        fitted = tuned.get("fitted_on_prompts")
        rows.append(
            [
                Entry(rule["name"], (rule.get("title") or "",)),
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


def _outputs(facts: Facts) -> Section:
    payload, details = facts.payload, facts.details
    sentences = [
        f"{payload['identical_outputs']} of {payload['prompts']} prompts: every method's output "
        "equals plain decoding's, or first differs at a near-tie of the target."
    ]
    if details["left_out"]:
        sentences.append(
            "Left out, because the first token ended the text: " + ", ".join(details["left_out"])
        )
    rows = [
        [
            Entry(entry["method"]),
            Entry(entry["prompt_id"]),
            Entry("near-tie") if entry["near_tie"] else Entry("fault", strong=True),
            Entry(str(entry["position"])),
            Entry(f"{entry['top2_gap']:.2g}"),
        ]
        for entry in details["divergences"]
    ]
    columns = ["method", "prompt", "kind", "at token", "gap of the two best logits"]
    tables = (Table("Where texts part", columns, rows, 3),) if rows else ()
    return Section("Outputs", sentences, tables=tables)


def _provenance(facts: Facts) -> Section:
    rows = [
        [Entry(key.replace("_", " ")), Entry(as_text(value))]
        for key, value in facts.payload["provenance"].items()
    ]
    table = Table("Where the figures come from", ["what", "value"], rows, 2)
    return Section("Provenance", tables=(table,))


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
    return str(value)
