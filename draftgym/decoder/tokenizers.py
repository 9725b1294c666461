"""Whether two tokenizers mean the same thing by the same ids."""

from __future__ import annotations

from typing import Any

from draftgym.errors import ConfigurationError

_PROBE = "Draft 3 tokens ahead: déjà vu, 你好."


def check_same_tokenizer(target: Any, drafter: Any) -> None:
    """Refuse a drafter whose token ids differ from the target's.

    Sizes may differ by padding; every id that both know must stand for the same text, and both
    must start a text the same way (an extra BOS shifts every position).

    Args:
        target: The target's Transformers tokenizer.
        drafter: The drafter's.

    Raises:
        ConfigurationError: Names the first differing id and both texts.
    """
    ours = {index: token for token, index in target.get_vocab().items()}
    theirs = {index: token for token, index in drafter.get_vocab().items()}
    for index in sorted(ours.keys() & theirs.keys()):
        if ours[index] != theirs[index]:
            raise ConfigurationError(
                f"tokenizers differ at id {index}: the target has {ours[index]!r}, "
                f"the drafter {theirs[index]!r}"
            )
    first, second = target(_PROBE)["input_ids"], drafter(_PROBE)["input_ids"]
    if first != second:
        place = next(
            (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
            min(len(first), len(second)),
        )
        raise ConfigurationError(
            f"tokenizers encode a probe text differently from token {place} on: the target gives "
            f"{first[place : place + 3]}, the drafter {second[place : place + 3]} (BOS rule?)"
        )
