"""Compressed files: recognised by name, decompressed as a stream within limits, and compressed as whole members.

A compressed file is a sequence of members (in gzip), streams or frames; reading concatenates their contents. So the
sink can write a part as independent members, one per segment, and join them by concatenating bytes.

`.snappy` and `.lz4` are what Hadoop and Spark write under these names: blocks in a form of their own, or LZ4 frames,
which begin differently:

    block:  4 bytes: its decompressed length (big endian); chunks, until that length is reached chunk:  4 bytes: its
    length (big endian); that many bytes of plain Snappy or LZ4

Files in other forms are recognised by their names, too: read as text they would be lines of garbage, or one bad record.

Decompression keeps about two chunks in memory, whatever the file claims, and stops a bomb (a few kilobytes that
decompress to terabytes) by two limits: the bytes that come out, and their ratio to the bytes read.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import xxhash
import zstandard
from isal import igzip_lib, isal_zlib

from penstock.errors import BadFile, OptionError
from penstock.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_BY_NAME = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".bz2": "bzip2",
    ".xz": "xz",
    ".br": "brotli",
    ".deflate": "deflate",
    ".snappy": "snappy",
    ".lz4": "lz4",
}
COMPRESSED_NAMES = ", ".join(name for name in _BY_NAME if name not in {".gzip", ".zstd"})
_UNREADABLE = {
    **dict.fromkeys((".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst", ".taz"), "a tar archive"),
    ".zip": "a ZIP archive",
    ".7z": "a 7-Zip archive",
    ".rar": "a RAR archive",
    ".z": "a file of compress (.Z)",
    ".lzo": "an LZO file",
    ".lzma": "an LZMA file",
    ".lz": "an lzip file",
    ".sz": "a file in Snappy's framing format",
}
NOT_PLAIN = (*_BY_NAME, *_UNREADABLE)
"""The endings, in lower case, of files that are not stored plainly: those with a codec, and those that cannot be read."""
LEVELS = MappingProxyType({"gzip": (1, 9), "zstd": (1, 22)})
"""The levels that `compress` accepts."""
_EXTENSIONS = {"none": "", "gzip": ".gz", "zstd": ".zst", "bzip2": ".bz2"}
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_ISAL_LEVEL_MAX = 3
_ZSTD_LEVEL = 3
_GZIP_LEVEL = 2  # of ISA-L's 0 to 3: ten times as fast as zlib's level 6, at 0.20 of generated JSON where zlib has 0.18
_GZIP_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # - its stub declares an instance
_ERRORS = (OSError, EOFError, zlib.error, _GZIP_ERROR, lzma.LZMAError, pa.ArrowException)
_CHUNK_BYTES = 1 << 20
_XZ_MEMORY_BYTES = 256 << 20  # xz -9 needs 65 MiB
_BLOCK_CHUNK_BYTES_MAX = 4 << 20  # Hadoop's buffers have 256 KiB unless configured otherwise
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
# These begin frames for other programs.
_LZ4_SKIPPED = tuple(bytes((first,)) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))
_LZ4_LEGACY_MAGIC = b"\x02\x21\x4c\x18"
_LZ4_OF_4_MIB = b"\x60\x70"  # version 1, independent blocks, without checksums, of at most 4 MiB
_READ_BYTES = 64 << 10
RATIO_FLOOR_BYTES = 16 << 20
"""A file may decompress to this much whatever its ratio: short files of zeros are harmless."""


def codec_of(name: str) -> str | None:
    """Return the codec that a file called `name` is compressed with (gzip, zstd, bzip2, ...), or None."""
    return _BY_NAME.get(_ending(name))


def unreadable(name: str) -> str | None:
    """Return what a file called `name` is if it cannot be read, such as `a ZIP archive`, even if it is compressed as well; else None."""
    ending = _ending(name)
    return _UNREADABLE.get(_ending(name[: -len(ending)]) if ending in _BY_NAME else ending)


def extension(codec: str) -> str:
    """Return what `codec` adds to a file's name: `.gz`, `.zst`, `.bz2`, or nothing for none. Raises `OptionError`."""
    if codec not in _EXTENSIONS:
        msg = f"compression={codec!r} is unknown: expected one of {', '.join(_EXTENSIONS)}"
        raise OptionError(msg)
    return _EXTENSIONS[codec]


def decompressed(chunks: Iterable[bytes], codec: str, *, limit_bytes: int, ratio_max: int) -> Iterator[bytes]:
    """Yield the contents of the members of the compressed file `chunks`, in pieces of at most 4 MiB.

    Raises `BadFile` when a member is cut or is not of this codec (a file without bytes has no members), when more than
    `limit_bytes` come out, or, beyond 16 MiB, more than `ratio_max` bytes for each byte read. Pieces yielded before
    that are right, as far as the codec's checksums tell. Errors that `chunks` raises come through unchanged.
    """
    source = _Chunks(chunks)
    total = 0
    for piece in _unpacked(source, codec):
        total += len(piece)
        _check_limits(total, source.taken, limit_bytes, ratio_max)
        yield piece


def compress(data: bytes | memoryview | pa.Buffer, codec: str, level: int | None = None) -> bytes:
    """Return `data` as one complete, independent member; the same data gives the same bytes.

    `codec` is gzip (no time stamp), zstd (with checksum) or bzip2, `level` one of `LEVELS`. For gzip the first three
    levels are ISA-L's, the others zlib's, which are slower and give smaller files. Raises `OptionError` for another
    codec.
    """
    if codec == "gzip":
        level = _GZIP_LEVEL if level is None else level
        if level <= _ISAL_LEVEL_MAX:
            return isal_zlib.compress(data, level, _GZIP_WINDOW)
        packer = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW)
        return packer.compress(data) + packer.flush()
    if codec == "zstd":
        return zstandard.ZstdCompressor(level=level or _ZSTD_LEVEL, write_checksum=True).compress(data)
    if codec == "bzip2":
        return bz2.compress(data)
    msg = f"compression={codec!r} is unknown: expected gzip, zstd or bzip2"
    raise OptionError(msg)


def expansion(size: int) -> int:
    """Return by how many bytes `compress` makes `size` incompressible bytes longer at most, including the frame."""
    return 32 + (size >> 10)  # ISA-L on random bytes: 20 to 28 up to 64 KiB, 401 of 1 MiB; Zstandard 13 to 37


def _ending(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:].lower() if dot >= 0 else ""


class _Chunks:
    """An iterable of bytes as the file object that Arrow reads from; `taken` counts the bytes that were read."""

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
        """Do nothing: the iterable belongs to its owner."""

    def _next(self) -> bytes | None:
        self.broken = True  # stays so when the iterable raises
        chunk = next(self._chunks, None)
        self.broken = False
        return chunk


def _unpacked(source: _Chunks, codec: str) -> Iterator[bytes]:
    try:
        yield from _READERS.get(codec, lambda chunks: _by_arrow(chunks, codec))(source)
    except _ERRORS as error:
        if source.broken:
            raise
        msg = f"not a whole {codec} file: {error}, at or shortly before compressed byte {source.taken}"
        raise BadFile(msg) from error


def _by_arrow(source: _Chunks, codec: str) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.PythonFile(source, "r"), codec) as stream:
        while piece := stream.read(_CHUNK_BYTES):
            yield piece


class _Unpacker(Protocol):
    """One stream of a codec, with the interface of the standard library's decompressors."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Deflate:
    """zlib's decompressor with the interface of those of bz2 and lzma."""

    def __init__(self) -> None:
        self._unpacker = zlib.decompressobj()

    @property
    def eof(self) -> bool:
        return self._unpacker.eof

    @property
    def needs_input(self) -> bool:
        return not self._unpacker.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._unpacker.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._unpacker.decompress(self._unpacker.unconsumed_tail + data, max_length)


def _streams(source: _Chunks, new: Callable[[], _Unpacker], padding: bytes = b"") -> Iterator[bytes]:
    """Yield the contents of consecutive streams; `padding` may stand between them."""
    unpacker: _Unpacker | None = None
    rest, between = b"", b""
    while rest or (unpacker and not unpacker.needs_input) or (rest := source.read(_READ_BYTES)):
        if unpacker is None:
            rest = rest.lstrip(between)
            if not rest:
                continue
            unpacker, between = new(), padding
        piece, rest = unpacker.decompress(rest, _CHUNK_BYTES), b""
        if unpacker.eof:
            rest = unpacker.unused_data
            unpacker = None
        if piece:
            yield piece
    if unpacker:
        msg = "Truncated compressed stream"
        raise EOFError(msg)


def _gzip(source: _Chunks) -> Iterator[bytes]:
    return _streams(source, lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP))


def _bzip2(source: _Chunks) -> Iterator[bytes]:
    return _streams(source, bz2.BZ2Decompressor)  # Arrow's own reader fails at empty streams


def _xz(source: _Chunks) -> Iterator[bytes]:
    return _streams(source, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_BYTES), b"\0")


def _deflate(source: _Chunks) -> Iterator[bytes]:
    return _streams(source, _Deflate)


def _snappy(source: _Chunks) -> Iterator[bytes]:
    return _hadoop_blocks(source, b"", _unpacked_snappy)


def _lz4(source: _Chunks) -> Iterator[bytes]:
    head = _exactly(source, len(_LZ4_MAGIC), or_nothing=True)
    if head == _LZ4_LEGACY_MAGIC:
        msg = "the legacy form of LZ4 (lz4 -l), expected frames or Hadoop's blocks; unpack it and pack it anew"
        raise EOFError(msg)
    if head != _LZ4_MAGIC and head not in _LZ4_SKIPPED:
        return _hadoop_blocks(source, head, _unpacked_lz4)
    return _by_arrow(_Chunks(chain((head,), iter(lambda: source.read(_READ_BYTES), b""))), "lz4")


_READERS = {"gzip": _gzip, "bzip2": _bzip2, "xz": _xz, "deflate": _deflate, "snappy": _snappy, "lz4": _lz4}


def _hadoop_blocks(source: _Chunks, head: bytes, unpack: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """Yield the contents of Hadoop's blocks; `head` was read before."""
    while head := head or _exactly(source, 4, or_nothing=True):
        room, head = int.from_bytes(head, "big"), b""
        while room:
            length = int.from_bytes(_exactly(source, 4), "big")
            if length > _BLOCK_CHUNK_BYTES_MAX:
                msg = f"a chunk of {length} bytes, expected Hadoop's blocks, with chunks of at most {_BLOCK_CHUNK_BYTES_MAX}"
                raise EOFError(msg)
            piece = unpack(_exactly(source, length))
            if not 0 < len(piece) <= room:
                msg = f"a chunk of {len(piece)} bytes in a block that has {room} left"
                raise EOFError(msg)
            room -= len(piece)
            yield piece


def _exactly(source: _Chunks, size: int, *, or_nothing: bool = False) -> bytes:
    data = b""
    while len(data) < size and (piece := source.read(size - len(data))):
        data += piece
    if len(data) < size and (data or not or_nothing):
        msg = "Truncated compressed stream"
        raise EOFError(msg)
    return data


def _unpacked_snappy(data: bytes) -> bytes:
    size = 0
    # The length comes first, seven bits per byte; the highest bit says that more bytes follow.
    for place, byte in enumerate(data[:5]):
        size |= (byte & 127) << 7 * place
        if byte == byte & 127:
            break
    if size > _BLOCK_CHUNK_BYTES_MAX:
        msg = f"a chunk that says it unpacks to {size} bytes, expected at most {_BLOCK_CHUNK_BYTES_MAX}"
        raise EOFError(msg)
    return bytes(pa.Codec("snappy").decompress(data, size, asbytes=True))


def _unpacked_lz4(data: bytes) -> bytes:
    """Return the content of a block of LZ4. A block does not store its length; in a frame the length does not matter."""
    frame = _LZ4_MAGIC + _LZ4_OF_4_MIB + bytes([xxhash.xxh32_intdigest(_LZ4_OF_4_MIB) >> 8 & 255])
    frame += len(data).to_bytes(4, "little") + data + bytes(4)
    return b"".join(_by_arrow(_Chunks((frame,)), "lz4"))


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
