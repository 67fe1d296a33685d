"""JSON that tells when it was altered: a flipped byte, a cut, or a line that was put together from two.

State files are one line each: `{"checksum":"...","record":{...,"v":1}}`, and a newline. The record is canonical JSON (keys
sorted, no spaces), the checksum is XXH3 of 128 bits over its bytes. Whoever reads one sums the record's
bytes as they are there, and compares all others, so that nothing can be added outside of the record either.

A record in a file of somebody else, who may space and order fields as he likes, has its checksum among its fields instead:
see `query.offset`. Both sum canonical JSON.
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
    """Return the one spelling of a JSON object that checksums are taken of."""
    return json.dumps(form, sort_keys=True, separators=(",", ":")).encode()


def _line(text: bytes) -> bytes:
    return b'{"checksum":"%b","record":%b}\n' % (xxhash.xxh3_128_hexdigest(text).encode(), text)


_TAIL_BYTES = len(b"}\n")  # what stands behind a record
_HEAD_BYTES = len(_line(b"")) - _TAIL_BYTES  # and in front of it


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
    """Return the record of a file, as `checked` does; `NotThere` if there is nothing of that name."""
    return checked(state_bytes(storage, path), path)


def state_bytes(storage: Storage, path: str) -> bytes:
    """Return a state file, whole; `NotThere` if there is nothing of that name, `DamagedState` if it is a directory."""
    with state_file(storage, path):
        return storage.read(path)


@contextmanager
def state_file(storage: Storage, path: str) -> Iterator[None]:
    """Have a block that reads a state file raise `DamagedState` if it is a directory, which no storage tells from other refusals."""
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
