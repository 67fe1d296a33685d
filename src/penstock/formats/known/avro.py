"""Avro object container files: blocks by byte range, columns by name. The library is the extra `avro`.

::

    4F 62 6A 01                                     magic
    {avro.schema, avro.codec, ...}                  metadata: a map of strings to bytes
    16 bytes                                        the file's sync marker
    [rows, bytes, data, sync marker] ...            blocks; rows and bytes are long

A block begins after the sync marker of the previous block, the first one after that of the header. A range owns the
blocks that begin in it. Its first block is found by searching for the marker, as every reader of Avro ranges does. The
others follow from it, and each must end with the marker. So each block belongs to exactly one range. The row count that
a block stores is compared with its decoded rows. One fault cannot be detected: a file that was cut between two blocks
looks complete, because nothing in it says how long it is.

This module finds the blocks, and `polars-avro` (arrow-avro, in Rust) decodes and encodes several of them at once; a
Python decoder took twenty times as long.

*Types.* Names consist of letters, digits and `_`, and keys of maps are strings: anything else is refused before rows
come. Times are microseconds. A time without a zone (`local-timestamp`) is in the zone `timeZone`. A UUID is read as its
text, an enum as its symbol. A file stores only Avro's types, so the schema of rows that are staged in a file is kept
beside it.
"""

from __future__ import annotations

import importlib.util
import json
import re
from contextlib import nullcontext
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import numpy as np
import pyarrow as pa
from pyarrow import types

from penstock.errors import BadFile, DependencyError, OptionError
from penstock.formats import columns
from penstock.formats.calendar import Calendar
from penstock.formats.families import TableFormat, is_plain
from penstock.formats.format import FIELD_OPTIONS
from penstock.formats.groups import GroupWriter
from penstock.formats.stored import Stored
from penstock.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.formats.account import Account
    from penstock.formats.begins import Begins
    from penstock.formats.families import TableWriter, WritableFile
    from penstock.formats.format import ReadFormat, WriteFormat
    from penstock.storage import ReadableFile

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_HEADER_BYTES = 64 << 10
_HEADER_BYTES_MAX = 64 << 20
_BLOCK_BYTES_MAX = 1 << 30
_LONG_BYTES_MAX = 10
_CHUNK_BYTES = 1 << 20
_DECODED_BYTES = 8 << 20  # of blocks that are decoded at once
_GROUP_BYTES = 1 << 20  # of Arrow in one block
_ROWS = 65536
_CODECS = {"snappy": "Snappy", "none": None, "gzip": "Deflate", "zstd": "Zstandard"}
_NAMED = ("record", "error", "enum", "fixed")
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class _Avro(TableFormat):
    name = "avro"
    extension = ".avro"
    codecs = tuple(_CODECS)
    read_options = frozenset({"encodingErrors", *FIELD_OPTIONS})

    def prepare(self) -> None:
        if importlib.util.find_spec("polars_avro") is None:
            msg = "format=avro needs the library polars-avro; install it: pip install 'penstock[avro]'"
            raise DependencyError(msg)

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
        self.prepare()
        window = _ForwardFile(file, size)
        header = _header(window)
        stored = _schema(header)
        names = columns.found(stored, fmt.schema)
        wanted = list(dict.fromkeys(names.values()))
        for rows, data in _gathered(_blocks(window, header, span, begins)):
            count = 0
            for batch in _decoded(header.data + data, wanted):
                count += batch.num_rows
                yield columns.conformed(header.calendar.corrected(batch), fmt.schema, names, fmt.zone)
            columns.count_others(stored, names, count, account)
            if count != rows:
                msg = f"blocks have {count} rows, and say they have {rows}"
                raise BadFile(msg)

    def writer(self, file: WritableFile, fmt: WriteFormat, *, group_bytes: int, ratio: float) -> TableWriter:
        self.prepare()
        return _AvroWriter(file, fmt, min(group_bytes, _GROUP_BYTES), ratio)

    def stored_schema(self, file: ReadableFile, size: int) -> pa.Schema:
        self.prepare()
        return _schema(_header(_ForwardFile(file, size))).remove_metadata()

    def is_plain(self, field: pa.Field) -> bool:
        return is_plain(field.type) and _NAME.fullmatch(field.name) is not None


class _AvroWriter(GroupWriter):
    """Writes batches to one file, one block per group."""

    def __init__(self, file: WritableFile, fmt: WriteFormat, group_bytes: int, ratio: float) -> None:
        super().__init__(file, fmt.schema, group_bytes, ratio=ratio)
        from polars_avro import _avro_rs

        self._stored = Stored.of(fmt.schema)
        for field in self._stored.file:
            _check_field(field)
        kind = _CODECS[fmt.compression]
        compression = getattr(_avro_rs.Codec, kind) if kind else None
        self._writer = _avro_rs.AvroBuffSink(cast("BinaryIO", self._file), self._stored.file.empty_table(), compression)
        self._file.check()  # the library has written the header

    def _put(self, batches: list[pa.RecordBatch]) -> None:
        rows = [self._stored.rows(batch) for batch in batches]
        self._writer.write(_copied(pa.Table.from_batches(rows, schema=self._stored.file).combine_chunks()))

    def _end(self) -> None:
        self._writer.close()


def _copied(table: pa.Table) -> pa.Table:
    """Return the table with sliced nested columns copied: the writer panics at some slices of structs in structs."""
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if types.is_nested(field.type) and any(chunk.offset for chunk in column.chunks):
            table = table.set_column(place, field, column.take(pa.array(np.arange(len(column)))))
    return table


def _check_field(field: pa.Field) -> None:
    """Raise `OptionError` for a column, or a part of its type, that Avro cannot hold."""
    if not _NAME.fullmatch(field.name):
        msg = f"the name {field.name!r} is not one that Avro allows, which are letters, digits and _: rename it"
        raise OptionError(msg)
    _check_type(field.type)


def _check_type(kind: pa.DataType) -> None:
    if types.is_struct(kind) and kind.num_fields:
        for member in kind:
            _check_field(member)
    elif types.is_list(kind):
        _check_type(kind.value_type)
    elif types.is_map(kind) and types.is_string(kind.key_type):
        _check_type(kind.item_type)
    elif not (is_plain(kind) or types.is_decimal128(kind) or (types.is_time64(kind) and kind.unit == "us")):
        msg = f"there is no such type in Avro: {kind}"
        raise OptionError(msg)


# -- the container ---------------------------------------------------------------------------------------------------


class _Header(NamedTuple):
    """The part before the blocks: its bytes as the decoder gets them, its length in the file, the sync marker, the calendar."""

    data: bytes
    end: int
    sync: bytes
    calendar: Calendar


class _Block(NamedTuple):
    """Blocks: their row count, and their bytes, from the count to the sync marker."""

    rows: int
    data: bytes


class _ForwardFile:
    """A file that is read forward in pieces of a megabyte, whatever the caller asks for."""

    def __init__(self, file: ReadableFile, size: int) -> None:
        self._file = file
        self.size = size
        self._begin, self._data = 0, b""

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes at `offset`; fewer only at the end."""
        length = max(min(length, self.size - offset), 0)
        end = self._begin + len(self._data)
        if not self._begin <= offset <= offset + length <= end:
            self._data = self._file.read(offset, min(max(length, _CHUNK_BYTES), self.size - offset))
            self._begin = offset
        at = offset - self._begin
        return self._data[at : at + length]


class _ShortError(Exception):
    """The bytes end in the middle of a value. Never leaves this module."""


class _Values:
    """A sequence of Avro's values."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self.at = at

    def long(self) -> int:
        """Return the next number: seven bits per byte, the lowest first, the sign in the lowest bit."""
        number = 0
        for place in range(_LONG_BYTES_MAX):
            byte = self.taken(1)[0]
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:  # noqa: PLR2004 - the last byte
                return (number >> 1) ^ -(number & 1)
        msg = f"found a number of more than {_LONG_BYTES_MAX} bytes"
        raise BadFile(msg)

    def taken(self, length: int) -> bytes:
        """Return the next `length` bytes."""
        if length < 0:
            msg = f"found a length of {length}"
            raise BadFile(msg)
        data = self._data[self.at : self.at + length]
        if len(data) < length:
            raise _ShortError
        self.at += length
        return data


def _header(window: _ForwardFile) -> _Header:
    """Return the header of a file. Raises `BadFile`."""
    length = _HEADER_BYTES
    while True:
        data = window.read(0, length)
        if not data.startswith(_MAGIC):
            msg = f"not an Avro file: it begins with {data[:4]!r}, expected {_MAGIC!r}"
            raise BadFile(msg)
        try:
            return _parsed_header(data)
        except _ShortError as error:
            if len(data) < length or length >= _HEADER_BYTES_MAX:
                msg = f"not a readable Avro file: its header does not end in {format_size(len(data))}"
                raise BadFile(msg) from error
            length *= 4


def _parsed_header(data: bytes) -> _Header:
    values = _Values(data, len(_MAGIC))
    metadata: dict[bytes, bytes] = {}
    while count := values.long():
        if count < 0:  # then the length of these entries in bytes follows, for readers that skip them
            values.long()
        for _ in range(abs(count)):
            key = values.taken(values.long())
            metadata[key] = values.taken(values.long())
    sync = values.taken(_SYNC_BYTES)
    end = values.at
    text = metadata.get(b"avro.schema", b"")
    plain = _plain_schema(text)
    calendar = Calendar.of_spark(metadata)
    if plain is None:
        return _Header(data[:end], end, sync, calendar)
    metadata[b"avro.schema"] = plain
    return _Header(_header_bytes(metadata, sync), end, sync, calendar)


def _header_bytes(metadata: dict[bytes, bytes], sync: bytes) -> bytes:
    pieces = [_MAGIC, _long(len(metadata))]
    for key, value in metadata.items():
        pieces += [_long(len(key)), key, _long(len(value)), value]
    return b"".join([*pieces, _long(0), sync])


def _long(number: int) -> bytes:
    """Return a non-negative number in Avro's encoding."""
    number <<= 1
    data = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def _plain_schema(text: bytes) -> bytes | None:
    """Return a schema as the decoder needs it; `None` if it is so already."""
    try:
        schema = json.loads(text)
        plain = _plain(schema)
    except (ValueError, RecursionError):
        return None  # the decoder reports what is wrong with it
    return None if plain == schema else json.dumps(plain).encode()


def _plain(schema: Any) -> Any:  # noqa: ANN401 - any JSON can be there
    """Return a schema with UUIDs as the texts that the file stores, and namespaces as members of their own.

    Of a type whose name has the namespace in it (`com.example.item`, as fastavro's `parse_schema` makes all names) the decoder does
    not find the later uses.
    """
    if isinstance(schema, list):
        return [_plain(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    kind, name = schema.get("type"), schema.get("name")
    if schema.get("logicalType") == "uuid" and kind == "string":
        return "string"
    plain = {key: _plain(value) if key not in {"default", "doc"} else value for key, value in schema.items()}
    if kind in _NAMED and isinstance(name, str) and "." in name:
        plain["namespace"], _, plain["name"] = name.rpartition(".")
    return plain


def _blocks(
    window: _ForwardFile, header: _Header, span: tuple[int, int], begins: Begins | None = None
) -> Iterator[_Block]:
    """Yield the blocks that begin in `span`. Raises `BadFile` for an invalid block."""
    begin, end = _first_begin(window, header, *span), min(span[1], window.size)
    while begin is not None and begin < end:
        values = _Values(window.read(begin, 2 * _LONG_BYTES_MAX))
        try:
            rows, length = values.long(), values.long()
        except _ShortError as error:
            msg = f"the file ends in the block at byte {begin}"
            raise BadFile(msg) from error
        if rows < 0 or not 0 <= length <= _BLOCK_BYTES_MAX:
            msg = f"the block at byte {begin} says it has {rows} rows in {length} bytes"
            raise BadFile(msg)
        data = window.read(begin, values.at + length + _SYNC_BYTES)
        if len(data) < values.at + length + _SYNC_BYTES or not data.endswith(header.sync):
            msg = f"the block at byte {begin} does not end after {length} bytes with the sync marker of the file"
            raise BadFile(msg)
        if begins is not None:
            begins.add(begin, rows)
        yield _Block(rows, data)
        begin += len(data)


def _first_begin(window: _ForwardFile, header: _Header, start: int, end: int) -> int | None:
    """Return where the first block begins in [start, end); `None` if there is none."""
    if start <= header.end:
        return header.end if header.end < end else None
    at = start - _SYNC_BYTES
    while at + _SYNC_BYTES < end:
        data = window.read(at, _CHUNK_BYTES)
        place = data.find(header.sync)
        if place >= 0:
            begin = at + place + _SYNC_BYTES
            return begin if begin < end else None
        if len(data) < _CHUNK_BYTES:
            return None
        at += len(data) - _SYNC_BYTES + 1
    return None


def _gathered(blocks: Iterator[_Block]) -> Iterator[_Block]:
    """Yield several blocks as one piece of bytes, with their total number of rows."""
    held: list[bytes] = []
    rows = size = 0
    for block in blocks:
        held.append(block.data)
        rows, size = rows + block.rows, size + len(block.data)
        if size >= _DECODED_BYTES:
            yield _Block(rows, b"".join(held))
            held, rows, size = [], 0, 0
    if held:
        yield _Block(rows, b"".join(held))


def _schema(header: _Header) -> pa.Schema:
    """Return the columns of a file as Arrow's."""
    from polars_avro import AvroError

    try:
        return pa.record_batch(_source(header.data).schema()).schema
    except (AvroError, ValueError, pa.ArrowException) as error:
        msg = f"not a readable Avro file: {error}"
        raise BadFile(msg) from error


def _decoded(data: bytes, wanted: list[str]) -> list[pa.RecordBatch]:
    """Return the rows of a file in memory, with at least these columns.

    All at once, because the library's iterator must not be dropped while an exception propagates, as when a generator
    is closed. It would call Python then, and end the process.
    """
    from polars_avro import AvroError

    decoding = _source(data).batch_iter(_ROWS, wanted or None)
    batches = []
    try:
        for batch in decoding:
            batches.append(pa.record_batch(batch))  # noqa: PERF401 - a comprehension would keep the iterator, too
    except (AvroError, ValueError, pa.ArrowException) as error:
        msg = f"blocks cannot be read: {error}"
        raise BadFile(msg) from error
    finally:
        del decoding
    return batches


def _source(data: bytes) -> Any:  # noqa: ANN401 - the library has no types for its arguments
    from polars_avro import _avro_rs

    return _avro_rs.AvroSource([lambda: nullcontext(BytesIO(data))], strict=False, utf8_view=False)


FORMAT = _Avro()
