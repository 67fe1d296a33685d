r"""JSON by its text: every type, exactly.

A line is an object, and what counts is the text of each value: `1.10` is a decimal of two digits, a string column that
meets `{"a": 1}` gets these characters, `NaN` is a number. So values are found, not parsed, and their text is given to
`scalars.parse`.

Finding them takes no step per record. The bytes that structure JSON (quotes, commas, colons, brackets, line feeds) are
picked out by one table look-up; those inside strings drop out, as an odd number of unescaped quotes lies before them; a
cumulative sum gives each its depth. At depth 1 of an object a colon separates a key from its value, which ends at the
next comma or closing bracket of that depth. Slices of the block are then the values of a column.

Nested values take the same step again: the text of a struct, array or map column, one value a line, is a block of its
own. Whether the text is JSON at all is asked of polars, once for a block, before anything else; finding relies on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.formats import ndjson
from penstock.formats.malformed import MalformedError
from penstock.formats.scalars import contents, joined, misfit, parse, seconds

if TYPE_CHECKING:
    import numpy.typing as npt

    Positions = npt.NDArray[np.int64]

_BYTES_MAX = (1 << 31) - 1  # what offsets of 32 bits reach, which Spark's string and binary columns have
_QUOTE, _COMMA, _COLON, _BACKSLASH = b'",:\\'
_STRUCTURE = bytes(byte in b'",:\n{}[]' for byte in range(256))
_WHITE = np.isin(np.arange(256), np.frombuffer(b" \t\r\n", np.uint8))
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"{[")] = 1
_STEPS[list(b"}]")] = -1

# Spark's words for what JSON has no number for: bare, or in a string of a float column.
_WORDS = {
    **dict.fromkeys(("NaN", '"NaN"'), "NaN"),
    **dict.fromkeys(("Infinity", "+Infinity", "+INF", '"Infinity"', '"+Infinity"', '"+INF"'), "Infinity"),
    **dict.fromkeys(("-Infinity", "-INF", '"-Infinity"', '"-INF"'), "-Infinity"),
}
_FLOAT_FORMS = {**_WORDS, "-0": "0"}  # a whole number has no negative zero
_BARE_WORDS = sorted((word.encode() for word in _WORDS if '"' not in word), key=len, reverse=True)


def exact(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of `data`, one JSON object a line, blank lines being none, as exactly `schema`.

    Raises `MalformedError` when a line is no JSON object, or has a value that does not fit its column.
    """
    if len(data) > _BYTES_MAX:
        msg = f"a block of at most {_BYTES_MAX} bytes"
        raise MalformedError(msg)
    data = _with_whole_characters(data)
    _check_json(data)
    return pa.RecordBatch.from_arrays(_members_of(_Text(data), list(schema)), schema=schema)


def unpaired(data: bytes) -> Positions:
    r"""Return where in `data` escapes like `\ud83d` stand that are half a character without the other half."""
    codes = np.frombuffer(data, np.uint8)
    at = _escapes(codes)
    at = at[at + 6 <= len(codes)]
    at = at[(codes[at + 1] == ord("u")) & (codes[at + 2] | 32 == ord("d"))]
    high = np.isin(codes[at + 3], np.frombuffer(b"89abAB", np.uint8))
    low = np.isin(codes[at + 3], np.frombuffer(b"cdefCDEF", np.uint8))
    first = high & np.isin(at + 6, at[low])
    second = low & np.isin(at - 6, at[first])
    halves: Positions = at[(high & ~first) | (low & ~second)]
    return halves


@dataclass(frozen=True)
class _Spans:
    """Values of a text: value `i` is `data[starts[i]:ends[i]]` and belongs to line `rows[i]`; all three rise."""

    starts: Positions
    ends: Positions
    rows: Positions

    def of(self, chosen: Positions | npt.NDArray[np.bool_]) -> _Spans:
        """Return some of them, in order."""
        return _Spans(self.starts[chosen], self.ends[chosen], self.rows[chosen])


class _Text:
    """Lines that each hold one object, or that each hold one array: where their members or elements are."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._codes = np.frombuffer(data, np.uint8)
        at = np.flatnonzero(np.frombuffer(data.translate(_STRUCTURE), np.bool_))
        if b"\\" in data:
            escaped = np.zeros(len(data) + 1, np.bool_)
            escaped[_escapes(self._codes) + 1] = True
            at = at[~escaped[at]]
        kinds = self._codes[at]
        quotes = kinds == _QUOTE
        outside = quotes | (np.cumsum(quotes, dtype=np.uint8) & 1 == 0)
        self._at, self._kinds = at[outside], kinds[outside]
        steps = _STEPS[self._kinds]
        depths = np.cumsum(steps, dtype=np.int32)
        self._opens = (steps == 1) & (depths == 1)
        self._commas = (self._kinds == _COMMA) & (depths == 1)
        self._colons = (self._kinds == _COLON) & (depths == 1)
        self._ends = np.flatnonzero(self._commas | ((steps == -1) & (depths == 0)))
        self.lines = int(np.count_nonzero(self._opens))

    def members(self) -> tuple[_Spans, _Spans]:
        """Return the keys, without their quotes, and the values of the objects."""
        colons, ends = np.flatnonzero(self._colons), self._ends
        if len(ends) != len(colons):  # an empty object has an end and no colon
            ends = ends[np.searchsorted(ends, colons)]
        rows = self._rows(colons)
        keys = _Spans(self._at[colons - 2] + 1, self._at[colons - 1], rows)
        return keys, self._trimmed(_Spans(self._at[colons] + 1, self._at[ends], rows))

    def elements(self) -> _Spans:
        """Return the elements of the arrays."""
        begins = np.flatnonzero(self._opens | self._commas)
        spans = self._trimmed(_Spans(self._at[begins] + 1, self._at[self._ends], self._rows(begins)))
        return spans.of(spans.starts < spans.ends)  # nothing is between the brackets of an empty array

    def values(self, spans: _Spans) -> pa.Array:
        """Return the text of each span, as binary."""
        bounds = np.empty(2 * len(spans.starts), np.int32)
        if not len(bounds):
            return pa.array([], pa.binary())
        bounds[0::2], bounds[1::2] = spans.starts, spans.ends
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.data)]
        slices = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)  # values, and what is between them
        return slices.take(pa.array(np.arange(0, len(bounds), 2)))

    def _rows(self, tokens: Positions) -> Positions:
        return np.searchsorted(np.flatnonzero(self._opens), tokens, side="right") - 1

    def _trimmed(self, spans: _Spans) -> _Spans:
        starts, ends = spans.starts, spans.ends
        while (white := _WHITE[self._codes[starts]] & (starts < ends)).any():
            starts = starts + white
        while (white := _WHITE[self._codes[ends - 1]] & (starts < ends)).any():
            ends = ends - white
        return _Spans(starts, ends, spans.rows)


def _members_of(text: _Text, fields: list[pa.Field]) -> list[pa.Array]:
    """Return the columns of the objects in `text`; of a key that is there twice the last value counts, as in Spark."""
    keys, values = text.members()
    named = text.values(keys).dictionary_encode()
    names, indices = _unescaped(named.dictionary), named.indices.to_numpy()
    columns = []
    for field in fields:
        same = pc.equal(names, field.name.encode()).to_numpy(zero_copy_only=False)
        chosen = values.of(np.flatnonzero(same[indices]))
        last = np.append(chosen.rows[1:] != chosen.rows[:-1], np.ones(min(len(chosen.rows), 1), np.bool_))
        chosen = chosen.of(last)
        columns.append(_column(_scattered(text.values(chosen), chosen.rows, text.lines), field))
    return columns


def _column(raw: pa.Array, field: pa.Field) -> pa.Array:
    """Return the values whose JSON text is `raw` (null: there is none) as the type of `field`."""
    raw = pc.if_else(pc.equal(raw, b"null"), None, raw)
    if raw.null_count and not field.nullable:
        msg = f"a value in {field.name!r}, which is not nullable"
        raise MalformedError(msg)
    kind = field.type
    if types.is_struct(kind) or types.is_map(kind) or types.is_list(kind):
        return _nested(raw, field)
    if types.is_string(kind):
        return _strings(raw).cast(kind)
    if types.is_timestamp(kind) and kind.tz:
        return _instants(raw, field)
    return parse(_scalar_text(raw, field).cast(pa.string()), kind, field.name)


def _nested(raw: pa.Array, field: pa.Field) -> pa.Array:
    kind, present = field.type, raw.drop_null()
    opening = ord("[" if types.is_list(kind) else "{")
    if (_first_bytes(present) != opening).any():
        raise misfit(raw, kind, field.name)
    text = _Text(bytes(contents(joined(present, "\n"))))
    make = _structs if types.is_struct(kind) else _maps if types.is_map(kind) else _lists
    rows = np.flatnonzero(raw.is_valid().to_numpy(zero_copy_only=False))
    return _scattered(make(text, kind), rows, len(raw))


def _structs(text: _Text, kind: pa.DataType) -> pa.Array:
    members = _members_of(text, list(kind))
    return pa.StructArray.from_buffers(kind, text.lines, [None], children=members)


def _lists(text: _Text, kind: pa.DataType) -> pa.Array:
    spans = text.elements()
    elements = _column(text.values(spans), kind.value_field)
    return pa.ListArray.from_arrays(_offsets(spans.rows, text.lines), elements, type=kind)


def _maps(text: _Text, kind: pa.DataType) -> pa.Array:
    keys, values = text.members()
    names = _unescaped(text.values(keys)).cast(pa.string())
    items = _column(text.values(values), kind.item_field)
    return pa.MapArray.from_arrays(_offsets(keys.rows, text.lines), names, items, type=kind)


def _instants(raw: pa.Array, field: pa.Field) -> pa.Array:
    """Return times: a string is one as `scalars.parse` reads it, a whole number the seconds since 1970."""
    quoted = _quoted(raw)
    times = parse(_strings(pc.if_else(quoted, raw, None)).cast(pa.string()), field.type, field.name)
    if pc.all(quoted).as_py() is not False:
        return times
    try:
        return pc.coalesce(times, seconds(pc.if_else(quoted, None, raw).cast(pa.string())))
    except pa.ArrowInvalid as error:
        raise misfit(raw, field.type, field.name) from error


def _scalar_text(raw: pa.Array, field: pa.Field) -> pa.Array:
    """Return the text that `scalars.parse` shall read, strings with their quotes where it must refuse them."""
    kind = field.type
    if types.is_decimal(kind):
        return _strings(raw)
    if types.is_floating(kind):
        return _with_words(raw)
    if types.is_signed_integer(kind) or types.is_boolean(kind):
        return raw
    if pc.all(_quoted(raw)).as_py() is False:
        raise misfit(raw, kind, field.name)
    return _strings(raw)


def _with_words(raw: pa.Array) -> pa.Array:
    known = pc.index_in(raw, _binary(_FLOAT_FORMS))
    return raw if known.null_count == len(known) else pc.coalesce(_binary(_FLOAT_FORMS.values()).take(known), raw)


def _strings(raw: pa.Array) -> pa.Array:
    """Return what JSON strings stand for, and the text itself of other values."""
    inner = _unescaped(pc.binary_slice(pc.if_else(_quoted(raw), raw, None), 1, -1))
    return inner if inner.null_count == raw.null_count else pc.coalesce(inner, raw)


def _unescaped(inner: pa.Array) -> pa.Array:
    """Return what the insides of JSON strings stand for."""
    escaped = pc.match_substring(inner, "\\")
    if not pc.any(escaped).as_py():
        return inner
    lines = joined('{"":"', inner.filter(escaped), '"}\n')
    parsed = ndjson.read(bytes(contents(lines)), {"": "String"})
    if parsed is None:
        msg = "characters in escapes"
        raise MalformedError(msg)
    return pc.replace_with_mask(inner, escaped, parsed.to_series().to_arrow().cast(pa.string()).cast(pa.binary()))


def _check_json(data: bytes) -> None:
    """Raise `MalformedError` unless each line is blank or one JSON object; `_BARE_WORDS` count as numbers."""
    column = {"": "String"}  # any, and one that takes all values
    if ndjson.read(data, column) is not None:
        return
    if (b"N" in data or b"I" in data) and ndjson.read(_without_words(data), column) is not None:
        return
    msg = "one JSON object on a line"
    raise MalformedError(msg)


def _without_words(data: bytes) -> bytes:
    """Return `data` with a number of the same length in the place of each bare word."""
    codes = np.frombuffer(bytearray(data), np.uint8)
    escaped = np.zeros(len(data) + 1, np.bool_)
    escaped[_escapes(codes) + 1] = True
    quotes = np.flatnonzero((codes == _QUOTE) & ~escaped[:-1])
    for word in _BARE_WORDS:
        at = _found(codes, word)
        at = at[np.searchsorted(quotes, at) % 2 == 0]
        at = at[np.isin(codes[at - 1], np.frombuffer(b" \t:,[\n", np.uint8))]
        for index in range(len(word)):
            codes[at + index] = ord("0" if index == 0 else " ")
    return codes.tobytes()


def _found(codes: npt.NDArray[np.uint8], word: bytes) -> Positions:
    at = np.flatnonzero(codes[: max(len(codes) - len(word) + 1, 0)] == word[0])
    for index in range(1, len(word)):
        at = at[codes[at + index] == word[index]]
    return at[at > 0]


def _with_whole_characters(data: bytes) -> bytes:
    """Return `data` with a question mark for each half of a character that lacks the other half, as Spark reads it."""
    if b"\\" not in data or (b"\\ud" not in data and b"\\uD" not in data):
        return data
    at = unpaired(data)
    codes = np.frombuffer(bytearray(data), np.uint8)
    for index, digit in enumerate(b"003f", 2):
        codes[at + index] = digit
    return codes.tobytes() if len(at) else data


def _escapes(codes: npt.NDArray[np.uint8]) -> Positions:
    """Return where a backslash begins an escape: every second one of a run, from its first one on."""
    at = np.flatnonzero(codes == _BACKSLASH)
    begins = np.flatnonzero(np.diff(at, prepend=-2) != 1)
    run = np.repeat(begins, np.diff(begins, append=len(at)))
    escapes: Positions = at[(np.arange(len(at)) - run) % 2 == 0]
    return escapes


def _quoted(raw: pa.Array) -> pa.Array:
    return pa.array(_first_bytes(raw) == _QUOTE, mask=raw.is_null().to_numpy(zero_copy_only=False))


def _first_bytes(raw: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the first byte of each value, 0 for null; no value is empty."""
    first = np.zeros(len(raw), np.uint8)
    valid = raw.is_valid().to_numpy(zero_copy_only=False)
    if valid.any():
        offsets = np.frombuffer(raw.buffers()[1], np.int32)[raw.offset : raw.offset + len(raw)]
        first[valid] = np.frombuffer(raw.buffers()[2], np.uint8)[offsets[valid]]
    return first


def _scattered(values: pa.Array, rows: Positions, count: int) -> pa.Array:
    """Return `count` values: `values` at `rows`, null elsewhere."""
    if len(values) == count:
        return values
    index = np.full(count, -1)
    index[rows] = np.arange(len(rows))
    return values.take(pa.array(index, mask=index < 0))


def _offsets(rows: Positions, count: int) -> pa.Array:
    """Return where the values of each of `count` lines begin, and where the last ones end."""
    return pa.array(np.searchsorted(rows, np.arange(count + 1)), pa.int32())


def _binary(words: object) -> pa.Array:
    return pa.array(words, pa.string()).cast(pa.binary())
