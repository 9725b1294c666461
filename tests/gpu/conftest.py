"""Tests for CUDA are collected where there is CUDA, and asking for them elsewhere fails."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the CUDA tests of a machine without CUDA; pytest then ends with "no tests ran"."""
    if torch.cuda.is_available():
        return
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu:
        return
    config.hook.pytest_deselected(items=gpu)
    items[:] = [item for item in items if item not in gpu]
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and "not gpu" not in (config.option.markexpr or ""):
        reporter.write_line(f"{len(gpu)} gpu tests left out: this torch sees no CUDA device")
