"""Parquet: row groups by byte range, columns by name, and a writer that knows how large its file will be.

A range owns the row groups that begin in it. Where one begins is reckoned from the sizes of those before it, in proportion
to the file: so each row group of any file belongs to exactly one of its ranges. The offsets in the footer are not asked: in a
damaged file they lie anywhere, so that rows would be left out, and pyarrow ends the whole process over some.

Memory is bounded by a batch and the pages it comes from when reading, and by one row group when writing.
"""

from __future__ import annotations

from io import SEEK_END
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from penstock.errors import BadFile, OptionError
from penstock.formats.schema import castable, fitted, nullable, recast, spark_name
from penstock.formats.stored import SPARK_KEY, Stored, schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow.parquet as pq

    from penstock.formats.account import Account
    from penstock.formats.families import WritableFile

__all__ = [
    "ParquetWriter",
    "parquet_batches",
    "parquet_schema",
]

_ROWS_PER_GROUP_MAX = 1 << 20
_SPARSE = 2  # a batch that pins more than this times its own bytes is copied before it is kept


def parquet_schema(file: Any) -> pa.Schema:  # noqa: ANN401 - a seekable binary file object, or pyarrow's
    """Return the Arrow schema of a Parquet file. Raises `BadFile`."""
    return _opened(file).schema_arrow.remove_metadata()


def written_schema(file: Any) -> pa.Schema:  # noqa: ANN401 - as above
    """Return the schema of the rows that a `ParquetWriter` was given; of another file the Arrow schema. Raises `BadFile`."""
    opened = _opened(file)
    stored = opened.schema_arrow.remove_metadata()
    told = schema_of(opened.metadata.metadata)
    return told if told is not None and Stored.of(told).file.equals(stored) else stored


def parquet_batches(
    file: Any,  # noqa: ANN401 - as above
    start: int,
    end: int,
    schema: pa.Schema,
    batch_rows: int = 65536,
    account: Account | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the row groups that begin in [start, end), in order, as exactly `schema`.

    Columns of the file that are not in `schema` are entered into the account.

    Columns are found by name, exactly or else by case, as Spark does; a column the file lacks is null. Numbers may be
    narrower in the file, times of another unit, a time without zone is UTC; bytes may be text, and numbers intervals, which
    Spark stores without saying so.

    Raises `BadFile` when the file is corrupt, has a column of another type, or a value or null that does not fit. What
    the file object raises comes through unchanged.
    """
    opened = _opened(file)
    names = _names(opened.schema_arrow, schema)
    taken = set(names.values())
    for index, begin in enumerate(_begins(opened.metadata, file.seek(0, SEEK_END))):
        if start <= begin < end:
            if account is not None:
                others = [name for name in opened.schema_arrow.names if name not in taken]
                account.count((name, opened.metadata.row_group(index).num_rows) for name in others)
            yield from (_conformed(batch, schema, names) for batch in _group(opened, index, names, batch_rows))


class ParquetWriter:
    """Writes batches to one Parquet file in row groups of about `row_group_bytes` of Arrow data.

    The file is readable by Spark, DuckDB, polars, Trino and Arrow alike: format 2.6, times in microseconds, no INT96, and
    Spark's own schema in the footer (see `stored`).
    `file` gets bytes appended and is neither flushed nor closed. After an error the writer is done for, and so is the
    file.
    """

    def __init__(
        self, file: WritableFile, schema: pa.Schema, codec: str, row_group_bytes: int = 64 << 20, *, ratio: float = 0.35
    ) -> None:
        self._sink = _Sink(file)
        self._schema = schema
        self._stored = Stored.of(schema)
        self._ratio = ratio
        self._row_group_bytes = row_group_bytes
        import pyarrow.parquet as pq  # as long as a small process takes for all the rest

        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, "w"),
            self._stored.file,
            compression=codec,
            version="2.6",
            coerce_timestamps="us",
        )
        if self._stored.spark is not None:
            self._writer.add_key_value_metadata({SPARK_KEY: self._stored.spark.encode()})
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_bytes = 0
        self._buffered_rows = 0
        self._encoded_of_bytes = 0
        self.rows = 0

    @property
    def bytes_estimate(self) -> int:
        """The size the file would have if it were closed now: what is encoded, and the rest at this file's ratio."""
        seen = self._sink.written / self._encoded_of_bytes if self._encoded_of_bytes else self._ratio
        return self._sink.written + int(self._buffered_bytes * seen)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows. Raises `OptionError` unless `batch` has the schema of the file."""
        if not batch.schema.equals(self._schema):
            msg = f"the batch has other columns than the file: found {batch.schema}, expected {self._schema}"
            raise OptionError(msg)
        self.rows += batch.num_rows
        for piece in self._pieces(batch):
            self._buffered.append(_compact(piece))
            self._buffered_bytes += piece.nbytes
            self._buffered_rows += piece.num_rows
            if self._buffered_bytes >= self._row_group_bytes or self._buffered_rows >= _ROWS_PER_GROUP_MAX:
                self._flush()

    def close(self) -> None:
        """Write what is buffered and the footer: the file is complete. A second call does nothing."""
        if self._writer.is_open:
            self._flush()
            self._writer.close()

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cut the batch where row groups end."""
        begin = 0
        while begin < batch.num_rows:
            rest = batch.slice(begin)
            room = max(self._row_group_bytes - self._buffered_bytes, 1)
            rows = rest.num_rows if rest.nbytes <= room else max(rest.num_rows * room // rest.nbytes, 1)
            rows = min(rows, _ROWS_PER_GROUP_MAX - self._buffered_rows)
            yield rest.slice(0, rows)
            begin += rows

    def _flush(self) -> None:
        if not self._buffered:
            return
        rows = [self._stored.rows(batch) for batch in self._buffered]
        table = pa.Table.from_batches(rows, schema=self._stored.file)
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._encoded_of_bytes += self._buffered_bytes
        self._buffered, self._buffered_bytes, self._buffered_rows = [], 0, 0


class _Sink:
    """The file object Arrow writes to: counts, and keeps the file open."""

    closed = False

    def __init__(self, file: WritableFile) -> None:
        self._file = file
        self.written = 0

    def write(self, data: pa.Buffer) -> int:
        self._file.write(data)
        self.written += len(data)
        return len(data)

    def tell(self) -> int:
        return self.written

    def flush(self) -> None:
        """Leave that to the owner of the file."""

    def close(self) -> None:
        """Leave that to the owner of the file."""


def _compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return `batch` on buffers of its own if it is a small view of large ones, which it would keep in memory."""
    if batch.get_total_buffer_size() <= _SPARSE * batch.nbytes:
        return batch
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


def _opened(file: Any) -> pq.ParquetFile:  # noqa: ANN401 - as in `parquet_schema`
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file, pre_buffer=False, coerce_int96_timestamp_unit="us")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last for the name of a column
        if not _is_arrows(error):
            raise
        msg = f"not a readable Parquet file: {error}"
        raise BadFile(msg) from error


def _is_arrows(error: Exception) -> bool:
    """Tell whether an error is Arrow's own; one of the file object has an error number, or another class."""
    return isinstance(error, pa.ArrowException | UnicodeDecodeError) or (type(error) is OSError and error.errno is None)


def _begins(metadata: Any, size: int) -> list[int]:  # noqa: ANN401 - pyarrow's FileMetaData
    """Return where in a file of `size` bytes each row group counts as beginning: in order, from 0, in front of `size`."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    _check_rows("the file", sum(group.num_rows for group in groups), metadata.num_rows)
    ends = list(accumulate((max(group.total_byte_size, 0) + 1 for group in groups), initial=0))
    return [end * size // ends[-1] for end in ends[:-1]]


def _names(found: pa.Schema, schema: pa.Schema) -> dict[str, str]:
    """Return, by the name of each column of `schema`, its name in the file."""
    folded: dict[str, list[str]] = {}
    for name in found.names:
        folded.setdefault(name.lower(), []).append(name)
    names = {}
    for field in schema:
        matches = [field.name] if field.name in found.names else folded.get(field.name.lower(), [])
        if len(matches) > 1 or found.names.count(field.name) > 1:
            msg = f"column {field.name!r} is ambiguous: found {', '.join(found.names)}, expected one of that name"
            raise BadFile(msg)
        if matches:
            names[field.name] = matches[0]
            _check_type(found.field(matches[0]).type, field)
    return names


def _check_type(kind: pa.DataType, field: pa.Field) -> None:
    if not castable(_meant(kind, field.type), field.type):
        msg = f"column {field.name!r} has another type: found {spark_name(kind)}, expected {spark_name(field.type)}"
        raise BadFile(msg)


def _meant(found: pa.DataType, expected: pa.DataType) -> pa.DataType:
    """Return what a type of a file stands for, at any depth, where the file does not say it.

    Old writers do not mark text: whether bytes are UTF-8 is checked value by value. Spark stores a day-time interval as a
    number of microseconds, and says so in its own key alone.
    """
    if types.is_struct(found) and types.is_struct(expected):
        known = {member.name: member.type for member in expected}
        return pa.struct([m.with_type(_meant(m.type, known[m.name])) if m.name in known else m for m in found])
    if types.is_list(found) and types.is_list(expected):
        return pa.list_(found.value_field.with_type(_meant(found.value_type, expected.value_type)))
    if types.is_map(found) and types.is_map(expected):
        key = found.key_field.with_type(_meant(found.key_type, expected.key_type))
        return pa.map_(key, found.item_field.with_type(_meant(found.item_type, expected.item_type)))
    if types.is_string(expected) and types.is_binary(found):
        return pa.string()
    return expected if types.is_duration(expected) and types.is_int64(found) else found


def _group(opened: pq.ParquetFile, index: int, names: dict[str, str], batch_rows: int) -> Iterator[pa.RecordBatch]:
    columns = list(names.values())
    rows = 0
    try:
        for batch in opened.iter_batches(batch_rows, row_groups=[index], columns=columns, use_threads=False):
            rows += batch.num_rows
            yield batch
    except (pa.ArrowException, OSError) as error:
        if not _is_arrows(error):
            raise
        msg = f"row group {index} cannot be read: {error}"
        raise BadFile(msg) from error
    _check_rows(f"row group {index}", rows, opened.metadata.row_group(index).num_rows)


def _check_rows(what: str, found: int, expected: int) -> None:
    """Raise `BadFile` where rows are missing: Arrow ends a damaged row group early, without a word."""
    if found != expected:
        msg = f"{what} has {found} rows, the footer says {expected}"
        raise BadFile(msg)


def _conformed(batch: pa.RecordBatch, schema: pa.Schema, names: dict[str, str]) -> pa.RecordBatch:
    try:
        columns = [_conformed_column(batch, field, names.get(field.name)) for field in schema]
    except (OptionError, pa.ArrowInvalid) as error:
        raise BadFile(getattr(error, "message", str(error))) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _conformed_column(batch: pa.RecordBatch, field: pa.Field, name: str | None) -> pa.Array:
    if name is None:
        return fitted(pa.nulls(batch.num_rows, field.type), field)
    column = batch.column(batch.schema.get_field_index(name))
    meant = _meant(column.type, field.type)
    if meant != column.type:
        column = recast(column, nullable(meant))
    return fitted(column, field)
