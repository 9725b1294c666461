"""A headless Chromium that looks at local pages, for tests and pictures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-quic", "--hide-scrollbars", "--force-device-scale-factor=1",
    # The browser's own calls home, which the flags above do not all stop, lead nowhere.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class Visit:
    """What a page did.

    Attributes:
        document: The page's elements after its scripts, as text.
        console: Messages of the page.
        requests: Addresses that the page asked for over the network.
    """

    document: str
    console: list[str]
    requests: list[str]


def find_browser() -> str | None:
    """Path of a Chromium, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def visit(page: Path) -> Visit:
    """Open a page and tell what it did."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "net.json")
        finished = _run(
            page, "--dump-dom", f"--log-net-log={log}", "--enable-logging=stderr",
            "--virtual-time-budget=2000",
        )  # fmt: skip
        network = json.loads(log.read_text(encoding="utf-8"))
    return Visit(
        document=finished.stdout,
        console=re.findall(r":CONSOLE[:(].*", finished.stderr),
        requests=_requests(network),
    )


def picture(page: Path, image: Path, width: int, height: int, *, dark: bool = False) -> None:
    """Take a picture of a page's upper left corner.

    Args:
        page: HTML file.
        image: PNG file to write.
        width: Pixels.
        height: Pixels.
        dark: Whether the reader prefers dark pages.
    """
    mode = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0") if dark else ()
    _run(page, f"--screenshot={image}", f"--window-size={width},{height}", *mode)


def _run(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    browser = find_browser()
    assert browser is not None, f"none of {', '.join(NAMES)} is installed"
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *FLAGS, f"--user-data-dir={profile}", *options, page.resolve().as_uri()]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS
        )


def _requests(network: dict[str, object]) -> list[str]:
    """Addresses of requests that a page made, not the browser itself: those name an initiator."""
    events = network["events"]
    assert isinstance(events, list)
    found = [event.get("params", {}) for event in events]
    return [
        entry["url"]
        for entry in found
        if entry.get("initiator", "not an origin") != "not an origin"
    ]
