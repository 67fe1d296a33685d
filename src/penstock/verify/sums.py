"""Finds out whether two collections of records are the same multiset, without holding either in memory.

Each record has a 64-bit hash for each of two independent seeds. A collection is represented by the number of its records and the
two sums of their hashes, modulo 2^64. Sums do not depend on the order, so both sides are read in any order, in parallel, in
bounded memory. Equal counts and sums mean equal multisets, except with a probability of about 2^-128; unlike an exclusive or, a
sum also distinguishes one record from three.

If the sums differ, the same hashes lead to the records: `Ranges` adds up by the first 16 bits of the hash, so a second pass only
needs the records of ranges that differ.

Hashes are valid within this process: polars gives the same hash only with one version and machine, and hashes are never stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import xxhash

from penstock.formats.lines import line_feeds

if TYPE_CHECKING:
    Hashes = np.ndarray[Any, np.dtype[np.uint64]]
    Places = np.ndarray[Any, np.dtype[np.intp]]

_SEEDS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
_MASK = (1 << 64) - 1
_RANGE_BITS = 16
LINES = pa.schema([("line", pa.large_binary())])


@dataclass(frozen=True)
class Sums:
    """A multiset of records: their number, and the sums of their hashes for both seeds."""

    records: int = 0
    first: int = 0
    second: int = 0

    @staticmethod
    def of(bucket: str, rows: pa.RecordBatch) -> Sums:
        """Return the sums of `rows` in `bucket`; the same row in another bucket is another record."""
        first, second = (int(hashes(bucket, rows, seed).sum(dtype=np.uint64)) for seed in _SEEDS)
        return Sums(rows.num_rows, first, second)

    def __add__(self, other: Sums) -> Sums:
        first, second = (self.first + other.first) & _MASK, (self.second + other.second) & _MASK
        return Sums(self.records + other.records, first, second)


class Ranges:
    """Counts and sums of one side, by range of the hash."""

    def __init__(self) -> None:
        self.counts = np.zeros(1 << _RANGE_BITS, np.int64)
        self.sums = np.zeros(1 << _RANGE_BITS, np.uint64)

    def add(self, bucket: str, rows: pa.RecordBatch) -> None:
        """Add records."""
        row_hashes = hashes(bucket, rows)
        places = range_of(row_hashes)
        self.counts += np.bincount(places, minlength=len(self.counts))
        np.add.at(self.sums, places, row_hashes)

    def merge(self, other: Ranges) -> None:
        """Add the counts and sums of another object."""
        self.counts += other.counts
        self.sums += other.sums

    def differing(self, other: Ranges) -> Places:
        """Return the ranges in which the two are not the same multiset."""
        return np.flatnonzero((self.counts != other.counts) | (self.sums != other.sums))


def hashes(bucket: str, rows: pa.RecordBatch, seed: int = _SEEDS[0]) -> Hashes:
    """Return the hash of each row, without a Python statement for each row."""
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 - what a record batch becomes
    return frame.hash_rows((seed + xxhash.xxh3_64_intdigest(bucket.encode())) & _MASK).to_numpy()


def range_of(row_hashes: Hashes) -> Places:
    """Return the range of each hash."""
    places: Places = (row_hashes >> np.uint64(64 - _RANGE_BITS)).astype(np.intp)
    return places


def lines(data: bytes | pa.Buffer) -> pa.RecordBatch:
    """Return lines, each with its line feed at the end, as rows of `LINES`, without a copy.

    Only the last line may lack its line feed; it is then another record than the same line with one.
    """
    ends = line_feeds(data) + 1
    if len(data) and (not len(ends) or ends[-1] != len(data)):
        ends = np.append(ends, len(data))
    bounds = np.concatenate((np.zeros(1, np.int64), ends))
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.large_binary(), len(ends), buffers)], schema=LINES)
