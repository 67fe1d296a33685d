"""CSV read character by character: what `csv.cut` and `csv.decoder` must find, whatever the dialect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.formats import Dialect
from penstock.formats.csv.cut import RFC4180, csv_cuts

if TYPE_CHECKING:
    from collections.abc import Callable

Field = tuple[str, bool]  # its text, and whether it was quoted


@dataclass
class Records:
    """The content of a file: the offsets where records begin (also of blank lines and comments), the rows, and the first bad record."""

    ends: list[int] = field(default_factory=list)
    rows: list[tuple[int, list[Field]]] = field(default_factory=list)
    strays: list[int] = field(default_factory=list)
    unclosed: bool = False

    def starts(self, size: int) -> list[int]:
        """Return the offset of each record of a file of `size` bytes, blank lines and comments included."""
        return [start for start in [0, *self.ends] if start < size]

    def bad(self, size: int) -> int | None:
        """Return the offset of the first record with text after a closing quote, or with a quote that is never closed."""
        if self.strays:
            return max(start for start in self.starts(size) if start < self.strays[0])
        return self.starts(size)[-1] if self.unclosed else None


def read(data: str, dialect: Dialect) -> Records:
    """Return the records of a file; offsets are in characters."""
    found = Records()
    at = 0
    while at < len(data):
        start = at
        fields: list[Field] = []
        if dialect.comment and data[at] == dialect.comment:
            at = _line_end(data, at)
        else:
            at, fields = _record(data, at, dialect, found)
        if fields not in ([], [("", False)]):
            found.rows.append((start, fields))
        if not found.unclosed and at < len(data):
            at += 2 if data[at : at + 2] == "\r\n" else 1
            found.ends.append(at)
    return found


def _line_end(data: str, at: int) -> int:
    while at < len(data) and data[at] not in "\r\n":
        at += 1
    return at


def _record(data: str, at: int, dialect: Dialect, found: Records) -> tuple[int, list[Field]]:
    fields = []
    while True:
        if dialect.quote and data[at : at + 1] == dialect.quote:
            text, at = _quoted(data, at + 1, dialect, found)
            fields.append((text, True))
            if not found.unclosed and at < len(data) and data[at] not in dialect.sep + "\r\n":
                found.strays.append(at)
                at = _field_end(data, at, dialect)
        else:
            end = _field_end(data, at, dialect)
            fields.append((data[at:end], False))
            at = end
        if at >= len(data) or data[at] != dialect.sep:
            return at, fields
        at += 1


def _field_end(data: str, at: int, dialect: Dialect) -> int:
    while at < len(data) and data[at] not in dialect.sep + "\r\n":
        at += 1
    return at


def _quoted(data: str, at: int, dialect: Dialect, found: Records) -> tuple[str, int]:
    text = ""
    while at < len(data):
        two = data[at : at + 2]
        escapes = {dialect.escapes + dialect.quote, dialect.escapes * 2} if dialect.escapes else {dialect.quote * 2}
        if two in escapes:
            text += two[1]
            at += 2
        elif data[at] == dialect.quote:
            return text, at + 1
        else:
            text += data[at]
            at += 1
    found.unclosed = True
    return text, at


def csv_cut(read: Callable[[int, int], bytes], size: int, anchor: int, target: int, dialect: Dialect = RFC4180) -> int:
    """Return what `csv_cuts` finds for one target."""
    return csv_cuts(read, size, anchor, [target], dialect)[0]
