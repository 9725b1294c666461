"""Token rows to train a drafter on, and which of them are only ever measured on.

This module does not know about models: a row is an id and token ids.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from draftgym.prompts.prompt import Split
from draftgym.prompts.splits import assign_split

_HELD_OUT_SALT = "drafter-held-out/"


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One text as the target saw or wrote it.

    Attributes:
        id: Unique name, such as ``code-003-it``.
        request_id: Name shared by translations; decides the split and whether it is held out.
        prompt_tokens: Token ids up to and including the generation prompt; may be empty.
        answer_tokens: Token ids that the target wrote; empty for prompt-only text.
        greedy: Whether each answer token was the target's first choice.
    """

    id: str
    request_id: str
    prompt_tokens: tuple[int, ...]
    answer_tokens: tuple[int, ...] = ()
    greedy: bool = True

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def digest(self) -> str:
        """Name of the content: the id and every token."""
        text = json.dumps([self.id, self.prompt_tokens, self.answer_tokens])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_held_out(request_id: str, fraction: float) -> bool:
    """Return whether a request is measured on and never trained on.

    Args:
        request_id: Name of the request, without its language.
        fraction: Share of requests held out, in [0, 1).

    Returns:
        True for about that share of ids; depends on the arguments alone.
    """
    digest = hashlib.sha256((_HELD_OUT_SALT + request_id).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < fraction


def split_held_out(
    rows: Iterable[TokenRow], fraction: float
) -> tuple[list[TokenRow], list[TokenRow]]:
    """Part rows into those to train on and those held out, both in the given order."""
    train: list[TokenRow] = []
    held_out: list[TokenRow] = []
    for row in rows:
        (held_out if is_held_out(row.request_id, fraction) else train).append(row)
    return train, held_out


def read_answers(
    path: Path, weights: Mapping[Split, float], max_tokens: int, vocab_size: int
) -> list[TokenRow]:
    """Read the drafter-split rows of a file of answers kept as token ids.

    Args:
        path: JSON lines with ``id``, ``prompt_tokens`` and ``answer_tokens``, and optionally
            ``request``.
        weights: Share of requests per split, as for any prompt source.
        max_tokens: Longest row kept whole; longer ones are cut at their end.
        vocab_size: Token ids must be below this.

    Returns:
        Rows of the drafter split, in file order.

    Raises:
        ValueError: If the file cannot be read or a row is bad; names the file and line.
    """
    rows = []
    for where, values in _json_lines(path):
        row = _answer_row(where, values, vocab_size)
        if assign_split(row.request_id, weights) == "drafter":
            rows.append(_cut(row, max_tokens))
    if not rows:
        raise ValueError(f"{path}: no row falls in the 'drafter' split")
    return rows


def _json_lines(path: Path) -> Iterator[tuple[str, object]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                yield where, json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{where}: broken JSON: {error}") from error


def _answer_row(where: str, values: object, vocab_size: int) -> TokenRow:
    if not isinstance(values, dict) or not isinstance(values.get("id"), str):
        raise ValueError(f"{where}: expected an object with a string 'id'")
    for field in ("prompt_tokens", "answer_tokens"):
        tokens = values.get(field)
        if not isinstance(tokens, list) or not all(
            isinstance(token, int) and 0 <= token < vocab_size for token in tokens
        ):
            raise ValueError(f"{where}: {field}: expected token ids from 0 to {vocab_size - 1}")
    return TokenRow(
        id=values["id"],
        request_id=str(values.get("request", values["id"])),
        prompt_tokens=tuple(values["prompt_tokens"]),
        answer_tokens=tuple(values["answer_tokens"]),
    )


def _cut(row: TokenRow, max_tokens: int) -> TokenRow:
    kept_answer = max(0, max_tokens - len(row.prompt_tokens))
    return replace(
        row,
        prompt_tokens=row.prompt_tokens[:max_tokens],
        answer_tokens=row.answer_tokens[:kept_answer],
    )


def shared_prefix_tokens(rows: Sequence[TokenRow]) -> int:
    """Count the leading tokens that every row shares: the chat template's preamble."""
    if not rows:
        return 0
    first, last = min(row.tokens for row in rows), max(row.tokens for row in rows)
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return length


def group_by_length(rows: Sequence[TokenRow], batch_tokens: int) -> list[list[TokenRow]]:
    """Group rows of similar length so that padding stays small, shortest first.

    Args:
        rows: Rows in any order; each occurs in exactly one group.
        batch_tokens: Most padded tokens per group (a longer row makes its own group).
    """
    groups: list[list[TokenRow]] = []
    for row in sorted(rows, key=lambda row: len(row.tokens)):
        if not groups or (len(groups[-1]) + 1) * len(row.tokens) > batch_tokens:
            groups.append([])
        groups[-1].append(row)
    return groups
