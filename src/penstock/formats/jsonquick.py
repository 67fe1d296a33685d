r"""JSON by polars, where what it makes of a block can be proven to be right.

polars parses JSON lines three to five times faster than anything else at hand, and is strict about types: it refuses a
fraction, a boolean or a string where a whole number belongs. In six ways it differs from Spark and from the text,
silently, so each is looked for, cheaply, and where it cannot be ruled out the block is left to `jsonexact`:

1. *Keys that are there twice*: polars takes the first value, Spark the last. Every value needs a key, so if the block
   spells a key as often as its column has values, none is there twice. Keys end with `":`; their last eight bytes are
   compared as one number, which may count too many, never too few. Where it counts more (nulls, nested objects with
   such a key) no line may hold two.
2. *Other values in string columns*: polars writes numbers and objects in its own way (`1.10` as `1.1`). Where a string
   column has a value that looks like a number or a bracket, no key of that column may be followed by a fraction or a
   bracket.
3. *Numbers in decimal columns*: they came through a double, which is exact up to 15 digits.
4. *Numbers in date and time columns* would look like years; only whole dates and times are taken here, and no number is
   one.
5. *Halves of characters* (`\ud83d` alone) become NUL.
6. *Floats*: a double that lies in the middle of two floats may have been rounded twice.

Some spellings would break the counting: white space before a colon, or escapes in keys. They are looked for, too.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.formats import ndjson
from penstock.formats.jsonexact import unpaired
from penstock.formats.malformed import MalformedError
from penstock.formats.scalars import is_scalar, parse, whole_times

if TYPE_CHECKING:
    import numpy.typing as npt

    Positions = npt.NDArray[np.int64]

_WORD_BYTES = 8
_SCAN_BYTES = 1 << 17  # fits in a core's cache together with what is computed of it
_ESCAPED_KEY = r'\\(?:[^"\\]|\\.)*"\s*:'
_SPACED_KEY = r'"[ \t\r]+:'
_INEXACT_TEXT = r"[\[{]|-?[0-9]*[.eE]|-0|-?[0-9]{20}"
_INEXACT_DECIMAL = r"-?[0-9.]+[eE]|-?[0-9.]{17}"
_NOT_A_STRING = r'[^"n\s]'
_FLOAT_TAIL, _FLOAT_TIE = (1 << 29) - 1, 1 << 28


def is_flat(schema: pa.Schema) -> bool:
    """Tell whether `quick` can be tried for this schema."""
    # A name with NUL in it would make polars panic when it hands over the column.
    return len(schema) > 0 and all(is_scalar(field.type) and "\0" not in field.name for field in schema)


def quick(data: bytes, schema: pa.Schema) -> pa.RecordBatch | None:
    """Return the rows of `data`, one JSON object a line, as `jsonexact.exact` would; None where that is not certain."""
    frame = ndjson.read(data, {field.name: _read_as(field.type) for field in schema})
    if frame is None:
        return None
    columns = [column.combine_chunks() for column in frame.to_arrow().columns]
    if not _keys_are_single(data, schema.names, columns) or not _text_is_whole(data, schema, columns):
        return None
    try:
        converted = list(map(_converted, columns, schema))
    except (MalformedError, pa.ArrowInvalid):
        return None
    if any(column is None for column in converted):
        return None
    return pa.RecordBatch.from_arrays(converted, schema=schema)


def _read_as(kind: pa.DataType) -> str:
    if types.is_integer(kind):
        return "Int64"
    if types.is_floating(kind):
        return "Float64"
    return "Boolean" if types.is_boolean(kind) else "String"


def _converted(column: pa.Array, field: pa.Field) -> pa.Array | None:
    """Return the column as the type of its field; None, or an error of the value, when that needs a closer look."""
    kind = field.type
    if column.null_count and not field.nullable:
        return None
    if types.is_float32(kind):
        bits = column.fill_null(0.0).to_numpy(zero_copy_only=False).view(np.int64)
        return None if (bits & _FLOAT_TAIL == _FLOAT_TIE).any() else column.cast(kind, safe=False)
    if _read_as(kind) != "String":
        return column.cast(kind)
    text = column.cast(pa.string())
    if types.is_timestamp(kind):
        return whole_times(text, kind)
    return parse(text, kind, field.name) if types.is_binary(kind) or types.is_decimal(kind) else text.cast(kind)


def _keys_are_single(data: bytes, names: list[str], columns: list[pa.Array]) -> bool:
    """Tell whether no line has a key of the schema twice, for certain."""
    keys, spaced = _count_keys(data)
    if spaced and _matches(data, _SPACED_KEY):
        return False
    if b"\\" in data and _matches(data, _ESCAPED_KEY):
        return False
    if keys == sum(len(column) - column.null_count for column in columns):
        return True  # one for each value: there are no other keys at all
    at = _ends_of_keys(data)
    tails = _words_before(data, at)
    lines: Positions | None = None
    for name, column in zip(names, columns, strict=True):
        found = at[_ends_with(tails, json.dumps(name, ensure_ascii=False).encode()[:-1])]
        spare = len(found) - (len(column) - column.null_count)
        if spare < 0:
            return False
        if spare:
            lines = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) if lines is None else lines
            rows = np.searchsorted(lines, found)
            if (rows[1:] == rows[:-1]).any():
                return False
    return True


def _count_keys(data: bytes) -> tuple[int, bool]:
    """Return how often `":` stands in the data, and whether white space stands in front of any colon."""
    codes = np.frombuffer(data, np.uint8)
    keys, spaced = 0, False
    for begin in range(0, len(codes), _SCAN_BYTES):
        piece = codes[begin : begin + _SCAN_BYTES + 1]
        before, colons = piece[:-1], piece[1:] == ord(":")
        keys += int(np.count_nonzero((before == ord('"')) & colons))
        spaced = spaced or bool(((before <= ord(" ")) & colons).any())
    return keys, spaced


def _ends_of_keys(data: bytes) -> Positions:
    """Return where `":` stands; at some of the places a string begins with a colon."""
    codes = np.frombuffer(data, np.uint8)
    found = [np.zeros(0, np.int64)]
    for begin in range(0, len(codes), _SCAN_BYTES):
        piece = codes[begin : begin + _SCAN_BYTES + 1]
        found.append(np.flatnonzero((piece[:-1] == ord('"')) & (piece[1:] == ord(":"))) + begin)
    return np.concatenate(found)


def _has_pair(data: bytes, pair: bytes) -> bool:
    """Tell whether two bytes stand side by side, four times faster than `bytes.find`."""
    wanted = np.frombuffer(pair, np.uint16)[0]
    whole = np.frombuffer(data, np.uint16, len(data) // 2)
    shifted = np.frombuffer(data, np.uint16, max(len(data) - 1, 0) // 2, min(len(data), 1))
    return bool((whole == wanted).any() or (shifted == wanted).any())


def _words_before(data: bytes, at: Positions) -> npt.NDArray[np.uint64]:
    """Return the eight bytes in front of each position as a number; what is in front of the data counts as zeros."""
    near = at[at < _WORD_BYTES]
    first = [int.from_bytes(data[: int(end)].rjust(_WORD_BYTES, b"\0"), "little") for end in near]
    words = np.ndarray(max(len(data) - _WORD_BYTES + 1, 0), np.dtype("<u8"), data, strides=(1,))
    return np.concatenate((np.array(first, np.uint64), words[at[len(near) :] - _WORD_BYTES]))


def _ends_with(words: npt.NDArray[np.uint64], tail: bytes) -> npt.NDArray[np.bool_]:
    tail = tail[-_WORD_BYTES:]
    shift = np.uint64(8 * (_WORD_BYTES - len(tail)))
    ends: npt.NDArray[np.bool_] = (words >> shift) == np.uint64(int.from_bytes(tail, "little"))
    return ends


def _text_is_whole(data: bytes, schema: pa.Schema, columns: list[pa.Array]) -> bool:
    """Tell whether the text of strings, decimals and binary values is what the file has, for certain."""
    if b"\\" in data and _has_pair(data, b"\\u") and len(unpaired(data)):
        return False
    texts = [field.name for field, column in zip(schema, columns, strict=True) if _looks_odd(field.type, column)]
    decimals = [field.name for field in schema if types.is_decimal(field.type)]
    others = [field.name for field in schema if types.is_binary(field.type)]
    doubts = ((texts, _INEXACT_TEXT), (decimals, _INEXACT_DECIMAL), (others, _NOT_A_STRING))
    forms = [rf'"(?:{"|".join(map(_quoted, names))})"\s*:\s*(?:{form})' for names, form in doubts if names]
    return not forms or not _matches(data, "|".join(forms))


def _quoted(name: str) -> str:
    return re.escape(json.dumps(name, ensure_ascii=False)[1:-1])


def _looks_odd(kind: pa.DataType, column: pa.Array) -> bool:
    """Tell whether a string column has a value that begins like a number or a bracket, so polars may have made it."""
    if not types.is_string(kind):
        return False
    text = column.cast(pa.string())
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
    begins = offsets[:-1][offsets[1:] > offsets[:-1]]
    if not len(begins):
        return False
    first = np.frombuffer(text.buffers()[2], np.uint8)[begins]
    return bool((((first >= ord("-")) & (first <= ord("9"))) | (first | 32 == ord("{"))).any())


def _matches(data: bytes, form: str) -> bool:
    """Tell whether the regular expression matches anywhere, in one pass, whatever the data."""
    return bool(pc.match_substring_regex(pa.array([data], pa.large_binary()), form)[0].as_py())
