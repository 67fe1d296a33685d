"""Tables of the lengths of growing files, for sinks with more lengths than a record should hold.

Problem. A record holds the whole state, so that only the last one is read. With `growing=true` and columns in `fileName` that
state is a length for each of thousands of files, of which a batch touches few. A record of all lengths, put and read for each
batch, would cost O(files ever begun), not O(files touched).

Idea. A record holds up to `IN_RECORD` lengths that changed lately, and names *tables* that hold the others: staged files, written
once and synced before the put. The length of a file is in the record, or else in the newest table that has its path. When a
record would have more lengths, they become a table. The newest tables are merged into it as long as they are less than twice its
size. So there are O(log files) tables, and an entry is written O(log files) times, as in a log-structured merge tree.

A table is a staged file like others: it has a unique name, means nothing until a record names it with its digest, and is swept
when the last record no longer names it. So a crash between table and put leaves a file to sweep, and a stalled driver, whose put
fails, has changed nothing.

A process keeps each table that it has read, by its digest, while the last record that it has seen names the table. So a batch
only looks up the files that it touches, and reads no table again; a new process reads the tables once.

Rejected: the file's own size as its earlier length (a row of another writer would be taken for ours); one file for each length (a
sync for each file that a batch touches); records of changes alone, read back to the last full one (a start would read a history).
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import xxhash

from penstock.errors import DamagedState, NotThere
from penstock.query.records import checked, signed, state_bytes
from penstock.sink.batch import DRIVER
from penstock.sink.ledger import LengthTable, check_relative
from penstock.sink.staging import Staging

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.sink.ledger import State
    from penstock.storage import Storage

IN_RECORD = 256
_kept: dict[
    tuple[str, str], dict[str, Mapping[str, Any]]
] = {}  # by the staging directory and the field: digest -> table


class LengthTables:
    """The tables of one sink, in its directory of staged files. Picklable.

    `keys.KeyTables` keeps other values in the same way: `field` and `tables` are the names of the record's fields, and
    `in_record_max` is the most entries that a record holds, `None` for `IN_RECORD`.
    """

    field: ClassVar[str] = "lengths"
    tables: ClassVar[str] = "tables"
    about: ClassVar[str] = "the lengths of {} growing files"
    in_record_max: ClassVar[int | None] = None

    def __init__(self, storage: Storage, staging: str) -> None:
        self._storage = storage
        self._staging = staging

    def all_of(self, state: State) -> Mapping[str, Any]:
        """Return a copy of the length of each growing file, by its path. `DamagedState` if a table was altered."""
        tables = self._tables(getattr(state, self.tables))
        return ChainMap(dict(getattr(state, self.field)), *(dict(table) for table in reversed(tables)))

    def known(self, state: State) -> Mapping[str, Any]:
        """Return the same mapping for look-ups, without a copy."""
        return ChainMap(getattr(state, self.field), *reversed(self._tables(getattr(state, self.tables))))

    def in_record(self, state: State, batch: int) -> State:
        """Return the state with no more lengths than a record should hold; the others are staged as a table, which is durable."""
        in_record: dict[str, Any] = getattr(state, self.field)
        if len(in_record) <= (self.in_record_max or IN_RECORD):
            return state
        merged, tables = in_record, list(getattr(state, self.tables))
        while tables and tables[-1].files < 2 * len(merged):
            merged = {**self._table(tables.pop()), **merged}
        staging = Staging(self._storage, self._staging, base=state.n - 1, batch=batch, writer=DRIVER)
        try:
            output = staging.create()
            output.write(signed({"sink": state.sink, self.field: merged}))
            _, digest = staging.seal(output).result()
            staging.finish()
        except BaseException as error:  # also for a simulated crash: release what is open, then let it pass
            staging.discard(error)
            raise
        table = LengthTable(output.name, digest, len(merged))
        fields: dict[str, Any] = {self.field: {}, self.tables: (*tables, table)}
        return replace(state, **fields)

    def _tables(self, tables: tuple[LengthTable, ...]) -> list[Mapping[str, Any]]:
        if not tables:
            return []
        read = {table.digest: self._table(table) for table in tables}
        _kept[self._staging, self.field] = read
        return [read[table.digest] for table in tables]

    def _table(self, table: LengthTable) -> Mapping[str, Any]:
        known = _kept.get((self._staging, self.field), {}).get(table.digest)
        return self._read(table) if known is None else known

    def _read(self, table: LengthTable) -> Mapping[str, Any]:
        path = f"{self._staging}/{table.file}"
        try:
            data = state_bytes(self._storage, path)
        except NotThere as error:
            msg = (
                f"{path!r} is missing, it has {self.about.format(table.files)}; restore it from a copy of the directory"
            )
            raise DamagedState(msg) from error
        if xxhash.xxh3_128_hexdigest(data) != table.digest:
            msg = f"{path!r} was altered after its commit; restore it from a copy of the directory"
            raise DamagedState(msg)
        values: dict[str, Any] = checked(data, path)[self.field]
        try:
            self._check_names(values)
        except ValueError as error:
            msg = f"{path!r} is no table of {self.field}: {error}; restore it from a copy"
            raise DamagedState(msg) from error
        return values

    @staticmethod
    def _check_names(values: Mapping[str, Any]) -> None:
        """Raise `ValueError` for a name that none of our tables could have."""
        check_relative(values)
