"""The pictures of the page, as SVG: the way of files through a pipeline, and small plots.

Each picture also says in words what it shows (`aria-label`), and colour is never the only sign. Sizes are in units of
the picture. Its texts are our own numbers and words, never names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cli.page.markup import append, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cli.page.markup import Element

_BOX, _HIGH = 168, 88  # of a station
_GAP = 40  # between two stations, for the arrow
_INSET = 12  # of the text in a station
_LETTER = {"label": 8.0, "number": 13.0, "note": 7.5}  # its width: the average is at most this
_PLOT, _PLOT_HIGH = 240, 56


@dataclass(frozen=True)
class Station:
    """A place on the way: its name, its number, a note. `tone` is how it looks: busy, bad, or nothing."""

    label: str
    number: str
    note: str = ""
    tone: str = ""

    def __str__(self) -> str:
        return f"{self.label}: {self.number}{f' ({self.note})' if self.note else ''}"


@dataclass(frozen=True)
class _Direction:
    """Where stations are: from left to right, or, for narrow screens, from top to bottom."""

    tall: bool

    def station(self, place: int, *, beside: bool = False) -> tuple[int, int]:
        """Return the corner of a station on the way, or of the station beside it."""
        along = place * ((_HIGH if self.tall else _BOX) + _GAP) + 1
        across = ((_BOX if self.tall else _HIGH) + _GAP if beside else 0) + 1
        return (across, along) if self.tall else (along, across)

    def size(self, places: int) -> tuple[int, int]:
        """Return the size of the picture."""
        x, y = self.station(places - 1)
        width, height = self.station(0, beside=True)
        return max(x, width) + _BOX + 1, max(y, height) + _HIGH + 1

    def arrow(self, place: int, *, busy: bool) -> list[Element]:
        """Return the arrow that ends at a station."""
        x, y = self.station(place)
        if self.tall:
            x += 24
            ends, head = (x, y - _GAP, x, y - 8), f"{x - 6},{y - 9} {x + 6},{y - 9} {x},{y - 1}"
        else:
            y += _HIGH // 2
            ends, head = (x - _GAP, y, x - 8, y), f"{x - 9},{y - 6} {x - 9},{y + 6} {x - 1},{y}"
        return [_line(ends, "arrow busy" if busy else "arrow"), tag("polygon", points=head, class_="head")]

    def branch(self, place: int) -> Element:
        """Return the line from a station to the station beside it."""
        (x, y), (to_x, to_y) = self.station(place), self.station(place, beside=True)
        middle = y + _HIGH // 2 if self.tall else x + _BOX // 2
        ends = (x + _BOX, middle, to_x, middle) if self.tall else (middle, y + _HIGH, middle, to_y)
        return _line(ends, "arrow beside")


def flow(way: Sequence[Station], beside: Sequence[tuple[int, Station]], *, tall: bool) -> Element:
    """Return the picture of a way, with stations beside some of its places; `tall` is for narrow screens."""
    words = "; ".join(str(station) for station in (*way, *(station for _, station in beside)))
    direction = _Direction(tall)
    width, height = direction.size(len(way))
    kind = "flow tall" if tall else "flow wide"
    picture = tag("svg", viewBox=f"0 0 {width} {height}", role="img", aria_label=words, class_=kind)
    for place, station in enumerate(way):
        append(picture, _box(station, *direction.station(place)))
        if place:
            append(picture, *direction.arrow(place, busy=station.tone == "busy"))
    for place, station in beside:
        append(picture, direction.branch(place), _box(station, *direction.station(place, beside=True)))
    return picture


def _line(ends: tuple[int, int, int, int], kind: str) -> Element:
    x1, y1, x2, y2 = ends
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def _box(station: Station, x: int, y: int) -> Element:
    return tag(
        "g",
        tag("rect", x=x, y=y, width=_BOX, height=_HIGH, rx=8, class_="box"),
        _text(station.label, x, y + 22, "label"),
        _text(station.number, x, y + 50, "number"),
        _text(station.note, x, y + 74, "note"),
        class_=f"station {station.tone}".rstrip(),
    )


def _text(words: str, x: int, y: int, kind: str) -> Element:
    """Return a line of text in a box; it is compressed if it would be wider than the box."""
    room = _BOX - 2 * _INSET
    squeezed = {"textLength": room, "lengthAdjust": "spacingAndGlyphs"} if len(words) * _LETTER[kind] > room else {}
    return tag("text", words, x=x + _INSET, y=y, class_=kind, **squeezed)


def plot(numbers: Sequence[float], words: str, *, places: int) -> Element:
    """Return a plot of the last numbers, from 0 to the largest, as wide as `places` of them; `words` say what it shows."""
    most = max(numbers, default=0.0) or 1.0
    step, last = _PLOT / max(places - 1, 1), len(numbers) - 1
    heights = [round((_PLOT_HIGH - 2) * (1 - number / most) + 1, 1) for number in numbers]
    bends = [at for at, y in enumerate(heights) if not (0 < at < last and heights[at - 1] == y == heights[at + 1])]
    points = [(round(_PLOT - (last - at) * step, 1), heights[at]) for at in bends]
    line = " ".join(f"{x},{y}" for x, y in points)
    area = f"{points[0][0]},{_PLOT_HIGH} {line} {_PLOT},{_PLOT_HIGH}" if points else ""
    return tag(
        "svg",
        tag("polygon", points=area, class_="area"),
        tag("polyline", points=line, class_="line"),
        viewBox=f"0 0 {_PLOT} {_PLOT_HIGH}", preserveAspectRatio="none", role="img", aria_label=words, class_="plot",
    )  # fmt: skip


def bar(share: float) -> Element:
    """Return a bar whose length shows a share of the whole; the number beside it says the same in words."""
    width = round(max(min(share, 1.0), 0.01) * 100, 1)
    return tag(
        "svg", tag("rect", x=0, y=0, width=width, height=8, rx=2),
        viewBox="0 0 100 8", preserveAspectRatio="none", aria_hidden="true", class_="bar",
    )  # fmt: skip
