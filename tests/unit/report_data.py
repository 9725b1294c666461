"""A made-up evaluation with everything that a report can show, and everything that is awkward."""

from __future__ import annotations

import random
from typing import Any

DOMAINS = ("chat", "code", "extraction", "maths", "summary", "translation")
PLAIN, POLICY, TUNED = "plain", "learned policy", "fixed D=2 V=8"
CONTROL = "plain, once more"
TABLE = "/".join(("runs", "a very long folder name, with spaces", *("deeper",) * 12, "table.json"))
ODD = '<b>R&D</b> | "quoted" rule $x_1$'
RULES = (
    "svip", "dsde", "specdec++", "c2t", "kangaroo", "adaedl", "eagle2 threshold", "sequoia",
    "opt-tree", "pearl", "goodput", "bandit ucb", ODD,
)  # fmt: skip
PEER = "transformers generate"
HOPELESS = "_always drafts"
PACE = {
    PLAIN: 39.3,
    CONTROL: 39.1,
    "fixed D=1 V=8": 19.9,
    TUNED: 20.3,
    POLICY: 18.8,
    TABLE: 18.2,
    PEER: 61.4,
    HOPELESS: 4_321.0,
} | {name: 19.0 + 0.9 * index for index, name in enumerate(RULES)}


def payload(**changes: Any) -> dict[str, Any]:
    """A result line; `changes` replace entries."""
    versus = {name: _versus(PACE[TUNED] / pace) for name, pace in PACE.items()}
    return {
        "schema": "draftgym.evaluate/1",
        "results": [
            {
                "method": name,
                "ms_per_token": pace,
                "ci95": [0.88 * pace, 1.13 * pace],
                "tau_emitted": None if name == PEER else 1.0 if name in (PLAIN, CONTROL) else 3.1,
                "speedup": PACE[PLAIN] / pace,
            }
            for name, pace in PACE.items()
        ],
        "best_fixed": {"depth": 2, "size": 8, "speedup": PACE[PLAIN] / PACE[TUNED]},
        "best_fixed_hindsight": {"depth": 1, "size": 8, "speedup": 1.97},
        "baseline_tuned": {"ok": True, "why": ""},
        "policy_vs_best_fixed": versus[POLICY],
        "policy_vs_plain": _versus(PACE[PLAIN] / PACE[POLICY]),
        "beside_vs_best_fixed": {TABLE: versus[TABLE]},
        "identical_outputs": 60,
        "prompts": 60,
        "repeats": 2,
        "provenance": {
            "command": "python evaluate.py configs/evaluate/default.yaml --policy runs/x/policy",
            "commit": "0123456789abcdef0123456789abcdef01234567",
            "uncommitted_changes": False,
            "versions": {"draftgym": "0.1.0", "torch": "2.13.0+cpu", "transformers": "5.24.0"},
            "python": "3.11.7",
            "platform": "Linux 6.1 x86_64",
            "cpu": "Made-up CPU <4 GHz>",
            "cores": 2,
            "threads": 2,
            "device": "cpu",
            "dtype": "float32",
            "date": "2026-11-30T15:04:48+00:00",
            "load_per_core_before": 0.12,
            "policies": {
                POLICY: {
                    "path": "runs/x/policy",
                    "training": {
                        "method": "all-action",
                        "hidden": [64, 64],
                        "fixed_depth": None,
                        "held_out": {
                            "over_tuned_cell": 1.1363097845887324,
                            "curve": [1 + 0.01 * step for step in range(12)],
                        },
                    },
                }
            },
        },
        **changes,
    }


def details(**changes: Any) -> dict[str, Any]:
    """Everything else; `changes` replace entries."""
    return {
        **small_details(),
        "measures": {
            name: {
                "all": _measures(name, 1.0, 60),
                "domains": {
                    domain: _measures(name, 0.8 + 0.1 * place, 10)
                    for place, domain in enumerate(DOMAINS)
                },
            }
            for name in PACE
        },
        "comparisons": [
            {"baseline": baseline, "method": name, "p": 0.01, "p_holm": 0.04,
             **_versus(PACE[baseline] / pace)}
            for baseline in (PLAIN, TUNED)
            for name, pace in PACE.items()
            if name != baseline
        ],
        "domains": {
            name: {
                domain: {
                    "speedup": _at(name, place),
                    "ci95": None
                    if domain == "code"
                    else [0.8 * _at(name, place), 1.2 * _at(name, place)],
                }
                for place, domain in enumerate(DOMAINS)
            }
            for name in PACE
        },
        "over_time": {
            name: {
                "depth": [_mean(values["depth"]) * (1 + index / 32) for index in range(32)],
                "size": [_mean(values["size"]) * (1 + index / 64) for index in range(32)],
            }
            for name, values in _decisions().items()
        },
        "decisions_by_domain": {
            name: {
                domain: {"depth": 0.4 * place, "size": 5.5 + place}
                for place, domain in enumerate(DOMAINS)
            }
            for name in _decisions()
        },
        "rules": [
            {
                "name": name,
                "title": f"The rule of {name}",
                "source": "arXiv:2406.00001, equation 4",
                "settings": {"threshold": 0.35, "window_rounds": 8},
                "tuned_on": {
                    "prompts": 110,
                    "trace": "runs/default/trace",
                    "settings_tried": 24,
                    "ms_per_token_simulated": 18.7,
                    "fitted_on_prompts": 90 if name == "specdec++" else None,
                },
            }
            for name in RULES
        ],
        "bounds": {
            "table": "runs/default/latency.json",
            "trace": "runs/default/trace-test",
            "split": "test",
            "prompts": 208,
            "positions": 18_000,
            "methods": [
                {"method": name, "ms_per_token": 20.3 / over,
                 "over_tuned": {"ratio": over, "ci95": [0.97 * over, 1.04 * over]}}
                for name, over in (("information bound", 1.11), ("clairvoyant bound", 1.51))
            ],
        },
        "cost_curves": {
            "plain_ms": 39.3,
            "draft_pass_ms": 2.2,
            "verify_ms": {"1": 40.9, "2": 44.0, "4": 50.7, "8": 60.9, "16": 80.2, "32": 130.5},
        },
        "reliability": {
            "bins": {
                str(depth): [
                    {"predicted": 0.1 * x * depth, "observed": 0.09 * x * depth, "rounds": 10 * x}
                    for x in range(1, 10)
                ]
                for depth in (1, 2, 3)
            }
        },
        **changes,
    }  # fmt: skip


def small_details(**changes: Any) -> dict[str, Any]:
    """What an evaluation without measures and comparisons has."""
    return {
        "speedups": {name: _versus(PACE[PLAIN] / pace) for name, pace in PACE.items()},
        "domains": {
            name: {domain: _at(name, place) for place, domain in enumerate(DOMAINS)}
            for name in PACE
        },
        "validation": [
            {
                "method": f"fixed D={depth} V={size}",
                "depth": depth,
                "size": size,
                "prompts": 14,
                "ms_per_token": 22.5,
                "tau_emitted": 3.27,
                "speedup": 1.9 - 0.1 * abs(depth - 2) - 0.02 * abs(size - 8),
            }
            for depth in (0, 1, 2, 3)
            for size in (4, 8, 16)
        ],
        "decisions": _decisions(),
        "time_split": {
            name: {
                "draft": 0.1 * pace,
                "verify": 0.8 * pace,
                "commit": 0.02 * pace,
                "policy": 0.0 if name.startswith("fixed") else 0.05 * pace,
                "other": 0.03 * pace,
            }
            for name, pace in PACE.items()
            if name not in (PEER, HOPELESS)
        },
        "divergences": [
            {"method": ODD, "prompt_id": "code-17", "position": 12, "near_tie": True,
             "top2_gap": 3.1e-6}
        ],
        "left_out": ["chat-3"],
        "config": {"kind": "evaluate"},
        **changes,
    }  # fmt: skip


def _versus(ratio: float) -> dict[str, Any]:
    verdict = "faster" if ratio > 1.05 else "slower" if ratio < 0.95 else ""
    return {
        "ratio": ratio,
        "ci95": [0.96 * ratio, 1.05 * ratio],
        "verdict": verdict or "no significant difference",
    }


def _at(name: str, place: int) -> float:
    return PACE[PLAIN] / PACE[name] * (0.75 + 0.1 * place) if name != PLAIN else 1.0


def _decisions() -> dict[str, dict[str, list[int]]]:
    draw = random.Random(0)
    found: dict[str, dict[str, list[int]]] = {
        **{name: {"depth": [0] * 400, "size": [0] * 400} for name in (PLAIN, CONTROL)},
        PEER: {"depth": [], "size": []},
    }
    for name in PACE:
        if name.startswith("fixed"):
            depth, size = (int(part.partition("=")[2]) for part in name.split()[1:])
            found[name] = {"depth": [depth] * 200, "size": [size] * 200}
        elif name not in found:
            found[name] = {
                "depth": draw.choices(range(9), (9, 5, 3, 1, 1, 1, 0, 0, 1), k=200),
                "size": draw.choices((0, 2, 4, 8, 16, 32), (1, 4, 2, 6, 3, 4), k=200),
            }
    return found


def _mean(values: list[int]) -> float:
    return sum(values) / max(1, len(values))


def _measures(name: str, scale: float, prompts: int) -> dict[str, Any]:
    pace = PACE[name] * scale
    rounds = name != PEER
    keep = (0.8, 0.7, 0.66, 0.6, 0.55, None, 0.5, 0.4)
    return {
        "ms_per_token": pace,
        "tokens_per_second_decode": 1e3 / pace,
        "tokens_per_second_end_to_end": 900 / pace,
        "first_token_ms": {"p50": 55.0, "p95": 140.0},
        "inter_token_ms": {"p50": 0.0 if rounds else pace, "p95": 2.1 * pace, "p99": 3 * pace},
        "tau_emitted": 3.1 if rounds else None,
        "accepted_per_round": 2.1 if rounds else None,
        "acceptance_by_position": list(keep) if rounds else None,
        "drafted_per_token": 3.0 if rounds else None,
        "verified_per_token": 2.4 if rounds else None,
        "wasted_per_token": 1.5 if rounds else None,
        "target_rows_per_token": 1.9 if rounds else None,
        "draft_passes_per_token": 0.4 if rounds else None,
        "time_split_ms_per_token": {"draft": 0.1 * pace, "verify": 0.8 * pace} if rounds else None,
        "policy_ms_per_round": 0.318 if name == POLICY else None,
        "policy_share": 0.0052 if name == POLICY else None,
        "decisions_per_round": 2.2 if name == POLICY else None,
        "peak_memory_mib": None,
        "joules_per_token": None,
        "identical_outputs": prompts,
        "prompts": prompts,
    }
