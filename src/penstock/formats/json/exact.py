r"""An exact reader of JSON, by its text: it reads every type exactly.

A line is an object, and the text of each value matters: `1.10` is a decimal of two digits, a string column that meets
`{"a": 1}` gets these characters, `NaN` is a number. So values are located, not parsed, and `scalars.parse` gets their
text.

Locating them takes no step per record. The bytes that structure JSON (quotes, commas, colons, brackets, line feeds) are
found by one table look-up. Those inside strings are dropped: an odd number of unescaped quotes comes before them. A
cumulative sum gives each its depth. At depth 1 of an object a colon separates a key from its value, which ends at the
next comma or closing bracket of that depth. Slices of the block are then the values of a column.

Nested values are treated in the same way: the text of a struct, array or map column, one value per line, is a block of
its own. First of all, Arrow's parser (`arrow`) checks, once per block, whether the text is JSON at all; locating relies
on it. What Spark accepts and Arrow does not is simplified before: numbers of any size, `-INF`, and escapes of half a
character.

All keys are seen here, so those that no column has are counted; `count_unknown` does only that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.formats.json.arrow import (
    BYTES_MAX,
    COLON,
    COMMA,
    QUOTE,
    Lines,
    escapes,
    no_object,
    unescaped_quotes,
)
from penstock.formats.malformed import MalformedError
from penstock.formats.scalars import ISO_8601, contents, joined, misfit, parse, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from penstock.formats.account import Account
    from penstock.formats.patterns import TimeForms

    Positions = npt.NDArray[np.int64]

_STRUCTURE = bytes(byte in b'",:\n{}[]' for byte in range(256))
_WHITE = np.isin(np.arange(256), np.frombuffer(b" \t\r\n", np.uint8))
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"{[")] = 1
_STEPS[list(b"}]")] = -1

# Spark's words for values that JSON has no number for: bare, or in a string of a float column.
_WORDS = {
    **dict.fromkeys(("NaN", '"NaN"'), "NaN"),
    **dict.fromkeys(("Infinity", "+Infinity", "+INF", '"Infinity"', '"+Infinity"', '"+INF"'), "Infinity"),
    **dict.fromkeys(("-Infinity", "-INF", '"-Infinity"', '"-INF"'), "-Infinity"),
}
_FLOAT_FORMS = {**_WORDS, "-0": "0"}  # a whole number has no negative zero
_TOKEN = np.isin(
    np.arange(256), np.frombuffer(b"+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", np.uint8)
)
_NUMBER = r"^(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|NaN|[+-]?Infinity|[+-]INF)$"
_TEXT = pa.schema([("", pa.string())])
_NOTHING = pa.schema([])
_NAMES_MAX = 1000  # of unknown keys in a block; beyond that the less frequent ones are counted together


def exact(
    data: bytes, schema: pa.Schema, times: TimeForms = ISO_8601, account: Account | None = None
) -> pa.RecordBatch:
    """Return the rows of `data`, one JSON object per line, as exactly `schema`. Blank lines are skipped.

    `times` says how times are written; keys that no column has are counted in the account. Raises `MalformedError` when
    a line is not a JSON object, or has a value that does not fit its column.
    """
    if len(data) > BYTES_MAX:
        msg = f"a block of at most {BYTES_MAX} bytes"
        raise MalformedError(msg)
    data = Lines(data).data
    check_json(data)
    columns = MemberReader(times, account).members(JsonText(data), list(schema), "")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def fields_of(
    data: bytes, schema: pa.Schema, times: TimeForms
) -> Iterator[tuple[pa.Array, Callable[[pa.Array], pa.Array]]]:
    """Yield for each field of `schema` the JSON text of its values, one per line, and a function that reads some of them.

    `data` is whole JSON objects, one per line. The function raises `MalformedError` for a value that does not fit.
    """
    text = JsonText(Lines(data).data)
    named, reader = Named(text), MemberReader(times, None)
    for field in schema:
        chosen = named.values(field.name)
        raw = scattered(text.values(chosen), chosen.rows, text.lines)
        yield raw, partial(reader.column, field=field, path=f"{field.name}.")


def count_unknown(data: bytes, schema: pa.Schema, account: Account) -> None:
    """Count in the account the keys that no column has; `data` is whole JSON objects, one per line."""
    _count(JsonText(data), list(schema), "", account)


def unpaired(data: bytes) -> Positions:
    r"""Return where in `data` there are escapes like `\ud83d` that are half a character without the other half."""
    codes = np.frombuffer(data, np.uint8)
    at = escapes(codes)
    at = at[at + 6 <= len(codes)]
    at = at[(codes[at + 1] == ord("u")) & (codes[at + 2] | 32 == ord("d"))]
    high = np.isin(codes[at + 3], np.frombuffer(b"89abAB", np.uint8))
    low = np.isin(codes[at + 3], np.frombuffer(b"cdefCDEF", np.uint8))
    first = high & np.isin(at + 6, at[low])
    second = low & np.isin(at - 6, at[first])
    halves: Positions = at[(high & ~first) | (low & ~second)]
    return halves


@dataclass(frozen=True)
class Spans:
    """Values of a text: value `i` is `data[starts[i]:ends[i]]` and belongs to line `rows[i]`; all three ascend."""

    starts: Positions
    ends: Positions
    rows: Positions

    def of(self, chosen: Positions | npt.NDArray[np.bool_]) -> Spans:
        """Return the chosen values, in order."""
        return Spans(self.starts[chosen], self.ends[chosen], self.rows[chosen])


class JsonText:
    """Lines that are all objects, or all arrays: where their members or elements are."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._codes = np.frombuffer(data, np.uint8)
        at = np.flatnonzero(np.frombuffer(data.translate(_STRUCTURE), np.bool_))
        if b"\\" in data:
            escaped = np.zeros(len(data) + 1, np.bool_)
            escaped[escapes(self._codes) + 1] = True
            at = at[~escaped[at]]
        kinds = self._codes[at]
        quotes = kinds == QUOTE
        outside = quotes | (np.cumsum(quotes, dtype=np.uint8) & 1 == 0)
        self._at, self._kinds = at[outside], kinds[outside]
        steps = _STEPS[self._kinds]
        depths = np.cumsum(steps, dtype=np.int32)
        self._opens = (steps == 1) & (depths == 1)
        self._commas = (self._kinds == COMMA) & (depths == 1)
        self._colons = (self._kinds == COLON) & (depths == 1)
        self._ends = np.flatnonzero(self._commas | ((steps == -1) & (depths == 0)))
        self.lines = int(np.count_nonzero(self._opens))

    def members(self) -> tuple[Spans, Spans]:
        """Return the keys, without their quotes, and the values of the objects."""
        colons, ends = np.flatnonzero(self._colons), self._ends
        if len(ends) != len(colons):  # an empty object has an end but no colon
            ends = ends[np.searchsorted(ends, colons)]
        rows = self._rows(colons)
        keys = Spans(self._at[colons - 2] + 1, self._at[colons - 1], rows)
        return keys, self._trimmed(Spans(self._at[colons] + 1, self._at[ends], rows))

    def elements(self) -> Spans:
        """Return the elements of the arrays."""
        begins = np.flatnonzero(self._opens | self._commas)
        spans = self._trimmed(Spans(self._at[begins] + 1, self._at[self._ends], self._rows(begins)))
        return spans.of(spans.starts < spans.ends)  # an empty array has nothing between its brackets

    def values(self, spans: Spans) -> pa.Array:
        """Return the text of each span, as binary."""
        return _slices(self.data, spans.starts, spans.ends)

    def _rows(self, tokens: Positions) -> Positions:
        return np.searchsorted(np.flatnonzero(self._opens), tokens, side="right") - 1

    def _trimmed(self, spans: Spans) -> Spans:
        starts, ends = spans.starts, spans.ends
        while (white := _WHITE[self._codes[starts]] & (starts < ends)).any():
            starts = starts + white
        while (white := _WHITE[self._codes[ends - 1]] & (starts < ends)).any():
            ends = ends - white
        return Spans(starts, ends, spans.rows)


class Named:
    """The members of the objects of a text, by their names."""

    def __init__(self, text: JsonText) -> None:
        keys, self._values = text.members()
        self.keys = keys
        named = text.values(keys).dictionary_encode()
        self._names, self._indices = unescaped(named.dictionary), named.indices.to_numpy()

    def values(self, name: str) -> Spans:
        """Return the values of a member; for a repeated key the last one counts, as in Spark."""
        same = pc.equal(self._names, name.encode()).to_numpy(zero_copy_only=False)
        chosen = self._values.of(np.flatnonzero(same[self._indices]))
        last = np.append(chosen.rows[1:] != chosen.rows[:-1], np.ones(min(len(chosen.rows), 1), np.bool_))
        return chosen.of(last)

    def unknown(self, fields: list[pa.Field]) -> tuple[Spans, Spans]:
        """Return the keys that no field has, and their values."""
        known = pc.is_in(self._names, _binary([field.name for field in fields])).to_numpy(zero_copy_only=False)
        others = np.flatnonzero(~known[self._indices])
        return self.keys.of(others), self._values.of(others)

    def count(self, fields: list[pa.Field], path: str, account: Account) -> None:
        """Count in the account the names that no field has."""
        known = pc.is_in(self._names, _binary([field.name for field in fields])).to_numpy(zero_copy_only=False)
        others = np.flatnonzero(~known)
        if not len(others):
            return
        times = np.bincount(self._indices, minlength=len(known))[others]
        most = np.argsort(-times, kind="stable")[:_NAMES_MAX]
        names = self._names.take(pa.array(others[most])).to_pylist()
        keys = [f"{path}{name.decode('utf-8', 'replace')}" for name in names]
        account.count(zip(keys, times[most].tolist(), strict=True), int(times.sum() - times[most].sum()))


@dataclass(frozen=True)
class MemberReader:
    """Reads values as columns; in the account the names of their members begin with `path`."""

    times: TimeForms
    account: Account | None

    def members(self, text: JsonText, fields: list[pa.Field], path: str) -> list[pa.Array]:
        """Return the columns of the objects in `text`."""
        named = Named(text)
        if self.account is not None:
            named.count(fields, path, self.account)
        columns = []
        for field in fields:
            chosen = named.values(field.name)
            raw = scattered(text.values(chosen), chosen.rows, text.lines)
            columns.append(self.column(raw, field, f"{path}{field.name}."))
        return columns

    def column(self, raw: pa.Array, field: pa.Field, path: str) -> pa.Array:
        """Return values with the JSON text `raw` (null: there is none) as the type of `field`."""
        raw = pc.if_else(pc.equal(raw, b"null"), None, raw)
        if raw.null_count and not field.nullable:
            msg = f"a value in {field.name!r}, which is not nullable (NOT NULL in the schema)"
            raise MalformedError(msg)
        kind = field.type
        if is_nested(kind):
            return self._nested(raw, field, path)
        if types.is_string(kind):
            return _strings(raw).cast(kind)
        if types.is_timestamp(kind) and kind.tz:
            return self._instants(raw, field)
        text = _scalar_text(raw, field).cast(pa.string())
        values = parse(text, kind, field.name, self.times)
        if types.is_floating(kind):
            _check_range(text, values, field)
        return values

    def _nested(self, raw: pa.Array, field: pa.Field, path: str) -> pa.Array:
        kind, present = field.type, raw.drop_null()
        if not are_nested(present, kind).all():
            raise misfit(raw, kind, field.name)
        text = JsonText(bytes(contents(joined(present, "\n"))))
        make = self._structs if types.is_struct(kind) else self._maps if types.is_map(kind) else self._lists
        rows = np.flatnonzero(raw.is_valid().to_numpy(zero_copy_only=False))
        return scattered(make(text, kind, path), rows, len(raw))

    def _structs(self, text: JsonText, kind: pa.DataType, path: str) -> pa.Array:
        members = self.members(text, list(kind), path)
        return pa.StructArray.from_buffers(kind, text.lines, [None], children=members)

    def _lists(self, text: JsonText, kind: pa.DataType, path: str) -> pa.Array:
        spans = text.elements()
        elements = self.column(text.values(spans), kind.value_field, path)
        return pa.ListArray.from_arrays(offsets_of(spans.rows, text.lines), elements, type=kind)

    def _maps(self, text: JsonText, kind: pa.DataType, path: str) -> pa.Array:
        keys, values = text.members()
        names = unescaped(text.values(keys)).cast(pa.string())
        items = self.column(text.values(values), kind.item_field, path)
        return pa.MapArray.from_arrays(offsets_of(keys.rows, text.lines), names, items, type=kind)

    def _instants(self, raw: pa.Array, field: pa.Field) -> pa.Array:
        """Return times: a string is read by `scalars.parse`, a whole number is the seconds since 1970."""
        quoted = _quoted(raw)
        text = _strings(pc.if_else(quoted, raw, None)).cast(pa.string())
        times = parse(text, field.type, field.name, self.times)
        if pc.all(quoted).as_py() is not False:
            return times
        try:
            return pc.coalesce(times, seconds(pc.if_else(quoted, None, raw).cast(pa.string())))
        except pa.ArrowInvalid as error:
            raise misfit(raw, field.type, field.name) from error


def _count(text: JsonText, fields: list[pa.Field], path: str, account: Account) -> None:
    """Count in the account the keys of the objects in `text` that no field has, and those of objects in fields."""
    named = Named(text)
    named.count(fields, path, account)
    for field in fields:
        kind, raw = field.type, text.values(named.values(field.name))
        while types.is_list(kind):
            lists = JsonText(bytes(contents(joined(raw.filter(pa.array(are_nested(raw, kind))), "\n"))))
            kind, raw = kind.value_type, lists.values(lists.elements())
        if types.is_struct(kind):
            objects = raw.filter(pa.array(are_nested(raw, kind)))
            _count(JsonText(bytes(contents(joined(objects, "\n")))), list(kind), f"{path}{field.name}.", account)


def is_nested(kind: pa.DataType) -> bool:
    """Tell whether values of a type are objects or arrays."""
    return bool(types.is_struct(kind) or types.is_map(kind) or types.is_list(kind))


def are_nested(raw: pa.Array, kind: pa.DataType) -> npt.NDArray[np.bool_]:
    """Tell which values begin like a value of this type; none may be null."""
    opening = ord("[" if types.is_list(kind) else "{")
    nested: npt.NDArray[np.bool_] = first_bytes(raw) == opening
    return nested


def shown(raw: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values without escapes as the messages about misfits show them."""
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_floating(kind):
        return raw
    return pc.if_else(_quoted(raw), pc.binary_slice(raw, 1, -1), raw)


def _scalar_text(raw: pa.Array, field: pa.Field) -> pa.Array:
    """Return the text that `scalars.parse` will read; strings keep their quotes if it must refuse them."""
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


def _check_range(text: pa.Array, values: pa.Array, field: pa.Field) -> None:
    """Raise `MalformedError` for a number that is out of range for a double; a float may become infinite by rounding."""
    infinite = pc.is_inf(values).fill_null(fill_value=False)
    if pc.any(infinite).as_py():
        numbers = pc.replace_substring_regex(text.filter(infinite), "^.*Inf.*$", "0")
        if pc.any(pc.is_inf(numbers.cast(pa.float64()))).as_py():
            raise misfit(text, field.type, field.name)


def _with_words(raw: pa.Array) -> pa.Array:
    known = pc.index_in(raw, _binary(_FLOAT_FORMS))
    return raw if known.null_count == len(known) else pc.coalesce(_binary(_FLOAT_FORMS.values()).take(known), raw)


def _strings(raw: pa.Array) -> pa.Array:
    """Return the contents of JSON strings, and the text itself of other values."""
    inner = unescaped(pc.binary_slice(pc.if_else(_quoted(raw), raw, None), 1, -1))
    return inner if inner.null_count == raw.null_count else pc.coalesce(inner, raw)


def unescaped(inner: pa.Array) -> pa.Array:
    """Return what the text between the quotes of JSON strings stands for."""
    escaped = pc.match_substring(inner, "\\")
    if not pc.any(escaped).as_py():
        return inner
    lines = joined('{"":"', inner.filter(escaped), '"}\n')
    parsed = Lines(with_whole_characters(bytes(contents(lines)))).table(_TEXT, unknown=False).column(0).combine_chunks()
    return pc.replace_with_mask(inner, escaped, parsed.cast(pa.binary()))


def check_json(data: bytes) -> None:
    """Raise `MalformedError` unless each line is one JSON object; numbers may have any size or be words, characters may be half."""
    data = with_whole_characters(data)
    if _is_json(data) or _is_json(_with_plain_numbers(data)):
        return
    raise no_object()


def _is_json(data: bytes) -> bool:
    try:
        Lines(data).table(_NOTHING, unknown=True)
    except MalformedError:
        return False
    return True


def _with_plain_numbers(data: bytes) -> bytes:
    """Return `data` with each number, or word for a number, replaced by `0` and spaces; `MalformedError` for anything else."""
    codes = np.frombuffer(bytearray(data), np.uint8)
    quotes = unescaped_quotes(codes)
    tokens = np.flatnonzero(np.diff(np.concatenate(([False], _TOKEN[codes], [False])).astype(np.int8)))
    starts, ends = tokens[0::2], tokens[1::2]
    outside = np.searchsorted(quotes, starts) % 2 == 0
    starts, ends = starts[outside], ends[outside]
    text = _slices(data, starts, ends)
    numbers = pc.match_substring_regex(text, _NUMBER).to_numpy(zero_copy_only=False)
    literal = pc.is_in(text, _binary(["true", "false", "null"])).to_numpy(zero_copy_only=False)
    if not (numbers | literal).all():
        raise no_object()
    marks = np.zeros(len(codes) + 1, np.int8)
    marks[starts[numbers]], marks[ends[numbers]] = 1, -1
    codes[np.cumsum(marks[:-1], dtype=np.int8) == 1] = ord(" ")
    codes[starts[numbers]] = ord("0")
    return codes.tobytes()


def with_whole_characters(data: bytes) -> bytes:
    """Return `data` with a question mark for each half of a character without the other half, as Spark reads it."""
    if b"\\" not in data or (b"\\ud" not in data and b"\\uD" not in data):
        return data
    at = unpaired(data)
    codes = np.frombuffer(bytearray(data), np.uint8)
    for index, digit in enumerate(b"003f", 2):
        codes[at + index] = digit
    return codes.tobytes() if len(at) else data


def _quoted(raw: pa.Array) -> pa.Array:
    return pa.array(first_bytes(raw) == QUOTE, mask=raw.is_null().to_numpy(zero_copy_only=False))


def first_bytes(raw: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the first byte of each value, 0 for null; no value may be empty."""
    first = np.zeros(len(raw), np.uint8)
    valid = raw.is_valid().to_numpy(zero_copy_only=False)
    if valid.any():
        offsets = np.frombuffer(raw.buffers()[1], np.int32)[raw.offset : raw.offset + len(raw)]
        first[valid] = np.frombuffer(raw.buffers()[2], np.uint8)[offsets[valid]]
    return first


def _slices(data: bytes, starts: Positions, ends: Positions) -> pa.Array:
    """Return `data[start:end]` for each pair, as binary; the pairs ascend."""
    bounds = np.empty(2 * len(starts), np.int32)
    if not len(bounds):
        return pa.array([], pa.binary())
    bounds[0::2], bounds[1::2] = starts, ends
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    slices = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)  # the values, and the bytes between them
    return slices.take(pa.array(np.arange(0, len(bounds), 2)))


def scattered(values: pa.Array, rows: Positions, count: int) -> pa.Array:
    """Return `count` values: `values` at `rows`, null elsewhere."""
    if len(values) == count:
        return values
    index = np.full(count, -1)
    index[rows] = np.arange(len(rows))
    return values.take(pa.array(index, mask=index < 0))


def offsets_of(rows: Positions, count: int) -> pa.Array:
    """Return where the values of each of `count` lines begin, and where the last values end."""
    return pa.array(np.searchsorted(rows, np.arange(count + 1)), pa.int32())


def _binary(words: object) -> pa.Array:
    return pa.array(words, pa.string()).cast(pa.binary())
