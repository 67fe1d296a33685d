r"""JSON lines that differ only in their values, read as records of one form whose fields are separated by quotes.

A program that writes events writes the same keys in the same order, with the same white space. Such a line, cut at each
of its quotes, is

    {"id": 7, "name": "x"}    ->    `{`  `id`  `: 7, `  `name`  `: `  `x`  `}`

Pieces outside and inside of strings alternate. Pieces that are the same in all lines, keys and punctuation, are
compared; the rest are the values. Arrow's reader of CSV can cut like this several times as fast as a parser of JSON,
and a line with another number of quotes does not stop it from reading the others. So a broken line costs only its own
length.

A line is read if all of these hold; then it is a JSON object with these members and no others:

1. It contains no backslash and no control character, and it is UTF-8: then its strings are exactly what stands between
   its quotes.
2. Every fixed piece of the line from which the form was learned is the same here. That line is one flat object, each of
   its keys occurs once, and each belongs to a column.
3. A piece with a number or word in it begins and ends as in that line, and what is between is a usual value: digits
   with at most one point, of a size that cannot overflow; `true`, `false`, `null`.
4. A text of a date or time is valid (`misfits`).

Other lines are doubtful, as in `doubt`: an exact reader decides about them. If they are many, other readers get the
block, and some of the following blocks are not tried.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, types

from penstock.formats.charsets import is_utf8
from penstock.formats.json.dense import DenseReader, is_text
from penstock.formats.json.doubt import Most
from penstock.formats.malformed import MalformedError, of_records, unreadable
from penstock.formats.misfits import PROBE_ROWS, strange_of
from penstock.formats.scalars import parse
from penstock.formats.schema import UTC_MICROS

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from penstock.formats.patterns import TimeForms

    Positions = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

_COLUMNS_MAX = 100
_FEW = 5  # one line in this many may be doubtful
_LINES_LEARNED_FROM = 8  # one of this many is likely to be like most others
_PROBE_BYTES = 64 << 10
_BLOCKS_AFTER_A_MISS = 8  # the next blocks are likely to have the same problem
_SCAN_BYTES = 1 << 17  # fits in a core's cache together with what is computed from it
# For whole numbers, by the bits of their type: the number of digits that always fit, and one more if the first is less
# than this.
_DIGITS_MAX = {8: (2, ord("1")), 16: (4, ord("3")), 32: (9, ord("2")), 64: (18, ord("9"))}
_NUMBER_MAX = 300  # characters; such a number cannot be too large for a double
_LOCAL_MICROS = pa.timestamp("us")


def _scalar(data: bytes, kind: pa.DataType) -> pa.Scalar:
    """Return a text as an Arrow scalar. `pa.scalar` and `to_numpy` would import pandas if it is installed, which takes 0.3 s."""
    offsets = pa.py_buffer(np.array([0, len(data)], np.int32))
    return pa.Array.from_buffers(kind, 1, [None, offsets, pa.py_buffer(data)])[0]


_TRUE, _FALSE, _NULL = (_scalar(word, pa.binary()) for word in (b"true", b"false", b"null"))
_OUTSIDE = re.compile(rb"([ \t]*:[ \t]*)(?:([^\s,{}\[\]]+)([ \t]*[,}][ \t]*))?")
_BEGIN, _COMMA, _END = (re.compile(rb"[ \t]*" + mark + rb"[ \t]*") for mark in (rb"\{", b",", rb"\}"))
_MINUS, _POINT, _ZERO = b"-.0"
_IS_DIGIT = np.isin(np.arange(256), np.frombuffer(b"0123456789", np.uint8))


class _Literal(NamedTuple):
    """Where a value that is not a string is: in which piece, and the text before and after it."""

    place: int
    prefix: bytes
    suffix: bytes


@dataclass(frozen=True)
class _Frame:
    """What the lines of a form have in common: `same` are fixed pieces by position; and the positions of columns' values, by name."""

    pieces: int
    same: dict[int, bytes]
    strings: dict[str, int]
    literals: dict[str, _Literal]

    def fits(self, schema: pa.Schema) -> bool:
        """Tell whether the values of all columns are where their types require, and there is nothing that no column has."""
        quoted = {field.name for field in schema if _is_quoted(field.type)}
        names = set(schema.names)
        return (
            names >= self.strings.keys() | self.literals.keys()
            and quoted.issuperset(self.strings)
            and quoted.isdisjoint(self.literals)
        )


class FrameReader:
    """Reads blocks of one schema. What it remembers changes its speed, and nothing else."""

    def __init__(self, schema: pa.Schema, times: TimeForms) -> None:
        self._schema = schema
        self._times = times
        self._is_utf8 = is_text if DenseReader.takes(schema) else is_utf8  # that reader loads polars anyway
        self._frame: _Frame | None = None
        self._away = 0  # number of blocks that will not be tried
        self._misfits: set[str] = set()  # columns for which an earlier block had texts that do not fit

    @staticmethod
    def takes(schema: pa.Schema) -> bool:
        """Tell whether blocks of this schema can be read: flat records of the plainest types."""
        if not 0 < len(schema) == len(set(schema.names)) <= _COLUMNS_MAX:
            return False
        return all(_is_quoted(field.type) or _is_literal(field.type) for field in schema)

    def most(self, data: bytes, starts: Callable[[], Positions]) -> Most | None:
        """Return the rows of most of the lines of `data`; `None` if that is not possible.

        `starts` returns where each non-blank line begins; it is called if there are doubtful lines.
        """
        if self._away:
            self._away -= 1
            return None
        others = _uncuttable(data, starts, whole=self._is_utf8(data))
        most = self._most_without(others, data, starts()) if len(others) else self._most(data, starts)
        self._away = _BLOCKS_AFTER_A_MISS if most is None else 0
        return most

    def _most_without(self, others: Positions, data: bytes, starts: Positions) -> Most | None:
        """Do the same, with some lines in doubt from the start."""
        left = np.delete(np.arange(len(starts)), others)
        ends = np.append(starts[1:], len(data))[left]
        sizes = ends - starts[left]
        most = self._most(of_records(data, starts[left], ends), lambda: np.cumsum(sizes) - sizes)
        return None if most is None else Most(most.rows, np.union1d(others, left[most.doubtful]))

    def _most(self, data: bytes, starts: Callable[[], Positions]) -> Most | None:
        frame = self._fitting_frame(data)
        most = None if frame is None else self._read(frame, data, starts)
        self._frame = None if most is None else frame
        return most

    def _fitting_frame(self, data: bytes) -> _Frame | None:
        """Return the form of the previous block, or a form that most of the first lines have."""
        if self._frame is not None:
            return self._frame
        probe = data[: data.rfind(b"\n", 0, _PROBE_BYTES) + 1] or data
        tried: list[_Frame] = []
        for line in probe.split(b"\n", _LINES_LEARNED_FROM)[:_LINES_LEARNED_FROM]:
            frame = _frame_of(line.strip(b"\r"))
            if frame is None or frame in tried or not frame.fits(self._schema):
                continue
            tried.append(frame)
            cut = _cut(probe, frame)
            if cut is not None and cut.are_few(int(np.count_nonzero(_alike(cut.table, frame)))):
                return frame
        return None

    def _read(self, frame: _Frame, data: bytes, starts: Callable[[], Positions]) -> Most | None:
        cut = _cut(data, frame)
        if cut is None:
            return None
        good = _alike(cut.table, frame)
        odd = _odd(data, starts, cut.lines)
        if len(odd):
            good[np.isin(cut.kept, odd)] = False
        texts = {name: _piece(cut.table, place) for name, place in frame.strings.items()}
        texts |= {name: _inside(cut.table, literal) for name, literal in frame.literals.items()}
        self._doubt(texts, good)
        try:
            rows = self._rows(texts, good)
        except MalformedError:
            return None
        if any(column.null_count and not field.nullable for column, field in zip(rows, self._schema, strict=True)):
            return None
        doubtful = np.sort(np.concatenate((np.array(cut.refused, np.int64), cut.kept[~good])))
        is_known = cut.are_few(rows.num_rows) and (not len(doubtful) or len(starts()) == cut.lines)
        return Most(rows, doubtful) if is_known else None

    def _doubt(self, texts: dict[str, pa.Array], good: Flags) -> None:
        """Put the rows in doubt that lack a number or word where one is expected, or whose text is not a usual date or time."""
        for field in self._schema:
            text = texts.get(field.name)
            if text is not None and _is_literal(field.type):
                right = _plain(text, field.type)
                if not right.all():
                    good &= right | _flags(pc.equal(text, _NULL))
            elif text is not None and field.name in self._misfits:
                good[strange_of(text, field.type, self._times)] = False

    def _rows(self, texts: dict[str, pa.Array], good: Flags) -> pa.RecordBatch:
        """Return the good rows. Raises `MalformedError` if one of them turns out bad, and it is not clear which."""
        mask = None if good.all() else pa.array(good)
        rows = int(np.count_nonzero(good))
        columns = []
        for field in self._schema:
            text = texts.get(field.name)
            if text is None:
                columns.append(pa.nulls(rows, field.type))
                continue
            text_kept = text if mask is None else text.filter(mask)
            try:
                if field.name not in self._misfits:
                    self._column(text_kept.slice(0, PROBE_ROWS), field)
                columns.append(self._column(text_kept, field))
            except MalformedError:
                if field.name in self._misfits:
                    raise
                self._misfits.add(field.name)
                self._doubt({field.name: text}, good)
                return self._rows(texts, good)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, text: pa.Array, field: pa.Field) -> pa.Array:
        if not _is_literal(field.type):
            return parse(text, field.type, field.name, self._times)
        is_null = pc.equal(text, _NULL)
        if is_null.true_count:
            text = pc.if_else(is_null, pa.nulls(1, text.type)[0], text)
        if types.is_boolean(field.type):
            return pc.equal(text, _TRUE)
        return text.cast(pa.string()).cast(field.type)


def _is_quoted(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_date32(kind) or kind in {UTC_MICROS, _LOCAL_MICROS})


def _is_literal(kind: pa.DataType) -> bool:
    return bool(types.is_signed_integer(kind) or types.is_float64(kind) or types.is_boolean(kind))


def _frame_of(line: bytes) -> _Frame | None:
    """Return the form of a line that is one flat object without escapes, with each key once; None for other lines."""
    pieces = line.split(b'"')
    last = len(pieces) - 1
    if b"\\" in line or not last or last % 2 or not _BEGIN.fullmatch(pieces[0]):
        return None
    frame, at = _Frame(len(pieces), {0: pieces[0]}, {}, {}), 1
    while 0 < at < last:
        at = _enter_member(frame, pieces, at)
    return frame if at == last + 1 else None


def _enter_member(frame: _Frame, pieces: list[bytes], key: int) -> int:
    """Enter the member whose key is at `key` into the form; return where the next key is, 0 if it is not such a member."""
    name, outside = pieces[key].decode("utf-8", "replace"), _OUTSIDE.fullmatch(pieces[key + 1])
    if outside is None or name in frame.strings or name in frame.literals:
        return 0
    frame.same[key] = pieces[key]
    if outside[2] is not None:
        end, after = key + 1, outside[3]
        frame.literals[name] = _Literal(end, outside[1], after)
    elif key + 3 < len(pieces):
        end, after = key + 3, pieces[key + 3]
        frame.same.update({key + 1: pieces[key + 1], end: after})
        frame.strings[name] = key + 2
    else:
        return 0
    mark = _END if end == len(pieces) - 1 else _COMMA
    return end + 1 if mark.fullmatch(after) else 0


class _Cut(NamedTuple):
    """Lines cut at their quotes, with as many quotes as the form has; `kept` and `refused` are the lines that have, and have not."""

    table: pa.Table
    kept: Positions
    refused: list[int]

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return len(self.kept) + len(self.refused)

    def are_few(self, good: int) -> bool:
        """Tell whether few of all lines are doubtful, if this many are good."""
        return (self.lines - good) * _FEW <= self.lines


def _cut(data: bytes, frame: _Frame) -> _Cut | None:
    refused: list[int] = []
    most: list[int] = []  # how many may be refused; computed late: counting lines takes half as long as reading

    def skip(row: csv.InvalidRow) -> str:
        if not refused:
            most.append((data.count(b"\n") + 1) // _FEW)
        refused.append(row.number - 1)
        return "skip" if len(refused) <= most[0] else "error"

    names = [str(place) for place in range(frame.pieces)]
    inside = {str(literal.place) for literal in frame.literals.values()}
    converting = csv.ConvertOptions(
        check_utf8=False,  # it was checked already
        column_types={name: pa.binary() if name in inside else pa.string() for name in names},
        null_values=[],
        strings_can_be_null=False,
    )
    reading = csv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1)
    parsing = csv.ParseOptions(delimiter='"', quote_char=False, invalid_row_handler=skip)
    try:
        table = csv.read_csv(pa.BufferReader(data), reading, parsing, converting)
    except pa.ArrowInvalid:  # too many lines of another form, or no line
        return None
    kept = np.arange(table.num_rows + len(refused))
    return _Cut(table, np.delete(kept, refused) if refused else kept, refused)


def _piece(table: pa.Table, place: int) -> pa.Array:
    column = table.column(place)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _alike(table: pa.Table, frame: _Frame) -> Flags:
    """Tell which rows have all the pieces that the lines of the form have in common."""
    good = np.ones(table.num_rows, np.bool_)
    for place, piece in frame.same.items():
        _keep(good, pc.equal(_piece(table, place), _scalar(piece, pa.string())))
    for literal in frame.literals.values():
        text = _piece(table, literal.place)
        _keep(good, pc.starts_with(text, literal.prefix))
        _keep(good, pc.ends_with(text, literal.suffix))
    return good


def _flags(right: pa.Array) -> Flags:
    """Return truth values as numpy's; none may be null."""
    if not len(right):
        return np.zeros(0, np.bool_)
    bits = np.frombuffer(right.buffers()[1], np.uint8)
    return np.unpackbits(bits, count=right.offset + len(right), bitorder="little")[right.offset :].view(np.bool_)


def _keep(good: Flags, right: pa.Array) -> None:
    if right.true_count < len(good):
        good &= _flags(right)


def _uncuttable(data: bytes, starts: Callable[[], Positions], *, whole: bool) -> Positions:
    """Return which lines Arrow must not get: those that it would end at a carriage return, and those that are not UTF-8, unless all are.

    For these it cannot report that they have too few quotes, or too many.
    """
    lines = np.zeros(0, np.int64)
    if not whole:
        lines, _ = unreadable(data, starts())
    if b"\r" in data:
        codes = np.frombuffer(data, np.uint8)
        returns = np.flatnonzero(codes == ord("\r"))
        bare = returns[codes.take(returns + 1, mode="clip") != ord("\n")]
        if len(bare):
            lines = np.union1d(lines, np.maximum(np.searchsorted(starts(), bare, side="right") - 1, 0))
    return lines


def _odd(data: bytes, starts: Callable[[], Positions], lines: int) -> Positions:
    """Return which lines contain a backslash or a control character; `lines` is the number of non-blank lines."""
    codes = np.frombuffer(data, np.uint8)
    # Each line but perhaps the last ends with a line feed: if there are no more control characters than that, there are
    # no others.
    if b"\\" not in data and _controls(codes) == lines - (not data.endswith(b"\n")):
        return np.zeros(0, np.int64)
    places = []
    for begin in range(0, len(codes), _SCAN_BYTES):
        piece = codes[begin : begin + _SCAN_BYTES]
        is_control, is_escape, is_feed = piece < ord(" "), piece == ord("\\"), piece == ord("\n")
        if np.count_nonzero(is_control) > np.count_nonzero(is_feed) or is_escape.any():
            places.append(np.flatnonzero(is_escape | (is_control & ~is_feed)) + begin)
    odd = np.zeros(0, np.int64)
    if places:
        odd = np.unique(np.searchsorted(starts(), np.concatenate(places), side="right") - 1)
    return odd


def _controls(codes: npt.NDArray[np.uint8]) -> int:
    """Return how many control characters there are."""
    return sum(
        int(np.count_nonzero(codes[begin : begin + _SCAN_BYTES] < ord(" ")))
        for begin in range(0, len(codes), _SCAN_BYTES)
    )


def _inside(table: pa.Table, literal: _Literal) -> pa.Array:
    return pc.binary_slice(_piece(table, literal.place), len(literal.prefix), -len(literal.suffix))


def _plain(text: pa.Array, kind: pa.DataType) -> Flags:
    """Tell which values are numbers or words of the usual form of the type."""
    if types.is_boolean(kind):
        return _flags(pc.equal(text, _TRUE)) | _flags(pc.equal(text, _FALSE))
    return _plain_numbers(text, kind)


def _plain_numbers(text: pa.Array, kind: pa.DataType) -> Flags:
    """Tell which values are numbers of the usual form, and JSON: an optional minus, digits, an optional point with digits."""
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1].astype(np.int64)
    codes = np.frombuffer(text.buffers()[2] or b"", np.uint8)[: offsets[-1]]
    codes = np.concatenate((codes, np.zeros(2, np.uint8)))  # so that there are bytes after each value
    starts, sizes = offsets[:-1], np.diff(offsets)
    minus = codes[starts] == _MINUS
    first = starts + minus
    most, leading = (_NUMBER_MAX, 0) if types.is_floating(kind) else _DIGITS_MAX[kind.bit_width]
    digits = sizes - minus
    right: Flags = (digits <= most) | ((digits == most + 1) & (codes[first] < leading))
    right &= (digits > 0) & _IS_DIGIT[codes[first]]
    whole_zero = (codes[first] == _ZERO) & (sizes > 1) & (codes[first + 1] != _POINT)
    right &= ~(whole_zero | ((codes[first] == _ZERO) & minus & (sizes == minus + 1)))
    others = np.flatnonzero(~_IS_DIGIT[codes[offsets[0] : -2]]) + offsets[0]
    rows = np.searchsorted(offsets, others, side="right") - 1
    is_first = codes[others] == _MINUS
    wrong = is_first & (others != starts[rows])
    wrong |= ~is_first
    if types.is_floating(kind):
        point = (codes[others] == _POINT) & _IS_DIGIT[codes[others - 1]] & _IS_DIGIT[codes[others + 1]]
        point &= others + 1 < offsets[rows + 1]
        point[1:] &= ~((rows[1:] == rows[:-1]) & (codes[others[:-1]] == _POINT))
        wrong &= ~point
    right[rows[wrong]] = False
    return right
