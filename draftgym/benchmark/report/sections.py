"""The report's sections, in reading order; a section without data is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftgym.benchmark.report.facts import PARTS, TRANSFORMERS, Facts, Row, Versus
from draftgym.benchmark.report.measured import WAITING, WORK, measure_table
from draftgym.benchmark.report.origin import provenance, tuning
from draftgym.benchmark.report.section import Entry, Section, Table
from draftgym.benchmark.report.words import NONE, limits, number, other_texts, times
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
        tuning(facts),
        _outputs(facts),
        provenance(facts),
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
        "validation prompts; methods are judged live on test prompts. What was simulated, bounds "
        "among it, says on which prompts.",
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
        rows.append([Entry(name), *map(_shaded, found)])
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
    names = [name for name in facts.contenders if by_domain.get(name)]
    rows = [
        [
            Entry(name),
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
        [Entry(name), *(Entry(number(found.get(part), " ms")) for part in PARTS)]
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
            _simulated_on(facts.details["bounds"]),
            charts=("bounds",),
            tables=(Table("By mean measured costs, not live", columns, rows),),
        )
    ]


def _simulated_on(bounds: Mapping[str, Any]) -> list[str]:
    """By which costs and on which prompts, as far as that is known."""
    table, prompts, split, trace = map(bounds.get, ("table", "prompts", "split", "trace"))
    sentences = [
        f"By mean measured costs{f' of {table}' if table else ''}, "
        f"on {f'{prompts} ' if prompts else ''}traced prompts"
        f"{f' of the {split} split' if split else ''}{f' ({trace})' if trace else ''}; simulated."
    ]
    if split == "validation":
        sentences.append(
            "Rules and fixed settings were tuned on these very prompts, which flatters them here."
        )
    return sentences


def _outputs(facts: Facts) -> Section:
    payload, details = facts.payload, facts.details
    sentences = [
        f"{payload['identical_outputs']} of {payload['prompts']} prompts: every text of DraftGym's "
        "decoder equals plain decoding's, or first differs at a near-tie of the target.",
        other_texts(facts),
    ]
    if details["left_out"]:
        sentences.append(
            "Left out, because the first token ended the text: " + ", ".join(details["left_out"])
        )
    rows = [
        [
            Entry(entry["method"]),
            Entry(entry["prompt_id"]),
            _kind(facts, entry),
            Entry(str(entry["position"])),
            Entry(f"{entry['top2_gap']:.2g}"),
        ]
        for entry in details["divergences"]
    ]
    columns = ["method", "prompt", "kind", "at token", "gap of the two best logits"]
    tables = (Table("Where texts part", columns, rows, 3),) if rows else ()
    return Section("Outputs", [*filter(None, sentences)], tables=tables)


def _kind(facts: Facts, divergence: Row) -> Entry:
    """Only DraftGym's decoder promises plain decoding's text."""
    if divergence["near_tie"]:
        return Entry("near-tie")
    ours = facts.kind(divergence["method"]) != TRANSFORMERS
    return Entry("fault", strong=True) if ours else Entry("another text")
