"""What an unfinished evaluation has settled on: started again, it goes on with the same inputs.

Otherwise a calibration or a training run in between would change what `newest` means, and the
blocks that are done would belong to another comparison.
"""

from __future__ import annotations

import json
from pathlib import Path

from draftgym.benchmark.config import EvaluateConfig
from draftgym.console import say
from draftgym.storage import plain, write_json

FILE = "settled.json"


def settled(asked: EvaluateConfig, folder: Path) -> EvaluateConfig:
    """The configuration with the paths that an unfinished run of it had found.

    Args:
        asked: As the user gave it.
        folder: Of the evaluation.
    """
    file = folder / FILE
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        if known["asked"] != plain(asked):
            return asked
        found = EvaluateConfig.model_validate(known["settled"])
    except (OSError, ValueError, KeyError, TypeError):
        return asked  # nothing unfinished here
    say(f"{folder}: going on with the traces, costs and policies that it was begun with")
    return found


def settle(asked: EvaluateConfig, found: EvaluateConfig, folder: Path) -> None:
    """Keep what was found, until `forget`.

    Args:
        asked: As the user gave it.
        found: The same with paths.
        folder: Of the evaluation.
    """
    write_json(folder / FILE, {"asked": asked, "settled": found})


def forget(folder: Path) -> None:
    """The evaluation is finished; the next one looks anew.

    Args:
        folder: Of the evaluation.
    """
    (folder / FILE).unlink(missing_ok=True)
