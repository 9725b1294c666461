"""What a report is made of: sections of sentences, charts and tables, whatever the format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell of a table.

    Attributes:
        text: What it says, unit included.
        notes: Lines of small print below, such as an interval.
        strong: Stands out.
        level: Speed as a shade, `slow-1`, `even`, `fast-1` to `fast-4`; the text says it, too.
    """

    text: str
    notes: Sequence[str] = ()
    strong: bool = False
    level: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first cell of each row names it.

    Attributes:
        title: Caption.
        columns: Headings, units included.
        rows: As long as `columns`.
        words: Leading columns that hold words, not numbers.
        folded: Closed on the page until asked for: figures that a chart shows, too.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    words: int = 1
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A finished chart.

    Attributes:
        title: Short, above it.
        caption: How to read it.
        alt: What it shows, for those who do not see it.
        svg: An `<svg>` element.
        png: The same as a file.
    """

    title: str
    caption: str
    alt: str
    svg: str
    png: bytes


@dataclass(frozen=True, slots=True)
class Section:
    """One heading and what stands below it.

    Attributes:
        title: Heading.
        sentences: Paragraphs.
        charts: Names of charts; those that could not be drawn are left out.
        tables: Shown below the charts.
    """

    title: str
    sentences: Sequence[str] = ()
    charts: Sequence[str] = ()
    tables: Sequence[Table] = ()
