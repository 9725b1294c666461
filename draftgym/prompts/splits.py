"""Assign requests to splits by hash, and prove that splits do not overlap.

Translations share a request id and therefore a split. Nothing here reads a file.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from draftgym.prompts.prompt import SPLITS, Prompt, Split

SPLIT_SALT = "draftgym-1318/"
"""Prefix of every hashed request id.

Chosen once, from the ids of the bundled requests alone, so that each split of this small set
holds every domain. Changing it moves prompts between splits and invalidates trained artifacts.
"""

DEFAULT_WEIGHTS: Mapping[Split, float] = MappingProxyType(
    {"drafter": 0.20, "policy": 0.30, "validation": 0.15, "test": 0.35}
)
"""Share of requests per split for a source that may serve every stage."""

_SUM_TOLERANCE = 1e-6


def check_weights(weights: Mapping[Split, float]) -> None:
    """Reject weights that are not a distribution over known splits.

    Args:
        weights: Share of requests per split; splits left out get none.

    Raises:
        ValueError: If a split is unknown, a weight is negative or not finite, or the sum is not 1.
    """
    for split, weight in weights.items():
        if split not in SPLITS:
            raise ValueError(f"weights: unknown split {split!r}; accepted: {', '.join(SPLITS)}")
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(f"weights: {split} must be a finite number >= 0, got {weight}")
    total = math.fsum(weights.values())
    if abs(total - 1.0) > _SUM_TOLERANCE:
        raise ValueError(f"weights: must sum to 1, got {total:g} from {dict(weights)}")


def assign_split(request_id: str, weights: Mapping[Split, float]) -> Split:
    """Return the split that owns a request.

    The salted id is hashed to a number in [0, 1) and compared with the cumulative weights in
    the order of ``SPLITS``, so the answer depends on nothing but the arguments.

    Args:
        request_id: Name of the request, without its language.
        weights: Share of requests per split; splits left out get none.

    Returns:
        The owning split; its weight is positive.

    Raises:
        ValueError: If the weights are not a distribution over known splits.

    Examples:
        >>> assign_split("code-003", {"test": 1.0})
        'test'
    """
    check_weights(weights)
    digest = hashlib.sha256((SPLIT_SALT + request_id).encode()).digest()
    # 53 bits: the most that a float holds exactly, so the position stays below 1.
    position = (int.from_bytes(digest[:8], "big") >> 11) / 2**53
    owners = [split for split in SPLITS if weights.get(split, 0.0) > 0]
    upper = 0.0
    for split in owners[:-1]:
        upper += weights[split]
        if position < upper:
            return split
    return owners[-1]


def check_disjoint(prompts: Iterable[Prompt]) -> None:
    """Prove that no id, request or text is owned by two splits.

    Args:
        prompts: Prompts of any number of splits.

    Raises:
        ValueError: If an id, a request id or a text occurs in two splits; names the ids.
    """
    owners: dict[tuple[str, object], Prompt] = {}
    for prompt in prompts:
        text = tuple(turn.strip() for turn in prompt.turns)
        for kind, key in (("id", prompt.id), ("request", prompt.request_id), ("text", text)):
            first = owners.setdefault((kind, key), prompt)
            if first.split != prompt.split:
                name = f" {key!r}" if kind != "text" else ""
                raise ValueError(
                    f"splits overlap: {kind}{name} is in {first.split!r} as {first.id!r} "
                    f"and in {prompt.split!r} as {prompt.id!r}"
                )
