"""Finished parts of long work, kept so that a killed run goes on with the rest.

A part is asked for under the key of everything that it depends on. One of another key is not
there; one whose content is not what was written is refused, never believed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from draftgym.errors import DraftGymError
from draftgym.storage import dump_json, write_json


def keep(file: Path, key: Any, content: Any) -> None:
    """Write a finished part in one step.

    Args:
        file: Where; replaced when there.
        key: Everything that it depends on, plain data.
        content: Plain data.
    """
    write_json(
        file, {"key": _digest(key), "sha256": _digest(content), "content": content}, indent=None
    )


def kept(file: Path, key: Any) -> Any | None:
    """The content of a part as JSON reads it; None when there is none, or one of another key.

    Args:
        file: As of `keep`.
        key: As of `keep`.

    Raises:
        DraftGymError: The file is damaged or was edited; names it.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DraftGymError(f"{file}: cannot be read ({error})") from error
    try:
        found = json.loads(text)
        if found["key"] != _digest(key):
            return None
        content = found["content"]
        whole = found["sha256"] == _digest(content)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DraftGymError(f"{file}: damaged ({error!r}); remove it and run again") from error
    if not whole:
        raise DraftGymError(f"{file}: not what was written; remove it and run again")
    return content


def _digest(content: Any) -> str:
    return hashlib.sha256(dump_json(content).encode()).hexdigest()[:16]
