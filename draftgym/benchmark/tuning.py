"""Was the comparison fair: was the baseline tuned as well as the rest, and on other prompts?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from draftgym.benchmark.config import Cell, depths, largest_size
from draftgym.benchmark.summary import Ranked
from draftgym.decoder.config import DrafterConfig
from draftgym.errors import ConfigurationError


def baseline_tuned(
    best: Ranked,
    cells: Sequence[Cell],
    drafter: DrafterConfig,
    efforts: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Whether the best fixed cell can be called tuned.

    It cannot when the grid ends at it where the drafter would go on, so that a better cell may
    lie outside, or when another method was tuned on more prompts or settings.

    Args:
        best: The winner on validation prompts.
        cells: The grid it won.
        drafter: Says how far depths and sizes go.
        efforts: `prompts` and `settings_tried` of other methods by name, as `tuned_on` of a
            rule has them.

    Returns:
        `ok`, and `why` in words; empty when it is ok.
    """
    cell = best.cell
    tried = {other.depth for other in cells}
    sizes = {other.size for other in cells if other.depth == cell.depth}
    room = range(1, largest_size(drafter, cell.depth) + 1)
    found = [*_edge("depth", cell.depth, tried, depths(drafter)),
             *_edge("size", cell.size, sizes, room)]  # fmt: skip
    for name, effort in (efforts or {}).items():
        for key, mine in (("prompts", best.prompts), ("settings_tried", len(cells))):
            theirs, what = effort.get(key), key.removesuffix("_tried")
            if theirs is not None and theirs > mine:
                found.append(f"{name} was tuned on {theirs} {what}, the cell on {mine}")
    return {"ok": not found, "why": "; ".join(found)}


def check_unseen(test: Iterable[str], seen: Mapping[str, Iterable[str]]) -> None:
    """Refuse test prompts that something in the comparison was tuned or trained on.

    Splits of one configuration cannot overlap (`draftgym.prompts.check_disjoint`); prompts of a
    trace or a policy may come from another one.

    Args:
        test: Ids of test requests (`Prompt.request_id`, so translations count too).
        seen: Ids by where they were seen, such as a split or a trace's folder.

    Raises:
        ConfigurationError: Naming the id and where it was seen.
    """
    asked = set(test)
    for where, ids in seen.items():
        for shared in sorted(asked.intersection(ids)):
            raise ConfigurationError(
                f"{where}: prompt {shared!r} is a test prompt too; nothing may be tuned on it"
            )


def _edge(what: str, value: int, tried: set[int], possible: range) -> list[str]:
    """Sides on which nothing was tried although the drafter allows it."""
    found = []
    if value == max(tried) < possible[-1]:
        found.append(f"{what} {value} is the largest tried; up to {possible[-1]} is possible")
    if value == min(tried) > possible[0]:
        found.append(f"{what} {value} is the smallest tried; down to {possible[0]} is possible")
    return found
