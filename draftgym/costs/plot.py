"""A picture of a latency table, as PNG bytes. It neither measures nor writes files."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftgym.benchmark.plots import new_figure, png
from draftgym.costs.table import LatencyTable

# One hiccup of the machine would flatten everything else.
_SHOWN = 0.99


def latency_plot(table: LatencyTable) -> bytes:
    """Every bucket of every kind of work: points, quartiles and median, milliseconds.

    Args:
        table: What to draw.

    Returns:
        PNG bytes.
    """
    kinds = table.kinds
    most = max(len(table.buckets(kind)) for kind in kinds)
    figure, panels = new_figure(max(7.0, 0.3 * most + 2), 3.2 * len(kinds), rows=len(kinds))
    for kind, axes in zip(kinds, panels, strict=True):
        buckets = table.buckets(kind)
        _draw(axes, {bucket.name: 1e3 * bucket.seconds for bucket in buckets})
        axes.set_ylabel(f"{kind}, ms")
    panels[0].set_title(
        "samples at the usual pace, quartiles and median; the slowest 1% may lie above"
    )
    return png(figure)


def _draw(axes: Any, milliseconds: dict[str, Any]) -> None:
    places = np.arange(len(milliseconds))
    spread = np.random.default_rng(0)  # sideways, so that points do not hide each other
    for place, values in zip(places, milliseconds.values(), strict=True):
        sideways = place + spread.uniform(-0.3, 0.3, len(values))
        axes.plot(sideways, values, ".", color="tab:blue", alpha=0.3, markersize=3)
    axes.boxplot(
        list(milliseconds.values()), positions=places, widths=0.7, showfliers=False, whis=0.0
    )
    axes.set_xticks(places, list(milliseconds), rotation=90, fontsize="x-small")
    top = float(np.quantile(np.concatenate(list(milliseconds.values())), _SHOWN))
    if top > 0:
        axes.set_ylim(0, 1.1 * top)
