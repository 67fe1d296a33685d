"""The parts that are open, where they are more than a record should hold.

Problem. A record holds the whole state, so that only the last one is ever read. With a thousand tasks of a hundred buckets that
state is a hundred thousand open parts: 180 MB, put and read at each batch, and sent to each task, though a batch touches few of
them, and a task has a hundred.

Idea. That of the lengths of growing files (`lengths`), for parts: a record holds what changed lately, up to `IN_RECORD` parts, and
names *tables*, files among the staged ones, written once and synced before the put, that hold the others. What a part is follows
from the tables, the oldest first, and then from the record: each says which segments it keeps of what was before (`openparts`).
When a record has more changes, they become a table, together with the newer tables that are not twice as heavy: a segment is
written O(log) times. So what a batch puts follows what it touched.

A table has a line for each writer, and an index of these lines, so that a task reads what is its own: O(its parts).

The failures, and the rule that kills each:

1. *Crash between table and put.* The table is a staged file that no record names; it is swept. (As of all staged files.)
2. *Stalled driver.* A stages a table and stands still; B goes on; A's put fails. Rule: the same; names are nobody else's.
3. *Table not durable.* The record is put, the power fails, and the table is gone: every open row with it. Rule: a table is synced,
   and its name with it, before the put.
4. *Base swept too early.* Record n names tables 1 and 2; record n+1 has merged them into 3; 1 and 2 are swept; a stalled reader of
   record n misses them. Rule: what the head names is never swept, and whoever misses a table looks whether there is a newer head.
5. *A change on the wrong base.* A table says "keep five segments", and what is below it is another one than when it was written
   (restored, exchanged). Rule: the record has the digest of each table, a line of a table says which table it is of, and a change
   that keeps more than there is does not fit.
6. *A task of an overtaken driver* reads tables that its successor has swept. Rule: as with all that a base names, it is told
   `Fenced` (`Committer.reading_of`).

What was read is kept by its digest as long as the last record that this process has seen names it; a process of tasks keeps what is
of the writers that it ran last. Rejected: a file of state for each writer (a sync for each of a thousand writers at each batch, and
a roll changes the parts of all); records of changes alone, with all records since the last full one (records are folded, and a
start would read a history).
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import xxhash

from penstock.errors import DamagedState, NotThere
from penstock.query.records import checked, signed, state_bytes
from penstock.sink.batch import DRIVER
from penstock.sink.openparts import Change, Key, OpenPart, OpenParts, PartTable, changes_form, changes_of
from penstock.sink.staging import Staging

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage import ReadHandle, Storage

    Changes = dict[Key, Change | None]

IN_RECORD = 256
_kept: dict[str, dict[str, Any]] = {}  # by the staging directory: digest -> changes of a table
_bases: dict[str, tuple[tuple[str, ...], OpenParts]] = {}  # digests of tables, and what they say together
_own: dict[tuple[str, int], dict[str, Changes]] = {}  # by the staging directory and the writer, in a process of tasks
_OWN_MAX = 4
_REMEDY = "restore it from a copy of the directory"


class PartTables:
    """The tables of one sink, in its directory of staged files. Picklable."""

    def __init__(self, storage: Storage, staging: str, sink: str) -> None:
        self._storage = storage
        self._staging = staging
        self._sink = sink

    def read(self, parts: OpenParts) -> OpenParts:
        """Return all parts of a record; `DamagedState` if a table is not what was put."""
        if not parts.tables:
            return parts
        tables = {table.digest: self._table(table) for table in parts.tables}
        _kept[self._staging] = tables
        try:
            return parts.upon(self._base(parts.tables, tables))
        except ValueError as error:
            msg = f"the tables of open parts in {self._staging!r} do not fit together: {error}; {_REMEDY}"
            raise DamagedState(msg) from error

    def of_writer(self, parts: OpenParts, writer: int) -> list[OpenPart]:
        """Return the parts of one writer, reading no more of the tables than these. For tasks."""
        if not parts.tables:
            return [part for part in parts if part.writer == writer]
        own: dict[Key, OpenPart] = {}
        known = _own.pop((self._staging, writer), {})
        read = {t.digest: known[t.digest] if t.digest in known else self._of_writer(t, writer) for t in parts.tables}
        _own[self._staging, writer] = read
        while len(_own) > _OWN_MAX:
            del _own[next(iter(_own))]
        try:
            for changes in read.values():
                _apply(own, changes)
            _apply(own, {key: change for key, change in parts.changes.items() if key[2] == writer})
        except ValueError as error:
            msg = f"the tables of open parts in {self._staging!r} do not fit together: {error}; {_REMEDY}"
            raise DamagedState(msg) from error
        return list(own.values())

    def in_record(self, parts: OpenParts, base: int, batch: int) -> OpenParts:
        """Return the parts with no more changes than a record should hold: the others are staged as a table, and durable.

        Few parts need none: a record has them all. `base` and `batch` are what the name of a staged file begins with.
        """
        if len(parts) <= IN_RECORD:
            return OpenParts(parts) if parts.tables else parts
        if parts.count_changed <= IN_RECORD:
            return parts
        merged, tables = parts.changes, list(parts.tables)
        while tables and tables[-1].weight < 2 * _weight(merged):
            merged = _merged(self._table(tables.pop()), merged, bottom=not tables)
        table = self._staged(merged, base, batch)
        laid = parts.laid_down((*tables, table))
        _kept[self._staging] = {t.digest: self._table(t) for t in tables} | {table.digest: merged}
        _bases[self._staging] = tuple(t.digest for t in laid.tables), laid
        return laid

    def _staged(self, changes: Changes, base: int, batch: int) -> PartTable:
        staging = Staging(self._storage, self._staging, base=base, batch=batch, writer=DRIVER)
        try:
            output = staging.create()
            index: dict[str, list[int]] = {}
            by_writer = sorted(changes.items(), key=lambda item: item[0][2])
            for writer, items in groupby(by_writer, key=lambda item: item[0][2]):
                start = output.tell()
                output.write(signed(self._named(output.name) | {"writer": writer} | changes_form(items)))
                index[str(writer)] = [start, output.tell()]
            start = output.tell()
            output.write(signed(self._named(output.name) | {"index": index}))
            size, digest = staging.seal(output).result()
            staging.finish()
        except BaseException:  # also a simulated crash: release what is open, then let it pass
            staging.discard()
            raise
        return PartTable(output.name, digest, size, start, _weight(changes))

    def _named(self, table: str) -> dict[str, Any]:
        """Return what each line says: whose it is."""
        return {"sink": self._sink, "table": table}

    def _base(self, tables: tuple[PartTable, ...], read: Mapping[str, Changes]) -> OpenParts:
        """Return what these tables say together."""
        digests = tuple(table.digest for table in tables)
        known, base = _bases.get(self._staging, ((), OpenParts()))
        if known == digests:
            return base
        begun = known == digests[: len(known)]
        parts = dict(base.by_key) if begun else {}
        for digest in digests[len(known) if begun else 0 :]:
            _apply(parts, read[digest])
        whole = OpenParts(parts.values()).laid_down(tables)
        _bases[self._staging] = digests, whole
        return whole

    def _table(self, table: PartTable) -> Changes:
        known: Changes | None = _kept.get(self._staging, {}).get(table.digest)
        return self._read(table) if known is None else known

    def _read(self, table: PartTable) -> Changes:
        path = f"{self._staging}/{table.file}"
        try:
            data = state_bytes(self._storage, path)
        except NotThere as error:
            raise self._missing(path) from error
        if xxhash.xxh3_128_hexdigest(data) != table.digest:
            msg = f"{path!r} was altered after its commit; {_REMEDY}"
            raise DamagedState(msg)
        changes: Changes = {}
        for line in data[: table.index].splitlines(keepends=True):
            changes |= self._of_line(line, table)
        return changes

    def _of_writer(self, table: PartTable, writer: int) -> Changes:
        """Return what a table has of one writer."""
        path = f"{self._staging}/{table.file}"
        try:
            with self._storage.open(path) as handle:
                index = self._line(_between(handle, table.index, table.size), table)["index"]
                place = index.get(str(writer))
                return self._of_line(_between(handle, *place), table) if place else {}
        except NotThere as error:
            raise self._missing(path) from error
        except (AttributeError, KeyError, TypeError) as error:
            msg = f"{path!r} has no index of open parts: {error!r}; {_REMEDY}"
            raise DamagedState(msg) from error

    def _of_line(self, line: bytes, table: PartTable) -> Changes:
        record = self._line(line, table)
        try:
            return changes_of(record)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = f"{self._staging + '/' + table.file!r} is no table of open parts: {error!r}; {_REMEDY}"
            raise DamagedState(msg) from error

    def _line(self, line: bytes, table: PartTable) -> dict[str, Any]:
        path = f"{self._staging}/{table.file}"
        record = checked(line, path)
        if (record.get("sink"), record.get("table")) != (self._sink, table.file):
            msg = f"{path!r} is table {record.get('table')!r} of sink {record.get('sink')!r}: it was moved here; {_REMEDY}"
            raise DamagedState(msg)
        return record

    @staticmethod
    def _missing(path: str) -> DamagedState:
        return DamagedState(f"{path!r} is missing, it has open parts; {_REMEDY}")


def _between(handle: ReadHandle, start: int, end: int) -> bytes:
    return handle.read(start, end - start)


def _apply(parts: dict[Key, OpenPart], changes: Changes) -> None:
    """Bring parts forward. `ValueError` if a change does not fit."""
    for key, change in changes.items():
        before = parts.pop(key, None)
        if change is not None:
            parts[key] = change.applied(before)


def _merged(lower: Changes, upper: Changes, *, bottom: bool) -> Changes:
    """Return what two tables say as one; at the bottom nothing is left of parts that have ended."""
    merged = dict(lower)
    for key, change in upper.items():
        before = merged.pop(key, None)
        merged[key] = change.behind(before) if change is not None and before is not None else change
    return {key: change for key, change in merged.items() if change is not None} if bottom else merged


def _weight(changes: Mapping[Key, Change | None]) -> int:
    return sum(1 + (len(change.part.segments) if change is not None else 0) for change in changes.values())
