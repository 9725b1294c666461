"""Reports of an evaluation: JSON for programs, Markdown for people, plots for the eye.

Every file replaces its predecessor in one step, so a reader never sees half a report.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftgym.storage import write_bytes, write_json, write_text

Row = Mapping[str, Any]


def write_report(
    folder: Path, payload: Mapping[str, Any], details: Mapping[str, Any]
) -> list[Path]:
    """Write `report.json`, `report.md` and `plots/*.png`.

    Args:
        folder: Where to.
        payload: The result line.
        details: What the result line has no room for: `validation` rows, `speedups` by
            method, `domains`, `divergences`, `decisions` (depths and sizes per method),
            `time_split` per method, `left_out` prompts, `config`.

    Returns:
        The files written.
    """
    files = [
        write_json(folder / "report.json", {**payload, "details": details}),
        write_text(folder / "report.md", markdown(payload, details)),
    ]
    figures = {
        "time_per_token": _time_per_token(payload["results"]),
        "validation": _validation(details["validation"]),
        "decisions": _decisions(details["decisions"]),
        "time_split": _time_split(details["time_split"]),
    }
    for name, figure in figures.items():
        files.append(write_bytes(folder / "plots" / f"{name}.png", _png(figure)))
    return files


def markdown(payload: Mapping[str, Any], details: Mapping[str, Any]) -> str:
    """The report as Markdown text."""
    provenance = payload["provenance"]
    machine = provenance.get("gpu", {}).get("name") or provenance["cpu"]
    lines = [
        "# Evaluation",
        "",
        *_findings(payload),
        "",
        f"{payload['prompts']} test prompts x {payload['repeats']} repeats on {machine}, "
        f"{provenance['device']}, {provenance['dtype']}, {provenance['threads']} threads. "
        "Time per token is the sum of seconds over the sum of tokens of all decoding rounds; "
        "prefill is in no figure. Speedup is over plain decoding in the same run. Brackets hold "
        "95% intervals from a paired bootstrap over prompts.",
        "",
        "## Test prompts",
        "",
        "| method | ms per token | tokens per round | speedup |",
        "|---|---|---|---|",
    ]
    for row in payload["results"]:
        speedup = details["speedups"][row["method"]]
        lines.append(
            f"| {row['method']} | {row['ms_per_token']:.2f} {_limits(row['ci95'])} "
            f"| {row['tau_emitted']:.2f} | {row['speedup']:.3f} {_limits(speedup['ci95'])} |"
        )
    lines += ["", "## Speedup by domain", "", *_domain_table(details["domains"])]
    lines += [
        "",
        "## Fixed cells on validation prompts (tuning)",
        "",
        "| cell | prompts | ms per token | tokens per round | speedup |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['method']} | {row['prompts']} | {row['ms_per_token']:.2f} "
        f"| {row['tau_emitted']:.2f} | {row['speedup']:.3f} |"
        for row in details["validation"]
    ]
    lines += ["", "## Outputs", "", *_outputs(payload, details)]
    lines += ["", "## Provenance", ""]
    lines += [f"- {key}: `{value}`" for key, value in provenance.items()]
    return "\n".join(lines) + "\n"


def _findings(payload: Mapping[str, Any]) -> list[str]:
    best = payload["best_fixed"]
    lines = [
        f"- Best fixed cell, tuned on validation prompts: depth {best['depth']}, "
        f"size {best['size']}."
    ]
    hindsight = payload["best_fixed_hindsight"]
    lines.append(
        f"- Best of the finalists in hindsight, on test prompts: depth {hindsight['depth']}, "
        f"size {hindsight['size']}, speedup {hindsight['speedup']:.3f}."
    )
    for key, other in (
        ("policy_vs_best_fixed", "the best fixed cell"),
        ("policy_vs_plain", "plain decoding"),
    ):
        entry = payload[key]
        if entry is not None:
            lines.append(
                f"- The policy against {other}: **{entry['verdict']}** "
                f"(ratio {entry['ratio']:.3f} {_limits(entry['ci95'])})."
            )
    if payload["policy_vs_plain"] is None:
        lines.append("- No policy was given.")
    return lines


def _domain_table(domains: Mapping[str, Mapping[str, float]]) -> list[str]:
    names = sorted({name for row in domains.values() for name in row})
    lines = [f"| method | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for method, row in domains.items():
        lines.append(f"| {method} | {' | '.join(f'{row[name]:.2f}' for name in names)} |")
    return lines


def _outputs(payload: Mapping[str, Any], details: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{payload['identical_outputs']} of {payload['prompts']} prompts: every method's output "
        "equals plain decoding's, or first differs at a near-tie of the target."
    ]
    for entry in details["divergences"]:
        kind = "near-tie" if entry["near_tie"] else "**fault**"
        lines.append(
            f"- {entry['method']} on `{entry['prompt_id']}`: {kind} at token "
            f"{entry['position']}, top-2 gap {entry['top2_gap']:.2g}"
        )
    if details["left_out"]:
        named = ", ".join(f"`{name}`" for name in details["left_out"])
        lines.append(f"- Left out, because the first token ended the text: {named}")
    return lines


def _limits(limits: Sequence[float]) -> str:
    return f"[{limits[0]:.3g}, {limits[1]:.3g}]"


def _figure(width: float, height: float) -> tuple[Any, Any]:
    # The object interface, because pyplot would pick a display and keep every figure alive.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _time_per_token(results: Sequence[Row]) -> Any:
    figure, axes = _figure(7, 0.5 * len(results) + 1.5)
    for index, row in enumerate(reversed(results)):
        low, high = row["ci95"]
        value = row["ms_per_token"]
        axes.errorbar(value, index, xerr=[[max(0, value - low)], [max(0, high - value)]], fmt="o")
    axes.set_yticks(range(len(results)), [row["method"] for row in reversed(results)])
    axes.set_xlabel("ms per token, test prompts (95% interval)")
    return figure


def _validation(rows: Sequence[Row]) -> Any:
    figure, axes = _figure(6, 4)
    for depth in sorted({row["depth"] for row in rows if row["depth"] is not None}):
        line = sorted((row["size"], row["speedup"]) for row in rows if row["depth"] == depth)
        axes.plot(*zip(*line, strict=True), marker="o", label=f"D = {depth}")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xlabel("verified tokens V")
    axes.set_ylabel("speedup over plain decoding, validation")
    axes.legend()
    return figure


def _decisions(decisions: Mapping[str, Mapping[str, Sequence[int]]]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 2), ("depth", "size"), strict=True):
        width = 0.8 / max(1, len(decisions))
        for index, (method, chosen) in enumerate(decisions.items()):
            counts = Counter(chosen[kind])
            total = max(1, sum(counts.values()))
            places = [value + index * width for value in sorted(counts)]
            shares = [counts[value] / total for value in sorted(counts)]
            axes.bar(places, shares, width, label=method)
        axes.set_xlabel(f"{kind} per round")
        axes.set_ylabel("share of rounds")
    figure.axes[0].legend(fontsize="small")
    return figure


def _time_split(split: Mapping[str, Mapping[str, float]]) -> Any:
    figure, axes = _figure(7, 0.5 * len(split) + 1.5)
    methods = list(split)[::-1]
    left = [0.0] * len(methods)
    for part in ("verify", "draft", "commit", "policy", "other"):
        values = [split[method][part] for method in methods]
        axes.barh(methods, values, left=left, label=part)
        left = [a + b for a, b in zip(left, values, strict=True)]
    axes.set_xlabel("ms per token")
    axes.legend(fontsize="small")
    return figure
