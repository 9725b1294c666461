"""Where adapting can pay: bounds of traces over hypothetical costs, and by domain."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from draftgym.benchmark.map_plots import cost_map, domain_plot
from draftgym.benchmark.statistics import Interval
from draftgym.commands._inputs import Inputs
from draftgym.console import Bar, print_result, progress, say
from draftgym.costs.ratios import cost_ratios
from draftgym.costs.table import LatencyTable
from draftgym.costs.times import Times
from draftgym.errors import ConfigurationError
from draftgym.provenance import git_state, provenance
from draftgym.storage import plain, write_bytes, write_json
from draftgym.theory.bounds import fold_of
from draftgym.theory.domains import DomainGain, domain_gains
from draftgym.theory.landscape import LinearTimes, Place, Ways, ways
from draftgym.traces.same_prompts import common_prompts
from draftgym.traces.store import load_trace
from draftgym.traces.trace import Trace

SCHEMA = "draftgym.map/2"
DRAFTS = (0.02, 0.05, 0.1, 0.3)
SLOPES = (0.0, 0.01, 0.03, 0.1)
CONTEXT = 200
FINE = 6
"""Coarse places that one measured place takes the time of."""


@dataclass(frozen=True)
class Arguments:
    """Speed of the information bound over the tuned cell: for costs that machines might have.

    Costs are in plain steps: one draft pass, one more verified token. Texts and drafters are those
    of the traces, the costs are made up, and the bound is coarse (one network instead of three).
    With a latency table also under its measured costs, by domain and for the mixed stream, with
    95% intervals over requests: how much another cell per domain gains, and how much adapting
    within a domain. A killed run goes on after the last whole trace.
    """

    trace: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(help="Folder of a trace; repeatable. Absent: the newest of the test split."),
    ] = ()
    same_prompts: Annotated[
        bool, tyro.conf.arg(help="Keep the prompts that all traces hold: drafters compared.")
    ] = False
    more: Annotated[
        str | None,
        tyro.conf.arg(help="Trace of other prompts, to learn from too; for a single trace."),
    ] = None
    table: Annotated[
        str | None,
        tyro.conf.arg(help="Latency table, for measured costs and domains; used for all traces."),
    ] = None
    made_up: Annotated[
        bool, tyro.conf.arg(help="With `--no-made-up` measured costs and domains only.")
    ] = True
    output: Annotated[
        Path, tyro.conf.arg(help="Folder of `map.json`, `map.png` and `domains.png`.")
    ] = Path("runs/map")
    seed: Annotated[int, tyro.conf.arg(help="Of networks and intervals.")] = 0


def main(argv: Sequence[str]) -> int:
    """Draw the map; returns the exit status."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m draftgym map")
    if arguments.more is not None and len(arguments.trace) > 1:
        raise ConfigurationError("--more: belongs to one trace, but --trace is given several times")
    if not arguments.made_up and arguments.table is None:
        raise ConfigurationError("--no-made-up: without --table there is nothing to work out")
    folders = arguments.trace or (Inputs().trace(None, "test"),)
    traces = [load_trace(Path(folder)) for folder in folders]
    if arguments.same_prompts:
        try:
            traces = common_prompts(traces)
        except ValueError as error:
            raise ConfigurationError(f"--same-prompts: {error}") from error
    more = None if arguments.more is None else load_trace(Path(arguments.more))
    table = None if arguments.table is None else LatencyTable.load(arguments.table)
    file = arguments.output / "map.json"
    known = [_made_of(trace, more, arguments) for trace in traces]
    before = {entry["made_of"]: entry for entry in _before(file)}
    grid = [(draft, slope) for draft in DRAFTS for slope in SLOPES] if arguments.made_up else []
    work = len(grid) + (FINE if table is not None else 0)
    maps: list[Mapping[str, Any]] = []
    with progress("map", work * sum(made_of not in before for made_of in known)) as bar:
        for folder, trace, made_of in zip(folders, traces, known, strict=True):
            entry = before.get(made_of)
            if entry is None:
                try:
                    found = _entry(trace, more, table, grid, arguments.seed, bar)
                except ValueError as error:
                    raise ConfigurationError(f"{folder}: {error}") from error
                entry = plain({"trace": folder, "made_of": made_of, **found})
            maps.append(entry)
            payload = {"maps": maps, "provenance": provenance()}
            write_json(file, {"schema": SCHEMA, **payload})
    for entry in maps:
        _say(entry)
    plots = {}
    if arguments.made_up:
        plots["plot"] = write_bytes(arguments.output / "map.png", cost_map(maps))
    if table is not None:
        plots["domains"] = write_bytes(arguments.output / "domains.png", domain_plot(maps))
    print_result(SCHEMA, {"file": file, **plots, **payload})
    return 0


def _made_of(trace: Trace, more: Trace | None, arguments: Arguments) -> str:
    """Digest of everything that decides an entry; never the same twice with uncommitted changes."""
    digest = hashlib.sha256()
    for part in (trace,) if more is None else (trace, more):
        digest.update(json.dumps([asdict(entry) for entry in part.sequences]).encode())
        for column in (part.rank, part.partial):
            digest.update(column.tobytes())
    if arguments.table is not None:
        digest.update(Path(arguments.table).read_bytes())
    commit, changed = git_state()
    costs = [DRAFTS, SLOPES] if arguments.made_up else []
    origin = [costs, arguments.seed, commit, provenance()["date"] if changed else ""]
    digest.update(json.dumps(origin).encode())
    return digest.hexdigest()[:16]


def _before(file: Path) -> list[Mapping[str, Any]]:
    """Entries of an interrupted run."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return list(found["maps"]) if found["schema"] == SCHEMA else []
    except (OSError, ValueError, KeyError):
        return []


def _entry(
    trace: Trace,
    more: Trace | None,
    table: LatencyTable | None,
    grid: Sequence[tuple[float, float]],
    seed: int,
    bar: Bar,
) -> dict[str, Any]:
    folds = fold_of(trace)

    def found(times: Times, work: int) -> Ways:
        result = ways(trace, times, folds, more=more, seed=seed, coarse=work == 1)
        bar.advance(work)
        return result

    measured = domains = None
    if table is not None:
        ratios = cost_ratios(table, trace.shape.size_grid, CONTEXT, max_depth=trace.shape.max_depth)
        fine = found(table, FINE)
        measured = {**asdict(ratios), **asdict(Place.of(fine))}
        domains = [_domain(gain) for gain in domain_gains(trace, fine, seed=seed)]
    places = [
        {
            "draft_pass": draft,
            "verified_token": slope,
            **asdict(Place.of(found(LinearTimes(draft, slope), 1))),
        }
        for draft, slope in grid
    ]
    return {
        "drafter": _drafter(trace),
        "prompts": len(trace.sequences),
        "positions": len(trace),
        "places": places,
        "measured": measured,
        "domains": domains,
    }


def _drafter(trace: Trace) -> str:
    """The kind, and the head's name if it is not the bundled one."""
    known = trace.source.get("plan", {}).get("pair", {}).get("drafter", {})
    kind, source = known.get("kind", "unknown"), known.get("source")
    return kind if source is None else f"{kind}, {Path(source).name} head"


def _domain(gain: DomainGain) -> dict[str, Any]:
    fields = {name: getattr(gain, name) for name in DomainGain.__slots__}
    return {
        name: {"ratio": value.estimate, "ci95": value.limits}
        if isinstance(value, Interval)
        else value
        for name, value in fields.items()
    }


def _say(entry: Mapping[str, Any]) -> None:
    say(f"{entry['trace']} ({entry['drafter']}): information bound over the tuned cell")
    rows = {(row["draft_pass"], row["verified_token"]): row for row in entry["places"]}
    if rows:
        say("  draft pass \\ verified token" + "".join(f"{slope:>8g}" for slope in SLOPES))
        for draft in DRAFTS:
            gains = "".join(f"{rows[draft, slope]['information']:8.3f}" for slope in SLOPES)
            say(f"  {draft:>26g}{gains}")
    if entry["measured"] is None:
        return
    found = entry["measured"]
    say(
        f"  measured costs: tuned {found['tuned_over_plain']:.2f} x plain (D={found['cell'][0]}"
        f", V={found['cell'][1]}), information {found['information']:.3f}, clairvoyant "
        f"{found['clairvoyant']:.3f} over it"
    )
    say(f"  {'over the tuned cell':<24}{'own cell':^21}{'information':^21}{'it over own':^21}")
    for row in entry["domains"]:
        shown = "".join(
            f"{row[name]['ratio']:.3f} [{row[name]['ci95'][0]:.3f}, {row[name]['ci95'][1]:.3f}] "
            for name in ("own_over_tuned", "information_over_tuned", "information_over_own")
        )
        say(f"  {row['domain'] + ' (' + str(row['prompts']) + ')':<24}{shown}")
