"""Identifies a file that grows by the bytes that were read of it, and finds the file that has these bytes by now.

A plan says which bytes of a followed file a batch reads. By the time they are read, or read again, the file may have another name
(`app.log` has become `app.log.1`), or only a copy may still have the bytes (copy and truncate). So the plan does not hold a size and a
time, but a fingerprint of the beginning: `seen(file, end)` is a digest of the first `SEEN_BYTES`, the last `SEEN_BYTES` before `end`,
and `end`. A file that is at least that long and has this digest has the bytes of the plan.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import xxhash

from penstock.errors import FileChanged, NotThere, StorageError
from penstock.source import advice
from penstock.source.scan import hidden
from penstock.storage import Entry, entry_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.source.cursor import Split
    from penstock.storage import ReadHandle, Storage

SEEN_BYTES = 1024


def seen(handle: ReadHandle, end: int) -> str | None:
    """Return the digest of an open file up to `end`; `None` if the file is shorter."""
    head = handle.read(0, min(end, SEEN_BYTES))
    tail = handle.read(end - SEEN_BYTES, SEEN_BYTES) if end > SEEN_BYTES else b""
    if len(head) < min(end, SEEN_BYTES) or len(tail) < (SEEN_BYTES if end > SEEN_BYTES else 0):
        return None
    return xxhash.xxh3_64_hexdigest(b"%d\0" % end + head + tail)


def opened(storage: Storage, root: str, split: Split) -> ReadHandle:
    """Return the open file that has the bytes of a split, found by its name, its identity or its contents. Raises `FileChanged`."""
    assert split.followed is not None  # noqa: S101 - the caller has checked this
    for path in _places(storage, root, split):
        with suppress(StorageError):
            handle = storage.open(path)
            if handle.info().is_file and seen(handle, split.file.size) == split.followed.digest:
                return handle
            handle.close()
    name = f"{root}/{split.file.path}" if split.file.path else root
    msg = (
        f"bytes {split.start} to {split.end} of {name!r} were planned, and neither that file nor another one in its directory begins "
        f"with what was seen then: it was cut, replaced or removed; put a copy back beside it, under any name, or go on without "
        f"these bytes, {advice.AGAIN}"
    )
    raise FileChanged(msg)


def folders(storage: Storage, path: str) -> list[str]:
    """Return the directory of a path, and if the path is a link to another directory, also the directory of its target."""
    own = path.rpartition("/")[0]
    led_to = storage.resolve(path).rpartition("/")[0]
    return [own] if led_to in (own, storage.resolve(own)) else [own, led_to]


def _places(storage: Storage, root: str, split: Split) -> Iterator[str]:
    """Yield where the bytes may be, the likeliest place first."""
    file = split.file
    known = f"{root}/{file.path}" if file.path else root
    yield known
    others: list[str] = []
    for folder in folders(storage, known):
        with suppress(NotThere):
            for name, mark in storage.names(folder).items():
                path = f"{folder}/{name}"
                if hidden(name) or path == known:
                    continue
                if not isinstance(mark, Entry) and str(mark) == file.identity:
                    yield path
                else:
                    others.append(path)
    for path in sorted(others):
        entry = entry_at(storage, path)
        if entry is not None and entry.is_file and entry.size >= file.size:
            yield path


def check(handle: ReadHandle, split: Split, path: str) -> None:
    """Raise `FileChanged` unless the open file still has the planned bytes: it may be cut while it is read."""
    if split.followed is not None and seen(handle, split.file.size) != split.followed.digest:
        msg = f"{path!r} was cut while bytes {split.start} to {split.end} were read; a second try looks for them in its copy"
        raise FileChanged(msg)
