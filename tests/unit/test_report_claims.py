"""What reports claim: of whose texts, on which prompts, by live or simulated time, of whom."""

from __future__ import annotations

from typing import Any

import pytest

from draftgym.benchmark.contenders import CONTROL
from draftgym.benchmark.report.charts import PLANS, plots
from draftgym.benchmark.report.facts import Facts
from draftgym.benchmark.report.markdown import markdown
from draftgym.benchmark.report.section import Section
from draftgym.benchmark.report.sections import sections
from draftgym.benchmark.report.words import headline
from tests.unit.report_data import (
    HOPELESS,
    PACE,
    PEER,
    PLAIN,
    POLICY,
    TUNED,
    details,
    payload,
    small_details,
)


def section(facts: Facts, title: str) -> Section:
    return next(section for section in sections(facts) if section.title == title)


def parting(method: str, near_tie: bool, prompt: str = "code-1") -> dict[str, Any]:
    return {
        "method": method,
        "prompt_id": prompt,
        "position": 3,
        "near_tie": near_tie,
        "top2_gap": 0.4,
    }


def test_texts_of_transformers_are_not_said_to_be_plain_decodings() -> None:
    apart = [parting(PEER, False), parting(PEER, True, "code-2")]
    facts = Facts(payload(), details(divergences=apart))
    said = headline(facts)[-1]
    other = (
        "Transformers' own decoding wrote other texts: “transformers generate” on 1 of 60 prompts."
    )
    assert said == f"Every text of DraftGym's decoder is plain decoding's. {other}"
    shown = section(facts, "Outputs")
    assert "every text of DraftGym's decoder" in shown.sentences[0]
    assert other in shown.sentences
    assert [row[2].text for row in shown.tables[0].rows] == ["another text", "near-tie"]
    # The count alone says it, too; near-ties of the decoder are still told.
    counted = details(divergences=[parting(POLICY, True)])
    counted["measures"][PEER]["all"]["identical_outputs"] = 57
    said = headline(Facts(payload(), counted))[-1]
    assert "Every text of DraftGym's decoder is plain decoding's, but for 1 near-tie," in said
    assert "“transformers generate” on 3 of 60 prompts" in said


def test_near_ties_of_transformers_are_near_ties() -> None:
    said = headline(Facts(payload(), details(divergences=[parting(PEER, True)])))[-1]
    assert said.startswith("Every text is plain decoding's, but for 1 near-tie,")


def test_a_fault_of_the_decoder_is_a_fault() -> None:
    facts = Facts(payload(identical_outputs=59), details(divergences=[parting(POLICY, False)]))
    assert "Fault: on 1 of 60 prompts" in headline(facts)[0]
    assert section(facts, "Outputs").tables[0].rows[0][2].text == "fault"


def test_bounds_say_which_prompts_they_are_of() -> None:
    given = details()["bounds"]
    title = "Distance to the bounds"
    assert section(Facts(payload(), details()), title).sentences == [
        "By mean measured costs of runs/default/latency.json, on 208 traced prompts of the test "
        "split (runs/default/trace-test); simulated."
    ]
    tuned = Facts(payload(), details(bounds={**given, "split": "validation"}))
    assert "tuned on these very prompts" in section(tuned, title).sentences[1]
    old = Facts(payload(), details(bounds={"methods": given["methods"]}))
    assert section(old, title).sentences == [
        "By mean measured costs, on traced prompts; simulated."
    ]
    how = " ".join(section(old, "How to read this").sentences)
    assert "everything here" not in how and "says on which prompts" in how


def cells(count: int) -> list[dict[str, Any]]:
    first = small_details()["validation"][0]
    return [
        {**first, "method": f"fixed D=1 V={size}", "depth": 1, "size": size}
        for size in range(1, count + 1)
    ]


def test_cells_tuned_on_traces_are_simulated() -> None:
    origin = {**payload()["provenance"], "tuned_on": {"validation_trace": "runs/trace"}}
    rule = {"name": TUNED, "title": "fixed depth and size", "tuned_on": {"prompts": 48}}
    only: dict[str, Any] = {"decisions": {}, "time_split": {}, "validation": cells(38)}
    for line, told in (
        (payload(provenance=origin), small_details(**only)),
        (payload(), small_details(**only, rules=[rule])),
    ):
        table = section(Facts(line, told), "What was tuned on what").tables[0]
        assert table.title.endswith("the best 12 of 38, simulated on traces, mean costs")
        assert len(table.rows) == 12 and table.rows[0][0].text == "fixed D=1 V=1"
        assert PLANS["validation"].more(Facts(line, told)) == " Simulated on traces, mean costs."
    assert "left the race" not in plots(line, told)["validation"].caption
    # Cells that raced live beside rules that were tuned on traces.
    raced = small_details(**only, config={"cells": [{"depth": 1, "size": 8}]})
    facts = Facts(payload(provenance=origin), raced)
    table = section(facts, "What was tuned on what").tables[0]
    assert table.title == "Fixed settings on validation prompts" and len(table.rows) == 38
    assert "left the race early" in PLANS["validation"].more(facts)


def test_every_depth_has_a_line_of_its_own() -> None:
    first = small_details()["validation"][0]
    rows = [{**first, "depth": depth, "size": size} for depth in range(7) for size in (4, 8)]
    figure = PLANS["validation"].draw(Facts(payload(), small_details(validation=rows)))
    drawn = figure.axes[0].get_lines()[:7]
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in drawn}
    assert len(looks) == 7


def test_acceptance_is_of_rounds_that_verified_so_many() -> None:
    assert "verified at least that many tokens" in PLANS["acceptance"].caption


def unjudged(*names: str) -> Facts:
    """An evaluation without a policy, of these methods."""
    rows = [row for row in payload()["results"] if row["method"] in names]
    lost = {"policy_vs_plain": None, "policy_vs_best_fixed": None}
    return Facts(payload(results=rows, **lost), details())


def test_the_control_is_neither_subject_nor_fastest() -> None:
    assert PACE[CONTROL] < PACE[PLAIN]
    facts = unjudged(PLAIN, CONTROL, HOPELESS)
    assert facts.methods[0] == CONTROL and facts.subject == HOPELESS
    said = " ".join(headline(facts))
    assert "No method was faster than plain decoding." in said and CONTROL not in said
    alone = unjudged(PLAIN, CONTROL)
    assert alone.subject == PLAIN and "No method" not in " ".join(headline(alone))
    slow = [
        {**row, "ms_per_token": 50.0} if row["method"] == POLICY else row
        for row in payload()["results"]
        if row["method"] in (PLAIN, CONTROL, POLICY)
    ]
    said = " ".join(headline(Facts(payload(results=slow), details())))
    assert "No method was faster than plain decoding." in said and CONTROL not in said
    assert facts.kind(CONTROL) == "control" and CONTROL not in facts.featured


def test_provenance_names_the_judged_policies() -> None:
    facts = Facts(payload(), details())
    origin, policy = section(facts, "Provenance").tables
    assert "policies" not in [row[0].text for row in origin.rows]
    assert policy.title == "What “learned policy” is"
    assert {row[0].text: row[1].text for row in policy.rows} == {
        "path": "runs/x/policy",
        "method": "all-action",
        "hidden": "64, 64",
        "held out: over tuned cell": "1.13631",
        "held out: curve": "1 … 1.11 (12 values)",
    }
    assert "| held out: over tuned cell | 1.13631 |" in markdown(facts, sections(facts), {})


@pytest.mark.parametrize(("milliseconds", "shown"), [(None, False), (0.0, False), (2.2, True)])
def test_a_drafter_without_passes_has_no_line(milliseconds: float | None, shown: bool) -> None:
    curves = {**details()["cost_curves"], "draft_pass_ms": milliseconds}
    figure = PLANS["cost_curves"].draw(Facts(payload(), details(cost_curves=curves)))
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("draft pass" in names) is shown and "target pass" in names
