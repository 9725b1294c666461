"""Answer a question about speculative decoding: tables, figures and values that must come out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

STUDIES = {
    "exactness": ("exactness", "correcting is not resampling: the laws, exact, counted and live"),
    "cost": ("cost", "when a longer draft pays: the formula, and the pair beside it"),
    "rejoin": ("rejoin", "is the rejected tail of a draft worth keeping?"),
    "shift": ("shift", "domains, languages, temperature: what carries over"),
    "objectives": ("on_traces", "rewards, learned on a trace and timed on another"),
    "observations": ("on_traces", "what a policy needs to see"),
    "networks": ("on_traces", "how large its networks must be"),
    "deciding": ("on_traces", "how often it must decide"),
    "learning": ("on_traces", "ways to learn from the same trace, finished runs beside them"),
    "calibration": ("on_traces", "promised against accepted tokens"),
    "scaling": ("on_traces", "time and memory of bounds and replays, by length of the trace"),
    "judge": ("on_traces", "what the statistics find in timings of known truth"),
}
"""Module under `draftgym.commands.studies`, and one line, by name."""


def listing() -> str:
    """The help text."""
    width = max(map(len, STUDIES))
    lines = [f"  {name:<{width}}  {line}" for name, (_, line) in STUDIES.items()]
    ending = "`python -m draftgym study NAME --help` explains a study's options."
    return "\n".join(["usage: python -m draftgym study NAME [options]", "", *lines, "", ending])


def main(argv: Sequence[str]) -> int:
    """Run a study.

    Args:
        argv: Its name and its options.

    Returns:
        The study's own exit status; 2 for a missing or unknown name.
    """
    if argv and argv[0] in ("-h", "--help"):
        print(listing())
        return 0
    if not argv or argv[0] not in STUDIES:
        problem = f"unknown study {argv[0]!r}" if argv else "no study named"
        print(f"{problem}\n{listing()}", file=sys.stderr)
        return 2
    module = import_module(f"draftgym.commands.studies.{STUDIES[argv[0]][0]}")
    return int(module.main(argv))
