"""Reports: what they say of every outcome, and that awkward names and absent data do no harm."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from draftgym.benchmark.report import write_report
from draftgym.benchmark.report.charts import PLANS, plots
from draftgym.benchmark.report.facts import Facts, Versus
from draftgym.benchmark.report.html import html
from draftgym.benchmark.report.markdown import markdown
from draftgym.benchmark.report.rows import csv_text
from draftgym.benchmark.report.sections import sections
from draftgym.benchmark.report.words import PERCENT, change, headline, number, span, times
from tests.unit.report_data import (
    DOMAINS,
    HOPELESS,
    ODD,
    PACE,
    PEER,
    PLAIN,
    POLICY,
    TABLE,
    TUNED,
    details,
    payload,
    small_details,
)

STYLE = (Path(__file__).parents[2] / "draftgym/benchmark/report/page.css").read_text()
NO_DIFFERENCE = "no significant difference"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("full")
    write_report(folder, payload(), details())
    return folder


def compared(method: str, over_plain: Versus, over_tuned: Versus | None, **changes: Any) -> str:
    """The headline when a method stands so against plain decoding and the tuned cell."""
    entries = [(PLAIN, over_plain), (TUNED, over_tuned)]
    rows = [
        {
            "baseline": baseline,
            "method": method,
            "ratio": entry.ratio,
            "ci95": [entry.low, entry.high],
            "verdict": entry.verdict,
        }
        for baseline, entry in entries
        if entry is not None
    ]
    more = {"comparisons": rows, "rules": details()["rules"]}
    more["divergences"] = changes.pop("divergences", [])
    text = " ".join(headline(Facts(payload(**changes), small_details(**more))))
    return text.replace(PERCENT, " %")


FASTER = Versus(2.09, 1.78, 2.49, "faster")


def test_headline_of_a_policy_that_wins() -> None:
    text = compared(POLICY, FASTER, Versus(1.08, 1.03, 1.13, "faster"))
    assert text.startswith(
        "On this machine the learned policy writes text 2.09 times as fast as plain decoding "
        "(95 % sure of 1.78 to 2.49) and 8 % faster than the best fixed setting "
        "(95 % sure of 3 to 13 %)."
    )
    assert text.endswith("Every text is plain decoding's.")
    # The table is faster still, and that is said.
    assert "The fastest of the 20 methods was the method “…" in text
    assert "flatters" in text


def test_headline_hides_no_bad_news() -> None:
    unsure = Versus(1.02, 0.98, 1.07, NO_DIFFERENCE)
    text = compared(POLICY, FASTER, unsure)
    assert "there is no significant difference (95 % sure of 2 % slower to 7 % faster)" in text
    corrected = compared(POLICY, FASTER, Versus(1.04, 1.001, 1.08, NO_DIFFERENCE))
    assert "could be chance when so many methods are compared" in corrected
    slower = compared(POLICY, FASTER, Versus(0.9, 0.85, 0.96, "slower"))
    assert "but 10 % slower than the best fixed setting (95 % sure of 4 to 15 %)" in slower
    worse = compared(POLICY, Versus(0.8, 0.7, 0.9, "slower"), Versus(0.5, 0.4, 0.6, "slower"))
    assert "was 20 % slower than plain decoding (95 % sure of 10 to 30 %) and 50 % slower" in worse
    nothing = compared(POLICY, Versus(1.0, 0.97, 1.03, NO_DIFFERENCE), unsure)
    assert "was not surely faster or slower than plain decoding" in nothing


def test_headline_without_a_policy_is_about_the_fastest() -> None:
    rows = [row for row in payload()["results"] if row["method"] not in (POLICY, TABLE)]
    lost = {"results": rows, "policy_vs_plain": None, "policy_vs_best_fixed": None}
    text = compared("svip", FASTER, None, **lost)
    assert text.startswith("No policy was given. On this machine the rule “svip” writes")
    slow = [row for row in rows if row["method"] in (PLAIN, HOPELESS)]
    text = compared(HOPELESS, Versus(0.01, None, None, "slower"), None, **{**lost, "results": slow})
    assert "99 % slower than plain decoding (no interval)" in text
    assert "No method was faster than plain decoding." in text


def test_headline_tells_of_texts_that_differ() -> None:
    tie = {"method": "m", "prompt_id": "p", "position": 1, "near_tie": True, "top2_gap": 1e-6}
    assert "but for 1 near-tie, where" in compared(POLICY, FASTER, FASTER, divergences=[tie])
    wrong = compared(POLICY, FASTER, FASTER, identical_outputs=58)
    assert wrong.startswith("Fault: on 2 of 60 prompts a text differed")
    assert "must not be used" in wrong


def test_numbers_in_words() -> None:
    assert [number(value) for value in (None, float("nan"), 0, 0.0123, 1.234, 12.34, 1234.5)] == [
        "–", "–", "0", "0.0123", "1.23", "12.3", "1,234",
    ]  # fmt: skip
    assert [times(value) for value in (None, 0.0047, 1.046, 40_000.0)] == [
        "–", "0.0047×", "1.05×", "40,000.00×",
    ]  # fmt: skip
    assert change(3.0, "x") == "3.00 times as fast as x"
    assert change(1.001, "x") == "as fast as x"
    assert span(Versus(3.0, 2.5, 3.5, "")) == f"95{PERCENT} sure of 2.50 to 3.50 times"


def test_every_file_is_written_and_listed(tmp_path: Path) -> None:
    files = write_report(tmp_path, payload(), small_details())
    assert {path.relative_to(tmp_path).as_posix() for path in files} == {
        "report.json", "report.csv", "report.md", "report.html", "plots/time_per_token.png",
        "plots/decisions.png", "plots/time_split.png", "plots/validation.png",
    }  # fmt: skip
    assert all(path.stat().st_size for path in files)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for absent in ("What a reader waits for", "Distance to the bounds", "Published rules"):
        assert absent not in page
    assert "Traceback" not in page and "None" not in page and "nan" not in page.lower().split()


class Elements(HTMLParser):
    """Counts elements, checks that they close, and gathers ids and addresses."""

    VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("href", "src", "xlink:href"):
                self.addresses.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_whole_and_needs_nothing_else(written: Path) -> None:
    page = (written / "report.html").read_text(encoding="utf-8")
    elements = Elements()
    elements.feed(page)
    assert elements.open == []
    assert len(set(elements.ids)) == len(elements.ids)
    inside = {address[1:] for address in elements.addresses if address.startswith("#")}
    assert inside <= set(elements.ids)
    others = {address for address in elements.addresses if not address.startswith("#")}
    assert others == {"data:,", "report.json", "report.csv", "report.md"}
    assert not {"script", "iframe", "img", "object", "b"} & set(elements.tags)
    assert "url(http" not in page and "@import" not in page and "@font-face" not in page
    assert elements.tags.count("svg") == len(PLANS) == elements.tags.count("figcaption")
    assert elements.tags.count("table") == elements.tags.count("caption")
    assert page.count('role="img" aria-label="') == len(PLANS)


def test_names_are_text_not_markup(written: Path) -> None:
    page = (written / "report.html").read_text(encoding="utf-8")
    assert "<b>R&D" not in page
    assert "&lt;b&gt;R&amp;D&lt;/b&gt; | &#34;quoted&#34; rule $x_1$" in page
    assert "Made-up CPU &lt;4 GHz&gt;" in page
    text = (written / "report.md").read_text(encoding="utf-8")
    assert '&lt;b>R&amp;D&lt;/b> \\| "quoted" rule $x_1$' in text
    # Every table line has as many cells as its heading.
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1


def test_page_and_markdown_say_the_same(written: Path) -> None:
    page = (written / "report.html").read_text(encoding="utf-8")
    text = (written / "report.md").read_text(encoding="utf-8")
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == titles
    assert len(titles) == 10
    for shown in ("18.8 ms", "2.09×", "p 0.040", "not surely different", "arXiv:2406.00001"):
        assert shown in page and shown in text
    assert "| **learned policy**, learned | 18.8 ms [16.5, 21.2] |" in text
    assert "not measured: peak memory, energy per token" in text
    for name in re.findall(r"\]\((plots/.*?)\)", text):
        assert (written / name).is_file()


def test_a_doubtful_baseline_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftgym.benchmark.report.plots", lambda payload, details: {})
    doubt = {"ok": False, "why": "V = 32 is the edge of the grid"}
    write_report(tmp_path, payload(baseline_tuned=doubt), details())
    for name in ("report.html", "report.md"):
        assert doubt["why"] in (tmp_path / name).read_text(encoding="utf-8")


OPTIONAL = sorted(details().keys() - small_details().keys())
MEASURES = sorted(details()["measures"][POLICY]["all"])


@pytest.mark.parametrize("empty", [True, False])
@pytest.mark.parametrize("key", OPTIONAL)
def test_absent_data_leave_no_trace(key: str, empty: bool) -> None:
    facts = Facts(payload(), details(**{key: type(details()[key])() if empty else None}))
    content = sections(facts)
    assert "None" not in html(facts, content, {}) + markdown(facts, content, {})
    assert len(csv_text(facts).splitlines()) == 1 + len(PACE) * (1 + len(DOMAINS))


def test_null_measures_and_methods_without_details_are_dashes() -> None:
    bare = details()
    for entry in bare["measures"].values():
        for measures in (entry["all"], *entry["domains"].values()):
            measures.update(dict.fromkeys(MEASURES))
    for key in ("domains", "over_time", "decisions", "decisions_by_domain", "time_split"):
        bare[key]["svip"] = None
    bare["bounds"]["methods"][0]["over_tuned"] = None
    facts = Facts(payload(), bare)
    content = sections(facts)
    text = markdown(facts, content, {})
    assert "None" not in text + html(facts, content, {})
    assert "Work (not measured: target rows per token, draft passes per token" in text
    assert PLANS["tokens"].draw(facts) is None is PLANS["acceptance"].draw(facts)
    assert "svip" not in facts.featured


def test_csv_has_a_line_per_method_and_domain() -> None:
    lines = list(csv.DictReader(io.StringIO(csv_text(Facts(payload(), details())))))
    assert len(lines) == len(PACE) * (1 + len(DOMAINS))
    found = {(line["method"], line["domain"]): line for line in lines}
    whole = found[POLICY, "all"]
    assert float(whole["ms_per_token"]) == PACE[POLICY]
    assert float(whole["inter_token_ms_p99"]) == pytest.approx(3 * PACE[POLICY])
    assert whole["acceptance_by_position_6"] == "" == whole["peak_memory_mib"]
    assert float(whole["acceptance_by_position_1"]) == 0.8
    assert found[ODD, "chat"]["kind"] == "published rule"
    assert found[PEER, "maths"]["drafted_per_token"] == ""
    assert found[POLICY, "code"]["speedup_low"] == ""
    assert float(found[POLICY, "chat"]["speedup"]) == pytest.approx(0.75 * 39.3 / 18.8)
    # Measures of one domain, not of all.
    assert found[POLICY, "chat"]["ms_per_token"] != whole["ms_per_token"]
    small = list(csv.DictReader(io.StringIO(csv_text(Facts(payload(), small_details())))))
    assert len(small) == len(lines)
    assert float(small[0]["tau_emitted"]) == 3.1


def test_json_holds_everything(written: Path) -> None:
    stored = json.loads((written / "report.json").read_text(encoding="utf-8"))
    assert stored["schema"] == "draftgym.evaluate/1"
    assert stored["details"].keys() == details().keys()


def test_charts_are_the_same_every_time_and_turn_dark() -> None:
    only = {"validation": [], "decisions": {}, "time_split": {}}
    first = plots(payload(), small_details(**only))
    again = plots(payload(), small_details(**only))
    assert first.keys() == {"time_per_token"}
    svg = first["time_per_token"].svg
    assert svg == again["time_per_token"].svg
    assert first["time_per_token"].png[:4] == b"\x89PNG"
    # A colour that is not a variable of the page stays bright in the dark.
    fixed = set(re.findall(r"#[0-9a-f]{6}\b", svg))
    assert fixed <= {"#ffffff", "#000000"}
    for variable in set(re.findall(r"var\((--[\w-]+)\)", svg)):
        assert STYLE.count(f"{variable}:") >= 2


def contrast(one: str, other: str) -> float:
    """Of two colours, by WCAG 2.2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_are_told_apart_in_light_and_dark() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    palettes = re.findall(r":root \{(.*?)\}", STYLE, flags=re.DOTALL)
    assert len(palettes) == 2
    for palette in palettes:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", palette))
        for ground in ("paper", "card"):
            for text in ("ink", "muted", "link", "fault"):
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
            for line in (name for name in colours if name.startswith("series-")):
                assert contrast(colours[line], colours[ground]) >= 3, (line, ground)
        for shade in (name for name in colours if re.match("slow-|fast-|even", name)):
            assert contrast(colours["ink"], colours[shade]) >= 4.5, shade


def test_methods_keep_apart_whatever_their_names() -> None:
    long = "x" * 60
    rows = [
        {**payload()["results"][0], "method": name}
        for name in (PLAIN, f"{long}/a/table.json", f"{long}/b/table.json", f"{long}/a/" * 2)
    ]
    facts = Facts(payload(results=rows), small_details())
    assert len(set(facts.labels.values())) == len(rows)
    assert max(map(len, facts.labels.values())) <= 32
    twins = [{**rows[0], "method": f"{'y' * 40}{middle}{'y' * 40}"} for middle in "ab"]
    labels = Facts(payload(results=twins), small_details()).labels.values()
    assert len(set(labels)) == 2


def test_old_comparisons_are_found_where_they_were() -> None:
    facts = Facts(payload(), small_details())
    for method in (POLICY, TABLE):
        over = facts.versus(TUNED, method)
        assert over is not None and over.ratio == pytest.approx(PACE[TUNED] / PACE[method])
    assert facts.versus(TUNED, "svip") is None
    plain = facts.versus(PLAIN, "svip")
    assert plain is not None and plain.p_holm is None
    assert facts.measure("svip") == {} and facts.kind("svip") == "other"
    assert facts.featured[:2] == [POLICY, TUNED] and PEER not in facts.featured
