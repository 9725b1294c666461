"""Tests in a browser run where there is one, and where CI says that there must be one."""

from __future__ import annotations

import os

import pytest

from tests.browser import NAMES, find_browser


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the browser's tests out, and say so."""
    if os.environ.get("CI") or find_browser() is not None:
        return
    out = [item for item in items if item.get_closest_marker("browser")]
    if not out:
        return
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"{len(out)} browser tests left out: no {' or '.join(NAMES)} here")
