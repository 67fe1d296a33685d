"""Notes about files that have another name than the decided one, because another sink of the directory has taken that.

Problem. Two sinks whose `fileName` has no `{sink}` may decide on the same free name at the same moment. The sink that publishes
first has it. The record of the other sink then names a file with committed rows of the first. It must not replace them, users
cannot be asked to move them away, and a record is never altered.

Idea. A note beside the record says which name the file has instead: `<n>.<digest of the path>.renamed`. The note is put once,
durably, before the file is published, so before any reader hears of the file. A driver that publishes the record again finds the
note, or puts the same one. A reader of the record gets the name from the note. A fold of the record has the new name, and the
note is deleted.

The new name is the decided name with the sink's id in it, so no other sink of the directory takes it for a file that it numbers,
and it follows from the record alone. A note about a record that is not there any more (the ledger was restored from an older
copy) is `DamagedState`.

Rejected: refusing a second sink that names its files alike (one may follow the other, and always could); claiming names before
they are decided (a put for each file, for a case that nobody with `{sink}` in the name ever meets); a record that revokes the one
before it (each reader would have to read the next record before it believes one).
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import xxhash

from penstock.errors import AlreadyThere, DamagedState
from penstock.query.records import checked_at, signed
from penstock.sink.openparts import check_relative
from penstock.storage import entry_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.storage import Storage

RENAMED = re.compile(r"(\d{12})\.[0-9a-f]{16}\.renamed")
_ENDINGS = re.compile(r"(?:\.[A-Za-z]\w*)*$")
_NAME_BYTES_MAX = 255


class Record(Protocol):
    """What identifies a record of a ledger: its number, and the id of the attempt that put it."""

    @property
    def n(self) -> int:
        """The number of the record."""

    @property
    def write(self) -> str:
        """The id of the attempt."""


class OtherNames:
    """The notes of one sink's ledger, in its directory. A record is identified by its number and `write`."""

    def __init__(self, storage: Storage, directory: str, sink: str) -> None:
        self._storage = storage
        self._directory = directory
        self._sink = sink

    def renamed(self, record: Record, names: Iterable[str]) -> dict[str, str]:
        """Return the changed paths of a record, by decided path, from the notes among `names`. `DamagedState`."""
        notes = [name for name in names if (match := RENAMED.fullmatch(name)) and int(match[1]) == record.n]
        return dict(self._read(record, f"{self._directory}/{name}") for name in notes)

    def of(self, record: Record, path: str) -> str | None:
        """Return the new path of a file of the record; `None` if it has the decided one."""
        note = self._note(record, path)
        return self._read(record, note)[1] if entry_at(self._storage, note) else None

    def give(self, record: Record, path: str) -> str:
        """Durably note another path for a file of the record, and return it. Idempotent."""
        form = {"sink": self._sink, "n": record.n, "write": record.write, "path": path}
        with suppress(AlreadyThere):
            self._storage.put_if_absent(self._note(record, path), signed(form | {"renamed": _beside(path, self._sink)}))
        return self._read(record, self._note(record, path))[1]

    def forget(self, names: Iterable[str], folded: int) -> None:
        """Delete the notes of records up to `folded`."""
        for name in names:
            if (match := RENAMED.fullmatch(name)) and int(match[1]) <= folded:
                self._storage.delete(f"{self._directory}/{name}")

    def _note(self, record: Record, path: str) -> str:
        digest = xxhash.xxh3_64_hexdigest(path.encode("utf-8", "surrogateescape"))
        return f"{self._directory}/{record.n:012d}.{digest}.renamed"

    def _read(self, record: Record, note: str) -> tuple[str, str]:
        """Return the decided path and the new one."""
        form = checked_at(self._storage, note)
        if [form.get("sink"), form.get("n"), form.get("write")] != [self._sink, record.n, record.write]:
            msg = f"{note!r} is about another record {record.n} than the one beside it; restore the ledger from a copy"
            raise DamagedState(msg)
        path, renamed = str(form.get("path")), str(form.get("renamed"))
        try:
            check_relative([path, renamed])
        except ValueError as error:
            msg = f"{note!r} names {error}; restore the ledger from a copy"
            raise DamagedState(msg) from error
        if path.rpartition("/")[0] != renamed.rpartition("/")[0]:
            msg = f"{note!r} has {path!r} in another directory, as {renamed!r}; restore the ledger from a copy"
            raise DamagedState(msg)
        return path, renamed


def _beside(path: str, sink: str) -> str:
    """Return the path with the sink's id in its name, before the extensions that readers depend on."""
    directory, slash, name = path.rpartition("/")
    match = _ENDINGS.search(name)
    endings = match[0] if match else ""
    beside = f"{name[: len(name) - len(endings)]}-{sink}{endings}"
    if len(beside.encode("utf-8", "surrogateescape")) > _NAME_BYTES_MAX:
        beside = f"{sink}-{xxhash.xxh3_64_hexdigest(name.encode('utf-8', 'surrogateescape'))}{endings}"
    return f"{directory}{slash}{beside}"
