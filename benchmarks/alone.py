"""Parse and write alone: how long our decoder and Parquet writer take without Spark, plan, ledger, digests and syncs."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from benchmarks.data import format_of, schema
from penstock.formats import ReadFormat, decoder
from penstock.formats.format import WriteFormat
from penstock.formats.lines import BLOCK_BYTES, blocks
from penstock.formats.parquet import ParquetWriter, parquet_batches
from penstock.formats.schema import to_arrow
from penstock.storage import LocalStorage, SeekableFile

if TYPE_CHECKING:
    from collections.abc import Iterator

Range = tuple[str, int, int]
"""A path, and the bytes [start, end) of it whose records are meant."""


def parse_and_write(form: str, ranges: list[Range], target: str, partition: str | None = None) -> float:
    """Write the records of the ranges to one Parquet file; return the seconds.

    With the name of a string column without nulls, write a file for each of its values, next to the target, in a directory
    named by the value, like a bucket.
    """
    start = time.perf_counter()
    rows = to_arrow(schema(form))
    batches = _table(ranges, rows) if form == "parquet" else _parsed(form, ranges, rows)
    with ExitStack() as files:
        if partition is None:
            writer = _writer(files, target, rows)
            for batch in batches:
                writer.write(batch)
            writers = {"": writer}
        else:
            writers = _divided(files, batches, target, rows, partition)
        for writer in writers.values():
            writer.close()
    return time.perf_counter() - start


def _divided(
    files: ExitStack, batches: Iterator[pa.RecordBatch], target: str, rows: pa.Schema, partition: str
) -> dict[str, ParquetWriter]:
    """Write rows without the column to the writers of its values; return the writers, which are still open."""
    written = rows.remove(rows.get_field_index(partition))
    path = Path(target)
    writers: dict[str, ParquetWriter] = {}
    for batch in batches:
        values = batch.column(partition).dictionary_encode()
        codes = values.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(values.dictionary) + 1))
        sorted_rows = batch.select(written.names).take(pa.array(order))
        for value, begin, end in zip(values.dictionary.to_pylist(), bounds[:-1], bounds[1:], strict=True):
            if value not in writers:
                place = path.parent / f"{partition}={value}" / path.name
                place.parent.mkdir(exist_ok=True)
                writers[value] = _writer(files, str(place), written)
            writers[value].write(sorted_rows.slice(begin, end - begin))
    return writers


def _writer(files: ExitStack, target: str, rows: pa.Schema) -> ParquetWriter:
    file = files.enter_context(open(target, "wb"))  # noqa: PTH123, SIM115 - as plain as can be, and `files` closes it
    return ParquetWriter(file, WriteFormat("parquet", rows, "snappy"))


def _parsed(form: str, ranges: list[Range], rows: pa.Schema) -> Iterator[pa.RecordBatch]:
    decode = decoder(ReadFormat(format_of(form), rows)).decode
    storage = LocalStorage()
    for path, start, end in ranges:
        with storage.open(path) as handle:
            size = handle.info().size
            for _, data in blocks(handle.read, size, start, end, sep=None, block_bytes=BLOCK_BYTES):
                yield decode(data)


def _table(ranges: list[Range], rows: pa.Schema) -> Iterator[pa.RecordBatch]:
    storage = LocalStorage()
    for path, start, end in ranges:
        with storage.open(path) as handle:
            file = pa.PythonFile(SeekableFile(handle, handle.info().size), "r")
            yield from parquet_batches(file, start, end, rows)


def halves(sizes: dict[str, int]) -> tuple[list[Range], list[Range]]:
    """Return the files of these sizes as ranges for two processes, with the same number of bytes for each (to within a record)."""
    half, before = sum(sizes.values()) // 2, 0
    first: list[Range] = []
    second: list[Range] = []
    for path, size in sizes.items():
        cut = min(max(half - before, 0), size)
        first += [(path, 0, cut)] if cut else []
        second += [(path, cut, size)] if cut < size else []
        before += size
    return first, second
