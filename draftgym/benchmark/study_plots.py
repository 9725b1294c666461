"""Plots of studies, as PNG bytes. It neither measures nor writes files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftgym.benchmark.plots import new_figure, png
from draftgym.theory.reliability import Reliability
from draftgym.theory.scaling import Load, exponent


def reliability_plot(passes: Mapping[int, Reliability]) -> bytes:
    """Accepted against promised tokens, one line per pass, points as large as their bins.

    Args:
        passes: By depth.

    Returns:
        PNG bytes.
    """
    figure, axes = new_figure(6, 6)
    most = 0.0
    for depth, found in passes.items():
        size = 60 * found.count / found.count.max()
        label = "free proposals" if depth == 0 else f"pass {depth}"
        axes.plot(found.predicted, found.realised, linewidth=0.8, label=label)
        axes.scatter(found.predicted, found.realised, size)
        most = max(most, float(found.predicted.max()), float(found.realised.max()))
    axes.plot((0, most), (0, most), color="grey", linestyle=":")
    axes.set_xlabel("promised accepted tokens")
    axes.set_ylabel("accepted tokens")
    axes.legend(fontsize="small")
    return png(figure)


def scaling_plot(loads: Mapping[str, Sequence[Load]]) -> bytes:
    """Seconds and peak memory against positions, on logarithmic axes.

    Args:
        loads: By computation.

    Returns:
        PNG bytes.
    """
    figure, (left, right) = new_figure(10, 4.5, columns=2)
    for name, entries in loads.items():
        positions = [entry.positions for entry in entries]
        slope = exponent(entries)
        label = name if slope is None else f"{name}, exponent {slope:.2f}"
        left.plot(positions, [entry.seconds for entry in entries], marker="o", label=label)
        right.plot(positions, [entry.peak_bytes / 1e6 for entry in entries], marker="o")
    for axes, title in ((left, "seconds"), (right, "peak memory beside the trace, MB")):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("positions (synthetic)")
        axes.set_ylabel(title)
    left.legend(fontsize="small")
    return png(figure)
