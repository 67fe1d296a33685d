"""The format Parquet: row groups by byte range, columns by name; see `formats.parquet`."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.formats.families import TableFormat
from penstock.formats.format import FIELD_OPTIONS
from penstock.formats.parquet import ParquetWriter, parquet_batches, row_count, spark_schema, written_schema
from penstock.storage import SeekableFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.formats.account import Account
    from penstock.formats.begins import Begins
    from penstock.formats.families import TableWriter, WritableFile
    from penstock.formats.format import ReadFormat, WriteFormat
    from penstock.storage import ReadableFile


class _Parquet(TableFormat):
    name = "parquet"
    extension = ".parquet"
    codecs = ("snappy", "none", "gzip", "zstd", "lz4", "brotli")
    levels = MappingProxyType({"gzip": (1, 9), "zstd": (1, 22), "brotli": (1, 11)})
    read_options = frozenset({"encodingErrors", *FIELD_OPTIONS})
    tells_schema = True
    takes_over = True

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
        return parquet_batches(_opened(file, size), *span, fmt.schema, account=account, begins=begins)

    def writer(self, file: WritableFile, fmt: WriteFormat, *, group_bytes: int, ratio: float) -> TableWriter:
        return ParquetWriter(file, fmt, group_bytes, ratio=ratio)

    def stored_schema(self, file: ReadableFile, size: int) -> pa.Schema:
        return spark_schema(_opened(file, size))

    def row_count(self, file: ReadableFile, size: int) -> int | None:
        return row_count(_opened(file, size))

    def written_schema(self, file: ReadableFile, size: int) -> pa.Schema | None:
        return written_schema(_opened(file, size))


def _opened(file: ReadableFile, size: int) -> pa.PythonFile:
    return pa.PythonFile(SeekableFile(file, size), "r")


FORMAT = _Parquet()
