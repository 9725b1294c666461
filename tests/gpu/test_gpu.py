"""The checks on CUDA: `pytest -m gpu`, or all in one short run by `python -m tests.gpu`."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.__main__ import CHECKS, SHAPES
from tests.gpu.latency import latency

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CHECKS)
def test_check(name: str) -> None:
    assert CHECKS[name](torch.device("cuda", 0))


@pytest.mark.parametrize("shapes", SHAPES, ids=lambda shapes: shapes.name)
def test_latency(shapes: object) -> None:
    report = latency(shapes, torch.device("cuda", 0), rounds=5)  # type: ignore[arg-type]
    assert report["plain_step_ms"] > 0
