"""The staged form, in which rows wait to be written.

::

    Arrow IPC stream, bodies compressed with LZ4, including its end marker (FF FF FF FF 00 00 00 00) 8 bytes: XXH3 (64
    bits, big endian) of all bytes before

The stream alone would not be enough: Arrow reads a stream that was cut between two batches as a shorter one, and most
flipped bits in a compressed body as other values. Any Arrow reader can read the file, because readers stop at the end
marker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import xxhash

from penstock.errors import DamagedState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
_DIGEST_BYTES = 8


class _ReadAtOnce(Protocol):
    def read(self) -> bytes: ...


def arrow_stream(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Return `batches`, all with `schema`, in the staged form. Slices take only the space of their own bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_OPTIONS) as writer:
        for batch in batches:
            writer.write_batch(batch)
    stream = sink.getvalue()
    return b"".join((stream, xxhash.xxh3_64_digest(stream)))


def arrow_batches(source: bytes | memoryview | pa.Buffer | _ReadAtOnce) -> Iterator[pa.RecordBatch]:
    """Yield the batches that `arrow_stream` was given; `source` is what it returned, or a file object at its start.

    Raises `DamagedState` before the first batch when anything was cut off, altered or added.
    """
    data = pa.py_buffer(source.read() if hasattr(source, "read") else source)
    length = max(data.size - _DIGEST_BYTES, 0)
    stream, digest = data.slice(0, length), bytes(data.slice(length))
    if xxhash.xxh3_64_digest(stream) != digest:
        msg = f"staged rows are cut or altered: found {data.size} bytes whose checksum is not {digest.hex() or 'there'}"
        raise DamagedState(msg)
    yield from pa.ipc.open_stream(stream)
