"""`python -m draftgym VERB`: finds the verb's module and hands it the arguments.

Only the chosen verb is imported; the list of verbs comes from reading the files' docstrings,
so asking for help never loads torch.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from pydantic import ValidationError

from draftgym.errors import DraftGymError

COMMANDS = Path(__file__).resolve().parent / "commands"


def verbs() -> dict[str, str]:
    """Every verb with the first line of its module's docstring."""
    found = {}
    for file in sorted(COMMANDS.glob("*.py")):
        if file.stem.startswith("_"):
            continue
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        found[file.stem.replace("_", "-")] = docstring.partition("\n")[0]
    return found


def listing() -> str:
    """The help text."""
    known = verbs()
    width = max(map(len, known), default=0)
    lines = [f"  {name:<{width}}  {line}" for name, line in known.items()]
    return "\n".join(
        [
            "usage: python -m draftgym VERB [options]",
            "",
            "verbs:",
            *lines,
            "",
            "`python -m draftgym VERB --help` explains a verb's options.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb.

    Args:
        argv: Verb and its arguments; the process's own when None.

    Returns:
        Exit status: the verb's own; 2 for a missing or unknown verb and for errors the user
        can act on (printed as one message, without a traceback).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in ("-h", "--help"):
        print(listing())
        return 0
    if not arguments or arguments[0] not in verbs():
        problem = f"unknown verb {arguments[0]!r}" if arguments else "no verb given"
        print(f"{problem}\n{listing()}", file=sys.stderr)
        return 2
    module = import_module(f"draftgym.commands.{arguments[0].replace('-', '_')}")
    try:
        return int(module.main(arguments[1:]))
    except DraftGymError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ValidationError as error:
        # A configuration made from options: of a file, `load_yaml` tells the name as well.
        for found in error.errors():
            field = ".".join(map(str, found["loc"]))
            message = f"{field}: {found['msg']}; got {found['input']!r:.80}"
            print(f"error: {message}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None:  # not about a file that the user named
            raise
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
