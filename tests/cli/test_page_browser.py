"""The live page in a real browser: updated in place, accessible, safe from other people's text, and the same after 1,000 batches.

Without Chromium these tests are skipped, except with PENSTOCK_REQUIRE_CHROMIUM=1 (`make test-page`). The accessibility rules are those
of axe-core, if PENSTOCK_AXE gives the path of its script; our own rules, about names and contrast, always apply.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.cli.page.board import Board
from penstock.cli.page.door import Door
from penstock.cli.page.ingest import WatchedIngest
from penstock.cli.page.sections import anchor
from penstock.cli.page.server import PageApplication
from penstock.cli.page.watched import Described, Failures, Views
from penstock.cli.run.measured import Measuring
from penstock.cli.run.status import Phase, PipelineStatus
from penstock.errors import StorageError
from penstock.ingestion.ingested import Ingested
from penstock.metrics.meter import Meter
from penstock.metrics.server import answering
from tests.support.chromium import Chromium, NoChromium, binary, browsing
from tests.support.required import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTILE = '"><script>window.hacked=1</script><img src=x onerror="window.hacked=1">'
STATE = Ingested(
    3,
    5,
    500,
    2,
    20,
    70,
    4,
    40,
    6,
    query="q",
    open_parts=1,
    open_since_ns=10**18,
    aside_records=9,
    late_files=1,
    held_files=2,
)
LIVE = "document.getElementById('connection')?.textContent === 'live'"
# Visible text has enough contrast to the nearest background behind it (WCAG 2.2, 1.4.3 AA).
CONTRAST = """(() => {
  const light = (rgb) => { const [r, g, b] = rgb.map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
    return .2126 * r + .7152 * g + .0722 * b; };
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (element) => { for (let at = element; at; at = at.parentElement) {
    const color = numbers(getComputedStyle(at).backgroundColor); if (color[3] !== 0) return color.slice(0, 3); }
    return numbers(getComputedStyle(document.body).backgroundColor).slice(0, 3); };
  const poor = [];
  for (const element of document.querySelectorAll("main *, header *")) {
    const text = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!text || !element.getClientRects().length) continue;
    const svg = element.namespaceURI.endsWith("svg"), style = getComputedStyle(element);
    const back = svg ? numbers(getComputedStyle(element.parentNode.querySelector("rect")).fill) : ground(element);
    const [a, b] = [light(numbers(svg ? style.fill : style.color).slice(0, 3)), light(back.slice(0, 3))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) poor.push(`${element.nodeName} ${element.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return poor;
})()"""
# Everything that takes keyboard input has a name, pictures have a text, and nothing is wider than the window.
NAMELESS = """(() => [...document.querySelectorAll("a, button, input, summary, [tabindex], svg, table, section")].filter(element => {
  if (element.getAttribute("aria-hidden") === "true" || element.id === "main") return false;
  const by = element.getAttribute("aria-labelledby");
  const name = element.getAttribute("aria-label") || (by && document.getElementById(by).textContent) || element.textContent;
  return !name.trim();
}).map(element => element.outerHTML.slice(0, 80)))()"""
# The text of a box stays inside it.
SPILLED = """(() => [...document.querySelectorAll(".station text")].filter(text => {
  if (!text.getClientRects().length) return false;
  const words = text.getBBox(), box = text.parentNode.querySelector("rect").getBBox();
  return words.x < box.x || words.x + words.width > box.x + box.width - 4;
}).map(text => text.textContent))()"""


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Chromium]:
    try:
        binary()
    except NoChromium as error:
        missing("CHROMIUM", error)
    with browsing(tmp_path / "profile") as browser:
        yield browser


class Site:
    """A page that is served until it is stopped, and can be started again at the same address."""

    def __init__(self, names: tuple[str, ...] = ("logs",), title: str = "pipelines.toml") -> None:
        self.meter, failures = Meter(), Failures()
        self.views = Views(self.meter, failures)
        watchers = (Measuring(self.meter), failures)
        self.ingests = [WatchedIngest(Described(name, "/in", "/no/output"), watchers) for name in names]
        self.views.watched = _Several(self.ingests)
        self.title = title
        self.port = 0
        self.state = STATE
        self._around = ExitStack()

    def start(self) -> str:
        """Serve the page; return its address."""
        board = Board(self.views)
        page = PageApplication(board, Door(None), self.title)
        url = self._around.enter_context(answering(f"127.0.0.1:{self.port}", page, name="--page"))
        self._around.callback(board.close)
        self.board, self.port = board, int(url.rpartition(":")[2])
        self.board.now()
        return url

    def stop(self) -> None:
        """Stop serving, and close all connections."""
        self._around.close()

    def batch(self, number: int) -> None:
        """Commit a batch of each pipeline."""
        for ingest in self.ingests:
            ingest.progress(replace(self.state, batch=number, rows=70 * number, input_bytes=number << 20))
        self.meter.batch("q", {"triggerExecution": 0.5})
        self.views.sample()
        self.board._make()


class _Several:
    def __init__(self, ingests: list[WatchedIngest]) -> None:
        self._ingests = ingests

    def refresh(self) -> None:
        pass

    def described(self) -> list[Described]:
        return [described for ingest in self._ingests for described in ingest.described()]

    def status(self, name: str) -> PipelineStatus:
        return next(ingest.status(name) for ingest in self._ingests if ingest.described()[0].name == name)


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site(("logs", HOSTILE))
    yield made
    made.stop()


@pytest.mark.slow
def test_page_is_kept_right_in_place(chromium: Chromium, site: Site) -> None:
    """Changes are inserted in place: an open fold and the focus stay, also over a restart; other people's text does nothing."""
    url = site.start()
    site.ingests[0]._told.failed(StorageError(HOSTILE), HOSTILE)
    site.batch(4)
    chromium.show(url)
    chromium.wait(LIVE)
    name = anchor("logs")
    chromium.run("document.querySelector('#all a').focus(); window.kept = document.activeElement")
    chromium.run("document.querySelector('main .errors').dataset.kept = 'yes'")
    site.batch(1234)
    chromium.wait(f"document.getElementById('{name}').textContent.includes('1,234 committed')")
    assert chromium.run("document.activeElement === window.kept && window.kept.isConnected")
    site.stop()
    chromium.wait("document.getElementById('connection').className.includes('lost')")
    site.start()
    site.batch(1235)
    chromium.wait(f"{LIVE} && document.getElementById('{name}').textContent.includes('1,235 committed')")
    assert chromium.run("document.activeElement === window.kept && window.kept.isConnected")
    assert chromium.run("window.hacked === undefined")
    assert chromium.run("document.body.textContent.includes('<script>window.hacked=1</script>')")
    assert chromium.run(CONTRAST) == []
    assert chromium.run(NAMELESS) == []
    site.state = replace(STATE, output_files=10**9, left_files=10**10, open_rows=10**12)
    site.batch(2_345_678)
    chromium.wait("document.body.textContent.includes('2,345,678 committed')")
    assert chromium.run(SPILLED) == []
    assert [
        complaint for complaint in chromium.complaints() if "net::ERR_" not in complaint
    ] == []  # while it was stopped


@pytest.mark.soak
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [380, 1200])
def test_rules_of_accessibility(chromium: Chromium, site: Site, width: int, dark: bool, tmp_path: Path) -> None:
    """Light and dark, phone and desktop: contrast, names, no horizontal scrolling, and the rules of axe-core if PENSTOCK_AXE is set."""
    url = site.start()
    site.ingests[0]._told.failed(StorageError("x"), "the disk does not answer; look at its server")
    site.ingests[0]._told.phase(Phase.BACKING_OFF, next_ns=2 * 10**18)
    site.batch(4)
    chromium.show(url, width=width, dark=dark)
    chromium.wait(LIVE)
    chromium.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
    assert chromium.run(CONTRAST) == []
    assert chromium.run(NAMELESS) == []
    assert chromium.run("document.documentElement.scrollWidth <= innerWidth")
    script = os.environ.get("PENSTOCK_AXE", "")
    if script:
        chromium.run(Path(script).read_text(encoding="utf-8"))
        found = "axe.run().then(r => r.violations.map(v => `${v.id}: ${v.nodes.map(n => n.target).join(' ')}`))"
        assert chromium.run(found) == []


@pytest.mark.soak
def test_a_thousand_batches_do_not_make_it_grow(chromium: Chromium, site: Site) -> None:
    """A page that stays open for a thousand batches has as many elements and listeners as before, and as much memory."""
    chromium.call("Performance.enable")
    url = site.start()
    for number in range(200):  # until the plots are full
        site.batch(number)
    chromium.show(url)
    chromium.wait(LIVE)

    def grown_to(first: int, last: int) -> dict[str, float]:
        for number in range(first, last):
            site.batch(number)
            if number % 20 == 0:
                chromium.wait(f"document.body.textContent.includes('{number:,} committed')")
        chromium.call("HeapProfiler.collectGarbage")
        return {metric["name"]: metric["value"] for metric in chromium.call("Performance.getMetrics")["metrics"]}

    before, after = grown_to(200, 401), grown_to(401, 1421)
    assert after["Nodes"] <= before["Nodes"] * 1.1
    assert after["JSEventListeners"] == before["JSEventListeners"]
    assert after["JSHeapUsedSize"] <= before["JSHeapUsedSize"] * 1.3 + 500_000


@pytest.mark.soak
def test_another_version_is_loaded_anew(chromium: Chromium, site: Site) -> None:
    """If the server at the address is now another version, the page is loaded again, with its script."""
    url = site.start()
    chromium.show(url)
    chromium.wait(LIVE)
    chromium.run("window.old = true")
    site.stop()
    site.title = "other.toml"
    site.start()
    chromium.wait("window.old === undefined && document.title.startsWith('other.toml')")
    chromium.wait(LIVE)
