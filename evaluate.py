"""Compare plain decoding, tuned fixed cells and a policy: `python evaluate.py CONFIG`."""

import sys

from draftgym.commands.evaluate import main
from draftgym.errors import DraftGymError

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:], prog="python evaluate.py"))
    except DraftGymError as error:
        sys.exit(f"error: {error}")
