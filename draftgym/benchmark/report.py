"""Reports of an evaluation: JSON for programs, Markdown for people, plots for the eye.

Every file replaces its predecessor in one step, so a reader never sees half a report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftgym.benchmark.plots import plots
from draftgym.storage import write_bytes, write_json, write_text


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
    for name, png in plots(payload["results"], details).items():
        files.append(write_bytes(folder / "plots" / f"{name}.png", png))
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
        low, high = row["ci95"]
        lines.append(
            f"| {row['method']} | {row['ms_per_token']:.2f} [{low:.2f}, {high:.2f}] "
            f"| {row['tau_emitted']:.2f} | {row['speedup']:.3f} {_limits(speedup['ci95'])} |"
        )
    lines += ["", "![Time per token](plots/time_per_token.png)"]
    lines += ["", "![Where the time goes](plots/time_split.png)"]
    lines += ["", "![Depths and sizes used](plots/decisions.png)"]
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
    lines += ["", "![Validation](plots/validation.png)"]
    lines += ["", "## Outputs", "", *_outputs(payload, details)]
    lines += ["", "## Provenance", ""]
    lines += [f"- {key}: {_as_text(value)}" for key, value in provenance.items()]
    return "\n".join(lines) + "\n"


def _as_text(value: Any) -> str:
    """A provenance entry for people: nested data as a list of names and values."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_as_text(inner)}" for name, inner in value.items())
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"`{value}`"


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
    for path, entry in payload["beside_vs_best_fixed"].items():
        lines.append(
            f"- `{path}` against the best fixed cell: **{entry['verdict']}** "
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
    return f"[{limits[0]:.3f}, {limits[1]:.3f}]"
