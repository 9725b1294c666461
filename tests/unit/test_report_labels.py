"""Labels of charts: they fit, tell methods apart, and no method is lost to a namesake."""

from __future__ import annotations

from typing import Any

import pytest

from draftgym.benchmark.report.charts import PLANS
from draftgym.benchmark.report.facts import Facts
from draftgym.benchmark.report.labels import ROOM, distinct
from draftgym.benchmark.report.sections import sections
from draftgym.controllers import RULES
from tests.unit.report_data import TABLE, TUNED, details, payload

UCB = "BanditSpec: UCB over cells"


def labelled(*names: str) -> list[str]:
    return list(distinct({name: name for name in names}).values())


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (
            (f"{UCB}, simulated", "BanditSpec: EXP3 over cells, simulated"),
            ["BanditSpec: UCB over…", "BanditSpec: EXP3 over…"],
        ),
        (
            ("Transformers' confidence threshold", "Transformers' length schedule"),
            ["…confidence threshold", "Transformers' length…"],
        ),
        (
            (
                "transformers generate",
                "transformers generate, prompt look-up of 10",
                "transformers generate, assistant of the first 4 layers",
            ),
            ["transformers generate", "…prompt look-up of 10", "…assistant of the first…"],
        ),
        (("a  b", "a b", "a b #2"), ["a b", "a b #2", "a b #2 #2"]),
        (("y" * 50, "y" * 51), [f"{'y' * 12}…{'y' * 11}", f"{'y' * 12}…{'y' * 11} #2"]),
    ],
)
def test_labels_keep_what_tells_names_apart(names: tuple[str, ...], labels: list[str]) -> None:
    assert labelled(*names) == labels


def test_every_rule_has_a_short_name_of_its_own() -> None:
    shorts = [rule.short for rule in RULES.values()]
    assert len(set(shorts)) == len(shorts)
    assert all(0 < len(short) <= ROOM for short in shorts)


def bound(name: str) -> dict[str, Any]:
    over = {"ratio": 1.1, "ci95": [1.0, 1.2]}
    return {"method": name, "ms_per_token": 18.0, "over_tuned": over}


def test_no_chart_loses_a_method_to_a_namesake() -> None:
    twins = [f"{'y' * 40}{middle}{'y' * 40}" for middle in "ab"]
    facts = Facts(payload(), details(bounds={"methods": [bound(name) for name in twins]}))
    figure = PLANS["bounds"].draw(facts)
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert len(set(labels)) == len(labels) == 2


def test_a_rule_goes_by_its_short_name_live_and_simulated() -> None:
    fixed = "fixed depth and size"
    rules = [
        {"name": UCB, "title": UCB, "short": "BanditSpec UCB"},
        {"name": TUNED, "title": fixed, "short": "fixed setting"},
    ]
    rows = [{**row, "method": UCB} for row in payload()["results"][:1]] + payload()["results"]
    simulated = [bound(f"{name}, simulated") for name in (UCB, fixed)]
    facts = Facts(payload(results=rows), details(rules=rules, bounds={"methods": simulated}))
    assert facts.label(UCB) == facts.label(f"{UCB}, simulated") == "BanditSpec UCB"
    assert facts.label(f"{fixed}, simulated") == "fixed setting"
    assert facts.label(TUNED) == TUNED  # one of several cells


def test_tables_have_full_names() -> None:
    tables = {t.title: t for s in sections(Facts(payload(), details())) for t in s.tables}
    for title in ("Speedup over plain decoding", "Mean depth D and size V by domain"):
        assert TABLE in [row[0].text for row in tables[title].rows], title
