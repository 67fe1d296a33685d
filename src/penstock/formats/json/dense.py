r"""JSON by polars: only flat records that have a value for each column.

polars reads such records faster than Arrow, with six columns as with 200, and most streams of events consist of them.
polars is as strict about types as we are, but silently accepts other things:

1. For a repeated key it takes the first value, Spark the last; and it skips keys that no column has without reporting
   them. Every value needs a key, and a key ends with `":`. So if `":` occurs as often as the block has values, there is
   one key for each value, and no other key. A string may contain `":`, too; then there is one too many, never one too
   few.
2. In string columns it rewrites numbers and arrays (`1.10` as `1.1`), so no value there may begin like a number or an
   array. In date and time columns no value may be a number: each must have a `-` after four characters, which no number
   has.
3. Half a character (`\ud83d` alone) becomes NUL.
4. It decompresses a block that begins like gzip, zlib or zstd (`x\x01`), which yields no rows, or a system error. So a
   block must begin with an object, or with white space.

If one of these cannot be ruled out, if a value is null, or if a type is not among the plainest, another reader gets the
block. White space before a colon would break the counting, so it is searched for.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import types

from penstock.formats.json.exact import unpaired
from penstock.formats.malformed import MalformedError
from penstock.formats.scalars import parse
from penstock.formats.schema import UTC_MICROS

if TYPE_CHECKING:
    from types import ModuleType

    import numpy.typing as npt
    import polars as pl

    from penstock.formats.patterns import TimeForms

    Positions = npt.NDArray[np.int64]

_VERSION_MIN = (2, 1)  # older versions turn a value of another type into null, or into another value
_COLUMNS_MAX = 256
_COPIED_MAX = 48
_SCAN_BYTES = 1 << 17  # fits in a core's cache together with what is computed from it
_YEAR_DIGITS = 4
_QUOTE, _COLON, _SPACE, _BACKSLASH = b'": \\'
_LOWER = 32  # the bit that turns an upper-case letter into lower case
_ESCAPE_BYTES = 6
_IS_FIRST, _IS_SECOND = (
    np.isin(np.arange(256), np.frombuffer(digits, np.uint8)) for digits in (b"89abAB", b"cdefCDEF")
)
_LOCAL_MICROS = pa.timestamp("us")
_BEGINNINGS = (b"{", b" ", b"\t", b"\r", b"\n")


class DenseReader:
    """Reads blocks of one schema that have a value for every column; holds no state."""

    def __init__(self, schema: pa.Schema, times: TimeForms) -> None:
        self._schema = schema
        self._times = times
        polars = _polars()
        self._read_as = {field.name: getattr(polars, _name(field.type)) for field in schema}

    @staticmethod
    def takes(schema: pa.Schema) -> bool:
        """Tell whether the installed polars can read blocks of this schema."""
        # A name that contains NUL would make polars panic when it exports the column.
        if not 0 < len(schema) == len(set(schema.names)) <= _COLUMNS_MAX:
            return False
        plain = all(_name(field.type) and "\0" not in field.name for field in schema)
        return plain and is_strict(_polars().__version__)

    def read(self, data: bytes) -> pa.RecordBatch | None:
        """Return the rows of the lines in `data`, as `exact.exact` would; None if that is not certain."""
        frame = self._framed(data)
        if frame is None or any(column.null_count() for column in frame.iter_columns()):
            return None
        if _count_keys(data) != frame.height * frame.width or has_half(data):
            return None
        try:
            arrays = [
                self._converted(column, field) for column, field in zip(_columns(frame), self._schema, strict=True)
            ]
        except (MalformedError, pa.ArrowInvalid):
            return None
        if any(array is None for array in arrays):
            return None
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _framed(self, data: bytes) -> pl.DataFrame | None:
        """Return what polars reads; None if it refuses the data, or would decompress it."""
        polars = _polars()
        if not data.startswith(_BEGINNINGS):
            return None
        try:
            frame: pl.DataFrame = polars.read_ndjson(data, schema=self._read_as)
        except (polars.exceptions.PolarsError, polars.exceptions.PanicException):
            return None
        return frame

    def _converted(self, column: pa.Array, field: pa.Field) -> pa.Array | None:
        """Return the column as the type of its field; None, or an error of the value, if that needs a closer look."""
        kind = field.type
        if _name(kind) != "String":
            return column.cast(kind)
        text = column.cast(pa.string())
        if types.is_string(kind):
            return None if _has_odd(text) else text
        if not _begin_like_dates(text):
            return None
        return parse(text, kind, field.name, self._times)


def _columns(frame: pl.DataFrame) -> list[pa.Array]:
    """Return the columns of a frame, each in one piece.

    Many columns are handed over as polars has them: copying took most of the time of 200 columns. Few are copied into Arrow's memory: what
    polars has allocated stays until a row group is written, and a worker that read 1 GB of six columns had 400 MB instead of 300, and was
    no faster.
    """
    if frame.width <= _COPIED_MAX:
        return [column.combine_chunks() for column in frame.to_arrow().columns]
    columns = pa.table(frame).columns
    return [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in columns]


def is_text(data: bytes) -> bool:
    """Tell whether the bytes are UTF-8, as `charsets.is_utf8` does: seven times as fast if words of several alphabets alternate.

    Only the readers of JSON have polars loaded; for others loading it would take longer than this saves.
    """
    if data.isascii():
        return True
    polars = _polars()
    bounds = pa.py_buffer(np.array([0, len(data)], np.int64))
    whole = pa.Array.from_buffers(pa.large_binary(), 1, [None, bounds, pa.py_buffer(data)])
    try:
        polars.from_arrow(whole).cast(polars.String)
    except polars.exceptions.PolarsError:
        return False
    return True


def is_strict(version: str) -> bool:
    """Tell whether this version of polars refuses values of a wrong type."""
    return tuple(map(int, version.split(".")[:2])) >= _VERSION_MIN


def _name(kind: pa.DataType) -> str:
    """Return the polars type as which values of a type are read; "" if this reader does not read them."""
    if types.is_signed_integer(kind):
        return "Int64"
    if types.is_float64(kind):
        return "Float64"
    if types.is_boolean(kind):
        return "Boolean"
    return "String" if types.is_string(kind) or types.is_date32(kind) or kind in {UTC_MICROS, _LOCAL_MICROS} else ""


def _count_keys(data: bytes) -> int:
    """Return how often `":` occurs in the data; -1 if there is white space before any colon."""
    codes = np.frombuffer(data, np.uint8)
    keys = 0
    for begin in range(0, len(codes), _SCAN_BYTES):
        piece = codes[begin : begin + _SCAN_BYTES + 1]
        before, colons = piece[:-1], piece[1:] == _COLON
        keys += int(np.count_nonzero((before == _QUOTE) & colons))
        if ((before <= _SPACE) & colons).any():
            return -1
    return keys


def has_half(data: bytes) -> bool:
    """Tell whether an escape stands for half a character, and the other half is missing."""
    if b"\\" not in data:
        return False
    at = _surrogates(data)
    return bool(len(at)) and not _are_whole(data, at) and len(unpaired(data)) > 0


def _surrogates(data: bytes) -> Positions:
    r"""Return where a backslash may begin an escape like `\ud83d`: all such places, and perhaps some where it is escaped itself."""
    codes = np.frombuffer(data, np.uint8)
    places = []
    for begin in range(0, len(codes), _SCAN_BYTES):
        piece = codes[begin : begin + _SCAN_BYTES + 3]
        hits = piece[:-3] == _BACKSLASH
        if not hits.any():
            continue
        hits &= piece[1:-2] == ord("u")
        hits &= piece[2:-1] | _LOWER == ord("d")
        hits &= piece[3:] > ord("7")
        places.append(np.flatnonzero(hits) + begin)
    return np.concatenate(places) if places else np.zeros(0, np.int64)


def _are_whole(data: bytes, at: Positions) -> bool:
    """Tell whether the escapes alternate as first and second halves, each pair adjacent, and none has a backslash before it.

    A first half without a backslash before it is an escape, and so is what begins after its last digit. `False` proves
    nothing.
    """
    firsts, seconds = at[::2], at[1::2]
    if len(firsts) != len(seconds) or (seconds - firsts != _ESCAPE_BYTES).any():
        return False
    codes = np.frombuffer(data, np.uint8)
    right = _IS_FIRST[codes[firsts + 3]] & _IS_SECOND[codes[seconds + 3]]
    right &= (codes[firsts - 1] != _BACKSLASH) & (codes[seconds - 1] != _BACKSLASH)
    return bool(right.all())


def _has_odd(text: pa.Array) -> bool:
    """Tell whether a value begins like a number or an array, so that polars may have rewritten one."""
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
    begins = offsets[:-1][offsets[1:] > offsets[:-1]]
    if not len(begins):
        return False
    first = np.frombuffer(text.buffers()[2], np.uint8)[begins]
    return bool((((first >= ord("-")) & (first <= ord("9"))) | (first | 32 == ord("{"))).any())


def _begin_like_dates(text: pa.Array) -> bool:
    """Tell whether each value has a hyphen after its first four characters."""
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
    data = np.frombuffer(text.buffers()[2], np.uint8)
    if not len(text) or int(np.diff(offsets).min()) <= _YEAR_DIGITS:
        return False
    return bool((data[offsets[:-1] + _YEAR_DIGITS] == ord("-")).all())


@cache
def _polars() -> ModuleType:
    import polars as pl  # importing takes a tenth of a second, and only JSON needs it

    return pl
