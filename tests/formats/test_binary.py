"""Whole files and fixed-size blocks, read by ranges."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFile, FileChanged, OptionError
from penstock.formats import binary
from penstock.formats.binary import VALUE_BYTES_MAX, binary_batches

SCHEMA = pa.schema([("value", pa.binary())])


def values(content: bytes, start: int, end: int, block_size: int | None) -> list[bytes]:
    """Return the values that begin in a range of a file."""

    def read(offset: int, length: int) -> bytes:
        assert offset + length <= len(content)
        return content[offset : offset + length]

    found: list[bytes] = []
    for batch in binary_batches(read, len(content), start, end, block_size, SCHEMA):
        batch.validate(full=True)
        assert batch.schema.equals(SCHEMA)
        found += batch.column(0).to_pylist()
    return found


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 72])
@pytest.mark.parametrize("block_size", [1, 2, 8, 100])
def test_blocks_begin_in_one_range(length: int, block_size: int) -> None:
    """At any cut each block is read once, in the range where it begins; the last block is as short as the rest of the file."""
    content = bytes(range(length))
    expected = [content[at : at + block_size] for at in range(0, length, block_size)]
    for cut in range(length + 1):
        assert values(content, 0, cut, block_size) + values(content, cut, length, block_size) == expected
    pairs = itertools.pairwise([*range(0, length, 3), length])
    assert [value for start, end in pairs for value in values(content, start, end, block_size)] == expected


def test_a_whole_file_is_one_value() -> None:
    """Without a block size a file is one value, which belongs to the range where the file begins; an empty file has no value."""
    assert values(b"abc", 0, 3, None) == [b"abc"]
    assert values(b"abc", 0, 1, None) == [b"abc"]
    assert values(b"abc", 1, 3, None) == []
    assert values(b"", 0, 0, None) == []


@given(content=st.binary(max_size=60), block_size=st.integers(1, 9), batch_bytes=st.integers(1, 30))
def test_batches_cut_between_blocks(content: bytes, block_size: int, batch_bytes: int) -> None:
    """Batches of any size contain whole blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binary, "_BATCH_BYTES", batch_bytes)
        found = values(content, 0, len(content), block_size)
    assert found == [content[at : at + block_size] for at in range(0, len(content), block_size)]


def test_a_file_that_shrank_is_an_error() -> None:
    """A file that ends before its planned size is an error, not a shorter value."""
    with pytest.raises(FileChanged):
        list(binary_batches(lambda offset, length: b"abc"[offset : offset + length], 10, 0, 10, None, SCHEMA))


def test_a_value_beyond_what_arrow_holds_is_refused() -> None:
    """A file too large for one Arrow value is refused before anything is read, with the advice to cut it into blocks."""
    with pytest.raises(BadFile, match="set blockSize"):
        list(binary_batches(pytest.fail, VALUE_BYTES_MAX + 1, 0, 10, None, SCHEMA))  # type: ignore[arg-type] # never called


@pytest.mark.parametrize(
    "schema", [pa.schema([]), pa.schema([("a", pa.string())]), pa.schema([("a", pa.binary())] * 2)]
)
def test_binary_has_one_column(schema: pa.Schema) -> None:
    """Binary has one binary column; anything else is refused."""
    with pytest.raises(OptionError, match="binary needs one binary column, found"):
        list(binary_batches(lambda _offset, _length: b"", 0, 0, 0, None, schema))
