"""The machinery of Parquet: row groups by byte range, columns by name, and a writer that knows how large its file will be.

A range owns the row groups that begin in it. Where a row group begins is computed from the sizes of those before it, in
proportion to the file. So each row group of any file belongs to exactly one of its ranges. The offsets in the footer
are not used: in a damaged file they may be anything, so rows would be left out, and some make pyarrow end the whole
process.

Memory is bounded by a batch and the pages that it comes from when reading, and by one row group when writing.
"""

from __future__ import annotations

import io
import re
from functools import cached_property
from io import SEEK_END
from itertools import accumulate, product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from penstock.errors import BadFile
from penstock.formats import columns
from penstock.formats.calendar import Calendar
from penstock.formats.distinct import worth_a_dictionary
from penstock.formats.groups import GroupWriter
from penstock.formats.int96 import check_int96, int96_leaves
from penstock.formats.parquetgroups import FOOTER_TAIL_BYTES, MAGIC, Footer, Group, NotKnown
from penstock.formats.schema import UTC_MICROS
from penstock.formats.stored import SPARK_KEY, Stored, schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow.parquet as pq

    from penstock.formats.account import Account
    from penstock.formats.begins import Begins
    from penstock.formats.families import WritableFile
    from penstock.formats.format import WriteFormat
    from penstock.storage import ReadableFile

__all__ = [
    "ParquetWriter",
    "parquet_batches",
    "parquet_footer",
    "spark_schema",
]

_ROWS_MIN, _GROUP_BYTES_MIN = 1 << 16, 2 << 20  # a row group with fewer rows and fewer bytes is small
_SMALL_PART = 4  # rows that wait are not made a group if they are less than this part of one
_COPIED_BYTES = 8 << 20

# A part of Arrow's message about a file with Parquet's modular encryption.
_ENCRYPTED = re.compile("decrypt", re.IGNORECASE)


def parquet_footer(file: Any) -> tuple[pa.Schema, Any]:  # noqa: ANN401 - a seekable binary file object, and pyarrow's
    """Return the Arrow schema of a Parquet file and its `FileMetaData`. Raises `BadFile`."""
    opened = _opened(file)
    return _columns(opened), opened.metadata


def written_schema(file: Any) -> pa.Schema:  # noqa: ANN401 - a seekable binary file object, or pyarrow's
    """Return the schema of the rows that a `ParquetWriter` was given; for any other file the Arrow schema. Raises `BadFile`."""
    opened = _opened(file)
    stored = _columns(opened)
    told = schema_of(opened.metadata.metadata, stored)
    return told if told is not None and Stored.of(told).file.equals(stored) else stored


def spark_schema(file: Any) -> pa.Schema:  # noqa: ANN401 - a seekable binary file object, or pyarrow's
    """Return the columns as Spark reads them: by Spark's key in the footer, or else by Parquet's types. Raises `BadFile`.

    INT96 values are instants, and Parquet's ENUM is text, at any depth.
    """
    opened = _opened(file)
    columns_of = opened.metadata.schema
    leaves = map(columns_of.column, range(len(columns_of)))
    stored = pa.schema([field.with_type(_as_spark(field.type, leaves)) for field in _columns(opened)])
    return schema_of(opened.metadata.metadata, stored) or stored


def _as_spark(kind: pa.DataType, leaves: Iterator[Any]) -> pa.DataType:
    """Return a type as Spark names it; `leaves` are the columns of the file, in their order, beginning with the first one of this type."""
    if types.is_struct(kind):
        return pa.struct([member.with_type(_as_spark(member.type, leaves)) for member in kind])
    if types.is_map(kind):
        key = kind.key_field.with_type(_as_spark(kind.key_type, leaves))
        return pa.map_(key, kind.item_field.with_type(_as_spark(kind.item_type, leaves)))
    if types.is_nested(kind):
        return pa.list_(kind.value_field.with_type(_as_spark(kind.value_type, leaves)))
    leaf = next(leaves)
    if leaf.physical_type == "INT96":
        return UTC_MICROS
    return pa.string() if leaf.converted_type == "ENUM" else kind


def parquet_batches(
    file: Any,  # noqa: ANN401 - a seekable binary file object, or pyarrow's
    start: int,
    end: int,
    schema: pa.Schema,
    batch_rows: int = 65536,
    account: Account | None = None,
    begins: Begins | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the row groups that begin in [start, end), in order, as exactly `schema`.

    Columns of the file that are not in `schema` are counted in the account. `begins` gets where the row groups begin.

    Columns are found by name, exactly or else ignoring case, as Spark does; a missing column is null. Numbers may be
    narrower in the file, times may have another unit, and a time without zone is UTC. Bytes may stand for text, and
    numbers for intervals, which Spark stores without marking them.

    Raises `BadFile` when the file is corrupt, has a column of another type, or a value or null that does not fit.
    Errors of the file object come through unchanged.
    """
    opened = _opened(file)
    stored = _columns(opened)
    names = columns.found(stored, schema)
    calendar = Calendar.of_spark(opened.metadata.metadata)
    int96 = int96_leaves(opened.metadata.schema, stored)
    for index, begin in enumerate(_begins(opened.metadata, file.seek(0, SEEK_END))):
        if start <= begin < end:
            count = opened.metadata.row_group(index).num_rows
            columns.count_others(stored, names, count, account)
            if begins is not None:
                begins.add(begin, count)
            for rows in _group(opened, index, names, batch_rows):
                batch = columns.in_file(rows)
                check_int96(batch, int96)
                yield columns.conformed(calendar.corrected(batch), schema, names)


def row_count(file: Any) -> int:  # noqa: ANN401 - whatever Arrow reads
    """Return the row count in the footer of a file. Raises `BadFile`."""
    return int(_opened(file).metadata.num_rows)


class ParquetWriter(GroupWriter):
    """Writes batches to one Parquet file in row groups of about `group_bytes` of Arrow data.

    The file is readable by Spark, DuckDB, polars, Trino and Arrow alike: format 2.6, times in microseconds, no INT96, and
    Spark's own schema in the footer (see `stored`).
    """

    def __init__(
        self, file: WritableFile, fmt: WriteFormat, group_bytes: int = 64 << 20, *, ratio: float = 0.35
    ) -> None:
        super().__init__(file, fmt.schema, group_bytes, ratio=ratio)
        self._compression, self._level = fmt.compression, fmt.level
        self._stored = Stored.of(fmt.schema)
        self._writer: pq.ParquetWriter | None = None
        self._groups = 0
        # Groups of other files, with their bytes, and how many of our groups come before them.
        self._taken: list[tuple[int, int, list[Group]]] = []

    def _put(self, batches: list[pa.RecordBatch]) -> None:
        rows = [self._stored.rows(batch) for batch in batches]
        table = pa.Table.from_batches(rows, schema=self._stored.file)
        self._writer = self._writer or self._begun(worth_a_dictionary(table))
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._groups += 1

    def taking(self, file: ReadableFile, size: int) -> Iterator[int] | None:
        """Return steps that copy the row groups of a file that another `ParquetWriter` has written with this schema."""
        try:
            footer = Footer.of(file.read, size)
            waits = 0 < self._buffered_bytes < self._group_bytes // _SMALL_PART
            if waits or footer.schema != self._stored_columns or _are_small(footer.groups()):
                return None
            self._flush()
            self._writer = self._writer or self._begun(dictionaries=True)
            by = self._file.written - len(MAGIC)
            moved = footer.groups(lambda _: by)
        except NotKnown:
            return None
        return self._copied(file, footer.begin, moved)

    def _copied(self, file: ReadableFile, end: int, groups: list[Group]) -> Iterator[int]:
        at = len(MAGIC)
        while at < end:
            data = file.read(at, min(_COPIED_BYTES, end - at))
            if not data:
                msg = f"a file of row groups ends at byte {at}, expected {end}"
                raise BadFile(msg)
            self._file.write(data)
            self._file.check()
            self._taken_bytes += len(data)
            at += len(data)
            yield len(data)
        self._taken.append((self._groups, end - len(MAGIC), groups))
        self.rows += sum(group.rows for group in groups)

    @cached_property
    def _stored_columns(self) -> bytes:
        """The columns in the footer of this file."""
        empty = io.BytesIO()
        self._begun(dictionaries=True, file=empty).close()
        form = empty.getvalue()
        return Footer.of(lambda offset, length: form[offset : offset + length], len(form)).schema

    def _end(self) -> None:
        self._writer = self._writer or self._begun(dictionaries=True)
        if not self._taken:
            self._writer.close()
            return
        with self._file.kept() as own_end:
            self._writer.close()
        footer = Footer.parsed(bytes(own_end[:-FOOTER_TAIL_BYTES]))
        # Arrow counts the bytes that it has written itself.
        groups = footer.groups(lambda number: sum(size for place, size, _ in self._taken if place <= number))
        for place, _, taken in reversed(self._taken):
            groups[place:place] = taken
        end = footer.with_groups(groups)
        self._check_end(end, len(groups))
        self._file.write(end)

    def _check_end(self, end: bytes, groups: int) -> None:
        """Raise `BadFile` unless Arrow reads in the footer that was put together here what it should say."""
        import pyarrow.parquet as pq

        footer = pq.read_metadata(io.BytesIO(MAGIC + end))
        numbers = product(range(footer.num_row_groups), range(footer.num_columns))
        places = [footer.row_group(group).column(column).data_page_offset for group, column in numbers]
        in_order = places == sorted(set(places)) and max(places, default=0) < self._file.written
        if (footer.num_rows, footer.num_row_groups) != (self.rows, groups) or not in_order:
            msg = (
                f"a footer has {footer.num_rows} rows in {footer.num_row_groups} row groups at {places}, expected {self.rows} in "
                f"{groups}, one after the other in {self._file.written} bytes; this is a fault of Penstock, and the file is not used"
            )
            raise BadFile(msg)

    def _begun(self, dictionaries: bool | list[str], file: Any = None) -> pq.ParquetWriter:  # noqa: ANN401, FBT001 - as pyarrow has it
        """Write the beginning of the file. `dictionaries` are the leaves that have one, `True`: all."""
        import pyarrow.parquet as pq  # importing it takes as long as everything else in a small process

        writer = pq.ParquetWriter(
            self.arrow_file() if file is None else file,
            self._stored.file,
            compression=self._compression,
            compression_level=self._level,
            version="2.6",
            coerce_timestamps="us",
            use_dictionary=dictionaries,
        )
        if self._stored.spark is not None:
            writer.add_key_value_metadata({SPARK_KEY: self._stored.spark.encode()})
        return writer


def _are_small(groups: list[Group]) -> bool:
    """Tell whether row groups are so small that readers gain if their rows are encoded again, in fewer groups."""
    rows, size = sum(group.rows for group in groups), sum(group.size for group in groups)
    return (rows < _ROWS_MIN * len(groups) and size < _GROUP_BYTES_MIN * len(groups)) or not groups


def _opened(file: Any) -> pq.ParquetFile:  # noqa: ANN401 - a seekable binary file object, or pyarrow's
    import pyarrow.parquet as pq

    try:
        # Arrow's extension types wrap texts (JSON) and bytes (UUID), which are plain in the file, and to Spark.
        return pq.ParquetFile(file, pre_buffer=False, coerce_int96_timestamp_unit="us", arrow_extensions_enabled=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last if a column's name is not UTF-8
        if not _is_arrows(error):
            raise
        msg = f"not a readable Parquet file: {error}{_hint(error)}"
        raise BadFile(msg) from error


def _columns(opened: pq.ParquetFile) -> pa.Schema:
    return columns.without_extensions(opened.schema_arrow)


def _hint(error: Exception) -> str:
    """Return advice about a file that Arrow cannot read though it is intact, "" for any other."""
    if _ENCRYPTED.search(str(error)):
        return "; it is encrypted by Parquet's own modules, which is not read here: write it again without encryption, or as a file of age"
    if "keys must be annotated as required" in str(error):
        return "; keys of a map may be null in it, which Arrow does not read: have Spark read it, and write it again"
    return ""


def _is_arrows(error: Exception) -> bool:
    """Tell whether an error is Arrow's own; an error of the file object has an error number, or another class."""
    return isinstance(error, pa.ArrowException | UnicodeDecodeError) or (type(error) is OSError and error.errno is None)


def _begins(metadata: Any, size: int) -> list[int]:  # noqa: ANN401 - pyarrow's FileMetaData
    """Return where each row group counts as beginning in a file of `size` bytes: in order, from 0, before `size`."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    _check_rows("the file", sum(group.num_rows for group in groups), metadata.num_rows)
    ends = list(accumulate((max(group.total_byte_size, 0) + 1 for group in groups), initial=0))
    return [end * size // ends[-1] for end in ends[:-1]]


def _group(opened: pq.ParquetFile, index: int, names: dict[str, str], batch_rows: int) -> Iterator[pa.RecordBatch]:
    rows = 0
    try:
        for batch in opened.iter_batches(
            batch_rows, row_groups=[index], columns=list(names.values()), use_threads=False
        ):
            rows += batch.num_rows
            yield batch
    except (pa.ArrowException, OSError) as error:
        if not _is_arrows(error):
            raise
        msg = f"row group {index} cannot be read: {error}{_hint(error)}"
        raise BadFile(msg) from error
    _check_rows(f"row group {index}", rows, opened.metadata.row_group(index).num_rows)


def _check_rows(what: str, found: int, expected: int) -> None:
    """Raise `BadFile` if rows are missing: Arrow silently ends a damaged row group early."""
    if found != expected:
        msg = f"{what} has {found} rows, the footer says {expected}"
        raise BadFile(msg)
