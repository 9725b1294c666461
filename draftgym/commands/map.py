"""Where adapting can pay: bounds of traces over hypothetical costs, as a table and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from draftgym.benchmark.plots import new_figure, png
from draftgym.commands._inputs import Inputs
from draftgym.console import print_result, progress, say
from draftgym.costs.ratios import cost_ratios
from draftgym.costs.table import LatencyTable
from draftgym.costs.times import Times
from draftgym.errors import ConfigurationError
from draftgym.provenance import provenance
from draftgym.storage import write_bytes, write_json
from draftgym.theory.bounds import fold_of
from draftgym.theory.landscape import LinearTimes, Place, place
from draftgym.traces.store import load_trace
from draftgym.traces.trace import IntArray, Trace

SCHEMA = "draftgym.map/1"
DRAFTS = (0.02, 0.05, 0.1, 0.3)
SLOPES = (0.0, 0.01, 0.03, 0.1)
CONTEXT = 200


@dataclass(frozen=True)
class Arguments:
    """Speed of the information bound over the tuned cell, for costs that machines might have.

    Costs are in plain steps: one draft pass, one more verified token. Nothing is measured; texts
    and drafters are those of the traces, the costs are made up, but for the measured ones of a
    latency table. Several traces (drafters, text) are drawn side by side.
    """

    trace: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(help="Folder of a trace; repeatable. Absent: the newest of the test split."),
    ] = ()
    more: Annotated[
        str | None,
        tyro.conf.arg(help="Trace of other prompts, to learn from too; for a single trace."),
    ] = None
    table: Annotated[
        str | None, tyro.conf.arg(help="Latency table, for the measured place of its machine.")
    ] = None
    output: Annotated[Path, tyro.conf.arg(help="Folder of `map.json` and `map.png`.")] = Path(
        "runs/map"
    )
    seed: Annotated[int, tyro.conf.arg(help="Of the networks.")] = 0


def main(argv: Sequence[str]) -> int:
    """Draw the map; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym map")
    if arguments.more is not None and len(arguments.trace) > 1:
        raise ConfigurationError("--more: belongs to one trace, but --trace is given several times")
    folders = arguments.trace or (Inputs().trace(None, "test"),)
    traces = {folder: load_trace(Path(folder)) for folder in folders}
    more = None if arguments.more is None else load_trace(Path(arguments.more))
    table = None if arguments.table is None else LatencyTable.load(arguments.table)
    maps = []
    with progress("map", len(traces) * (len(DRAFTS) * len(SLOPES) + (table is not None))) as bar:
        for folder, trace in traces.items():
            folds = fold_of(trace)

            def found(
                times: Times, trace: Trace = trace, folds: IntArray = folds, folder: str = folder
            ) -> Place:
                try:
                    result = place(trace, times, folds, more=more, seed=arguments.seed)
                except ValueError as error:
                    raise ConfigurationError(f"{folder}: {error}") from error
                bar.advance()
                return result

            places = {
                (draft, slope): found(LinearTimes(draft, slope))
                for draft in DRAFTS
                for slope in SLOPES
            }
            measured = None
            if table is not None:
                passes = trace.shape.max_depth
                ratios = cost_ratios(table, trace.shape.size_grid, CONTEXT, max_depth=passes)
                measured = {**asdict(ratios), **asdict(found(table))}
            maps.append(_entry(folder, trace, places, measured))
    for entry in maps:
        _say(entry)
    payload = {"maps": maps, "provenance": provenance()}
    file = write_json(arguments.output / "map.json", {"schema": SCHEMA, **payload})
    plot = write_bytes(arguments.output / "map.png", picture(maps))
    print_result(SCHEMA, {"file": file, "plot": plot, **payload})
    return 0


def picture(maps: Sequence[Mapping[str, Any]]) -> bytes:
    """One panel per trace: gain over the tuned cell in percent, with its depth and size.

    Args:
        maps: Entries of the result line.

    Returns:
        PNG bytes.
    """
    figure, panels = new_figure(5.2 * len(maps) + 0.8, 4.4, columns=len(maps))
    for entry, axes in zip(maps, np.atleast_1d(panels), strict=True):
        rows = {(row["draft_pass"], row["verified_token"]): row for row in entry["places"]}
        gains = np.array([[100 * (rows[d, s]["information"] - 1) for s in SLOPES] for d in DRAFTS])
        axes.imshow(gains, origin="lower", aspect="auto", cmap="viridis", vmin=0.0)
        for y, draft in enumerate(DRAFTS):
            for x, slope in enumerate(SLOPES):
                depth, size = rows[draft, slope]["cell"]
                bright = gains[y, x] > 0.6 * max(gains.max(), 1e-9)
                axes.text(
                    x, y, f"+{gains[y, x]:.1f} %\nD{depth} V{size}",
                    ha="center", va="center", fontsize="x-small",
                    color="black" if bright else "white",
                )  # fmt: skip
        axes.set_xticks(range(len(SLOPES)), [f"{slope:g}" for slope in SLOPES])
        axes.set_yticks(range(len(DRAFTS)), [f"{draft:g}" for draft in DRAFTS])
        axes.set_xlabel("one more verified token, plain steps")
        axes.set_ylabel("one draft pass, plain steps")
        axes.set_title(f"{entry['drafter']}, {entry['prompts']} prompts", fontsize="small")
    figure.suptitle("information bound over the tuned fixed cell (costs made up)", fontsize="small")
    return png(figure)


def _entry(
    folder: str,
    trace: Trace,
    places: Mapping[tuple[float, float], Place],
    measured: Mapping[str, Any] | None,
) -> dict[str, Any]:
    pair = trace.source.get("plan", {}).get("pair", {})
    return {
        "trace": folder,
        "drafter": pair.get("drafter", {}).get("kind", "unknown"),
        "prompts": len(trace.sequences),
        "positions": len(trace),
        "places": [
            {"draft_pass": draft, "verified_token": slope, **asdict(found)}
            for (draft, slope), found in places.items()
        ],
        "measured": measured,
    }


def _say(entry: Mapping[str, Any]) -> None:
    say(f"{entry['trace']} ({entry['drafter']}): information bound over the tuned cell")
    say("  draft pass \\ verified token" + "".join(f"{slope:>8g}" for slope in SLOPES))
    rows = {(row["draft_pass"], row["verified_token"]): row for row in entry["places"]}
    for draft in DRAFTS:
        gains = "".join(f"{rows[draft, slope]['information']:8.3f}" for slope in SLOPES)
        say(f"  {draft:>26g}{gains}")
    if entry["measured"] is not None:
        found = entry["measured"]
        say(
            f"  measured costs: tuned {found['tuned_over_plain']:.2f} x plain (D={found['cell'][0]}"
            f", V={found['cell'][1]}), information {found['information']:.3f}, clairvoyant "
            f"{found['clairvoyant']:.3f} over it"
        )
