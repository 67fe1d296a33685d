"""Parse and write alone: what our own decoder and Parquet writer take without Spark, plan, ledger, digests and syncs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.data import schema
from penstock.formats import ReadFormat, decoder
from penstock.formats.format import WriteFormat
from penstock.formats.lines import BLOCK_BYTES, blocks
from penstock.formats.parquet import ParquetWriter
from penstock.formats.schema import to_arrow
from penstock.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Iterator

Range = tuple[str, int, int]
"""A path, and the bytes [start, end) of it whose records are meant."""


def parse_and_write(form: str, ranges: list[Range], target: str) -> float:
    """Write the records of the ranges to one Parquet file; return the seconds."""
    start = time.perf_counter()
    rows = to_arrow(schema(form))
    decode = decoder(ReadFormat(form, rows)).decode
    with open(target, "wb") as file:  # noqa: PTH123 - a plain file, as plain as can be
        writer = ParquetWriter(file, WriteFormat("parquet", rows, "snappy"))
        for data in _data(ranges):
            writer.write(decode(data))
        writer.close()
    return time.perf_counter() - start


def _data(ranges: list[Range]) -> Iterator[bytes]:
    storage = LocalStorage()
    for path, start, end in ranges:
        with storage.open(path) as handle:
            size = handle.info().size
            for _, data in blocks(handle.read, size, start, end, sep=None, block_bytes=BLOCK_BYTES):
                yield data


def halves(sizes: dict[str, int]) -> tuple[list[Range], list[Range]]:
    """Return the files of these sizes as ranges for two processes, with the same bytes for each (to a record)."""
    half, before = sum(sizes.values()) // 2, 0
    first: list[Range] = []
    second: list[Range] = []
    for path, size in sizes.items():
        cut = min(max(half - before, 0), size)
        first += [(path, 0, cut)] if cut else []
        second += [(path, cut, size)] if cut < size else []
        before += size
    return first, second
