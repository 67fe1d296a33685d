r"""Reading most of a block of JSON lines with the quick reader, if only a few of its lines are unsuitable for it.

One bad line makes the quick reader refuse a whole block. Taking all of the block apart for the sake of a few lines
costs several times as much as reading it. So doubtful lines are put aside, and the quick reader gets all the others at
once:

    doubted    lines that do not look like objects of the schema (`pattern`); lines that contain what has made lines fail
               before: `"id":"`, where a number is expected, or a key that no column has; and the line that Arrow names when
               it refuses the rest
    read       the others, by `quick`, which accepts nothing that has another meaning for us
    misfits    among these, the rows with a text that does not fit its column's type: they are doubtful, too

Doubt decides nothing. An exact reader reads the doubtful lines, and most of them may turn out to be right. All other
lines were read by a reader that is right about whatever it accepts. Because records do not depend on each other, both
together are the rows of the block. If many lines are doubtful, or if it is not clear why lines are refused, there is no
result.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.formats.json.arrow import Lines
from penstock.formats.json.broken import unlike_at_ends
from penstock.formats.json.pattern import Looks, unlike
from penstock.formats.malformed import MalformedError, of_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from penstock.formats.json.quick import QuickReader

    Positions = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

_FEW = 5  # one line in this many may be doubtful
_REFUSALS = 8  # per block; each tells something about other lines, too
_SLACK = 100  # lines among which more may be refused
_WINDOW_BYTES = 128 << 10
_ROW = re.compile(r"in row (\d+)")
_CHANGED = re.compile(r"Column\((.*)\) changed from \w+ to (\w+)")
_BEGINS = {"string": b'"', "object": b"{", "array": b"["}  # kinds of values, all of which begin with the same byte
_UNEXPECTED = "unexpected field"
_NAMES_MAX = 32
_BLOCKS_AFTER_A_MISS = 8  # the next blocks are likely to have the same problem


class Most(NamedTuple):
    """The rows of the lines that are not doubtful, and these `lines` if their keys must be counted; `doubtful`: places of the others."""

    rows: pa.RecordBatch
    doubtful: Positions
    lines: Lines | None = None


class Doubt:
    """Puts lines aside. What it remembers changes its speed, and nothing else."""

    def __init__(self, quick: QuickReader) -> None:
        self._quick = quick
        self._hopeless = 0  # number of blocks that will not be tried
        self._plain_times = False  # whether many of the times are written in an unusual way
        self._marks: dict[bytes, None] = {}  # what refused lines contained

    def most(self, data: bytes, starts: Positions, *, unknown: bool, names: bool = False) -> Most | None:
        """Return the rows of most of the lines of `data`; each line begins at one of `starts`. `None` if that is not possible.

        With `unknown`, keys that no column has are left out. Otherwise lines with such keys are doubtful if `names`; if
        not, there is no result.
        """
        if self._hopeless:
            self._hopeless -= 1
            return None
        block = _Divided(data, starts)
        block.doubt(self._unlike(data, starts, unknown=unknown))
        for mark in self._marks:
            block.doubt_holding(mark)
        for _ in range(_REFUSALS):
            if not block.is_few or self._hopeless:
                break
            try:
                return self._read(block, unknown=unknown)
            except MalformedError as error:
                if not self._learn(block, str(error), names=names):
                    break
        self._hopeless = _BLOCKS_AFTER_A_MISS
        return None

    def _unlike(self, data: bytes, starts: Positions, *, unknown: bool) -> Positions:
        """Find the lines that do not look like readable ones: by the schema, unless keys beyond it are left out."""
        for plain in () if unknown else sorted({self._plain_times, True}):
            places = unlike(data, starts, Looks(self._quick.form, self._quick.schema, plain))
            if places is not None and len(places) * _FEW <= len(starts):
                self._plain_times = plain
                return places
        return unlike_at_ends(data, starts)[0]

    def _read(self, block: _Divided, *, unknown: bool) -> Most | None:
        """Return the rows of the lines that are not doubtful, except those with misfits."""
        lines = Lines(block.left)
        if len(lines) != len(block.places):
            return None
        rows, misfits = self._quick.most(lines, unknown=unknown)
        if misfits.any():
            block.doubt(block.places[misfits])
            rows = rows.filter(pa.array(~misfits))
        return Most(rows, np.flatnonzero(block.doubtful), lines) if block.is_few else None

    def _learn(self, block: _Divided, refusal: str, *, names: bool) -> bool:
        """Put lines in doubt by what the refusal says about the remaining lines; tell whether it says anything."""
        marks = list(self._marks_of(block, refusal, names=names))
        before = block.count
        for mark in marks:
            if mark not in self._marks and block.doubt_holding(mark):
                self._marks[mark] = None
        row = _ROW.search(refusal)
        if row is not None:
            place = int(row[1])
            if place >= len(block.places):
                return False
            if marks:
                block.doubt(block.places[place : place + 1])
            else:
                block.doubt(self._refused_after(block, place))
        return block.count > before

    def _marks_of(self, block: _Divided, refusal: str, *, names: bool) -> Iterator[bytes]:
        """Yield what lines may contain that are refused for the same reason as this one."""
        changed, row = _CHANGED.search(refusal), _ROW.search(refusal)
        if changed and row:
            name = changed[1].rpartition("/")[2].encode()
            begin = _BEGINS.get(changed[2])
            line = block.line(int(row[1]))
            spelt = re.search(b'"' + re.escape(name) + rb'"\s*:\s*' + re.escape(begin), line) if begin else None
            if spelt:
                yield spelt[0]
        elif _UNEXPECTED in refusal and names:
            yield from (b'"' + name.encode() + b'"' for name in self._quick.other_names(block.left)[:_NAMES_MAX])

    def _refused_after(self, block: _Divided, row: int) -> Positions:
        """Return which lines are refused from this one on, searched a window at a time."""
        sizes = block.sizes
        ends = np.cumsum(sizes)
        refused = [row]
        data, at, count = memoryview(block.left), row + 1, len(sizes)
        while at < count and len(refused) * _FEW <= at - row + _SLACK:
            begin = int(ends[at - 1])
            stop = min(int(np.searchsorted(ends, begin + _WINDOW_BYTES)) + 1, count)
            place = self._quick.refused(bytes(data[begin : int(ends[stop - 1])]))
            if place is None or at + place >= stop:
                at = stop
                continue
            refused.append(at + place)
            at += place + 1
        if at < count:
            self._hopeless = _BLOCKS_AFTER_A_MISS
        return block.places[refused]


class _Divided:
    """Lines, and which of them are doubtful; `left` are the bytes of the others, `places` their indices."""

    def __init__(self, data: bytes, starts: Positions) -> None:
        self._data = data
        self._starts = starts
        self._ends = np.append(starts[1:], len(data))[: len(starts)]
        self.doubtful: Flags = np.zeros(len(starts), np.bool_)
        self._changed = True
        self._left, self._places = b"", starts

    @property
    def count(self) -> int:
        """How many lines are doubtful."""
        return int(np.count_nonzero(self.doubtful))

    @property
    def is_few(self) -> bool:
        """Whether few lines are doubtful."""
        return self.count * _FEW <= len(self.doubtful)

    @property
    def places(self) -> Positions:
        """The indices of the lines that are not doubtful."""
        self._cut()
        return self._places

    @property
    def left(self) -> bytes:
        """The bytes of the lines that are not doubtful."""
        self._cut()
        return self._left

    @property
    def sizes(self) -> Positions:
        """How many bytes each of these lines has."""
        return self._ends[self.places] - self._starts[self.places]

    def line(self, row: int) -> bytes:
        """Return one of these lines."""
        place = self.places[row : row + 1]
        return self._data[int(self._starts[place[0]]) : int(self._ends[place[0]])] if len(place) else b""

    def doubt(self, places: Positions) -> None:
        """Put lines in doubt."""
        if len(places):
            self.doubtful[places] = True
            self._changed = True

    def doubt_holding(self, mark: bytes) -> bool:
        """Put the lines in doubt that contain these bytes, unless they are many; tell whether there were some, and few."""
        count = self._data.count(mark)
        if not 0 < count * _FEW <= len(self.doubtful):
            return False
        at = [match.start() for match in re.finditer(re.escape(mark), self._data)]
        self.doubt(np.searchsorted(self._starts, at, side="right") - 1)
        return True

    def _cut(self) -> None:
        if self._changed:
            self._places = np.flatnonzero(~self.doubtful)
            self._left = of_records(self._data, self._starts[self._places], self._ends[self._places])
            self._changed = False


def merged(rows: pa.RecordBatch, others: pa.RecordBatch, places: Positions) -> pa.RecordBatch:
    """Return rows merged with the others, whose places among all are `places`."""
    if not others.num_rows:
        return rows
    count = rows.num_rows + others.num_rows
    order = np.empty(count, np.int64)
    is_other = np.zeros(count, np.bool_)
    is_other[places] = True
    order[~is_other] = np.arange(rows.num_rows)
    order[is_other] = rows.num_rows + np.arange(others.num_rows)
    both = pa.Table.from_batches([rows, others]).combine_chunks().to_batches()[0]
    return both.take(pa.array(order))
