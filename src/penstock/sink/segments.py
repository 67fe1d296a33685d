"""Reads staged bytes back and compares them with the length and digest in the ledger.

A staged file stays on a disk from its commit until its part is closed, perhaps for hours, and its bytes go into a file that
others read. So all staged bytes are read through this module: if they were cut, altered or deleted meanwhile, it raises
`DamagedState` before any of them is visible, whether compressed or not. The digest is computed while the bytes are written, and
compared while they are copied. That costs a pass over memory (XXH3, above 10 GB/s), and no additional read.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import xxhash

from penstock.errors import DamagedState, NotThere
from penstock.query.records import state_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sink.openparts import FinishedFile, Segment
    from penstock.storage import Storage

_READ_BYTES = 1 << 20
_REMEDY = "restore it from a copy of the directory; nothing of it is visible"


def digest(storage: Storage, path: str, start: int = 0, end: int | None = None) -> tuple[int, str]:
    """Return length and XXH3 digest (128 bits) of bytes [start, end) of a file, or of fewer if the file is shorter; `NotThere`."""
    hashed, length = xxhash.xxh3_128(), 0
    for data in _blocks(storage, path, start, end):
        hashed.update(data)
        length += len(data)
    return length, hashed.hexdigest()


def segment_bytes(storage: Storage, directory: str, segment: Segment) -> Iterator[bytes]:
    """Yield the bytes of a segment; `DamagedState`, at the latest after the last bytes, if they are not the staged ones."""
    path = f"{directory}/{segment.file}"
    hashed, at = xxhash.xxh3_128(), segment.start
    try:
        with state_file(storage, path):
            for data in _blocks(storage, path, segment.start, segment.end):
                hashed.update(data)
                at += len(data)
                yield data
    except NotThere as error:
        msg = f"{path!r} is missing, the ledger has {segment.rows} rows in it, unless a newer driver owns the sink by now; {_REMEDY}"
        raise DamagedState(msg) from error
    if at < segment.end:
        msg = f"{path!r} ends at byte {at}, expected {segment.end}: it was cut after its commit; {_REMEDY}"
        raise DamagedState(msg)
    if hashed.hexdigest() != segment.digest:
        msg = (
            f"{path!r} was altered after its commit, between bytes {segment.start} and {segment.end}: digest "
            f"{hashed.hexdigest()}, expected {segment.digest}; {_REMEDY}"
        )
        raise DamagedState(msg)


def check_segment(storage: Storage, directory: str, segment: Segment) -> None:
    """Raise `DamagedState` if the segment is missing, cut or altered."""
    for _ in segment_bytes(storage, directory, segment):
        pass


def check_staged(storage: Storage, directory: str, file: FinishedFile) -> None:
    """Raise `DamagedState` if the staged file is there but is not the decided one."""
    path = f"{directory}/{file.staged}"
    # A missing file was published before, or is lost: publishing finds out.
    with suppress(NotThere), state_file(storage, path):
        actual = digest(storage, path)
        if actual != (file.bytes, file.digest):
            msg = (
                f"{path!r} was cut or altered after its commit: {actual[0]} bytes with digest {actual[1]}, expected "
                f"{file.bytes} with {file.digest}; {_REMEDY}"
            )
            raise DamagedState(msg)


def _blocks(storage: Storage, path: str, start: int, end: int | None) -> Iterator[bytes]:
    """Yield the bytes of a file from `start` up to `end`, or to the end of the file."""
    at = start
    with storage.open(path) as file:
        while data := file.read(at, _READ_BYTES if end is None else min(_READ_BYTES, end - at)):
            yield data
            at += len(data)
