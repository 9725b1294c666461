"""Parts of a trace by domain and by language, and the parts that are learned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from draftgym.theory.requests import Mask, request_ids
from draftgym.traces.trace import Trace

Kind = Literal["domain", "language"]

ALL, ONE_OF_EACH = "all", "one request of each domain"


def by(trace: Trace, kind: Kind) -> dict[str, Mask]:
    """Which sequences belong to each domain or language.

    Args:
        trace: Gives the names.
        kind: Which names.

    Returns:
        Masks by name, in alphabetical order.
    """
    names = np.array([getattr(entry, kind) for entry in trace.sequences])
    return {str(name): names == name for name in np.unique(names)}


def everything(trace: Trace) -> Mask:
    """All sequences."""
    return np.ones(len(trace.sequences), np.bool_)


def all_but(name: str) -> str:
    """Name of the part that lacks one domain."""
    return f"all but {name}"


def learning_parts(trace: Trace) -> dict[str, Mask]:
    """What policies learn from: everything, each domain, each language, and two controls.

    The controls tell kind from amount: every domain but one, many prompts of other kinds; and one
    request of each domain, few prompts of all kinds.

    Args:
        trace: Of the policy split.

    Returns:
        Masks by name.
    """
    domains = by(trace, "domain")
    requests = np.array(request_ids(trace))
    first = {str(np.sort(requests[mine])[0]) for mine in domains.values()}
    return {
        ALL: everything(trace),
        **domains,
        ONE_OF_EACH: np.isin(requests, sorted(first)),
        **{all_but(name): ~mine for name, mine in domains.items()},
        **by(trace, "language"),
    }


def same_prompts(trace: Trace, other: Trace) -> Trace:
    """The prompts of a trace that another one holds, too; their texts may differ.

    Args:
        trace: Selected from.
        other: Says which.

    Raises:
        ValueError: It lacks a prompt of the other one.
    """
    places: Mapping[str, int] = {e.prompt_id: i for i, e in enumerate(trace.sequences)}
    missing = [e.prompt_id for e in other.sequences if e.prompt_id not in places]
    if missing:
        raise ValueError(f"prompt {missing[0]!r} was not traced at temperature 0")
    return trace.select(np.array([places[entry.prompt_id] for entry in other.sequences]))
