"""Train, validate, export and evaluate: `python train.py [CONFIG] [--run NAME] [--resume]`.

The composition is in `draftgym/commands/train.py`; this is `python -m draftgym train`.
"""

import sys

from draftgym.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
