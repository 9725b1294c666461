"""The report in a real browser: charts drawn, nothing asked of the network, fit for a phone."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from draftgym.benchmark.report import write_report
from draftgym.benchmark.report.charts import PLANS
from tests.browser import visit
from tests.unit.report_data import details, payload

pytestmark = pytest.mark.browser

PHONE, DESK = 390, 1280

PROBE = """<script>
addEventListener("load", () => {
  const wide = [...document.querySelectorAll("body *")].filter(
    (e) => !e.closest(".scroll, svg") && e.getBoundingClientRect().right > innerWidth + 0.5);
  const charts = [...document.querySelectorAll("figure svg")].map((svg) => {
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    const sizes = [...svg.querySelectorAll("text")].map(
      (text) => scale * parseFloat(getComputedStyle(text).fontSize));
    return [svg.closest("figure").id, box.width, box.height, Math.min(...sizes)];
  });
  parent.postMessage({
    width: innerWidth, content: document.documentElement.scrollWidth, charts,
    wide: wide.map((e) => e.outerHTML.slice(0, 80)),
    scrolling: [...document.querySelectorAll(".scroll")].some((e) => e.scrollWidth > e.clientWidth),
  }, "*");
});
</script>"""

# A window of this browser is never as narrow as a phone, a frame is. The picture and the
# message show that the checks of the other test would see a request and a complaint.
FRAMES = """<!DOCTYPE html><link rel="icon" href="data:,"><pre></pre>
<script>
const found = {};
addEventListener("message", (event) => {
  found[event.data.width] = event.data;
  document.querySelector("pre").textContent = JSON.stringify(found);
});
console.warn("complaint");
</script>
<img src="http://picture.invalid/x.png">
""" + "".join(
    f'<iframe src="probed.html" style="border:0;width:{width}px;height:900px"></iframe>'
    for width in (PHONE, DESK)
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(folder, payload(), details())
    return folder / "report.html"


def test_page_is_silent(report: Path) -> None:
    seen = visit(report)
    assert seen.document.count("<svg") == len(PLANS)
    assert seen.console == []
    assert seen.requests == []


def test_page_fits_phone_and_desk(report: Path) -> None:
    page = report.read_text(encoding="utf-8")
    probed = page.replace("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';")
    assert probed != page
    report.with_name("probed.html").write_text(probed.replace("</body>", f"{PROBE}</body>"))
    frames = report.with_name("frames.html")
    frames.write_text(FRAMES)
    seen = visit(frames)
    assert seen.requests == ["http://picture.invalid/x.png"]
    assert len(seen.console) == 1 and "complaint" in seen.console[0]
    inside = re.search(r"<pre>(.*?)</pre>", seen.document, flags=re.DOTALL)
    assert inside is not None
    found: dict[str, Any] = json.loads(unescape(inside[1]))
    assert found.keys() == {str(PHONE), str(DESK)}
    for width, view in found.items():
        assert view["content"] <= int(width), view["wide"]
        assert view["wide"] == []
        assert {name for name, *_ in view["charts"]} == PLANS.keys()
        assert all(box > 60 for _, *size, _ in view["charts"] for box in size)
        assert min(letters for *_, letters in view["charts"]) >= 9, "pixels"
    assert found[str(PHONE)]["scrolling"], "wide tables scroll in their own box"
