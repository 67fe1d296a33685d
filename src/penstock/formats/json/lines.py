r"""JSON lines: a record is a line with one object, and a row is its members by name.

Reading does what Spark's reader does in FAILFAST mode: a missing key is null, an unknown key is skipped, a value of
another type is an error and never null; see `read`.

Writing does what Spark's writer does: a null member is left out, a null in an array or map is written. Times are ISO
8601 in UTC (with six digits for the fraction of a second if three are not enough; Spark truncates it), bytes are
Base64, NaN and the infinities are strings. Each column is turned into the text of its values, and the rows are these
pieces joined, so no Python code runs per record.
"""

from __future__ import annotations

import json
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.errors import OptionError
from penstock.formats.account import Account
from penstock.formats.conforming import map_entries
from penstock.formats.format import WriteFormat
from penstock.formats.json.broken import BROKEN, misfits
from penstock.formats.json.doubt import merged
from penstock.formats.json.read import JsonReader
from penstock.formats.json.strict import StrictReader, unlike
from penstock.formats.lines import BOM, line_feeds, not_blank, record_starts, value_ends
from penstock.formats.malformed import MalformedError, Sifted, nothing_bad, of_records, raise_bad_record, sifted
from penstock.formats.scalars import codes, contents, is_rendered, is_scalar, joined, joined_filled, render
from penstock.formats.schema import check_distinct, check_intervals, spark_name

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from penstock.formats.format import ReadFormat
    from penstock.formats.json.doubt import Most
    from penstock.formats.malformed import Found, Pass

_TEXT = pa.large_string()
_ENCODED_BYTES_MAX = 256 << 20  # of Arrow data, turned into text at once
_WHITE = bytes.maketrans(b"\n\r", b"  ")
_ESCAPES = {"\\": "\\\\", '"': '\\"'}  # the backslash first: the others bring new ones
_ESCAPES.update((chr(code), f"\\u{code:04x}") for code in range(32))
_ESCAPES.update({"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"})


class JsonDecoder:
    """Turns lines into rows: by name, strictly typed. Blank lines, and a byte order mark before one, are skipped."""

    def __init__(self, fmt: ReadFormat, account: Account) -> None:
        for field in fmt.schema:
            _check(field.type, field.name, is_scalar)
        self._schema = fmt.schema
        self._sep = fmt.line_sep
        self._reader = StrictReader(fmt) if fmt.is_strict else JsonReader(fmt.schema, fmt.times)
        self._fmt = fmt
        self._account = account
        self._scratch = Account()
        self._sifts = False  # whether the previous block had to be sifted

    def decode(self, block: bytes) -> pa.RecordBatch:
        """Return the objects of `block`; see `Decoder`."""
        try:
            return self._decode(block, self._account)
        except MalformedError as error:
            raise_bad_record(block, record_starts(block, sep=self._sep), self._tried, error)

    def sift(self, block: bytes) -> Sifted:
        """Return the objects of `block`, and the lines that are not objects; see `Decoder`."""
        found = self._sift(block)
        return found.until(record_starts(block, sep=self._sep)) if len(found.starts) else found

    def _sift(self, block: bytes) -> Sifted:
        """Return the same, but each line with the blank lines after it.

        Faults in one block are likely in the next, too: then the cheap checks are made first.
        """
        dense = None if self._sifts else self._dense_first(block)
        if dense is not None:
            return nothing_bad(dense)
        framed = self._framed(block)
        if framed is not None:
            return framed
        rows = None if self._sifts else self._at_once(block)
        if rows is not None:
            return nothing_bad(rows)
        left = self._mostly(block)
        if left is not None:
            return left
        rows = None if self._sifts else self._accounted(block)
        if rows is not None:
            return nothing_bad(rows)
        left = sifted(block, self._filled(block), self._tried, self._rounds(block))
        self._account.count(self._scratch.unknown.items(), self._scratch.more)
        self._account.partial |= self._scratch.partial
        self._sifts = len(left.starts) > 0
        return left

    def _framed(self, block: bytes) -> Sifted | None:
        """Return the same if most of the lines have one form; see `frame`."""
        data = on_lines(block, self._sep)
        if not isinstance(self._reader, JsonReader) or len(data) != len(block):
            return None
        starts = cache(partial(self._filled, block))
        most = self._reader.framed(data, starts)
        if most is None:
            return None
        return self._with_others(block, starts(), most, Account()) if len(most.doubtful) else nothing_bad(most.rows)

    def _dense_first(self, block: bytes) -> pa.RecordBatch | None:
        """Return the rows of a block that the reader for dense records accepts, if it is the faster one."""
        data = on_lines(block, self._sep)
        return self._reader.dense_first(data) if isinstance(self._reader, JsonReader) and not data.isspace() else None

    def _at_once(self, block: bytes) -> pa.RecordBatch | None:
        """Return the rows of a block that a faster reader accepts completely."""
        data = on_lines(block, self._sep)
        return (
            self._reader.at_once(data) if isinstance(self._reader, JsonReader) and not data.isspace() and data else None
        )

    def _mostly(self, block: bytes) -> Sifted | None:
        """Return the same if most of the lines can be read quickly, and the others are few."""
        if not isinstance(self._reader, JsonReader) or len(on_lines(block, self._sep)) != len(block):
            return None
        account = Account()
        starts = self._filled(block)
        most = self._reader.most(on_lines(block, self._sep), starts, account)
        return None if most is None else self._with_others(block, starts, most, account)

    def _with_others(self, block: bytes, starts: npt.NDArray[np.int64], most: Most, account: Account) -> Sifted:
        """Return the rows of most lines together with those of the other lines; `account` is that of most lines."""
        ends = np.append(starts[1:], len(block))[: len(starts)]
        begins, closes = starts[most.doubtful], ends[most.doubtful]
        others = of_records(block, begins, closes)
        sizes = closes - begins
        bounds = np.cumsum(sizes)
        # These are few, and many of them are bad: trying to read them in between would cost more than the next check of
        # their values.
        looks = [find for passes in self._rounds(others) for find in passes]
        rest = sifted(others, (bounds - sizes).astype(np.int64), self._tried_apart, [looks] if looks else [])
        for seen in (account, self._scratch):
            self._account.count(seen.unknown.items(), seen.more)
            self._account.partial |= seen.partial
        bad = np.searchsorted(bounds, rest.starts, side="right")
        right = np.delete(most.doubtful, bad)
        places = right - np.searchsorted(most.doubtful[bad], right)
        self._sifts = len(bad) > 0
        return Sifted(merged(most.rows, rest.rows, places), begins[bad], closes[bad], rest.reasons)

    def _rounds(self, block: bytes) -> list[list[Pass]]:
        """Return the passes that find bad lines, many at a time: none if lines end with more than one byte.

        Broken lines are found by their bytes, which costs less than trying to read the others; the passes after that
        read them, too.
        """
        if len(on_lines(block, self._sep)) != len(block):
            return []
        rounds: list[list[Pass]] = [[*BROKEN]]
        if self._fmt.is_strict:
            rounds.append([partial(unlike, fmt=self._fmt)])
        if self._fmt.rescued is None:
            rounds.append([partial(misfits, schema=self._fmt.schema, times=self._fmt.times)])
        return [[partial(self._converted, find) for find in passes] for passes in rounds]

    def _filled(self, block: bytes) -> npt.NDArray[np.int64]:
        """Return the same as `starts`, quickly if no line begins with white space or a byte order mark."""
        starts = record_starts(block, sep=self._sep)
        first = np.frombuffer(block, np.uint8)[starts]
        return self.starts(block) if ((first <= ord(" ")) | (first == BOM[0])).any() else starts

    def _accounted(self, block: bytes) -> pa.RecordBatch | None:
        """Return the rows of `block` and count what no column has in the account; `None`, and no entry, if a line is bad."""
        try:
            rows = self._tried(block)
        except MalformedError:
            return None
        self._account.count(self._scratch.unknown.items(), self._scratch.more)
        self._account.partial |= self._scratch.partial
        return rows

    def _tried(self, block: bytes) -> pa.RecordBatch:
        """Return the rows of `block`; what no column has is counted in an account that is dropped."""
        self._scratch = Account()
        return self._decode(block, self._scratch)

    def _tried_apart(self, block: bytes) -> pa.RecordBatch:
        """Do the same for lines that were put aside."""
        self._scratch = Account()
        return self._decode(block, self._scratch, apart=True)

    def _converted(self, find: Pass, block: bytes, starts: npt.NDArray[np.int64]) -> Found:
        """Run the pass on lines that end with a line feed."""
        return find(on_lines(block, self._sep), starts)

    def starts(self, block: bytes) -> npt.NDArray[np.int64]:
        """Return where each line that is not blank begins; see `Decoder`."""
        starts = record_starts(block, sep=self._sep)
        ends = None if self._sep is None else value_ends(block, starts, sep=self._sep)
        marks = np.flatnonzero(np.frombuffer(block, np.uint8)[starts] == BOM[0])
        if len(marks):
            codes = np.frombuffer(bytearray(block), np.uint8)
            codes[starts[marks] + np.arange(len(BOM))[:, None]] = ord(" ")
            block = codes.tobytes()
        return not_blank(block, starts, b" \t\r\n", ends)

    def _decode(self, block: bytes, account: Account, *, apart: bool = False) -> pa.RecordBatch:
        data = on_lines(block, self._sep)
        if not data or data.isspace():
            return pa.RecordBatch.from_pylist([], self._schema)
        if apart and isinstance(self._reader, JsonReader):
            return self._reader.apart(data, account)
        return self._reader.read(data, account)


class JsonEncoder:
    """Turns rows into lines, one object each."""

    def __init__(self, fmt: WriteFormat) -> None:
        check_distinct(fmt.schema)
        for field in fmt.schema:
            _check(field.type, field.name, is_rendered)
        check_intervals(fmt.schema, fmt.name)

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer | bytes:
        """Return the lines; see `Encoder`."""
        if batch.nbytes > _ENCODED_BYTES_MAX and batch.num_rows > 1:
            half = batch.num_rows // 2
            return b"".join((self.encode(batch.slice(0, half)), self.encode(batch.slice(half))))
        return contents(_objects(batch.columns, batch.schema.names, batch.num_rows, end="}\n"))

    def ends(self, batch: pa.RecordBatch, data: pa.Buffer | bytes) -> npt.NDArray[np.int64]:  # noqa: ARG002 - the bytes say it
        """Return where each row ends; see `Encoder`."""
        return line_feeds(data) + 1


def json_lines(rows: pa.RecordBatch) -> pa.Buffer | bytes:
    """Return rows as lines of JSON; see `JsonEncoder`."""
    return JsonEncoder(WriteFormat("json", rows.schema)).encode(rows)


def json_text(column: pa.Array, name: str) -> pa.Array:
    """Return the JSON of each value as text, null where it is null. `OptionError` for a type that JSON cannot hold."""
    _check(column.type, name, is_rendered)
    return _value(column, name).cast(pa.string())


def on_lines(block: bytes, sep: bytes | None) -> bytes:
    r"""Return `block` with only its records ended by `\n`: a line break within a record becomes other white space."""
    if sep is None:
        return block.replace(b"\r", b"\n") if b"\r" in block else block
    if sep == b"\n":
        return block
    # A line break that is not a separator is white space. NUL stands for separators meanwhile; neither NUL nor \1
    # occurs in JSON.
    others = block.replace(b"\0", b"\1") if b"\0" not in sep else block
    return others.replace(sep, b"\0").translate(_WHITE).replace(b"\0", b"\n")


def _check(kind: pa.DataType, name: str, is_known: Callable[[pa.DataType], bool]) -> None:
    """Raise `OptionError` for a type, at any depth, that is neither a known single value nor a type that JSON has a form for."""
    if types.is_struct(kind):
        for member in kind:
            _check(member.type, f"{name}.{member.name}", is_known)
    elif types.is_list(kind):
        _check(kind.value_type, name, is_known)
    elif types.is_map(kind) and types.is_string(kind.key_type):
        _check(kind.item_type, name, is_known)
    elif not is_known(kind):
        advice = "; keys of a map must be strings" if types.is_map(kind) else "; use parquet, or make it a string"
        msg = f"column {name!r} is {spark_name(kind)}, which json cannot hold{advice}"
        raise OptionError(msg)


def _objects(columns: list[pa.Array], names: list[str], count: int, *, end: str = "}") -> pa.Array:
    """Return the text of `count` objects with the members that are not null."""
    if not names:
        return pa.repeat(pa.scalar("{" + end, _TEXT), count)
    pieces: list[pa.Array | str] = ["{"]
    begun: pa.Array | bool = False  # whether the objects have a member yet: no object, all, or an array
    for column, name in zip(columns, names, strict=True):
        text = _value(column, name)
        valid = text.is_valid() if text.null_count else True
        pieces += [_prefix(f"{json.dumps(name, ensure_ascii=False)}:", begun, valid), text]
        begun = True if begun is True or valid is True else valid if begun is False else pc.or_(begun, valid)
    return joined_filled([*pieces, end])


def _prefix(key: str, begun: pa.Array | bool, valid: pa.Array | bool) -> pa.Array | str:  # noqa: FBT001 - all, none, or by row
    """Return the text before a member's value: a comma if the object has begun, nothing before a null."""
    first, later = pa.scalar(key, _TEXT), pa.scalar("," + key, _TEXT)
    before = later if begun is True else first if begun is False else pc.if_else(begun, later, first)
    if valid is True:
        return before.as_py() if isinstance(before, pa.Scalar) else before
    return pc.if_else(valid, before, "")


def _value(column: pa.Array, name: str) -> pa.Array:
    """Return the JSON text of each value, null where it is null."""
    kind = column.type
    if types.is_struct(kind):
        text = _objects(column.flatten(), [member.name for member in kind], len(column))
        return pc.if_else(column.is_valid(), text, None) if column.null_count else text
    if types.is_map(kind):
        entries = map_entries(column)
        keys, items = entries.flatten().flatten()
        return _sequence(
            entries, joined('"', _escaped(keys.cast(_TEXT)), '":', _value(items, name).fill_null("null")), "{", "}"
        )
    if types.is_list(kind):
        return _sequence(column, _value(column.flatten(), name).fill_null("null"), "[", "]")
    if types.is_string(kind):
        return joined('"', _escaped(column.cast(_TEXT)), '"')
    text = render(column, name)
    if types.is_floating(kind):
        finite = pc.is_finite(column)
        return text if pc.all(finite).as_py() is not False else pc.if_else(finite, text, joined('"', text, '"'))
    bare = types.is_integer(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    return text if bare else joined('"', text, '"')


def _sequence(column: pa.Array, elements: pa.Array, opening: str, closing: str) -> pa.Array:
    """Return the text of lists or maps; `elements` is the text of all elements of those that are not null."""
    ends = np.cumsum(pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False))
    offsets = pa.array(np.concatenate((np.zeros(1, np.int64), ends)), pa.int32())
    text = joined(opening, pc.binary_join(pa.ListArray.from_arrays(offsets, elements), pa.scalar(",", _TEXT)), closing)
    return pc.if_else(column.is_valid(), text, None) if column.null_count else text


def _escaped(text: pa.Array) -> pa.Array:
    """Return the text between the quotes of JSON strings, in one pass per special character that occurs."""
    characters = codes(text)
    if np.any((characters < ord(" ")) | (characters == ord('"')) | (characters == ord("\\"))):
        counts = np.bincount(characters, minlength=256)
        for character, escape in _ESCAPES.items():
            if counts[ord(character)]:
                text = pc.replace_substring(text, character, escape)
    return text
