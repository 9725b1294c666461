"""Rejections that are a matter of format, and the prefix of an answer that settles them.

A draft model that opens with a fence where the target opens with a sentence loses its whole block
to nothing. Committing fence and docstring before either model writes takes that away.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence

from draftgym.studies.rejoin.log import LoggedText

_MARKS = string.punctuation + string.whitespace
_FUNCTION = re.compile(
    r"^(?P<head>(?:(?:from|import) [^\n]*\n|[ \t]*\n)*"
    r"(?:async )?def \w+\([^)]*\)[^\n]*:[ \t]*\n"
    r"[ \t]+(?P<quotes>\"\"\"|''')[\s\S]*?(?P=quotes)[ \t]*\n?)",
    re.MULTILINE,
)
_LANGUAGES = {
    "javascript": "javascript",
    "sql": "sql",
    "shell": "bash",
    "bash": "bash",
    "#include": "c",
    "typescript": "typescript",
    "java ": "java",
}


def is_format(rejected: str, correction: str) -> bool:
    """Whether two texts differ in white space, fences or punctuation alone."""
    return rejected != correction and _bare(rejected) == _bare(correction)


def _bare(text: str) -> str:
    return text.translate(str.maketrans("", "", _MARKS))


def code_prefix(request: str) -> str:
    """Fence, and the function's header and docstring where the request has them.

    Args:
        request: A request for code; Python where it names no other language.
    """
    lower = request.lower()
    language = next((name for word, name in _LANGUAGES.items() if word in lower), "python")
    function = _FUNCTION.search(request) if language == "python" else None
    head = "" if function is None else function["head"].lstrip("\n")
    return f"```{language}\n{head}"


def format_shares(
    texts: Sequence[LoggedText], decode: Callable[[Sequence[int]], str]
) -> tuple[list[float], list[str]]:
    """Whether each rejection was a matter of format, and its request.

    Args:
        texts: Of one setting.
        decode: Token ids to text, special tokens left out.

    Returns:
        1 or 0 per rejection whose correction was written, and request ids.
    """
    values, clusters = [], []
    for text in texts:
        for entry in text.rounds:
            place = entry.root + entry.accepted + 1
            if entry.rejected and place < len(text.tokens):
                rejected = decode([entry.drafted[entry.accepted]])
                values.append(float(is_format(rejected, decode([text.tokens[place]]))))
                clusters.append(text.request_id)
    return values, clusters
