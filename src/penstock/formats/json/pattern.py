r"""Regular expressions for the form of JSON lines, which sort lines at half a gigabyte a second.

`unlike` finds the lines that do not have a value of its column's kind for each of their keys. It proves nothing: it
ignores order, repeated keys and ranges, and does not know rare things (escapes in keys, a byte order mark). It only
tells whether a line is likely to be readable. `ungrammatical` finds lines that are not JSON, and is right about each
line that it names; it does not find all.

Members and elements are written together with the text before them, so that none is in the expression twice, whatever
its depth.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.formats.patterns import USUAL_DAY, USUAL_TIME

if TYPE_CHECKING:
    import numpy.typing as npt

    Positions = npt.NDArray[np.int64]

_PATTERN_MAX = 32 << 10  # characters; a longer pattern costs more than it saves, and is refused at some length
_SPACE = "[ \t]*"
_STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrtu])*"'
_INTEGER = "-?(?:0|[1-9][0-9]*)"
_NUMBER = rf"{_INTEGER}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_WORDS = "[+-]?(?:NaN|Infinity|Inf|INF)"  # Spark's, and Arrow's
_DEPTH = 4
_LITERALS = (
    (types.is_boolean, "true|false"),
    (types.is_integer, _INTEGER),
    (types.is_floating, _NUMBER),
    (types.is_decimal, _NUMBER),
    (types.is_string, _STRING),
)


class Looks(NamedTuple):
    """The form of a line: `read` is the schema that Arrow gets for it, `meant` that of the rows; `plain_times`: times are any strings."""

    read: pa.Schema
    meant: pa.Schema
    plain_times: bool = False


def unlike(data: bytes, starts: Positions, looks: Looks) -> Positions | None:
    """Find the lines that do not have this form; each line begins at one of `starts`. `None` if that is not possible."""
    pattern = _pattern(looks)
    if pattern is None or not len(starts):
        return None
    return _unmatched(data, starts, pattern)


def ungrammatical(data: bytes, starts: Positions) -> Positions:
    """Find lines that are not JSON objects, whatever the schema. Deeply nested lines are never reported."""
    places = _unmatched(data, starts, _any_object()) if len(starts) else None
    if places is None or not len(places):
        return np.zeros(0, np.int64)
    codes = np.frombuffer(data, np.uint8)
    opened = np.add.reduceat(((codes == ord("{")) | (codes == ord("["))).astype(np.int64), starts)
    return places[opened[places] <= _DEPTH]


def _unmatched(data: bytes, starts: Positions, pattern: str) -> Positions | None:
    offsets = np.append(starts, len(data)).astype(np.int32)
    lines = pa.Array.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    try:
        alike = pc.match_substring_regex(lines, pattern)
    except pa.ArrowInvalid:  # the pattern is too much for the library
        return None
    return np.flatnonzero(~alike.to_numpy(zero_copy_only=False))


@lru_cache(8)
def _pattern(looks: Looks) -> str | None:
    pattern = rf"\A{_SPACE}{_object(looks.read, looks.meant, plain=looks.plain_times)}[ \t\r\n]*\z"
    return pattern if len(pattern) <= _PATTERN_MAX else None


@lru_cache(1)
def _any_object() -> str:
    space, text = r"[\x00-\x20]*", r'"(?s:[^"\\]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*"'
    leaf = value = f"{text}|{_NUMBER}|{_WORDS}|true|false|null"
    members = ""
    for _ in range(_DEPTH):
        members = _enclosed(r"\{", f"{text}{space}:{space}(?:{value})", r"\}", space)
        value = "|".join((leaf, members, _enclosed(r"\[", value, r"\]", space)))
    return rf"\A(?:\xef\xbb\xbf)?{space}{members}{space}\z"


def _object(read: pa.Schema | pa.StructType, meant: pa.Schema | pa.StructType, *, plain: bool) -> str:
    members = (
        f"{_key(field.name)}{_SPACE}:{_SPACE}(?:{_value(field.type, wanted.type, plain=plain)}|null)"
        for field, wanted in zip(read, meant, strict=True)
    )
    return _enclosed(r"\{", "|".join(members), r"\}")


def _value(read: pa.DataType, meant: pa.DataType, *, plain: bool) -> str:
    if types.is_struct(read):
        return _object(read, meant, plain=plain)
    if types.is_list(read):
        return _enclosed(r"\[", f"{_value(read.value_type, meant.value_type, plain=plain)}|null", r"\]")
    is_time = types.is_string(read) and (types.is_timestamp(meant) or types.is_date(meant))
    if is_time and not plain:
        return f'"{USUAL_DAY if types.is_date(meant) else USUAL_TIME}"'
    return next(literal for is_kind, literal in _LITERALS if is_kind(read))


def _key(name: str) -> str:
    return re.escape(json.dumps(name, ensure_ascii=False))


def _enclosed(begin: str, inner: str, end: str, space: str = _SPACE) -> str:
    return rf"(?:(?:(?:{begin}|,){space}(?:{inner}){space})+{end}|{begin}{space}{end})"
