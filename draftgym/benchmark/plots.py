"""Figures as PNG bytes or as SVG for a page. It neither measures nor writes files."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any


def new_figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Any, Any]:
    """A figure, and its panels: one alone, a list of them, or a grid.

    Args:
        width: Inches.
        height: Inches.
        columns: Panels beside each other.
        rows: Panels below each other.
    """
    # The object interface, because pyplot would pick a display and keep every figure alive.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns)


def png(figure: Any) -> bytes:
    """The figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def inline_svg(figure: Any, name: str, colours: Mapping[str, str]) -> str:
    """The figure as an `<svg>` element to stand inside a page; the same bytes every time.

    Args:
        figure: What to draw.
        name: Prefix of the element ids, so that figures of one page do not share any.
        colours: Hexadecimal colours of the figure, and what the page's style calls them; a page
            that turns dark then takes the figure along.
    """
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    box = re.search(r'<svg[^>]*viewBox="([^"]*)"[^>]*>', text)
    assert box is not None, "Matplotlib writes one svg element with a view box"
    text = f'<svg viewBox="{box[1]}">{text[box.end() :]}'
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
    used = set(re.findall(r'(?:href="|url\()#([\w-]+)', text))
    text = re.sub(r'\sid="([\w-]+)"', lambda m: m[0] if m[1] in used else "", text)
    text = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    for colour, variable in colours.items():
        text = text.replace(colour, f"var({variable})")
    return re.sub(r"\n\s*", "\n", text).strip()
