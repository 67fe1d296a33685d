"""The format ORC: stripes by byte range, columns by name.

A range owns the stripes that begin in it. Where a stripe begins is computed: each of n stripes counts for an n-th of
the file, whatever its length, because pyarrow reports only how many there are. So each stripe of any file belongs to
exactly one of its ranges, and ranges are even if stripes are, as writers make them.

*Times.* Arrow reads ORC's times in nanoseconds, which cover 1677 to 2262. A time outside is an error when it is read,
and is refused when it is written, before it is staged. Two more kinds are refused: a time before 1970 with a fraction
of a second, because Arrow writes a negative fraction, at which Java's readers fail; and a date before 1582-10-15,
because Arrow does not note its calendar, and Java's readers assume the Julian one. (Values are read by the calendar
that the file notes, see `calendar`.) Instants are written as such (`timestamp with local time zone`). A `timestamp` of
ORC is what a clock showed where it was written. Spark stores its instants like this, too, so it is taken to be in the
zone `timeZone`.

*Structs.* When a struct inside a struct is null in some row, at any depth, pyarrow writes values of other rows (seen
with 26.0, in files that no reader could read right). So such structs are refused when they are written; they are read
normally.

A file stores only its own types, so the schema of rows that are staged in a file is kept beside it. Memory is bounded
by one stripe, decoded.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
from pyarrow import types

from penstock.errors import BadFile, OptionError, PenstockError
from penstock.formats import columns
from penstock.formats.calendar import Calendar, has_old_dates
from penstock.formats.families import TableFormat
from penstock.formats.format import FIELD_OPTIONS
from penstock.formats.groups import GroupWriter
from penstock.formats.nested import leaves
from penstock.formats.schema import UTC_MICROS
from penstock.storage import SeekableFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyarrow import orc

    from penstock.formats.account import Account
    from penstock.formats.begins import Begins
    from penstock.formats.families import TableWriter, WritableFile
    from penstock.formats.format import ReadFormat, WriteFormat
    from penstock.storage import ReadableFile

# From ORC's messages `FileTail`, `Footer` and `Type`, and its kinds of calendars and types.
_TAIL_FOOTER, _FOOTER_TYPES, _FOOTER_CALENDAR, _TYPE_KIND, _TYPE_PRECISION = 2, 4, 11, 1, 5
_JULIAN, _DECIMAL = 1, 14
_BYTES = 2  # in Protocol Buffers: a field with a length; all other fields of these messages are numbers
_CODECS = {"zstd": "zstd", "none": "uncompressed", "gzip": "zlib", "snappy": "snappy"}
_SIMPLE = re.compile(r"\w+", re.ASCII)  # a name that pyarrow can look up: a dot would mean a member of a struct
_MICROS_MAX = (1 << 63) // 1000 - 1
_SECOND = 1_000_000
_BATCH_ROWS = 65536
_NUMBERED = re.compile(r"_col\d+")
_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)  # the last if a column's name is not UTF-8


class _Orc(TableFormat):
    name = "orc"
    extension = ".orc"
    codecs = tuple(_CODECS)
    read_options = frozenset({"encodingErrors", *FIELD_OPTIONS})

    def divisible(self, fmt: ReadFormat, path: str) -> bool:  # noqa: ARG002 - all files are divisible
        return True

    def rows(
        self,
        fmt: ReadFormat,
        file: ReadableFile,
        size: int,
        span: tuple[int, int],
        account: Account | None = None,
        begins: Begins | None = None,
    ) -> Iterator[pa.RecordBatch]:
        reader = _OrcReader(file, size)
        names = columns.found(reader.schema, fmt.schema)
        if not names and len(fmt.schema):
            _check_named(reader.schema)
        rows = 0
        for stripe in range(reader.count):
            begin_of_stripe = stripe * size // reader.count
            if not span[0] <= begin_of_stripe < span[1]:
                continue
            batch = reader.stripe(stripe, list(names.values()))
            rows += batch.num_rows
            if begins is not None:
                begins.add(begin_of_stripe, batch.num_rows)
            columns.count_others(reader.schema, names, batch.num_rows, account)
            yield from (
                columns.conformed(
                    reader.calendar.corrected(batch.slice(begin, _BATCH_ROWS)), fmt.schema, names, fmt.zone
                )
                for begin in range(0, batch.num_rows, _BATCH_ROWS)
            )
        if span[0] <= 0 and span[1] >= size and rows != reader.rows:
            msg = f"the stripes have {rows} rows, the footer says {reader.rows}"
            raise BadFile(msg)

    def row_count(self, file: ReadableFile, size: int) -> int | None:
        return _OrcReader(file, size).rows

    def writer(self, file: WritableFile, fmt: WriteFormat, *, group_bytes: int, ratio: float) -> TableWriter:
        return _OrcWriter(file, fmt, group_bytes, ratio)

    def stored_schema(self, file: ReadableFile, size: int) -> pa.Schema:
        stored = _OrcReader(file, size).schema.remove_metadata()
        return pa.schema([field.with_type(_instants(field.type)) for field in stored])

    def check(self, batch: pa.RecordBatch) -> None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            for leaf in leaves(column):
                if has_old_dates(leaf):
                    _refuse(name, "date before 1582-10-15")
                if types.is_timestamp(leaf.type):
                    _check_times(name, leaf)


def _check_named(stored: pa.Schema) -> None:
    """Raise `BadFile` for a file without names: no column would be found in it by its name, and all would be null."""
    if stored.names and all(map(_NUMBERED.fullmatch, stored.names)):
        msg = (
            f"its columns have no names, as Hive before 2.0 wrote them (found {', '.join(stored.names[:3])}), and Spark takes them in "
            "their order; give the schema with these names, such as '_col0 bigint, _col1 string', and rename the columns after that"
        )
        raise BadFile(msg)


def _check_times(name: str, times: pa.Array) -> None:
    micros = times.cast(pa.int64()).drop_null().to_numpy()
    if np.any((micros < -_MICROS_MAX) | (micros > _MICROS_MAX)):
        _refuse(name, "time before 1677-09-22 or after 2262-04-11")
    if np.any((micros < 0) & (micros % _SECOND != 0)):
        _refuse(name, "time before 1970 with a fraction of a second")


def _instants(kind: pa.DataType) -> pa.DataType:
    """Return a type with its times as instants, as Spark sees all times of ORC; nested times are left unchanged."""
    return UTC_MICROS if types.is_timestamp(kind) else kind


def _refuse(name: str, which: str) -> NoReturn:
    msg = (
        f"column {name!r} has a {which}, which orc cannot hold for all its readers; write parquet, or make it a string"
    )
    raise OptionError(msg)


class _OrcReader:
    """An ORC file. Its errors become `BadFile`; errors of reading the file object come through unchanged."""

    def __init__(self, file: ReadableFile, size: int) -> None:
        from pyarrow import orc

        self._source = _Source(file, size)
        try:
            self._file = orc.ORCFile(pa.PythonFile(self._source, "r"))
            self.schema: pa.Schema = self._file.schema
            self.rows, self.count = int(self._file.nrows), int(self._file.nstripes)
            footer = list(_fields(dict(_fields(self._file.reader.serialized_file_tail()))[_TAIL_FOOTER]))
            self.calendar = Calendar(dates=_is_julian(self._file, footer))
            self._undeclared = _undeclared(self.schema, footer)
        except _ERRORS as error:
            self._fail("not a readable ORC file", error)

    def stripe(self, index: int, names: list[str]) -> pa.RecordBatch:
        """Return the rows of a stripe, with at least these columns."""
        for name in self._undeclared.intersection(names):
            msg = (
                f"column {name!r} has decimals of Hive 0.11, without a number of digits, of which the library keeps six after the point; "
                "have Spark read it, and write it again"
            )
            raise BadFile(msg)
        is_simple = names and all(map(_SIMPLE.fullmatch, self.schema.names))
        try:
            return self._file.read_stripe(index, columns=names if is_simple else None)
        except _ERRORS as error:
            self._fail(f"stripe {index} cannot be read", error)

    def _fail(self, what: str, error: Exception) -> NoReturn:
        if self._source.error is not None:
            raise self._source.error
        hint = "; where no database has the zone of its writer, have Spark read it, and write it again"
        msg = f"{what}: {error}{hint if 'Time zone file' in str(error) else ''}"
        raise BadFile(msg) from error


def _is_julian(file: orc.ORCFile, footer: list[tuple[int, Any]]) -> bool:
    """Tell whether days before 1582-10-15 are Julian: as the footer says; if it does not, whether Java's writer wrote the file."""
    kind = dict(footer).get(_FOOTER_CALENDAR)
    return bool(kind == _JULIAN if kind else file.writer == "ORC_JAVA")


def _undeclared(schema: pa.Schema, footer: list[tuple[int, Any]]) -> set[str]:
    """Return the columns that are or hold decimals without a precision; the footer has the types as the schema, the outer first."""
    kinds = iter([dict(_fields(value)) for number, value in footer if number == _FOOTER_TYPES][1:])
    return {
        column.name
        for column in schema
        for kind in list(islice(kinds, _size(column.type)))
        if kind.get(_TYPE_KIND) == _DECIMAL and not kind.get(_TYPE_PRECISION)
    }


def _size(kind: pa.DataType) -> int:
    """Return how many types a type consists of, with itself."""
    return 1 + sum(map(_size, _inner_types(kind)))


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a Protocol Buffers message, each with its number: a number, or bytes. The library has just written it."""
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            at += 1
            number |= (message[at - 1] & 0x7F) << shift
            if message[at - 1] < 0x80:  # noqa: PLR2004 - the last byte of a number lacks the eighth bit
                return number
            shift += 7

    while at < len(message):
        field, kind = divmod(varint(), 8)
        value = varint()
        if kind == _BYTES:
            at += value
            yield field, message[at - value : at]
        else:
            yield field, value


class _Source(SeekableFile):
    """The file as Arrow reads it; keeps errors, because Arrow keeps only their text."""

    error: PenstockError | None = None

    def read(self, size: int = -1, /) -> bytes:
        try:
            return super().read(size)
        except PenstockError as error:
            self.error = error
            raise


class _OrcWriter(GroupWriter):
    """Writes batches to one ORC file. The library keeps encoded data until a stripe is full."""

    def __init__(self, file: WritableFile, fmt: WriteFormat, group_bytes: int, ratio: float) -> None:
        super().__init__(file, fmt.schema, group_bytes, ratio=ratio)
        for field in fmt.schema:
            _check_type(field.type)
        from pyarrow import orc

        self._writer = orc.ORCWriter(self.arrow_file(), compression=_CODECS[fmt.compression], stripe_size=group_bytes)
        self._file.check()  # the library has written the header
        self._is_begun = False

    def _put(self, batches: list[pa.RecordBatch]) -> None:
        # With their own buffers: from a slice of structs Arrow writes other rows.
        own = [pa.ipc.read_record_batch(batch.serialize(), batch.schema) for batch in batches]
        self._writer.write(pa.Table.from_batches(own, schema=self._schema))
        self._is_begun = True

    def _end(self) -> None:
        if not self._is_begun:  # writing the first rows writes the types
            self._writer.write(self._schema.empty_table())
        self._writer.close()


def _check_type(kind: pa.DataType, *, inside: bool = False) -> None:
    """Raise `OptionError` for a struct that is `inside` another: if such a struct is null, Arrow writes the values of other rows."""
    if types.is_struct(kind) and inside:
        msg = "a struct inside a struct, whose rows Arrow's writer mixes up"
        raise OptionError(msg)
    for part in _inner_types(kind):
        _check_type(part, inside=inside or types.is_struct(kind))


def _inner_types(kind: pa.DataType) -> list[pa.DataType]:
    if types.is_map(kind):
        return [kind.key_type, kind.item_type]
    if types.is_list(kind):
        return [kind.value_type]
    return [kind.field(place).type for place in range(kind.num_fields)]  # of a struct or a union


FORMAT = _Orc()
