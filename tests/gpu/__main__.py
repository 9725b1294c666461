"""All CUDA checks in one process, within four minutes: `python -m tests.gpu`.

Writes a result file, prints one line for each check on standard error and the result as the last
line on standard output; exits with 1 if a check failed. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from draftgym.clock import WallClock
from draftgym.console import print_result, say
from draftgym.provenance import provenance
from draftgym.storage import write_json
from tests.gpu import checks
from tests.gpu.latency import latency
from tests.gpu.pairs import LLAMA31_8B, QWEN3_4B, Shapes

SCHEMA = "draftgym.gpu/1"
CHECKS: dict[str, Callable[[torch.device], dict[str, Any]]] = {
    "ties": checks.ties,
    "placement": checks.placement,
    "synchronisations": checks.synchronisations,
    "clocks": checks.clocks,
    "identity": checks.identity,
    "bfloat16_gaps": checks.bfloat16_gaps,
}
SHAPES: tuple[Shapes, ...] = (QWEN3_4B, LLAMA31_8B)


def run_checks(device: torch.device, shapes: Sequence[Shapes], rounds: int) -> dict[str, Any]:
    """Run everything; a failed check is recorded and the next one runs.

    Args:
        device: Where.
        shapes: Pairs to time; none leaves latency out.
        rounds: Rounds for each timed cell.
    """
    jobs: dict[str, Callable[[torch.device], dict[str, Any]]] = dict(CHECKS)
    for pair in shapes:
        jobs[f"latency: {pair.name}"] = lambda at, pair=pair: latency(pair, at, rounds=rounds)
    results: dict[str, Any] = {}
    clock = WallClock("cpu")
    for index, (name, job) in enumerate(jobs.items()):
        begin = clock.boundary()
        try:
            outcome: dict[str, Any] = {"ok": True, **job(device)}
        except Exception as error:  # noqa: BLE001  the others are still worth their time
            outcome = {"ok": False, "error": f"{type(error).__name__}: {error}"}
            say(traceback.format_exc())
        outcome["seconds"] = round(clock.boundary() - begin, 2)
        results[name] = outcome
        verdict = "ok" if outcome["ok"] else "FAILED"
        say(f"[{index + 1}/{len(jobs)}] {name}: {verdict}, {outcome['seconds']} s")
    return results


def main(argv: Sequence[str]) -> int:
    """Parse, run, write; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda:0", help="cpu tries the script itself")
    parser.add_argument("--output", default="results/gpu.json", help="result file")
    parser.add_argument("--rounds", type=int, default=20, help="timed rounds for each cell")
    parser.add_argument("--no-latency", action="store_true", help="leave the large models out")
    arguments = parser.parse_args(argv)
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device {device}: this torch sees no CUDA device")
    results = run_checks(device, () if arguments.no_latency else SHAPES, arguments.rounds)
    ok = all(outcome["ok"] for outcome in results.values())
    payload = {"ok": ok, "checks": results, "provenance": provenance(device)}
    write_json(arguments.output, {"schema": SCHEMA, **payload})
    print_result(SCHEMA, payload)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
