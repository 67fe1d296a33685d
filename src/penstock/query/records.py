"""JSON that shows when it was altered: a flipped byte, a cut, or a line that was put together from two.

State files are one line each: `{"checksum":"...","record":{...,"v":1}}`, and a newline. The record is canonical JSON (keys sorted, no
spaces), the checksum is XXH3 of 128 bits over its bytes. A reader computes the checksum of the record's bytes as they are, and compares
all other bytes with what they must be, so that nothing can be added outside of the record either.

A record in a file of another program, which may space and order fields as it likes, has its checksum among its fields instead: see
`query.offset`. Both checksums are taken of canonical JSON.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import xxhash

from penstock.errors import DamagedState, NotThere, StorageError
from penstock.storage import entry_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage import Storage

VERSION = 1


def canonical(form: dict[str, Any]) -> bytes:
    """Return the canonical spelling of a JSON object, of which checksums are taken."""
    return json.dumps(form, sort_keys=True, separators=(",", ":")).encode()


def _line(text: bytes) -> bytes:
    return b'{"checksum":"%b","record":%b}\n' % (xxhash.xxh3_128_hexdigest(text).encode(), text)


_TAIL_BYTES = len(b"}\n")  # the bytes after a record
_HEAD_BYTES = len(_line(b"")) - _TAIL_BYTES  # the bytes before it


def signed(record: dict[str, Any]) -> bytes:
    """Return a state record as it is kept: one line of canonical JSON with version and checksum."""
    return _line(canonical({"v": VERSION} | record))


def checked(data: bytes, path: str) -> dict[str, Any]:
    """Return the record that `signed` was given; `DamagedState` that names `path` if it is not what was put."""
    text = data[_HEAD_BYTES:-_TAIL_BYTES]
    try:
        record = json.loads(text) if _line(text) == data else None
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        msg = (
            f"{path!r} is damaged ({len(data)} bytes, checksum or form does not fit); restore it from a copy of the "
            "directory, nothing was changed"
        )
        raise DamagedState(msg)
    if record.get("v") != VERSION:
        msg = f"{path!r} has format version {record.get('v')!r}, expected {VERSION}: use the Penstock that wrote it, or newer"
        raise DamagedState(msg)
    return record


def checked_at(storage: Storage, path: str) -> dict[str, Any]:
    """Return the record of a file, as `checked` does; `NotThere` if the file does not exist."""
    return checked(state_bytes(storage, path), path)


def state_bytes(storage: Storage, path: str) -> bytes:
    """Return the whole bytes of a state file; `NotThere` if it does not exist, `DamagedState` if it is a directory."""
    with state_file(storage, path):
        return storage.read(path)


@contextmanager
def state_file(storage: Storage, path: str) -> Iterator[None]:
    """Make a block that reads a state file raise `DamagedState` if it is a directory, which storages report like any other failure."""
    try:
        yield
    except NotThere:
        raise
    except StorageError as error:
        entry = entry_at(storage, path)
        if entry is None or not entry.is_directory:
            raise
        msg = f"{path!r} is a directory, expected a state file; restore it from a copy of the directory it is in, nothing was changed"
        raise DamagedState(msg) from error
