"""Settings of the whole suite."""

from __future__ import annotations

import os

import torch
from hypothesis import settings

# Tiny models gain nothing from a second thread, and spinning threads are slow on a busy machine.
torch.set_num_threads(1)

# Machines that run tests are shared and slow at times; a deadline would only measure that.
settings.register_profile("draftgym", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("draftgym")

# No test talks to W&B's servers; those about its modes set this themselves.
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")
