"""An evaluation in Weights & Biases: tables, histograms, curves and the report itself.

It shows what `report.json` holds and computes nothing. An evaluation outlives W&B: a failure is
reported, and the report on disk stays the result.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftgym.console import say
from draftgym.storage import dump_json, plain
from policies.config import WandbConfig
from policies.logging import histogram, start_wandb, wandb_mode

Row = Mapping[str, Any]

FILES = ("report.html", "report.md", "report.json", "report.csv", "plots")
"""Of an evaluation's folder, kept as an artifact where they exist."""

AXES = {
    "over_time/*": "round_of_request",
    "acceptance/*": "draft_position",
    "cost/*": "tokens_verified",
    "reliability/*": "predicted",
}
"""Curves and what they are drawn over."""


def log_evaluation(
    folder: Path,
    payload: Row,
    details: Row,
    settings: WandbConfig,
    *,
    group: str | None = None,
    coadaptation_round: int | None = None,
) -> Path | None:
    """Show a finished evaluation in W&B, as a run of its own.

    Args:
        folder: Of the evaluation, with its report; W&B's own files go below it.
        payload: The result line.
        details: Of the report; whatever is missing or null is left out.
        settings: Mode and project, as for training.
        group: Name of the training run that it belongs to; that of the evaluated policy's run when
            None.
        coadaptation_round: Round of that training after which the policy was exported.

    Returns:
        Folder of the W&B run; None when it is disabled or could not be written.

    Raises:
        ConfigurationError: If an online run was asked for and cannot be had.
    """
    mode = wandb_mode(settings)
    known = {
        "provenance": payload.get("provenance"),
        "evaluation": details.get("config"),
        "round": coadaptation_round,
    }
    group = _training_run(details) if group is None else group
    name = f"evaluate {group or folder.name}" + (
        "" if coadaptation_round is None else f", round {coadaptation_round}"
    )
    run = start_wandb(
        settings, mode, folder, plain(known),
        name=name, group=group, job_type="evaluation", axes=AXES,
    )  # fmt: skip
    if run is None:
        return None
    written = Path(run.dir).parent
    try:
        _log(run, folder, payload, details)
        run.finish()
    except Exception as error:  # noqa: BLE001 - whatever it is, the evaluation is finished
        say(f"W&B could not show the evaluation ({type(error).__name__}: {error})")
        return None
    say(f"W&B: `wandb sync {written}` uploads it" if mode == "offline" else f"W&B: {run.url}")
    return written


def _log(run: Any, folder: Path, payload: Row, details: Row) -> None:
    import wandb

    shown: dict[str, Any] = {
        f"evaluation/{name}": _table(wandb, rows) for name, rows in tables(payload, details).items()
    }
    for method, decided in (details.get("decisions") or {}).items():
        for what, values in decided.items():
            if values:
                counts = Counter(map(str, values))
                shown[f"{what}/{_key(method)}"] = histogram(wandb, counts)
    if (folder / "report.html").is_file():
        shown["evaluation/report"] = wandb.Html(str(folder / "report.html"), inject=False)
    run.log(shown)
    for point in curves(details):
        run.log(point)
    run.summary.update(headline(payload))
    artifact = wandb.Artifact(f"evaluation-{run.id}", "evaluation", metadata=headline(payload))
    for name in FILES:
        if (folder / name).is_dir():
            artifact.add_dir(str(folder / name), name)
        elif (folder / name).is_file():
            artifact.add_file(str(folder / name), name)
    run.log_artifact(artifact)


def tables(payload: Row, details: Row) -> dict[str, list[Row]]:
    """Tables by name, those without a row left out; nested entries become columns.

    Args:
        payload: The result line.
        details: Of the report.
    """
    measures = [
        {"method": method, "domain": domain, **values}
        for method, entry in (details.get("measures") or {}).items()
        for domain, values in {"all": entry["all"], **entry.get("domains", {})}.items()
    ]
    domains = [
        {"method": method, "domain": domain, **_entry("speedup", value)}
        for method, row in (details.get("domains") or {}).items()
        for domain, value in row.items()
    ]
    decisions = [
        {"method": method, "domain": domain, **means}
        for method, row in (details.get("decisions_by_domain") or {}).items()
        for domain, means in row.items()
    ]
    split = [
        {"method": method, **parts} for method, parts in (details.get("time_split") or {}).items()
    ]
    found = {
        "results": payload["results"],
        "measures": measures,
        "comparisons": details.get("comparisons"),
        "domains": domains,
        "decisions_by_domain": decisions,
        "rules": details.get("rules"),
        "bounds": (details.get("bounds") or {}).get("methods"),
        "time_split": split,
        "validation": details.get("validation"),
        "divergences": details.get("divergences"),
    }
    return {name: [_flat(row) for row in rows] for name, rows in found.items() if rows}


def curves(details: Row) -> Iterator[dict[str, float]]:
    """Points of every curve, each with its own axis.

    Args:
        details: Of the report.
    """
    over_time = {
        f"over_time/{what}/{_key(method)}": values
        for method, row in (details.get("over_time") or {}).items()
        for what, values in row.items()
    }
    yield from _points("round_of_request", over_time, first=0)
    acceptance = {
        f"acceptance/{_key(method)}": entry["all"].get("acceptance_by_position")
        for method, entry in (details.get("measures") or {}).items()
    }
    yield from _points("draft_position", acceptance, first=1)
    costs = (details.get("cost_curves") or {}).get("verify_ms") or {}
    for size in sorted(costs, key=int):
        yield {"tokens_verified": int(size), "cost/verify_ms": costs[size]}
    bins = (details.get("reliability") or {}).get("bins") or {}
    for depth, entries in bins.items():
        for entry in entries:
            yield {
                "predicted": entry["predicted"],
                f"reliability/depth {depth}": entry["observed"],
            }


def headline(payload: Row) -> dict[str, Any]:
    """Figures by which runs are compared: of every method, and the verdicts.

    Args:
        payload: The result line.
    """
    found: dict[str, Any] = {}
    for row in payload["results"]:
        for name in ("speedup", "ms_per_token", "tau_emitted"):
            found[f"{name}/{_key(row['method'])}"] = row.get(name)
    for name in ("best_fixed", "best_fixed_hindsight", "policy_vs_best_fixed", "policy_vs_plain"):
        if payload.get(name) is not None:
            found |= {f"{name}/{part}": value for part, value in _flat(payload[name]).items()}
    found |= {name: payload.get(name) for name in ("identical_outputs", "prompts", "repeats")}
    return {name: value for name, value in found.items() if value is not None}


def _points(
    axis: str, series: Mapping[str, Sequence[float] | None], *, first: int
) -> Iterator[Any]:
    """One point per place for all series together; ends are ragged."""
    known = {name: values for name, values in series.items() if values}
    for place in range(max(map(len, known.values()), default=0)):
        here = {
            name: values[place]
            for name, values in known.items()
            if place < len(values) and values[place] is not None
        }
        yield {axis: first + place, **here}


def _table(wandb: Any, rows: Sequence[Row]) -> Any:
    """A W&B table with the columns of all rows in order of appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    values = [[row.get(name) for name in names] for row in rows]
    return wandb.Table(columns=names, data=values, allow_mixed_types=True)


def _flat(row: Row, prefix: str = "") -> dict[str, Any]:
    """Nested entries as `outer.inner`, intervals as two columns, other lists as text."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        full = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found |= _flat(value, f"{full}.")
        elif name == "ci95":
            low, high = (None, None) if value is None else value
            found |= {f"{full}_low": low, f"{full}_high": high}
        elif isinstance(value, Iterable) and not isinstance(value, str):
            found[full] = dump_json(value)
        else:
            found[full] = value
    return found


def _entry(name: str, value: Any) -> Row:
    """A figure alone, or with its interval."""
    return value if isinstance(value, Mapping) else {name: value}


def _key(method: str) -> str:
    """A method in the name of a metric, where a slash would start a section."""
    return method.replace("/", ".")


def _training_run(details: Row) -> str | None:
    """Name of the training run whose policy was evaluated, by its folder."""
    policy = (details.get("config") or {}).get("policy")
    folder = Path(os.path.abspath(policy)).parent if policy else None
    return folder.name if folder is not None and (folder / "config.yaml").is_file() else None
