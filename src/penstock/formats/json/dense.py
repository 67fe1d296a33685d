r"""JSON by polars: flat records that have a value for each column, and nothing else.

polars reads such records a tenth to a third faster than Arrow, and most streams of events are such records; with a hundred
columns Arrow is the faster one. polars is as strict about types as we are, but not about the rest, silently:

1. Of a key that is there twice it takes the first value, Spark the last; keys that no column has are skipped, and nobody
   hears of them. Every value needs a key, and a key ends with `":`. So if the block has that as often as it has values,
   there is one key for each value, and no other. A string may have it, too; that is one too many, and never one too few.
2. In string columns it writes numbers and arrays in its own way (`1.10` as `1.1`), so no value there may begin like one;
   nor may a value of a date or time column be one: each must go on with `-` behind four characters, which no number does.
3. Halves of characters (`\ud83d` alone) become NUL.
4. A block that begins as gzip, zlib or zstd does (`x\x01`) it unpacks: no rows come of it, or an error of the system. So a block begins
   with an object, or with white space.

Where one of these cannot be ruled out, a value is null or a type is not among the plainest, the block is another reader's.
White space in front of a colon would break the counting, and is looked for.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import types

from penstock.formats.json.arrow import pairs
from penstock.formats.json.exact import unpaired
from penstock.formats.malformed import MalformedError
from penstock.formats.scalars import parse
from penstock.formats.schema import UTC_MICROS

if TYPE_CHECKING:
    from types import ModuleType

    import polars as pl

    from penstock.formats.patterns import TimeForms

_VERSION_MIN = (2, 1)  # older ones make a value of another type null, or another value
_COLUMNS_MAX = 48
_SCAN_BYTES = 1 << 17  # fits in a core's cache together with what is computed of it
_YEAR_DIGITS = 4
_QUOTE, _COLON, _SPACE = b'": '
_LOCAL_MICROS = pa.timestamp("us")
_BEGINNINGS = (b"{", b" ", b"\t", b"\r", b"\n")


class DenseReader:
    """Reads blocks of one schema that have a value everywhere; holds nothing."""

    def __init__(self, schema: pa.Schema, times: TimeForms) -> None:
        self._schema = schema
        self._times = times
        polars = _polars()
        self._read_as = {field.name: getattr(polars, _name(field.type)) for field in schema}

    @staticmethod
    def takes(schema: pa.Schema) -> bool:
        """Tell whether blocks of this schema can be read, with the polars that is installed."""
        # A name with NUL in it would make polars panic when it hands over the column.
        if not 0 < len(schema) == len(set(schema.names)) <= _COLUMNS_MAX:
            return False
        plain = all(_name(field.type) and "\0" not in field.name for field in schema)
        return plain and is_strict(_polars().__version__)

    def read(self, data: bytes) -> pa.RecordBatch | None:
        """Return the rows of `data`, lines, as `exact.exact` would; None where that is not certain."""
        frame = self._framed(data)
        if frame is None or any(column.null_count() for column in frame.iter_columns()):
            return None
        if _count_keys(data) != frame.height * frame.width or _has_half(data):
            return None
        columns = [column.combine_chunks() for column in frame.to_arrow().columns]
        try:
            arrays = [self._converted(column, field) for column, field in zip(columns, self._schema, strict=True)]
        except (MalformedError, pa.ArrowInvalid):
            return None
        if any(array is None for array in arrays):
            return None
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _framed(self, data: bytes) -> pl.DataFrame | None:
        """Return what polars reads, and None for what it refuses or would unpack."""
        polars = _polars()
        if not data.startswith(_BEGINNINGS):
            return None
        try:
            frame: pl.DataFrame = polars.read_ndjson(data, schema=self._read_as)
        except (polars.exceptions.PolarsError, polars.exceptions.PanicException):
            return None
        return frame

    def _converted(self, column: pa.Array, field: pa.Field) -> pa.Array | None:
        """Return the column as the type of its field; None, or an error of the value, when that needs a closer look."""
        kind = field.type
        if _name(kind) != "String":
            return column.cast(kind)
        text = column.cast(pa.string())
        if types.is_string(kind):
            return None if _has_odd(text) else text
        if not _begin_like_dates(text):
            return None
        return parse(text, kind, field.name, self._times)


def is_strict(version: str) -> bool:
    """Tell whether this version of polars refuses values of a wrong type."""
    return tuple(map(int, version.split(".")[:2])) >= _VERSION_MIN


def _name(kind: pa.DataType) -> str:
    """Return the polars type that values of a type are read as; "" if they are not read here."""
    if types.is_signed_integer(kind):
        return "Int64"
    if types.is_float64(kind):
        return "Float64"
    if types.is_boolean(kind):
        return "Boolean"
    return "String" if types.is_string(kind) or types.is_date32(kind) or kind in {UTC_MICROS, _LOCAL_MICROS} else ""


def _count_keys(data: bytes) -> int:
    """Return how often `":` stands in the data; -1 if there is white space in front of any colon."""
    codes = np.frombuffer(data, np.uint8)
    keys = 0
    for begin in range(0, len(codes), _SCAN_BYTES):
        piece = codes[begin : begin + _SCAN_BYTES + 1]
        before, colons = piece[:-1], piece[1:] == _COLON
        keys += int(np.count_nonzero((before == _QUOTE) & colons))
        if ((before <= _SPACE) & colons).any():
            return -1
    return keys


def _has_half(data: bytes) -> bool:
    """Tell whether an escape stands for half a character, without the other half."""
    if b"\\" not in data:
        return False
    codes = np.frombuffer(data, np.uint8)
    surrogates = codes.take(pairs(data, b"\\u") + 2, mode="clip") | 32 == ord("d")
    return bool(surrogates.any()) and len(unpaired(data)) > 0


def _has_odd(text: pa.Array) -> bool:
    """Tell whether a value begins like a number or an array, so that polars may have made it of one."""
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
    begins = offsets[:-1][offsets[1:] > offsets[:-1]]
    if not len(begins):
        return False
    first = np.frombuffer(text.buffers()[2], np.uint8)[begins]
    return bool((((first >= ord("-")) & (first <= ord("9"))) | (first | 32 == ord("{"))).any())


def _begin_like_dates(text: pa.Array) -> bool:
    """Tell whether each value has a hyphen behind its first four characters."""
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
    data = np.frombuffer(text.buffers()[2], np.uint8)
    if not len(text) or int(np.diff(offsets).min()) <= _YEAR_DIGITS:
        return False
    return bool((data[offsets[:-1] + _YEAR_DIGITS] == ord("-")).all())


@cache
def _polars() -> ModuleType:
    import polars as pl  # takes a tenth of a second, and only JSON needs it

    return pl
