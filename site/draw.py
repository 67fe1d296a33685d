"""The pictures of the documentation: `python site/draw.py` writes docs/pictures/*.svg; `tests/docs/test_site.py` holds them alike.

Most are boxes on a grid, and arrows between them; that of costs is drawn from docs/cost.json. Colours follow the reader's light or dark
mode, and each has a title and a description for readers who do not see it.
"""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

TARGET = Path(__file__).parent.parent / "docs/pictures"
COLUMN, ROW, WIDE, HIGH, MARGIN = 200, 104, 156, 60, 24
STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #1f2a30; text-anchor: middle }
    .note { font-size: 12px; fill: #52616b }
    .box { fill: #eef4f4; stroke: #4b7f83; stroke-width: 1.5 }
    .core { fill: #d3ebe6; stroke: #00796b; stroke-width: 2 }
    .hidden { fill: none; stroke: #7a8891; stroke-width: 1.5; stroke-dasharray: 5 4 }
    .bad { fill: #fbe9e7; stroke: #c0392b; stroke-width: 2 }
    .arrow { stroke: #4b7f83; stroke-width: 1.5; fill: none; marker-end: url(#tip) }
    .tip { fill: #4b7f83 }
    .ground { fill: #ffffff }
    @media (prefers-color-scheme: dark) {
      text { fill: #e3eaec } .note { fill: #a9b6bd } .ground { fill: #1b2226 }
      .box { fill: #26343a } .core { fill: #1d4a44 } .bad { fill: #4d2420 }
    }"""

CAST = Path(__file__).parent / "demo.cast"  # by site/record.py
LETTER, LINE, PAUSE = 7.6, 20, 1.5  # pixels; seconds at most between two lines
COSTS = Path(__file__).parent.parent / "docs" / "cost.json"  # by benchmarks/cost.py
NAMES = {"spark": "Spark's own", "ingest": "Penstock"}
PANEL = 380  # pixels
PLOT = """
    .title { font-weight: bold } .tick { font-size: 11.5px }
    .grid { stroke: #7a8891; stroke-width: 0.5; opacity: 0.5 }
    .spark { stroke: #c0702b; fill: none; stroke-width: 2 } .spark.dot { fill: #c0702b }
    .ingest { stroke: #00796b; fill: none; stroke-width: 2.5 } .ingest.dot { fill: #00796b }"""
TERMINAL = """
    text { font: 12.5px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #d7e2e5; white-space: pre }
    text { animation: appear 0.15s both }
    .typed { fill: #7fd1c2; font-weight: bold }
    .ground { fill: #1b2226; stroke: #4b7f83 }
    @keyframes appear { from { opacity: 0 } to { opacity: 1 } }
    @media (prefers-reduced-motion: reduce) { text { animation: none } }"""


@dataclass(frozen=True)
class Box:
    """A box at a column and a row of the grid, with at most two lines of text."""

    column: float
    row: float
    text: str
    kind: str = "box"

    @property
    def middle(self) -> tuple[float, float]:
        """Return where its middle is."""
        return MARGIN + self.column * COLUMN + WIDE / 2, MARGIN + self.row * ROW + HIGH / 2

    def svg(self) -> str:
        """Return it as SVG."""
        x, y = self.middle
        lines = self.text.split("\n")
        first = y + 5 - 9 * (len(lines) - 1)
        words = "".join(f'<text x="{x:g}" y="{first + 18 * n:g}">{escape(line)}</text>' for n, line in enumerate(lines))
        frame = f'x="{x - WIDE / 2:g}" y="{y - HIGH / 2:g}" width="{WIDE}" height="{HIGH}" rx="8"'
        return f'<rect class="{self.kind}" {frame}/>{words}'


@dataclass(frozen=True)
class Arrow:
    """An arrow from one box to another, along a row or a column, with a note beside it."""

    start: Box
    end: Box
    note: str = ""

    def svg(self) -> str:
        """Return it as SVG."""
        (x1, y1), (x2, y2) = self.start.middle, self.end.middle
        right, down = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
        if right and down:  # round a corner: along the row first
            path = f"M{x1 + right * WIDE / 2:g} {y1:g}H{x2:g}V{y2 - down * (HIGH / 2 + 3):g}"
            place = f'x="{x2 + 6:g}" y="{(y1 + y2) / 2 + 4:g}" style="text-anchor:start"'
        elif right:
            path = f"M{x1 + right * WIDE / 2:g} {y1:g}H{x2 - right * (WIDE / 2 + 3):g}"
            place = f'x="{(x1 + x2) / 2:g}" y="{y1 - (8 if abs(x2 - x1) > COLUMN else HIGH / 2 + 6):g}"'
        else:
            path = f"M{x1:g} {y1 + down * HIGH / 2:g}V{y2 - down * (HIGH / 2 + 3):g}"
            place = f'x="{x1 + 8:g}" y="{(y1 + y2) / 2 + 4:g}" style="text-anchor:start"'
        note = f'<text class="note" {place}>{escape(self.note)}</text>' if self.note else ""
        return f'<path class="arrow" d="{path}"/>{note}'


def picture(title: str, description: str, boxes: list[Box], arrows: list[Arrow]) -> str:
    """Return a picture as a file of SVG."""
    width = round(max(box.middle[0] for box in boxes) + WIDE / 2 + MARGIN)
    height = round(max(box.middle[1] for box in boxes) + HIGH / 2 + MARGIN)
    tip = '<marker id="tip" markerWidth="9" markerHeight="8" refX="6" refY="4" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker>'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title desc" viewBox="0 0 {width} {height}" width="{width}">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="desc">{escape(description)}</desc>',
        f"<style>{STYLE}\n</style>",
        f"<defs>{tip}</defs>",
        f'<rect class="ground" width="{width}" height="{height}" rx="12"/>',
        *(arrow.svg() for arrow in arrows),
        *(box.svg() for box in boxes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def flow() -> str:
    """Return the way of a batch."""
    files = Box(0, 0, "input directory\na.json  b.json")
    plan = Box(1, 0, "1  plan\nthe batch's end offset")
    tasks = Box(2, 0, "2  tasks\nread and write")
    staged = Box(3, 0, "staged files\nnobody sees them", "hidden")
    ledger = Box(3, 1, "3  one ledger record\n= the commit", "core")
    visible = Box(4, 1, "4  finished files\nfor every reader")
    checkpoint = Box(1, 1, "Spark's checkpoint", "hidden")
    arrows = [
        Arrow(files, plan), Arrow(plan, tasks), Arrow(tasks, staged), Arrow(plan, checkpoint, "written first"),
        Arrow(staged, ledger, "names of what counts"), Arrow(ledger, visible),
    ]  # fmt: skip
    return picture(
        "The way of a batch",
        "The input is planned; the plan goes into Spark's checkpoint; tasks read and stage; a ledger record commits; files are published.",
        [files, plan, tasks, staged, ledger, visible, checkpoint],
        arrows,
    )


def part() -> str:
    """Return the life of a part."""
    batches = [Box(0, row, f"batch {row + 1}") for row in range(3)]
    progress = Box(1, 1, "in progress\nnobody sees it", "hidden")
    pending = Box(2, 1, "pending\ndecided in the ledger", "core")
    finished = Box(3, 1, "finished\nnever changes again")
    arrows = [
        Arrow(batches[0], progress), Arrow(batches[1], progress), Arrow(batches[2], progress),
        Arrow(progress, pending, "large or old enough"), Arrow(pending, finished, "moved, never over another"),
    ]  # fmt: skip
    text = "Batches add rows to a part in progress; it is decided when it is large or old enough, and then moved to where readers look."
    return picture("The life of a part", text, [*batches, progress, pending, finished], arrows)


def fence() -> str:
    """Return what happens to a driver that stood still."""
    old = Box(0, 0, "old driver\nstood still, wakes up")
    new = Box(0, 1.4, "its successor")
    record = Box(1.6, 1.4, "record 7\nput if absent", "core")
    fenced = Box(1.6, 0, "Fenced\ncommitted nothing", "bad")
    goes_on = Box(3.1, 1.4, "record 8, 9, ...")
    arrows = [Arrow(old, fenced, "record 7 is there"), Arrow(new, record, "first"), Arrow(record, goes_on)]
    text = "Two drivers want to put one record. The successor was first, so the old driver is told Fenced and has committed nothing."
    return picture("Two drivers at once", text, [old, new, record, fenced, goes_on], arrows)


def demo() -> str:
    """Return the recorded demo as a terminal whose lines appear one after the other, once; all at once for who wants no motion."""
    header, *events = map(json.loads, CAST.read_text(encoding="utf-8").splitlines())
    lines: list[tuple[float, str, str]] = [(0.0, "typed", "$ make run")]
    at, before = PAUSE, 0.0
    for when, _, text in events:
        at, before = at + min(when - before, PAUSE), when
        rows = textwrap.wrap(text.rstrip("\n"), header["width"], subsequent_indent="    ", drop_whitespace=False)
        lines += [(at + number * 0.05, "said", row) for number, row in enumerate(rows or [""])]
    width, height = round(header["width"] * LETTER + 2 * MARGIN), round(len(lines) * LINE + 2 * MARGIN)
    texts = []
    for number, (appears, kind, text) in enumerate(lines):
        place = f'x="{MARGIN}" y="{MARGIN + LINE * (number + 0.7):g}" style="animation-delay:{appears:.2f}s"'
        texts.append(f'<text class="{kind}" {place}>{escape(text)}</text>')
    told = " ".join(" ".join(text.split()) for _, _, text in lines[1:] if text.strip())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title desc" viewBox="0 0 {width} {height}" width="{width}">',
        '<title id="title">The demo, as recorded; waits are shortened</title>',
        f'<desc id="desc">{escape(told)}</desc>',
        f"<style>{TERMINAL}\n</style>",
        f'<rect class="ground" width="{width}" height="{height}" rx="12"/>',
        *texts,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def costs() -> dict[str, list[tuple[float, float, float]]]:
    """Return for each contender of docs/cost.json its sizes in MB, with the medians of processor seconds and of MB at the peak."""
    runs: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for run in json.loads(COSTS.read_text(encoding="utf-8")):
        runs.setdefault((run["engine"], round(run["bytes"] / 1e6)), []).append((run["processor"], run["peak"] / 1e6))
    medians: dict[str, list[tuple[float, float, float]]] = {}
    for (engine, size), taken in sorted(runs.items()):
        processor, peak = (statistics.median(values) for values in zip(*taken, strict=True))
        medians.setdefault(engine, []).append((size, processor, peak))
    return medians


def panel(left: float, title: str, lines: dict[str, list[tuple[float, float]]]) -> list[str]:
    """Return one plot of lines, both of whose axes are logarithmic."""
    every = [point for points in lines.values() for point in points]
    low, high = ([pick(values) for values in zip(*every, strict=True)] for pick in (min, max))
    bottom, top = 10 ** math.floor(math.log10(low[1])), 10 ** math.ceil(math.log10(high[1]))

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / low[0]) / math.log(high[0] / low[0])
        return left + 40 + across * (PANEL - 60), 240 - 190 * math.log(y / bottom) / math.log(top / bottom)

    parts = [f'<text class="title" x="{left + PANEL / 2:g}" y="28">{escape(title)}</text>']
    ticks = range(round(math.log10(bottom)), round(math.log10(top)) + 1)
    for value in (10.0**tick for tick in ticks):
        y = place(low[0], value)[1]
        parts.append(f'<path class="grid" d="M{left + 40:g} {y:.1f}H{left + PANEL - 20:g}"/>')
        parts.append(f'<text class="tick" x="{left + 34:g}" y="{y + 4:.1f}" style="text-anchor:end">{value:,g}</text>')
    sizes = sorted({x for x, _ in every})
    parts += [f'<text class="tick" x="{place(size, bottom)[0]:.1f}" y="258">{size:,g}</text>' for size in sizes]
    parts.append(f'<text class="tick" x="{left + PANEL / 2:g}" y="278">MB of JSON lines</text>')
    for engine, points in lines.items():
        at = [place(*point) for point in points]
        parts.append(f'<path class="{engine}" d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in at)}"/>')
        parts += [f'<circle class="{engine} dot" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in at]
        x, y = at[-1][0] - 6, at[-1][1] + (18 if engine == "ingest" else -10)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{y:.1f}" style="text-anchor:end">{NAMES[engine]}</text>')
    return parts


def cost() -> str:
    """Return what whole runs cost, over several sizes."""
    medians = costs()
    processor = {engine: [(size, seconds) for size, seconds, _ in points] for engine, points in medians.items()}
    memory = {engine: [(size, peak) for size, _, peak in points] for engine, points in medians.items()}
    told = [
        f"{NAMES[engine]}, {size:,g} MB: {seconds:.1f} processor seconds, {peak:,.0f} MB of memory."
        for engine, points in medians.items()
        for size, seconds, peak in points
    ]
    width = 2 * PANEL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title desc" viewBox="0 0 {width} 290" width="{width}">',
        '<title id="title">What a whole run costs, JSON to Parquet</title>',
        f'<desc id="desc">{escape(" ".join(told))}</desc>',
        f"<style>{STYLE}{PLOT}\n</style>",
        f'<rect class="ground" width="{width}" height="290" rx="12"/>',
        *panel(0, "Processor seconds", processor),
        *panel(PANEL, "MB of memory at the peak", memory),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


PICTURES = {"flow.svg": flow, "part.svg": part, "fence.svg": fence, "demo.svg": demo, "cost.svg": cost}

if __name__ == "__main__":
    for name, drawn in PICTURES.items():
        (TARGET / name).write_text(drawn(), encoding="utf-8")
