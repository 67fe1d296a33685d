r"""Arrow as a parser of JSON lines, with the checks that it lacks.

Given a schema, Arrow reads JSON strictly where it matters: a value of another type, a fraction in a whole number, a
repeated key or half a character in an escape is an error. What it does not check is checked here, on the bytes, at a
small part of the cost of parsing:

1. *Lines.* It reads one object after another and ignores line breaks: two objects on one line, or one on two lines; and
   `null` counts as an object without members (a document of nothing else kills the process). Rule: each line begins
   with `{` and ends with `}`, and there are as many objects as lines. In JSON a `{` can follow a `}` only where one
   object ends and the next begins, so each line is whole objects, and therefore exactly one.
2. *UTF-8* is not checked at all.
3. *Words.* `-NaN` and `Inf` are accepted as numbers, which no other reader does; under a key without a column they go
   unnoticed.
4. *Depth.* Under a key without a column, objects and arrays may be nested to any depth; Spark accepts 1000 levels.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from penstock.formats.lines import BOM, line_feeds
from penstock.formats.malformed import MalformedError
from penstock.formats.scalars import contents, joined

if TYPE_CHECKING:
    import numpy.typing as npt

    Positions = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

BYTES_MAX = (1 << 31) - 2  # of a block, because its offsets have 32 bits
DEPTH_MAX = 1000  # levels, including the line's object; Spark's parser has this limit
QUOTE, COMMA, COLON, BACKSLASH = b'",:\\'
_OPENING, _CLOSING = b"{}"
_BRACKET_BIT = 32  # the bit in which { differs from [, and } from ]
_WHITE = " \t\r\n"
_MARK = BOM[0]


class Lines:
    """A block of JSON lines: `data`, without blank lines, each line ended by a line feed; and where the line feeds are."""

    def __init__(self, data: bytes) -> None:
        """Take lines; drop blank lines, white space around lines, and byte order marks before them.

        Raises `MalformedError` unless each remaining line begins and ends like an object.
        """
        self.data = data if data.endswith(b"\n") else data + b"\n"
        self.ends = line_feeds(self.data)
        if not self._are_objects():
            self.data = _tidied(self.data)
            self.ends = line_feeds(self.data)
            if not self._are_objects():
                raise no_object()

    def __len__(self) -> int:
        """Return how many lines there are."""
        return len(self.ends)

    def table(self, schema: pa.Schema, *, unknown: bool) -> pa.Table:
        """Return the columns that `schema` names, one row per line; keys without a column are left out if `unknown`.

        A missing key is null. Raises `MalformedError` if a line is not an object, or has a value of another type than
        its column, or has a key without a column while `unknown` is false.
        """
        if not self.data:
            return schema.empty_table()
        reading = arrow_json.ReadOptions(use_threads=False, block_size=len(self.data) + 1)
        parsing = arrow_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="ignore" if unknown else "error"
        )
        try:
            table = arrow_json.read_json(pa.BufferReader(self.data), reading, parsing)
        except pa.ArrowException as error:
            raise MalformedError(str(error)) from error
        if table.num_rows != len(self):
            raise no_object()
        check_utf8(self.data)
        if unknown:
            self.check_words()
            self.check_depth()
        return table

    def first(self, size: int) -> Lines:
        """Return the first lines, about `size` bytes in all."""
        last = np.searchsorted(self.ends, min(size, len(self.data) - 1))
        return Lines(self.data[: int(self.ends[last]) + 1])

    def pieces(self, size: int) -> list[Lines]:
        """Return the lines in pieces of about `size` bytes, in order."""
        wanted = np.arange(size, len(self.data), size)
        last = np.unique(np.searchsorted(self.ends, wanted))
        cuts = [0, *(self.ends[last[last < len(self.ends) - 1]] + 1).tolist(), len(self.data)]
        return [Lines(self.data[begin:end]) for begin, end in pairwise(cuts)]

    def check_words(self) -> None:
        """Raise `MalformedError` if there is a `-NaN` or `Inf` outside of strings."""
        codes = np.frombuffer(self.data, np.uint8)
        at = np.sort(np.concatenate([_words(self.data, word) for word in (b"-NaN", b"-Inf", b"Inf")]))
        if len(at) and (np.searchsorted(unescaped_quotes(codes), at) % 2 == 0).any():
            raise no_object()

    def _are_objects(self) -> bool:
        """Tell whether all lines are objects as they stand. Raises `MalformedError` if one is not an object, tidied or not."""
        if not self.data:
            return True
        codes, ends = np.frombuffer(self.data, np.uint8), self.ends
        first, last = codes[np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))], codes[ends - 1]
        begins, closes = first == _OPENING, last == _CLOSING
        if begins.all() and closes.all():
            return True
        if not (begins | _MAY_LEAD[first]).all() or not (closes | _MAY_TRAIL[last]).all():
            raise no_object()
        return False

    def check_depth(self) -> None:
        """Raise `MalformedError` if a line is nested too deeply. Only long lines with many brackets can be."""
        if np.diff(self.ends, prepend=-1).max() <= 2 * DEPTH_MAX:
            return
        codes = np.frombuffer(self.data, np.uint8)
        opens = np.flatnonzero((codes | _BRACKET_BIT) == _OPENING)
        if np.bincount(np.searchsorted(self.ends, opens)).max() <= DEPTH_MAX:
            return
        closes = np.flatnonzero((codes | _BRACKET_BIT) == _CLOSING)
        at = np.concatenate((opens, closes))
        order = np.argsort(at)
        steps = np.repeat(np.array([1, -1]), [len(opens), len(closes)])[order]
        outside = np.searchsorted(unescaped_quotes(codes), at[order]) % 2 == 0
        if np.cumsum(steps[outside]).max() > DEPTH_MAX:
            raise no_object()


def unescaped_quotes(codes: npt.NDArray[np.uint8]) -> Positions:
    """Return where strings begin and end, alternating."""
    quotes = np.flatnonzero(codes == QUOTE)
    escaped = np.zeros(len(codes) + 1, np.bool_)
    escaped[escapes(codes) + 1] = True
    bare: Positions = quotes[~escaped[quotes]]
    return bare


def escapes(codes: npt.NDArray[np.uint8]) -> Positions:
    """Return where a backslash begins an escape: every second one of a run, beginning with its first."""
    at = np.flatnonzero(codes == BACKSLASH)
    begins = np.flatnonzero(np.diff(at, prepend=-2) != 1)
    run = np.repeat(begins, np.diff(begins, append=len(at)))
    begun: Positions = at[(np.arange(len(at)) - run) % 2 == 0]
    return begun


def has_bare(data: bytes, word: bytes) -> bool:
    """Tell whether the data may contain a number or word that ends like this, outside or inside of a string."""
    return len(_words(data, word)) > 0


def _words(data: bytes, word: bytes) -> Positions:
    """Return where `word`, of at least two characters, stands between characters that may surround a JSON value."""
    # Testing that a byte is absent takes a fiftieth of the time of a search.
    if any(letter not in data for letter in word):
        return np.empty(0, np.int64)
    codes = np.frombuffer(data, np.uint8)
    at = pairs(data, word[:2])
    at = at[(at > 0) & (at + len(word) < len(codes))]
    for index in range(2, len(word)):
        at = at[codes[at + index] == word[index]]
    at = at[_MAY_FOLLOW[codes[at + len(word)]]]
    standing_alone: Positions = at[_MAY_PRECEDE[codes[at - 1]]]
    return standing_alone


def pairs(data: bytes, pair: bytes) -> Positions:
    """Return where two bytes are adjacent, several times faster than `bytes.find`."""
    wanted = np.frombuffer(pair, np.uint16)[0]
    even = np.flatnonzero(np.frombuffer(data, np.uint16, len(data) // 2) == wanted) * 2
    odd = np.flatnonzero(np.frombuffer(data, np.uint16, (len(data) - 1) // 2, 1) == wanted) * 2 + 1
    return np.concatenate((even, odd))


def _table_of(characters: bytes) -> Mask:
    return np.isin(np.arange(256), np.frombuffer(characters, np.uint8))


_MAY_TRAIL = _table_of(_WHITE.encode() + BOM[-1:])
_MAY_LEAD = _table_of(_WHITE.encode() + BOM[:1])
_MAY_FOLLOW = _table_of(b",}] \t\r\n")
_MAY_PRECEDE = _table_of(b":,[ \t\r\n")


def _tidied(data: bytes) -> bytes:
    """Return the lines without byte order marks before them, white space around them, and blank lines."""
    if _MARK in data:
        data = data.removeprefix(BOM).replace(b"\n" + BOM, b"\n")
    bounds = np.concatenate((np.zeros(1, np.int64), line_feeds(data) + 1))
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    lines = pc.ascii_trim(pa.Array.from_buffers(pa.large_string(), len(bounds) - 1, buffers), _WHITE)
    filled = lines.filter(pc.greater(pc.binary_length(lines), 0))
    return bytes(contents(joined(filled, "\n")))


def check_utf8(data: bytes) -> None:
    """Raise `MalformedError` unless the data is UTF-8."""
    if data.isascii():
        return
    bounds = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, bounds, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid as error:
        raise no_object() from error


def no_object() -> MalformedError:
    """Return the error for records of which one is not an object. A record is a line, or with `multiLine` perhaps several lines."""
    return MalformedError("a record that is one JSON object")
