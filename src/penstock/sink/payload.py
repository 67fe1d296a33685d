"""Rows on their way into parts: encoded records, or rows that are still Arrow. Both can be cut after any row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from penstock.formats.lines import line_feeds

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

_COUNT_BYTES = 256 << 10  # fits in a core's cache together with the values computed from it
_LINE_FEED = ord("\n")


@dataclass
class Encoded:
    """Encoded records: `ends()` returns the end of each row in `data`."""

    data: bytes | memoryview | pa.Buffer
    rows: int
    ends: Callable[[], np.ndarray[tuple[int], np.dtype[np.int64]]] = field(
        default=lambda: np.zeros(0, np.int64), repr=False
    )

    def fitting(self, room_bytes: int, room_rows: int | None) -> int:
        """Return how many rows fit, counted from the first."""
        if len(self.data) <= room_bytes and (room_rows is None or self.rows <= room_rows):
            return self.rows
        fit = int(np.searchsorted(self.ends(), room_bytes, side="right"))
        return fit if room_rows is None else min(fit, room_rows)

    def cut(self, rows: int) -> tuple[Encoded, Encoded]:
        """Return the first `rows` rows and the rest."""
        ends = self.ends()
        at, view = int(ends[rows - 1]), memoryview(self.data)
        head = Encoded(view[:at], rows, lambda: ends[:rows])
        return head, Encoded(view[at:], self.rows - rows, lambda: ends[rows:] - at)


def lines(data: bytes) -> Encoded:
    """Return UTF-8 lines, each of which ends with a line feed, as encoded records."""
    codes = np.frombuffer(data, np.uint8)
    pieces = (codes[start : start + _COUNT_BYTES] for start in range(0, len(codes), _COUNT_BYTES))
    rows = sum(int(np.count_nonzero(piece == _LINE_FEED)) for piece in pieces)
    return Encoded(data, rows, lambda: line_feeds(data) + 1)


@dataclass
class ArrowRows:
    """Rows that are still Arrow."""

    batch: pa.RecordBatch

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return int(self.batch.num_rows)

    def cut(self, rows: int) -> tuple[ArrowRows, ArrowRows]:
        """Return the first `rows` rows and the rest."""
        return ArrowRows(self.batch.slice(0, rows)), ArrowRows(self.batch.slice(rows))
