"""The README's Python example, run as it stands, without any RL library."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import sys
for name in ("gymnasium", "stable_baselines3", "wandb"):
    sys.modules[name] = None
from dataclasses import replace
from draftgym.benchmark.untrained import untrained_controller
from draftgym.decoder.config import PairConfig
from draftgym.decoder.pair import load_pair
from draftgym.runtime import save_policy
policy = untrained_controller(max_depth=8, beam_width=4).policy
save_policy("runs/default/policy", replace(policy, pair=load_pair(PairConfig()).fingerprint()))
"""


@pytest.mark.real_pair
def test_the_example_decodes_with_a_policy(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    finished = subprocess.run(
        [sys.executable, "-c", PRELUDE + example],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    words, tau = finished.stdout.strip().rsplit(" ", 1)
    assert len(words.split()) > 10
    assert 1.0 <= float(tau) <= 9.0
