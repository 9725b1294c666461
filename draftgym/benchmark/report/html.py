"""A report as one HTML file that needs nothing else: no script, no font, no request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from draftgym.benchmark.report.facts import Facts
from draftgym.benchmark.report.section import Chart, Section
from draftgym.benchmark.report.words import headline, number, times, warning
from draftgym.benchmark.summary import PLAIN


def html(facts: Facts, content: Sequence[Section], charts: Mapping[str, Chart]) -> str:
    """The page.

    Args:
        facts: The evaluation.
        content: Its sections.
        charts: By name; their SVG goes into the page as it is.
    """
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    provenance = facts.payload["provenance"]
    page = templates.get_template("page.html")
    return page.render(
        headline=headline(facts),
        fault=facts.payload["identical_outputs"] < facts.payload["prompts"],
        warning=warning(facts),
        tiles=_tiles(facts),
        sections=content,
        charts=charts,
        date=provenance["date"][:10],
        command=provenance["command"],
    )


def _tiles(facts: Facts) -> list[tuple[str, str]]:
    """The few figures to take away, with what they are."""
    pace = {row["method"]: row["ms_per_token"] for row in facts.rows}
    subject = facts.subject
    who = "learned policy" if facts.judged else facts.label(subject)
    tiles = []
    if subject != PLAIN:
        change = f"{number(pace[PLAIN])} → {number(pace[subject])} ms"
        tiles.append((change, f"per token, plain decoding → {who}"))
        plain = facts.versus(PLAIN, subject)
        if plain is not None:
            tiles.append((times(plain.ratio), f"{who} over plain decoding"))
        tuned = facts.versus(facts.tuned, subject)
        if tuned is not None and subject != facts.tuned:
            tiles.append((times(tuned.ratio), f"{who} over the best fixed setting"))
    same, prompts = facts.payload["identical_outputs"], facts.payload["prompts"]
    what = "prompts on which DraftGym's decoder wrote plain decoding's text"
    return [*tiles, (f"{same} of {prompts}", what)]
