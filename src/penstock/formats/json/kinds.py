r"""The kinds of values in JSON lines, as Spark infers them.

A string is a string, whatever it contains; an empty one is as little evidence as null. A whole number is a `bigint`, a
larger one a decimal without digits after the point, one of more than 38 digits a double. Numbers with a point or an
exponent, and `NaN`, are doubles.

Two readers give the same result. Arrow's parser infers types itself, which is fast, and refuses columns of two kinds. A
piece that it refuses, or that has numbers it may have rounded, is taken apart by the text of its values
(`exact.JsonText`), which takes several times as long. Neither runs Python code per record.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json
from pyarrow import types

from penstock.formats.json.arrow import Lines, check_utf8
from penstock.formats.json.exact import JsonText, check_json, first_bytes, unescaped
from penstock.formats.json.lines import on_lines
from penstock.formats.lines import record_starts
from penstock.formats.malformed import MalformedError, raise_bad_record
from penstock.formats.scalars import contents, joined
from penstock.formats.seen import EMPTY, Seen, ValueExample, check_depth

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from penstock.formats.format import ReadFormat
    from penstock.formats.seen import Room

    Where = Callable[[int], str]  # from a byte of a block to the path of its file

_PIECE_BYTES = 256 << 10
_LONG_DIGITS = 18  # a whole number with this many digits always fits
_DIGITS_MAX = 38
_LONG_MAX, _LONG_MIN = str((1 << 63) - 1), str(1 << 63)
_EXACT_MAX = float(1 << 63)  # Arrow reads larger whole numbers as doubles
_SHOWN_BYTES = 200
_QUOTE, _N, _T, _F = b'"ntf'
_NESTED = {ord("{"): "struct", ord("["): "array"}


class JsonKinds:
    """Examines blocks of JSON lines, and enters the kinds in `seen`; see `Kinds`."""

    sorts: ClassVar[bool] = True
    tells_times: ClassVar[bool] = False

    def __init__(self, fmt: ReadFormat, seen: Seen, room: Room) -> None:
        self._sep = fmt.line_sep
        self._seen = seen
        self._room = room

    def take(self, block: bytes, where: Where, columns: tuple[str, ...] | None = None) -> int:  # noqa: ARG002 - there are no headers
        """Enter the kinds in the records of a block; see `Kinds`."""
        data = on_lines(block, self._sep)
        if not data or data.isspace():
            return 0
        try:
            lines = Lines(data)
            lines.check_depth()
            self._look(lines, where)
        except MalformedError as error:
            raise_bad_record(block, record_starts(block, sep=self._sep), self._checked, error)
        return len(lines)

    def starts(self, block: bytes) -> npt.NDArray[np.int64]:
        """Return where each line begins; see `Kinds`."""
        return record_starts(block, sep=self._sep)

    def _look(self, lines: Lines, where: Where) -> None:
        """Enter the kinds in the lines. Raises `MalformedError` before anything is entered."""
        # Bytes before lines and between them were dropped, so if small files were joined, an example may name the next
        # file.
        objects = _inferred(lines) if len(lines.data) > _PIECE_BYTES else None
        if objects is not None:
            _Columns(lines, where, self._room).struct(objects, self._seen)
            return
        check_json(lines.data)
        at = 0
        for piece in lines.pieces(_PIECE_BYTES):
            self._look_at(piece, partial(_shifted, where, at))
            at += len(piece.data)

    def _look_at(self, piece: Lines, where: Where) -> None:
        """Enter the kinds in lines that are known to be JSON."""
        objects = _inferred(piece)
        if objects is not None:
            _Columns(piece, where, self._room).struct(objects, self._seen)
            return
        text = JsonText(piece.data)
        _ValueKinds(piece, where, self._room).members(text, self._seen, np.arange(len(piece)), 1)

    def _checked(self, block: bytes) -> pa.RecordBatch:
        """Raise `MalformedError` unless the records are JSON objects."""
        data = on_lines(block, self._sep)
        if data and not data.isspace():
            lines = Lines(data)
            lines.check_depth()
            check_json(lines.data)
        return pa.RecordBatch.from_pylist([], pa.schema([]))


def _shifted(where: Where, at: int, byte: int) -> str:
    return where(at + byte)


def _inferred(lines: Lines) -> pa.StructArray | None:
    """Return the objects with the types that Arrow infers; `None` if it refuses, or may have rounded a whole number."""
    reading = arrow_json.ReadOptions(use_threads=False, block_size=len(lines.data) + 1)
    try:
        table = arrow_json.read_json(pa.BufferReader(lines.data), reading)
        check_utf8(lines.data)
        lines.check_words()
    except (pa.ArrowException, MalformedError):
        return None
    if table.num_rows != len(lines) or any(_is_rounded(column, 1) for column in table.columns):
        return None
    columns = [_whole(column) for column in table.columns]
    try:
        return pa.StructArray.from_arrays(columns, fields=list(table.schema)) if columns else None
    except pa.ArrowInvalid:  # from `[null]` and then `[false]` Arrow makes a list that is longer than its elements
        return None


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_rounded(column: pa.ChunkedArray | pa.Array, depth: int) -> bool:
    """Tell whether the column contains, at any depth, a whole number that is too large for Arrow."""
    check_depth(depth)
    if isinstance(column, pa.ChunkedArray):
        return any(_is_rounded(chunk, depth) for chunk in column.chunks)
    if types.is_struct(column.type):
        return any(_is_rounded(column.field(index), depth + 1) for index in range(column.type.num_fields))
    if types.is_list(column.type):
        return _is_rounded(column.values, depth + 1)
    if not types.is_floating(column.type):
        return False
    extremes = pc.min_max(pc.abs(column))["max"].as_py()
    return extremes is not None and not extremes < _EXACT_MAX


class _Columns:
    """Enters the kinds in the columns that Arrow made from lines."""

    def __init__(self, lines: Lines, where: Where, room: Room) -> None:
        self._lines = lines
        self._where = where
        self._room = room

    def struct(self, column: pa.StructArray, seen: Seen, rows: Callable[[int], int] = int, depth: int = 1) -> None:
        """Enter the members of objects; `rows` returns the line of an object."""
        check_depth(depth)
        for index, member in enumerate(column.type):
            self._column(column.field(index), seen.member(member.name, self._room), rows, depth)

    def _column(self, column: pa.Array, seen: Seen, rows: Callable[[int], int], depth: int) -> None:
        kind, nulls = column.type, column.null_count
        if nulls == len(column) and not types.is_struct(kind):
            return
        if types.is_struct(kind):
            if nulls < len(column):
                self._add(seen, "struct", column, rows)
                self.struct(column, seen, rows, depth + 1)
        elif types.is_list(kind):
            self._add(seen, "array", column, rows)
            offsets = column.offsets.to_numpy()
            inner = seen.of_elements()
            self._column(
                column.values, inner, lambda at: rows(int(np.searchsorted(offsets, at, "right")) - 1), depth + 1
            )
        elif (name := _bare(kind)) is not None:
            self._add(seen, name, column, rows)
        else:
            if not types.is_string(kind) or _has_text(column):
                self._add(seen, "string", column, rows)
            if EMPTY not in seen.kinds and types.is_string(kind):
                self._add_empty(seen, column, rows)

    def _add_empty(self, seen: Seen, column: pa.Array, rows: Callable[[int], int]) -> None:
        at = pc.equal(pc.binary_length(column), 0).index(True).as_py()
        if at >= 0:
            self._add_at(seen, EMPTY, column, rows, at)

    def _add(self, seen: Seen, kind: str, column: pa.Array, rows: Callable[[int], int]) -> None:
        if kind in seen.kinds:
            return
        valid = column.is_valid()
        if types.is_string(column.type):
            valid = pc.and_(valid, pc.greater(pc.binary_length(column), 0).fill_null(fill_value=False))
        self._add_at(seen, kind, column, rows, valid.index(True).as_py())

    def _add_at(self, seen: Seen, kind: str, column: pa.Array, rows: Callable[[int], int], at: int) -> None:
        line = rows(at)
        byte = int(self._lines.ends[line - 1]) + 1 if line else 0
        shown = str(column[at].as_py())[:_SHOWN_BYTES]
        seen.add(kind, lambda: ValueExample(self._where(byte), shown))


def _bare(kind: pa.DataType) -> str | None:
    """Return the kind of values that are written without quotes; `None` for other types."""
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind):
        return "bigint"
    return "double" if types.is_floating(kind) else None


def _has_text(column: pa.Array) -> bool:
    """Tell whether some value is not the empty string."""
    return bool(pc.max(pc.binary_length(column)).as_py())


class _ValueKinds:
    """Enters the kinds of values by their text; `rows` is always the line of the piece for each object, array or value."""

    def __init__(self, lines: Lines, where: Where, room: Room) -> None:
        self._lines = lines
        self._where = where
        self._room = room

    def members(self, text: JsonText, seen: Seen, rows: npt.NDArray[np.int64], depth: int) -> None:
        """Enter the members of the objects in `text`."""
        check_depth(depth)
        keys, values = text.members()
        named = text.values(keys).dictionary_encode()
        names, indices = unescaped(named.dictionary), named.indices.to_numpy()
        order = np.argsort(indices, kind="stable")
        bounds = np.searchsorted(indices[order], np.arange(len(names) + 1))
        for place, name in enumerate(names.to_pylist()):
            chosen = values.of(order[bounds[place] : bounds[place + 1]])
            member = seen.member(name.decode("utf-8", "replace"), self._room)
            self._values(text.values(chosen), member, rows[chosen.rows], depth)

    def _values(self, raw: pa.Array, seen: Seen, rows: npt.NDArray[np.int64], depth: int) -> None:
        first = first_bytes(raw)
        for opening, kind in _NESTED.items():
            places = np.flatnonzero(first == opening)
            if len(places):
                self._add(seen, kind, raw, rows, places)
                inner = JsonText(bytes(contents(joined(raw.take(pa.array(places)), "\n"))))
                if kind == "struct":
                    self.members(inner, seen, rows[places], depth + 1)
                else:
                    check_depth(depth + 1)
                    elements = inner.elements()
                    self._values(inner.values(elements), seen.of_elements(), rows[places][elements.rows], depth + 1)
        quoted = np.flatnonzero(first == _QUOTE)
        if len(quoted):
            filled = pc.greater(pc.binary_length(raw.take(pa.array(quoted))), 2).to_numpy(zero_copy_only=False)
            self._add(seen, "string", raw, rows, quoted[filled])
            self._add(seen, EMPTY, raw, rows, quoted[~filled])
        self._add(seen, "boolean", raw, rows, np.flatnonzero((first == _T) | (first == _F)))
        others = np.flatnonzero(~np.isin(first, [_QUOTE, _N, _T, _F, *_NESTED]))
        if len(others):
            self._numbers(raw, seen, rows, others)

    def _numbers(self, raw: pa.Array, seen: Seen, rows: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> None:
        text = raw.take(pa.array(places)).cast(pa.string())
        whole = pc.match_substring_regex(text, "^-?[0-9]+$").to_numpy(zero_copy_only=False)
        self._add(seen, "double", raw, rows, places[~whole])
        digits = pc.utf8_ltrim(text.filter(pa.array(whole)), "-")
        places, count = places[whole], pc.binary_length(digits).to_numpy()
        if not len(places):
            return
        negative = first_bytes(raw)[places] == ord("-")
        large = count > _LONG_DIGITS
        if large.any():
            limit = pc.if_else(pa.array(negative), _LONG_MIN, _LONG_MAX)
            beyond = pc.greater(digits, limit).to_numpy(zero_copy_only=False)
            large = (count > len(_LONG_MAX)) | ((count == len(_LONG_MAX)) & beyond)
        self._add(seen, "bigint", raw, rows, places[~large])
        for length in np.unique(count[large]).tolist():
            kind = f"decimal({length},0)" if length <= _DIGITS_MAX else "double"
            self._add(seen, kind, raw, rows, places[large & (count == length)])

    def _add(
        self, seen: Seen, kind: str, raw: pa.Array, rows: npt.NDArray[np.int64], places: npt.NDArray[np.int64]
    ) -> None:
        if not len(places) or kind in seen.kinds:
            return
        at = int(places[0])
        line = int(rows[at])
        byte = int(self._lines.ends[line - 1]) + 1 if line else 0
        shown = raw[at].as_py()[:_SHOWN_BYTES].decode("utf-8", "replace")
        seen.add(kind, lambda: ValueExample(self._where(byte), shown))
