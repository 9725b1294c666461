"""Compare plain decoding, tuned fixed cells and a policy: `python evaluate.py CONFIG`.

The composition is in `draftgym/benchmark/evaluate.py`; this is `python -m draftgym evaluate`.
"""

import sys

from draftgym.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
