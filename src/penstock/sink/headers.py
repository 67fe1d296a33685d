"""Checks that rows go below a header of their own columns, in files that grow over many batches, before anything is committed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import BadFile, NotThere, OptionError
from penstock.formats.codecs import decompressed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.sink.batch import TaskResult
    from penstock.sink.decide import Rules
    from penstock.storage import ReadHandle, Storage

_SHOWN = 200  # bytes of a file that are looked at, at least, to show the header that it has
_CHUNK_BYTES = 64 << 10
_LIMIT_BYTES, _EXPANSION_MAX = 64 << 20, 1000  # of a compressed header


def check_headers(
    storage: Storage, root: str, rules: Rules, results: Iterable[TaskResult], lengths: Mapping[str, int]
) -> None:
    """Raise `OptionError` if rows would go below the header of other columns in a growing file.

    `lengths` are those of all growing files. What a file begins with is compared as it was before it was compressed: another version
    may compress the same header differently. A file that is gone, or damaged, is left to publishing and to `verify`, which say so.
    """
    parts = [part for result in results for part in result.open if part.kind.header and not part.is_aside]
    kinds = {path: part.kind for part in parts if lengths.get(path := rules.path(part.place, part.kind))}
    for path, kind in kinds.items():
        header = kind.header.encode()
        with suppress(NotThere, BadFile), storage.open(f"{root}/{path}") as file:
            beginning = _beginning(file, lengths[path], kind.compression, max(len(header), _SHOWN))
            if not beginning.startswith(header):
                first_line = beginning.partition(b"\n")[0].decode(errors="replace")
                msg = (
                    f"{path!r} in {root!r} begins with the header {first_line!r}, and the rows of this batch have "
                    f"{kind.header.rstrip()!r}: a growing file has the same columns all along; nothing was committed; set "
                    "another fileName, or write the columns that it has"
                )
                raise OptionError(msg)


def _beginning(file: ReadHandle, length: int, compression: str, size: int) -> bytes:
    """Return the first `size` bytes, or a few more, of what is in a file of this length. `BadFile` if it cannot be decompressed."""
    if compression == "none":
        return bytes(file.read(0, min(size, length)))
    places = range(0, length, _CHUNK_BYTES)
    chunks = (bytes(file.read(at, min(_CHUNK_BYTES, length - at))) for at in places)
    beginning = b""
    for piece in decompressed(chunks, compression, limit_bytes=_LIMIT_BYTES, ratio_max=_EXPANSION_MAX):
        beginning += piece
        if len(beginning) >= size:
            break
    return beginning
