r"""JSON for which unknown keys, missing keys or values of another type must be refused or rescued.

The faster readers are asked first, and refuse keys without a column; so what they have read has nothing to be rescued.
They do not tell whether a null column had no key. What they refuse is taken apart here as in `exact`, whose way of
reading values is used, and what no column has or accepts is kept as text: the members of an object, such as
`{"user":{"zip":"D-1"},"nme":"x"}` for a record whose `user.zip` is not a number and whose `nme` no column has. If it is
in an array or a map, the array or map is kept whole, because what is inside has no name of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.formats.account import Account
from penstock.formats.json.arrow import BYTES_MAX, Lines
from penstock.formats.json.doubt import merged
from penstock.formats.json.exact import (
    JsonText,
    MemberReader,
    Named,
    are_nested,
    check_json,
    is_nested,
    offsets_of,
    scattered,
    unescaped,
)
from penstock.formats.json.read import JsonReader
from penstock.formats.lines import not_blank, record_starts
from penstock.formats.malformed import MalformedError, of_records
from penstock.formats.misfits import fitting, fragments
from penstock.formats.scalars import contents, joined, misfit

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.formats.format import ReadFormat
    from penstock.formats.json.doubt import Most
    from penstock.formats.json.quick import QuickReader
    from penstock.formats.malformed import Found

    # Values of a column, and for each row the JSON text of the part that the column does not hold.
    Read = tuple[pa.Array, pa.Array | None]


_PIECE_BYTES = 256 << 10


class StrictReader:
    """Reads blocks of one format, for which `is_strict` holds; see `JsonReader`."""

    def __init__(self, fmt: ReadFormat) -> None:
        self._fmt = fmt
        self._plain = _Plain(fmt.data_schema, fmt.times)
        self._doubts = False  # whether lines of the previous block had to be taken apart

    def read(self, data: bytes, account: Account) -> pa.RecordBatch:
        """Return the rows of `data`, and count the keys that no column has in the account. Raises `MalformedError`."""
        plain = None if self._doubts else self._plain.read_plain(data)
        if plain is not None and (self._fmt.missing != "fail" or not _has_nulls(plain)):
            return self._fmt.with_rescued(plain.columns, None, plain.num_rows)
        mostly = self._mostly(data, account)
        if mostly is not None:
            return mostly
        try:
            pieces = Lines(data).pieces(_PIECE_BYTES)
        except MalformedError:
            return self._taken_apart(data, account)
        batches = [self._piece(piece, account) for piece in pieces]
        return pa.Table.from_batches(batches, self._fmt.schema).combine_chunks().to_batches()[0]

    def _mostly(self, data: bytes, account: Account) -> pa.RecordBatch | None:
        """Return the rows if only a few lines have to be taken apart; otherwise `None`."""
        starts = not_blank(data, record_starts(data, sep=b"\n"), b" \t\r\n")
        most = self._plain.most_plain(data, starts)
        self._doubts = most is not None and len(most.doubtful) > 0
        if most is None or (self._fmt.missing == "fail" and _has_nulls(most.rows)):
            return None
        rows = self._fmt.with_rescued(most.rows.columns, None, most.rows.num_rows)
        if not len(most.doubtful):
            return rows
        ends = np.append(starts[1:], len(data))
        others = of_records(data, starts[most.doubtful], ends[most.doubtful])
        seen = Account()
        apart = self._taken_apart(others, seen)
        if apart.num_rows != len(most.doubtful):  # the two disagree on which lines are blank
            return None
        account.count(seen.unknown.items(), seen.more)
        return merged(rows, apart, most.doubtful)

    def _piece(self, piece: Lines, account: Account) -> pa.RecordBatch:
        plain = self._plain.read_piece(piece)
        if plain is None or (self._fmt.missing == "fail" and _has_nulls(plain)):
            return self._taken_apart(piece.data, account)
        return self._fmt.with_rescued(plain.columns, None, plain.num_rows)

    def _taken_apart(self, data: bytes, account: Account) -> pa.RecordBatch:
        if len(data) > BYTES_MAX:
            msg = f"a block of at most {BYTES_MAX} bytes"
            raise MalformedError(msg)
        data = Lines(data).data
        check_json(data)
        text = JsonText(data)
        columns, rest = _StrictMembers(self._fmt, account).members(text, list(self._fmt.data_schema), "")
        return self._fmt.with_rescued(columns, None if rest is None else rest.cast(pa.string()), text.lines)


class _Plain(JsonReader):
    """The faster readers only."""

    def read_plain(self, data: bytes) -> pa.RecordBatch | None:
        """Return the rows if each key has a column, and each value its type; `None` if that is not certain."""
        dense = self._densely(data)
        if dense is not None or len(data) <= _PIECE_BYTES:
            return dense
        try:
            return self.read_piece(Lines(data))
        except MalformedError:
            return None

    def most_plain(self, data: bytes, starts: npt.NDArray[np.int64]) -> Most | None:
        """Return the same for most lines; each line begins at one of `starts`."""
        framed = self.framed(data, lambda: starts)
        if framed is not None or self._doubt is None:
            return framed
        return self._doubt.most(data, starts, unknown=False, names=True)

    def read_piece(self, lines: Lines) -> pa.RecordBatch | None:
        """Return the same for some lines."""
        quick: QuickReader | None = self._quick
        try:
            return None if quick is None else quick.read(lines, unknown=False)
        except MalformedError:
            return None


def _has_nulls(batch: pa.RecordBatch) -> bool:
    return any(_holds_null(column) for column in batch.columns)


def _holds_null(column: pa.Array) -> bool:
    if column.null_count:
        return True
    if types.is_struct(column.type):
        return any(map(_holds_null, column.flatten()))
    return bool(types.is_list(column.type)) and _holds_null(column.flatten())


@dataclass(frozen=True)
class _StrictMembers:
    """Reads values as columns, and keeps what does not fit; the names of their members begin with `path`."""

    fmt: ReadFormat
    account: Account

    def members(self, text: JsonText, fields: list[pa.Field], path: str) -> tuple[list[pa.Array], pa.Array | None]:
        """Return the columns of the objects in `text`, and the text of their members that these do not hold."""
        named = Named(text)
        named.count(fields, path, self.account)
        lost = self._unknown(text, named, fields, path)
        columns = []
        for field in fields:
            chosen = named.values(field.name)
            if self.fmt.missing == "fail" and len(chosen.rows) < text.lines:
                raise MalformedError(_missing(path + field.name))
            raw = scattered(text.values(chosen), chosen.rows, text.lines)
            column, rest = self.column(raw, field, f"{path}{field.name}.")
            columns.append(column)
            if rest is not None:
                lost.append(joined(f"{json.dumps(field.name)}:", rest))
        return columns, fragments(lost)

    def _unknown(self, text: JsonText, named: Named, fields: list[pa.Field], path: str) -> list[pa.Array]:
        keys, values = named.unknown(fields)
        if self.fmt.unknown == "ignore" or not len(keys.rows):
            return []
        if self.fmt.unknown == "fail":
            raise MalformedError(_unknown(path, unescaped(text.values(keys.of(np.arange(1))))[0].as_py()))
        pairs = joined('"', text.values(keys), '":', text.values(values))
        lists = pa.ListArray.from_arrays(offsets_of(keys.rows, text.lines), pairs.cast(pa.string()))
        inside = pc.binary_join(lists, ",").cast(pa.binary())
        return [pc.if_else(pc.equal(inside, b""), None, inside)]

    def column(self, raw: pa.Array, field: pa.Field, path: str) -> Read:
        """Return the values with the JSON text `raw` as the type of the field, and the text of those that do not fit."""
        raw = pc.if_else(pc.equal(raw, b"null"), None, raw)
        if is_nested(field.type):
            column, rest = self._nested(raw, field, path)
        else:
            column, rest = self._leaf(raw, field, path)
        if column.null_count and not field.nullable:
            msg = f"a value in {field.name!r}, which is not nullable (NOT NULL in the schema)"
            raise MalformedError(msg)
        return column, rest

    def _leaf(self, raw: pa.Array, field: pa.Field, path: str) -> Read:
        reader = MemberReader(self.fmt.times, None)
        loose = field.with_nullable(True)  # noqa: FBT003 - Arrow's signature
        if self.fmt.rescued is None:
            return reader.column(raw, loose, path), None
        column, bad = fitting(raw, field.type, self.fmt.times, lambda values: reader.column(values, loose, path))
        return column, pc.if_else(pa.array(bad), raw, None) if bad.any() else None

    def _nested(self, raw: pa.Array, field: pa.Field, path: str) -> Read:
        kind, present = field.type, raw.drop_null()
        fits = are_nested(present, kind)
        rows = np.flatnonzero(raw.is_valid().to_numpy(zero_copy_only=False))
        lost: list[pa.Array] = []
        if not fits.all():
            if self.fmt.rescued is None:
                raise misfit(raw, kind, field.name)
            lost.append(scattered(present.filter(pa.array(~fits)), rows[~fits], len(raw)))
            present, rows = present.filter(pa.array(fits)), rows[fits]
        text = JsonText(bytes(contents(joined(present, "\n"))))
        make = self._structs if types.is_struct(kind) else self._maps if types.is_map(kind) else self._lists
        column, rest = make(text, present, kind, path)
        if rest is not None:
            lost.append(scattered(rest, rows, len(raw)))
        return scattered(column, rows, len(raw)), pc.coalesce(*lost) if lost else None

    def _structs(self, text: JsonText, present: pa.Array, kind: pa.DataType, path: str) -> Read:  # noqa: ARG002 - signature like the others
        members, rest = self.members(text, list(kind), path)
        column = pa.StructArray.from_buffers(kind, text.lines, [None], children=members)
        return column, None if rest is None else joined("{", rest, "}")

    def _lists(self, text: JsonText, present: pa.Array, kind: pa.DataType, path: str) -> Read:
        spans = text.elements()
        elements, rest = self.column(text.values(spans), kind.value_field, path)
        column = pa.ListArray.from_arrays(offsets_of(spans.rows, text.lines), elements, type=kind)
        return column, _whole(present, rest, spans.rows)

    def _maps(self, text: JsonText, present: pa.Array, kind: pa.DataType, path: str) -> Read:
        keys, values = text.members()
        names = unescaped(text.values(keys)).cast(pa.string())
        items, rest = self.column(text.values(values), kind.item_field, path)
        column = pa.MapArray.from_arrays(offsets_of(keys.rows, text.lines), names, items, type=kind)
        return column, _whole(present, rest, keys.rows)


def unlike(data: bytes, starts: npt.NDArray[np.int64], *, fmt: ReadFormat) -> Found:
    """Find the lines whose keys are not those of the columns, if they must be; objects within lines are found by trying.

    `data` is whole JSON objects, one per line.
    """
    text = JsonText(Lines(data).data)
    named, fields = Named(text), list(fmt.data_schema)
    expected: dict[int, str] = {}
    if text.lines != len(starts):  # the two disagree on which lines are blank: trying decides
        return np.zeros(0, np.int64), []
    if fmt.unknown == "fail":
        keys, _ = named.unknown(fields)
        for row, name in zip(keys.rows.tolist(), unescaped(text.values(keys)).to_pylist(), strict=True):
            expected.setdefault(row, _unknown("", name))
    for field in fields if fmt.missing == "fail" else []:
        for row in np.setdiff1d(np.arange(text.lines), named.values(field.name).rows).tolist():
            expected.setdefault(row, _missing(field.name))
    places = sorted(expected)
    return np.array(places, np.int64), [expected[place] for place in places]


def _unknown(path: str, name: bytes) -> str:
    return f"no key {path + name.decode('utf-8', 'replace')!r}, which no column has (unknownFields=fail)"


def _missing(path: str) -> str:
    return f"a value for column {path!r} (missingFields=fail)"


def _whole(present: pa.Array, rest: pa.Array | None, rows: npt.NDArray[np.int64]) -> pa.Array | None:
    """Return the text of the values of which only a part is held."""
    if rest is None:
        return None
    lossy = np.zeros(len(present), np.bool_)
    lossy[rows[rest.is_valid().to_numpy(zero_copy_only=False)]] = True
    return pc.if_else(pa.array(lossy), present, None)
