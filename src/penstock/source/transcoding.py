"""From the bytes of a file to UTF-8: as a stream if records cannot be found in the bytes, otherwise block by block."""

from __future__ import annotations

import codecs
from itertools import chain
from typing import TYPE_CHECKING

from penstock.errors import BadRecord
from penstock.formats.charsets import Charset, charset, encoded, to_utf8
from penstock.formats.codecs import decompressed
from penstock.formats.families import HEAD_BYTES
from penstock.formats.lines import begun
from penstock.formats.malformed import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.source.planned import Contents
    from penstock.storage import ReadableFile

_CHUNK_BYTES = 1 << 20
_AS_A_WHOLE = (
    "; what is not text in a file that is decoded as a whole is set aside by badFiles=quarantine, with all of the file"
)
EXPANDED_BYTES_MAX = 64 << 30  # for one compressed file
# Uncompressed bytes for each compressed byte; gzip cannot exceed 1,032, and a bomb comes near that.
EXPANSION_MAX = 1000


def stream_of(contents: Contents, encoding: str, known: Charset | None) -> tuple[Iterator[bytes] | None, Charset]:
    """Return the bytes of a stream, None for a file that can be read at any offset; and its encoding, read from it unless `known`."""
    handle, size, codec = contents.file, contents.size, contents.codec
    if not contents.streams:
        return None, known or charset(encoding, handle.read(0, min(HEAD_BYTES, size)))
    chunks = chunks_of(handle, size)
    if codec is not None:
        chunks = decompressed(chunks, codec, limit_bytes=EXPANDED_BYTES_MAX, ratio_max=EXPANSION_MAX)
    if known:
        return chunks, known
    head, rest = begun(chunks, HEAD_BYTES)
    return chain((head,), rest), charset(encoding, head)


def chunks_of(handle: ReadableFile, size: int) -> Iterator[bytes]:
    """Yield the bytes of a file."""
    for offset in range(0, size, _CHUNK_BYTES):
        yield handle.read(offset, min(_CHUNK_BYTES, size - offset))


def transcoded(chunks: Iterable[bytes], codec: str, errors: str, taken: int) -> Iterator[bytes]:
    """Yield text as UTF-8. Raises `BadRecord` with the offset of bytes that are not text; `taken` bytes come before the first chunk."""
    convert = codecs.getincrementaldecoder(codec)(errors)
    try:
        for chunk in chunks:
            taken += len(chunk)
            yield encoded(convert.decode(chunk), errors)
        yield encoded(convert.decode(b"", final=True), errors)
    except UnicodeDecodeError as error:
        at = taken - len(error.object) + error.start
        raise undecodable(error.object[error.start : error.start + 4], at, codec, _AS_A_WHOLE) from error
    except UnicodeEncodeError as error:
        character = error.object[error.start].encode("ascii", "backslashreplace")
        raise undecodable(character, max(taken - _CHUNK_BYTES, 0), codec, _AS_A_WHOLE) from error


def undecodable(shown: bytes, offset: int, encoding: str, more: str = "") -> BadRecord:
    """Return the error for bytes that are not text; `offset` is where they are, or where their record begins, `more` is further advice."""
    text = excerpt(shown.decode("ascii", "backslashreplace"))
    msg = f"found '{text}', expected {encoding}; set encoding to what the file has, or encodingErrors=replace{more}"
    return BadRecord(msg, offset=offset)


def refusal(data: bytes, codec: str, errors: str) -> UnicodeDecodeError | None:
    """Return why a codec refuses these bytes; `None` if it accepts them."""
    try:
        to_utf8(data, codec, errors)
    except UnicodeDecodeError as error:
        return error
    return None
