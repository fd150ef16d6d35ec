"""The site as `make docs` builds it: no warning, no dead link, nothing from a network, and readable on a phone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
# Elements that reach beyond the screen without something around them that scrolls.
TOO_WIDE = """
const scrolls = (element) => {
  for (let each = element; each.tagName !== "ARTICLE"; each = each.parentElement) {
    if (["auto", "scroll", "hidden"].includes(getComputedStyle(each).overflowX)) return true;
  }
  return false;
};
return [...document.querySelectorAll("article *")]
  .filter((element) => element.getBoundingClientRect().right > window.innerWidth + 1 && !scrolls(element))
  .map((element) => element.outerHTML.slice(0, 100));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-n", "--keep-going", "-b", "html"]
    built = subprocess.run(
        [*command, "-d", folder / "doctrees", ROOT / "docs", folder / "html"],
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert built.returncode == 0, built.stderr[-4000:]
    return folder / "html"


def links(site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ROOT / ".ci/site_links.py", site], capture_output=True, text=True)


@pytest.mark.slow
def test_links_lead_somewhere_and_nothing_is_loaded_from_a_network(site: Path) -> None:
    assert links(site).returncode == 0, links(site).stdout


@pytest.mark.slow
def test_every_page_on_a_phone(site: Path, browser: Any) -> None:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        browser.get(page.as_uri())
        name = page.relative_to(site)
        width = browser.execute_script("return document.documentElement.scrollWidth")
        assert width <= PHONE["width"], f"{name}: the page scrolls sideways, {width} pixels"
        assert browser.execute_script(TOO_WIDE) == [], name
    browser.get((site / "algorithm.html").as_uri())
    heights = browser.execute_script("return [...document.querySelectorAll('.formula math')].map(m => m.clientHeight)")
    assert len(heights) >= 7
    assert min(heights) > 15, "formulas are drawn"


def test_a_dead_link_a_dead_anchor_and_a_file_from_a_network_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a href="b.html#here"></a><a href="#top"></a><img src="data:,x">'
    )
    (tmp_path / "b.html").write_text('<h1 id="here"></h1><a href="https://example.org"></a>')
    assert links(tmp_path).returncode == 0
    (tmp_path / "b.html").write_text('<a href="c.html"></a><script src="https://example.org/x.js"></script>')
    found = links(tmp_path)
    assert found.returncode == 1
    assert found.stdout.splitlines() == [
        "a.html: b.html#here leads to no anchor",
        "b.html: c.html leads to no file",
        "b.html: https://example.org/x.js is loaded from a network",
    ]
