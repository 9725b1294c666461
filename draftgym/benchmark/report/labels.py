"""Names that fit beside a chart, no two alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

ROOM = 24
"""Characters of a label, a number that tells twins apart left out."""


def distinct(names: Mapping[str, str]) -> dict[str, str]:
    """Labels that tell names of one chart apart.

    Args:
        names: What to shorten, by full name.

    Returns:
        Labels by full name.
    """
    words = {name: text.split() for name, text in names.items()}
    labels: dict[str, str] = {}
    for name, mine in words.items():
        short = _shorten(mine, [others for other, others in words.items() if other != name])
        label, count = short, 1
        while label in labels.values():
            count += 1
            label = f"{short} #{count}"
        labels[name] = label
    return labels


def _shorten(words: Sequence[str], others: Iterable[Sequence[str]]) -> str:
    """Paths by their end; other names from the first word on that no other name shares."""
    flat = " ".join(words)
    short = _cut(flat, ROOM)
    if short == flat:
        return flat
    if "/" in flat:
        return "…" + flat[1 - ROOM :]
    shared = max((_shared(words, other) for other in others), default=0)
    if len(short.split()) <= shared < len(words):
        return "…" + _cut(" ".join(words[shared:]), ROOM - 1)
    return short


def _shared(words: Sequence[str], others: Sequence[str]) -> int:
    """How many leading words two names share, punctuation aside."""
    pairs = zip(words, others, strict=False)
    return len(list(takewhile(lambda pair: pair[0].strip(",:;") == pair[1].strip(",:;"), pairs)))


def _cut(text: str, room: int) -> str:
    """As many whole words as fit; a longer word loses its middle."""
    if len(text) <= room:
        return text
    head = text[:room].rpartition(" ")[0].rstrip(" ,:;")
    half = room // 2
    return f"{head}…" if head else f"{text[:half]}…{text[1 - half :]}"
