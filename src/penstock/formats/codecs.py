"""Compressed files: which they are by name, streaming decompression within limits, and compression of whole members.

A compressed file is a sequence of gzip members, bzip2 streams or Zstandard frames; reading concatenates what they hold.
That is what lets the sink write a part as independent members, one per segment, and join them by concatenating bytes.

Decompression holds about two chunks in memory whatever the file claims, and stops a bomb (a few kilobytes that unpack
to terabytes) by two limits: the bytes unpacked, and their ratio to the bytes read.
"""

from __future__ import annotations

import bz2
import zlib
from typing import TYPE_CHECKING

import pyarrow as pa
import zstandard

from penstock.errors import BadFile, OptionError
from penstock.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_BY_NAME = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2"}
_EXTENSIONS = {"none": "", "gzip": ".gz", "zstd": ".zst", "bzip2": ".bz2"}
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_CHUNK_BYTES = 1 << 20
_READ_BYTES = 64 << 10
RATIO_FLOOR_BYTES = 16 << 20
"""A file may unpack to this much whatever its ratio: short files of zeros are harmless."""


def codec_of(name: str) -> str | None:
    """Return the codec that a file called `name` is compressed with (gzip, zstd, bzip2), or None."""
    dot = name.rfind(".")
    return _BY_NAME.get(name[dot:].lower()) if dot >= 0 else None


def extension(codec: str) -> str:
    """Return what `codec` adds to a file's name: `.gz`, `.zst`, `.bz2`, or nothing for none. Raises `OptionError`."""
    if codec not in _EXTENSIONS:
        msg = f"compression={codec!r} is unknown: expected one of {', '.join(_EXTENSIONS)}"
        raise OptionError(msg)
    return _EXTENSIONS[codec]


def decompressed(chunks: Iterable[bytes], codec: str, *, limit_bytes: int, ratio_max: int) -> Iterator[bytes]:
    """Yield what the members of the compressed file `chunks` hold, in pieces of at most 1 MiB.

    Raises `BadFile` when a member is cut or is not of this codec (no bytes at all are no members), when more than
    `limit_bytes` come out, or, beyond 16 MiB, more than `ratio_max` bytes for each byte read. Pieces yielded before
    that are right, as far as the codec's checksums tell. What `chunks` raises comes through unchanged.
    """
    source = _Chunks(chunks)
    total = 0
    for piece in _unpacked(source, codec):
        total += len(piece)
        _check_limits(total, source.taken, limit_bytes, ratio_max)
        yield piece


def compress(data: bytes | memoryview | pa.Buffer, codec: str) -> bytes:
    """Return `data` as one complete, independent member; the same data gives the same bytes.

    `codec` is gzip (level 6, no time stamp), zstd (level 3, with checksum) or bzip2. Raises `OptionError` for another
    one.
    """
    if codec == "gzip":
        packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW)
        return packer.compress(data) + packer.flush()
    if codec == "zstd":
        return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(data)
    if codec == "bzip2":
        return bz2.compress(data)
    msg = f"compression={codec!r} is unknown: expected gzip, zstd or bzip2"
    raise OptionError(msg)


class _Chunks:
    """An iterable of bytes as the file object that Arrow reads from; `taken` counts the bytes handed over."""

    closed = False

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")
        self.taken = 0
        self.broken = False

    def read(self, size: int) -> bytes:
        while not self._rest:
            chunk = self._next()
            if chunk is None:
                return b""
            self._rest = memoryview(chunk)
        piece, self._rest = bytes(self._rest[:size]), self._rest[size:]
        self.taken += len(piece)
        return piece

    def close(self) -> None:
        """Leave the iterable to its owner."""

    def _next(self) -> bytes | None:
        self.broken = True  # stays so when the iterable raises
        chunk = next(self._chunks, None)
        self.broken = False
        return chunk


def _unpacked(source: _Chunks, codec: str) -> Iterator[bytes]:
    try:
        yield from _bzip2(source) if codec == "bzip2" else _by_arrow(source, codec)
    except (OSError, EOFError, pa.ArrowException) as error:
        if source.broken:
            raise
        msg = f"not a whole {codec} file: {error}, at or shortly before compressed byte {source.taken}"
        raise BadFile(msg) from error


def _by_arrow(source: _Chunks, codec: str) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.PythonFile(source, "r"), codec) as stream:
        while piece := stream.read(_CHUNK_BYTES):
            yield piece


def _bzip2(source: _Chunks) -> Iterator[bytes]:
    """Yield what bzip2 streams hold; Arrow's own reader breaks down at empty ones."""
    unpacker: bz2.BZ2Decompressor | None = None
    rest = b""
    while rest or (unpacker and not unpacker.needs_input) or (rest := source.read(_READ_BYTES)):
        unpacker = unpacker or bz2.BZ2Decompressor()
        piece, rest = unpacker.decompress(rest, _CHUNK_BYTES), b""
        if unpacker.eof:
            rest = unpacker.unused_data
            unpacker = None
        if piece:
            yield piece
    if unpacker:
        msg = "Truncated compressed stream"
        raise EOFError(msg)


def _check_limits(total: int, taken: int, limit_bytes: int, ratio_max: int) -> None:
    if total > limit_bytes:
        msg = (
            f"unpacks to more than {format_size(limit_bytes)}: found {total} bytes after {taken} compressed bytes, "
            f"expected at most {limit_bytes}; unpack the file if it is right"
        )
        raise BadFile(msg)
    if total > RATIO_FLOOR_BYTES and total > ratio_max * taken:
        msg = (
            f"unpacks to {total // max(taken, 1)} times its size: found {total} bytes after {taken} compressed bytes, "
            f"expected a ratio of at most {ratio_max}; unpack the file if it is right"
        )
        raise BadFile(msg)
