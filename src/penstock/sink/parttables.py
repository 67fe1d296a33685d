"""Tables of open parts, for sinks with more open parts than a record should hold.

Problem. A record holds the whole state, so that only the last one is ever read. With a thousand tasks of a hundred buckets that
state is a hundred thousand open parts: 180 MB, put and read for each batch, and sent to each task, although a batch touches few
of them, and a task has a hundred.

Idea. The same as for the lengths of growing files (`lengths`): a record holds up to `IN_RECORD` parts that changed lately, and
names *tables* that hold the others: staged files, written once and synced before the put. The state of a part follows from the
tables, the oldest first, and then from the record: each change says how many segments it keeps of the state before (`openparts`).
When a record would have more changes, they become a table. The newest tables are merged into it as long as their weight is less
than twice its own. So a segment is written O(log) times, and a batch puts no more than it touched.

A table has a line for each writer, and an index of these lines, so that a task reads only its own line: O(its parts).

The failures, and the rule against each:

1. *Crash between table and put.* The table is a staged file that no record names. Rule: it is swept, as all such staged files
   are.
2. *Stalled driver.* A stages a table and stalls; B takes over; A's put fails. Rule: the same; names are unique.
3. *Table not durable.* The record is put, the power fails, and the table is gone, and every open row with it. Rule: a table and
   its name are synced before the put.
4. *Base swept too early.* Record n names tables 1 and 2; record n+1 has merged them into 3; 1 and 2 are swept; a stalled reader
   of record n misses them. Rule: tables that the head names are never swept, and a reader that misses a table checks for a newer
   head.
5. *A change on the wrong base.* A table says "keep five segments", and the table below it is not the one it was written for
   (restored, exchanged). Rule: the record has the digest of each table, a line of a table says which table it belongs to, and a
   change that keeps more segments than there are is an error.
6. *A task of an overtaken driver* reads tables that its successor has swept. Rule: it gets `Fenced`, as for any missing file that
   its base record names (`Committer.reading_of`).

A process keeps each table that it has read, by its digest, while the last record that it has seen names the table. A process of
tasks keeps the parts of the writers that it ran last. Rejected: a state file for each writer (a sync for each of a thousand
writers in each batch, and a roll changes the parts of all); records of changes alone, read back to the last full one (records are
folded, and a start would read a history).
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
_bases: dict[str, tuple[tuple[str, ...], OpenParts]] = {}  # by the staging directory: digests of tables and their parts
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
        """Return all open parts of a record; `DamagedState` if a table was altered."""
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
        """Return the parts of one writer, and read only these from the tables. For tasks."""
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
        """Return the parts with no more changes than a record should hold; the others are staged as a table, which is durable.

        Few parts need no table, because a record has them all. The name of a staged file begins with `base` and `batch`.
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
        except BaseException as error:  # also for a simulated crash: release what is open, then let it pass
            staging.discard(error)
            raise
        return PartTable(output.name, digest, size, start, _weight(changes))

    def _named(self, table: str) -> dict[str, Any]:
        """Return the fields of each line that say which sink and table it belongs to."""
        return {"sink": self._sink, "table": table}

    def _base(self, tables: tuple[PartTable, ...], read: Mapping[str, Changes]) -> OpenParts:
        """Return the parts that these tables give together."""
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
        """Return the changes of one writer in a table."""
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
    """Apply changes to parts, in place. `ValueError` if a change does not fit."""
    for key, change in changes.items():
        before = parts.pop(key, None)
        if change is not None:
            parts[key] = change.applied(before)


def _merged(lower: Changes, upper: Changes, *, bottom: bool) -> Changes:
    """Return the changes of two tables as one; the bottom table needs no entries for parts that have ended."""
    merged = dict(lower)
    for key, change in upper.items():
        before = merged.pop(key, None)
        merged[key] = change.after(before) if change is not None and before is not None else change
    return {key: change for key, change in merged.items() if change is not None} if bottom else merged


def _weight(changes: Mapping[Key, Change | None]) -> int:
    return sum(1 + (len(change.part.segments) if change is not None else 0) for change in changes.values())
