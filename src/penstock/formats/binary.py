"""The format binary: a whole file as one value, or blocks of a fixed size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.errors import BadFile, OptionError
from penstock.formats.lines import reads
from penstock.formats.schema import spark_name
from penstock.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.formats.begins import Begins

VALUE_BYTES_MAX = (1 << 31) - 1
"""The most that one Arrow binary value, and a Java array, can hold."""
_BATCH_BYTES = 8 << 20


def binary_batches(
    read: Callable[[int, int], bytes],
    size: int,
    start: int,
    end: int,
    block_size: int | None,
    schema: pa.Schema,
    begins: Begins | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the values that begin in [start, end) of a file of `size` bytes, as the one binary column of `schema`.

    Values are blocks of `block_size` bytes from the start of the file, the last one shorter; with None the whole file
    is one value, which begins at 0. An empty file has no values. Batches hold about 8 MiB, or one value. `begins` gets where each
    value begins.

    Raises `OptionError` for another schema, `BadFile` for a value that Arrow cannot hold, `FileChanged` for a shorter
    file.
    """
    check_schema(schema)
    whole = block_size or max(size, 1)
    if min(whole, size) > VALUE_BYTES_MAX:
        actual, most = format_size(min(whole, size)), format_size(VALUE_BYTES_MAX)
        msg = f"found a value of {actual}, expected at most {most}; set blockSize to cut the file into blocks"
        raise BadFile(msg)
    at, stop = whole_blocks(start, whole), min(whole_blocks(end, whole), size)
    step = max(_BATCH_BYTES // whole, 1) * whole
    for begin in range(at, stop, step):
        data = b"".join(reads(read, begin, min(begin + step, stop), step))
        if begins is not None:
            begins.add_each(range(begin, begin + len(data), whole))
        yield pa.RecordBatch.from_arrays([_cut(data, whole)], schema=schema)


def check_schema(schema: pa.Schema) -> None:
    """Raise `OptionError` unless `schema` is one binary column."""
    if len(schema) != 1 or schema.field(0).type != pa.binary():
        found = ", ".join(f"{field.name} {spark_name(field.type)}" for field in schema) or "no column"
        msg = f"binary needs one binary column, found {found}"
        raise OptionError(msg)


def whole_blocks(position: int, block_size: int) -> int:
    """Return where the first block at or after `position` begins."""
    return -(-position // block_size) * block_size


def _cut(data: bytes, block_size: int) -> pa.Array:
    offsets = np.append(np.arange(0, len(data), block_size, dtype=np.int64), len(data)).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
