"""Files that have another name than the one that was decided, as another sink of the directory has taken that.

Problem. Two sinks whose `fileName` has no `{sink}` may decide on one free name at one moment. Whoever publishes first has it. The other
one's record names a place where committed rows lie that are not its own: it must not replace them, nobody may be asked to
move them away, and a record is never altered.

Idea. A note beside the record says which name the file has instead: `<n>.<digest of the path>.renamed`. It is put once, and durable,
before anything is published there, so before any reader is told of the file. Whoever publishes the record again finds it, or puts
the same one; whoever reads the record is given the name of the note. A fold of the record has that name, and the note goes.

The name is that of the record with the sink's in it, so no other sink of the directory takes it for a file that it numbers, and it
follows from the record alone. A note of a record that is not there any more (the ledger was put back from an older copy) is `DamagedState`.

Rejected: to refuse a second sink that names its files alike (one may follow the other, and always could); to claim names before they
are decided (a put for each file, for what happens to nobody who has `{sink}` in the name); a record that takes the one before it back
(each reader would have to read on before it believes a record).
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
        """Its number."""

    @property
    def write(self) -> str:
        """The id."""


class OtherNames:
    """The notes of one sink's ledger, in its directory. Records are told by their number and `write`."""

    def __init__(self, storage: Storage, directory: str, sink: str) -> None:
        self._storage = storage
        self._directory = directory
        self._sink = sink

    def renamed(self, record: Record, names: Iterable[str]) -> dict[str, str]:
        """Return which paths of a record are others, by the notes among `names`. `DamagedState`."""
        notes = [name for name in names if (match := RENAMED.fullmatch(name)) and int(match[1]) == record.n]
        return dict(self._read(record, f"{self._directory}/{name}") for name in notes)

    def of(self, record: Record, path: str) -> str | None:
        """Return what a path of the record is instead; `None` if it is as the record has it."""
        note = self._note(record, path)
        return self._read(record, note)[1] if entry_at(self._storage, note) else None

    def give(self, record: Record, path: str) -> str:
        """Note another path for a file of the record, durable, and return it. Idempotent."""
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
        """Return the path of the record, and what it is instead."""
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
    """Return the path with the sink in its name, in front of the endings that readers go by."""
    directory, slash, name = path.rpartition("/")
    match = _ENDINGS.search(name)
    endings = match[0] if match else ""
    beside = f"{name[: len(name) - len(endings)]}-{sink}{endings}"
    if len(beside.encode("utf-8", "surrogateescape")) > _NAME_BYTES_MAX:
        beside = f"{sink}-{xxhash.xxh3_64_hexdigest(name.encode('utf-8', 'surrogateescape'))}{endings}"
    return f"{directory}{slash}{beside}"
