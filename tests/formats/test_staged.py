"""Rows that wait to be written: they are read back unchanged, or there is an error."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pytest

from penstock.errors import DamagedState
from penstock.formats import arrow_batches, arrow_stream

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.string()))])
BATCH = pa.RecordBatch.from_pylist(
    [{"a": i, "s": f"{i} \N{EURO SIGN}", "l": [str(i), None]} for i in range(300)], SCHEMA
)


@pytest.mark.parametrize("wrap", [bytes, memoryview, pa.py_buffer, io.BytesIO])
def test_batches_survive(wrap: type) -> None:
    """Batches come back unchanged, also slices and batches without rows, from bytes, buffers and files."""
    batches = [BATCH, BATCH.slice(5, 3), BATCH.slice(0, 0)]
    assert list(arrow_batches(wrap(arrow_stream(batches, SCHEMA)))) == batches
    assert list(arrow_batches(wrap(arrow_stream([], SCHEMA)))) == []


def test_a_slice_takes_its_own_bytes() -> None:
    """A small slice of a large batch is staged as only its few rows."""
    assert len(arrow_stream([BATCH.slice(7, 1)], SCHEMA)) < 2_000


def test_every_cut_shows() -> None:
    """A stream truncated at any byte, also between two batches or before its checksum, is an error before any row is returned."""
    data = arrow_stream([BATCH.slice(0, 9), BATCH.slice(9, 1)], SCHEMA)
    for length in range(len(data)):
        with pytest.raises(DamagedState, match="cut or altered"):
            next(arrow_batches(data[:length]))


def test_every_flipped_bit_shows() -> None:
    """No flipped bit, wherever it is, gives other rows; nor do bytes after the end, or garbage."""
    data = arrow_stream([BATCH], SCHEMA)
    chance = random.Random(7)  # noqa: S311 - the same in every run
    for _ in range(500):
        broken = bytearray(data)
        broken[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        with pytest.raises(DamagedState):
            next(arrow_batches(bytes(broken)))
    for garbage in (data + b"\0", data + data, b"x" * 100):
        with pytest.raises(DamagedState):
            next(arrow_batches(garbage))


def test_arrow_reads_the_stream() -> None:
    """Any Arrow reader can read staged rows: the checksum comes after the end of the stream."""
    assert pa.ipc.open_stream(arrow_stream([BATCH], SCHEMA)).read_all() == pa.Table.from_batches([BATCH])


def test_errors_of_the_file_come_through() -> None:
    """Errors raised during reading are not mistaken for damage."""

    class Broken:
        def read(self) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        next(arrow_batches(Broken()))
