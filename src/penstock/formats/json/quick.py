"""JSON by Arrow's parser: it reads every block that Arrow reads as we do, and no other.

Arrow gets a schema that says what each value must look like, and `scalars` turns the values into what they mean: dates,
times and bytes are read as strings, so Arrow does not interpret them. Arrow itself handles strings, whole numbers
within their range, doubles, booleans, and which object has which members. A block that it refuses, or that may have
another meaning for us, is left to `exact`:

- *decimals* are read with more digits than their type has, so that none can wrap around, and rounded to it as Spark
  does;
- a double *minus zero* may have been written `-0`, a whole number, which has no sign;
- an *infinite* double may have been written `Inf`, or with too many digits; a double that is not a number, as `-NaN`.

A string or time column whose values are all whole numbers (an id that some writers make a string) is read as numbers,
after the first block that was refused because of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json
from pyarrow import types

from penstock.formats.json.arrow import Lines, has_bare
from penstock.formats.malformed import MalformedError
from penstock.formats.misfits import fitting
from penstock.formats.scalars import parse, rounded, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from penstock.formats.patterns import TimeForms

_OTHER_KIND = re.compile(r"Column\((.*)\) changed from (\w+) to (\w+)")
_ROW = re.compile(r"in row (\d+)")
_DIGITS_128, _DIGITS_256, _DIGITS = 38, 76, 38
_ATTEMPTS_MAX = 8  # per block, with other kinds of columns


class QuickReader:
    """Reads blocks of one schema. What it learns about the data changes its speed, and nothing else."""

    def __init__(self, schema: pa.Schema, times: TimeForms) -> None:
        self.schema = schema
        self._times = times
        self._numbers: dict[str, bool] = {}  # paths of string and time columns with whole numbers; False: only some are
        self._rounds = False  # whether decimals have more digits after the point than their type
        self._misfits: set[str] = set()  # columns for which a block had texts that do not fit
        self.form = self._read_as()

    @staticmethod
    def takes(schema: pa.Schema) -> bool:
        """Tell whether blocks of this schema can be read: Arrow's parser has no maps, and finds a column by its name."""
        return len(schema) > 0 and _is_plain(list(schema))

    def read(self, lines: Lines, *, unknown: bool) -> pa.RecordBatch:
        """Return the rows as `exact.exact` would; keys that no column has are left out if `unknown`, otherwise refused.

        Raises `MalformedError` if it is not certain that `exact` would return the same, or return at all.
        """
        return self._rows(lines, _Conversion(lines.data, self._times), unknown=unknown)

    def most(self, lines: Lines, *, unknown: bool) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
        """Return the same, and which rows have a text that may not fit its column's type; these rows have no meaning."""
        convert = _Conversion(lines.data, self._times, np.zeros(len(lines), np.bool_), self._misfits)
        rows = self._rows(lines, convert, unknown=unknown)
        if convert.misfits is None:
            raise AssertionError
        return rows, convert.misfits

    def refused(self, data: bytes) -> int | None:
        """Return which line Arrow refuses first, if it says so."""
        try:
            Lines(data).table(self.form, unknown=True)
        except MalformedError as error:
            row = _ROW.search(str(error))
            return None if row is None else int(row[1])
        return None

    def other_names(self, data: bytes) -> list[str]:
        """Return names of keys that no column has; none if they cannot be found."""
        reading = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        parsing = arrow_json.ParseOptions(explicit_schema=self.form, unexpected_field_behavior="infer")
        try:
            table = arrow_json.read_json(pa.BufferReader(data), reading, parsing)
        except pa.ArrowException as error:
            changed = _OTHER_KIND.search(str(error))
            first = changed[1].split("/")[1] if changed else ""
            return [] if not first or first in self.schema.names else [first]
        return list(_names_beyond(table.schema, self.form))

    def _rows(self, lines: Lines, convert: _Conversion, *, unknown: bool) -> pa.RecordBatch:
        table = self._table(lines, unknown=unknown)
        columns = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in table.columns]
        arrays = [convert.column(column, field) for column, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _table(self, lines: Lines, *, unknown: bool, attempts: int = _ATTEMPTS_MAX) -> pa.Table:
        """Return what Arrow reads; each time it refuses a column's kind and names the right one, it is asked again with that."""
        try:
            return lines.table(self.form, unknown=unknown)
        except MalformedError as error:
            if attempts == 1 or not self._learned(str(error)):
                raise
        return self._table(lines, unknown=unknown, attempts=attempts - 1)

    def _learned(self, refusal: str) -> bool:
        """Tell whether the refusal says something about a column that may make the block readable."""
        changed = _OTHER_KIND.search(refusal)
        if changed is None:
            learned = "requires scale" in refusal and not self._rounds
            self._rounds |= learned
        else:
            path, before, after = changed.groups()
            learned = path not in self._numbers if after == "number" else self._numbers.get(path, False)
            learned &= {before, after} == {"string", "number"}
            if learned:
                self._numbers[path] = after == "number"
        if learned:
            self.form = self._read_as()
        return learned

    def _read_as(self) -> pa.Schema:
        return pa.schema([self._field(field, "") for field in self.schema])

    def _field(self, field: pa.Field, parent: str) -> pa.Field:
        return field.with_type(self._kind(field.type, f"{parent}/{field.name}"))

    def _kind(self, kind: pa.DataType, path: str) -> pa.DataType:
        """Return the type that Arrow will use to read values of a type."""
        if types.is_struct(kind):
            return pa.struct([self._field(field, path) for field in kind])
        if types.is_list(kind):
            return pa.list_(kind.value_field.with_type(self._kind(kind.value_type, f"{path}/[]")))
        if types.is_decimal(kind):
            return self._decimal(kind)
        if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
            return kind
        numbers = self._numbers.get(path, False) and (types.is_string(kind) or (types.is_timestamp(kind) and kind.tz))
        return pa.int64() if numbers else pa.string()

    def _decimal(self, kind: pa.DataType) -> pa.DataType:
        """Return a decimal with room for any number of as many digits as its precision, wherever the point is."""
        if self._rounds:
            return pa.decimal256(_DIGITS, _DIGITS)
        if kind.precision + kind.scale <= _DIGITS_128:
            return pa.decimal128(_DIGITS_128 - kind.scale, kind.scale)
        return pa.decimal256(_DIGITS_256 - kind.scale, kind.scale)


def _is_plain(fields: list[pa.Field]) -> bool:
    if len({field.name for field in fields}) < len(fields):
        return False
    for field in fields:
        kind = field.type
        while types.is_list(kind):
            kind = kind.value_type
        if types.is_map(kind) or (types.is_struct(kind) and not _is_plain(list(kind))):
            return False
    return True


def _names_beyond(kind: pa.DataType | pa.Schema, expected: pa.DataType | pa.Schema) -> Iterator[str]:
    """Yield the names in `kind` that `expected` lacks, at any depth; `kind` has all names of `expected`."""
    known = {field.name: field.type for field in expected}
    for field in kind:
        if field.name not in known:
            yield field.name
            continue
        inner, wanted = field.type, known[field.name]
        while types.is_list(inner) and types.is_list(wanted):
            inner, wanted = inner.value_type, wanted.value_type
        if types.is_struct(inner) and types.is_struct(wanted):
            yield from _names_beyond(inner, wanted)


class _Conversion:
    """Converts what Arrow has read of a block to columns of the schema. Raises `MalformedError` and `pa.ArrowInvalid`.

    With `misfits`, a row with a text that does not fit its column's type is marked there, and the text becomes null.
    `likely` are columns that had such texts.
    """

    def __init__(
        self,
        data: bytes,
        times: TimeForms,
        misfits: npt.NDArray[np.bool_] | None = None,
        likely: set[str] | None = None,
    ) -> None:
        self._data = data
        self._times = times
        self.misfits = misfits
        self._likely = set() if likely is None else likely

    def column(self, read: pa.Array, field: pa.Field) -> pa.Array:
        """Return the column as the type of its field."""
        kind = field.type
        if types.is_struct(kind):
            members = [self.column(read.field(index), member) for index, member in enumerate(kind)]
            return pa.StructArray.from_buffers(kind, len(read), read.buffers()[:1], children=members)
        if types.is_list(kind):
            elements = _Conversion(self._data, self._times).column(read.values, kind.value_field)
            return pa.ListArray.from_buffers(kind, len(read), read.buffers()[:2], children=[elements])
        if self.misfits is None or not types.is_string(read.type):
            return self._checked(read, field)
        likely = field.name in self._likely
        column, bad = fitting(read, kind, self._times, lambda values: self._checked(values, field), likely=likely)
        if bad.any():
            self.misfits |= bad
            self._likely.add(field.name)
        return column

    def _checked(self, read: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return self._leaf(read, field.type, field.name)
        except pa.ArrowInvalid as error:
            raise MalformedError(str(error)) from error

    def _leaf(self, read: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
        if types.is_floating(kind):
            self._check_floats(read)
        if types.is_decimal(kind):
            return _decimals(read, kind)
        if read.type == kind:
            return read
        if types.is_string(read.type):
            return parse(read, kind, name, self._times)
        if types.is_timestamp(kind):
            return seconds(read)
        if pc.any(pc.equal(read, 0)).as_py():
            self._check_bare(b"-0")
        return read.cast(kind)

    def _check_floats(self, read: pa.Array) -> None:
        values = read.fill_null(1.0).to_numpy(zero_copy_only=False)
        bits = values.view(np.int64 if values.dtype == np.float64 else np.int32)
        if (bits == np.iinfo(bits.dtype).min).any():
            self._check_bare(b"-0")
        if np.isinf(values).any():
            msg = "infinities, which may have been digits without end"
            raise MalformedError(msg)
        if np.isnan(values).any():
            self._check_bare(b"-NaN")

    def _check_bare(self, word: bytes) -> None:
        if has_bare(self._data, word):
            msg = f"no {word.decode()}"
            raise MalformedError(msg)


def _decimals(read: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals of the type: a half is rounded away from zero, as in Spark.

    Arrow checks numbers against the precision before it rescales them, and not afterwards: what was read may have more
    digits than its type says. So it is given a type with room for all digits, and the casts that follow check
    themselves.
    """
    wide = pa.decimal128 if types.is_decimal128(read.type) else pa.decimal256
    most = _DIGITS_128 if wide is pa.decimal128 else _DIGITS_256
    read = pa.Array.from_buffers(wide(most, read.type.scale), len(read), read.buffers(), read.null_count, read.offset)
    return (rounded(read, kind.scale) if read.type.scale > kind.scale else read).cast(kind)
