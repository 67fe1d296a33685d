"""Applying a batch to a database: the driver writes the rows that tasks have staged, and the batch's id, in one transaction.

The table `penstock_batches` has one row per sink: the last applied batch (`batch_id`, -1 before the first), the query
it belongs to (`query_id`), its fingerprint in Spark's offset log, and the driver that may commit (`driver`).

    begin    in a transaction: lock the row, check it against the batch, take it over if another driver had it
    tasks    stage rows in files that only their own message names
    commit   in a transaction: lock the row, check driver and batch, load the rows, write the new id

Failure 1, the reply of COMMIT is lost.
  1. The server commits; the connection breaks before the driver hears of it.
  2. The driver does not know whether the commit was done. If it repeats the transaction, the rows are there twice; if
     it gives up, Spark repeats the batch, with the same doubt.
  Rule: nobody decides from a reply. A transaction that is run again begins like any other: it locks the row and reads
  the id. An old session that is still about to commit holds that lock, so the id that is read shows how that session
  ended.
  (`test_lost_reply_of_commit`)

Failure 2, a crash at any point, of the driver or the server.
  Rule: id and rows are in one transaction. Spark repeats the batch. If its id is the last applied one, it is skipped,
  and counted.
  (`test_driver_is_killed_anywhere`, `test_server_is_killed_anywhere`)

Failure 3, a stale driver.
  1. Driver A is stopped before its commit of batch 1 (SIGSTOP, a paused machine). Spark does not fence it.
  2. Driver B takes over, repeats batch 1 and commits 2. A goes on.
  Rule: `begin` writes its driver into the row; a commit by another driver is `Fenced` (`query.fence`). The drivers are
  compared under the row's lock, and again by the UPDATE, which must hit one row. (`test_stopped_driver_is_fenced`)

Failure 4, ids that begin again.
  1. The checkpoint is deleted; the new query counts from 0. If only the id counted, 57 batches could be skipped.
  Rule: a row of another query is `CheckpointMismatch`, unless nothing was ever applied; see `query.order` for this
  failure and the next. (`test_deleted_checkpoint_is_refused`)

Failure 5, the database, or the checkpoint, is restored from an older copy.
  1. The row says 5, Spark goes on with 8: two batches are missing. Or the row says 8 and Spark repeats 6, with other
     rows.
  Rule: a batch must be the last one again, with the same fingerprint, or the one after it; anything else is
  `CheckpointMismatch`. No row means batch -1. (`test_restored_database_is_refused`,
  `test_restored_checkpoint_is_refused`)

Failure 6, two attempts of one task have staged rows.
  Rule: messages name files, and Spark passes on the messages of the winners. (`test_only_the_winners_staging_counts`)

Failure 7, a driver stalls within its transaction, and holds the lock.
  Rule: PostgreSQL ends a session that is idle in a transaction for 30 s; others that wait for the lock retry for at
  least as long. SQLite has no such limit: `DatabaseAway` says that the file is locked.
  (`test_driver_stopped_in_its_transaction`)

Failure 8, a table becomes unlogged between two batches.
  1. `ALTER TABLE ... SET UNLOGGED` is run while the query runs. The server crashes, which empties the table; the id
     stays.
  Rule: each commit checks its tables after it has written to them, so nobody can change them before it ends.
  (`test_table_whose_fate_changes_between_batches_is_refused`)

Failure 9, a file of SQLite is exchanged under its name while a query runs: a copy is renamed over it, or it is moved away.
  1. The driver keeps its connection, to the file that no longer has the name. In WAL mode SQLite writes to it without an error.
  2. Every later batch is committed where nobody sees it.
  Rule: after each commit, and before each begin, the file that is open must be the one that has the name; otherwise the transaction is
  run again on that one, where the id decides. (`test_file_that_is_exchanged_while_a_query_runs`)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock import failpoints
from penstock.db.loading import REJECTED, Loading, Rejects, check_columns, names_row
from penstock.db.target import SQLITE, check_url, table_name
from penstock.db.types import is_number
from penstock.errors import (
    CheckpointMismatch,
    DatabaseError,
    OptionError,
    PenstockError,
    RowRefused,
    TableMismatch,
)
from penstock.query import fence
from penstock.query.fence import Claim
from penstock.query.order import Last, Nouns, Standing, place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from penstock.db.database import Database
    from penstock.options import Options
    from penstock.query.batch import Batch

_log = logging.getLogger("penstock.db")
_ANEW = "a new checkpoint, another sinkId and an empty table, or its rows are there twice"
_BATCHES = {
    "sink_id": "text",
    "query_id": "text NOT NULL",
    "batch_id": "bigint NOT NULL",
    "fingerprint": "text NOT NULL",
    "driver": "text NOT NULL",
}


@dataclass(frozen=True)
class Applied:
    """The result of a commit: how many rows were stored and set aside; `skipped`: the batch was applied before."""

    rows: int
    rejected: int
    skipped: bool = False


@dataclass(frozen=True)
class _SinkRow:
    query: str
    batch: int
    fingerprint: str
    driver: str


class DatabaseSink:
    """One table of one database, written by one query. Used by the driver; it contacts the database only in calls that are given one."""

    def __init__(self, options: Options, sink_id: str, schema: pa.Schema) -> None:
        """Check everything that can be checked without the database; `OptionError`."""
        check_url(options["url"])
        self._options, self._sink_id, self._schema = options, sink_id, schema
        self._mode, self._keys = options["mode"], options["keyColumns"] or ()
        self._table = table_name(options["table"], option="table")
        self._batches = table_name(options["batchTable"], option="batchTable")
        rejected = (*self._table[:-1], f"{self._table[-1]}_rejected")
        self._rejected = rejected if options["badRows"] == "quarantine" else None
        if self._batches in {self._table, self._rejected}:
            msg = f"batchTable={options['batchTable']!r} is where rows of table={options['table']!r} go; give the ids of batches another"
            raise OptionError(msg)
        batches = ".".join(self._batches)
        remedy = f"use another sinkId, or delete the row {sink_id!r} of {batches}"
        self._nouns = Nouns(f"sink {sink_id!r} in {batches}", "the database", _ANEW, remedy)
        self._check_columns()
        if options["url"].startswith(SQLITE) and (options["password"] or len(self._table + self._batches) > 2):  # noqa: PLR2004 - two names
            msg = (
                "SQLite has neither passwords nor schemas: leave the option password out, and name tables without a dot"
            )
            raise OptionError(msg)

    def _check_columns(self) -> None:
        names = self._schema.names
        if not names or len(set(names)) < len(names):
            msg = f"a table needs columns, each of another name: found {', '.join(names) or 'none'}; name them in the query"
            raise OptionError(msg)
        if self._mode != "append":
            self._check_keys()

    def _check_keys(self) -> None:
        missing = [name for name in self._keys if name not in self._schema.names]
        if missing or not self._keys:
            names = ", ".join(missing) or "none"
            msg = f"mode={self._mode} needs keyColumns that the rows have ({', '.join(self._schema.names)}): found {names}"
            lower = {name.lower() for name in missing}
            alike = [repr(name) for name in self._schema.names if name.lower() in lower]
            if alike:
                msg += f"; names are compared with regard to case: {', '.join(alike)} is one"
            raise OptionError(msg)
        if self._mode == "merge":
            self._check_numbers()

    def _check_numbers(self) -> None:
        for name in set(self._schema.names).difference(self._keys):
            if not is_number(self._schema.field(name).type):
                msg = f"mode=merge adds up what is not a key, and column {name!r} is not a number: leave it out, or make it a key"
                raise OptionError(msg)

    def check(self, database: Database) -> None:
        """Raise `OptionError` for a name or a type that the database cannot hold."""
        rejected = () if self._rejected is None else self._rejected[-1:]
        for name in (*self._table, *self._batches, *rejected, *self._schema.names):
            database.check_name(name)
        database.types(self._schema)

    def begin(self, database: Database, driver: str, batch: Batch | None) -> int:
        """Take the sink over for `driver`, and return the last applied batch; -1 if there is none.

        `batch` is `None` if it is not known before the tasks run. A second call by the same driver changes nothing.
        Raises `CheckpointMismatch`, `TableMismatch` and what `Database.run` raises.
        """
        return database.run(lambda db: self._begin(db, driver, batch))

    def commit(
        self, database: Database, driver: str, batch: Batch, rows: Callable[[], Iterable[pa.RecordBatch]]
    ) -> Applied:
        """Apply a batch, once. `rows` yields its rows again at each call, all with the schema.

        Raises `Fenced`, `CheckpointMismatch`, `RowRefused`, and what `Database.run` and `rows` raise; then the database
        contains nothing of the batch.
        """
        try:
            applied = database.run(lambda db: self._commit(db, driver, batch, rows))
        except RowRefused as error:
            if self._options["badRows"] == "quarantine" or "badRows=quarantine" in error.message:
                raise
            raise self._refused(database, batch, rows, error) from error
        failpoints.hit("db.commit.done")
        return applied

    def _refused(
        self, database: Database, batch: Batch, rows: Callable[[], Iterable[pa.RecordBatch]], error: RowRefused
    ) -> RowRefused:
        """Return the error of a refused batch, with the row that caused it; the row is searched for without storing any."""

        def look(db: Database) -> None:
            self._loading(db, batch.number).load(rows(), singly=True)
            raise error  # no single row is refused; rolls back this search

        try:
            database.run(look)
        except PenstockError as second:
            if names_row(second):
                return RowRefused(f"{second.message}, which sets such rows aside; nothing of this batch is stored")
        return RowRefused(
            f"{error.message}; mend the row, or use badRows=quarantine, which sets such rows aside; nothing of this batch is stored"
        )

    def _begin(self, db: Database, driver: str, batch: Batch | None) -> int:
        if not db.columns(self._batches):
            db.create(self._batches, _BATCHES, ("sink_id",))
        state = self._state(db) or self._entered(db)
        if batch is not None:
            self._place(state, batch)
        if self._rejected is not None:
            if not db.columns(self._rejected):  # a user who has mended the rows may have dropped it
                db.create(self._rejected, REJECTED)
            check_columns(db.columns(self._rejected), REJECTED, self._rejected)
            db.check_table(self._rejected)
        if state.driver != driver:
            sql = f"UPDATE {db.named(self._batches)} SET driver = $1 WHERE sink_id = $2"  # noqa: S608 - the name is quoted
            db.execute(sql, driver, self._sink_id)
            self._prepare(db, state.batch)
        return state.batch

    def _entered(self, db: Database) -> _SinkRow:
        """Return the row of a sink that has none yet. If two drivers insert it at once, one succeeds, and the other waits."""
        values = "VALUES ($1, '', -1, '', '') ON CONFLICT (sink_id) DO NOTHING"
        db.execute(f"INSERT INTO {db.named(self._batches)} {values}", self._sink_id)
        state = self._state(db)
        assert state is not None  # noqa: S101 - the row exists by now
        return state

    def _state(self, db: Database) -> _SinkRow | None:
        sql = f"SELECT query_id, batch_id, fingerprint, driver FROM {db.named(self._batches)} WHERE sink_id = $1"  # noqa: S608 - the name is quoted
        rows = db.execute(sql + db.for_update, self._sink_id)
        # A column of SQLite accepts values of any type.
        if rows and [type(value) for value in rows[0]] != [str, int, str, str]:
            raise self._gone()
        return _SinkRow(*rows[0]) if rows else None

    def _gone(self) -> CheckpointMismatch:
        msg = (
            f"the row of sink {self._sink_id!r} in {'.'.join(self._batches)} has gone, or was changed meanwhile; restore the "
            "database from a copy"
        )
        return CheckpointMismatch(msg)

    def _place(self, state: _SinkRow, batch: Batch) -> Standing:
        """Compare a batch with the last one in the database; `CheckpointMismatch` if it is neither that one nor the next."""
        return place(Last(state.query, state.batch, state.fingerprint), batch, self._nouns)

    def _prepare(self, db: Database, last: int) -> None:
        """See that the tables exist and can take the batches after `last`."""
        if not db.columns(self._table):
            if last >= 0:
                msg = (
                    f"there is no table {'.'.join(self._table)!r}, and sink {self._sink_id!r} has written up to batch {last}: restore "
                    "it from a copy of that time, or create it if it is to have only what comes next"
                )
                raise TableMismatch(msg)
            if not self._options["createTable"]:
                msg = f"there is no table {'.'.join(self._table)!r}, and createTable=false: create it, or leave that option out"
                raise TableMismatch(msg)
            db.create(self._table, db.types(self._schema), self._keys)
        db.check_table(self._table, self._keys)
        db.check_table(self._batches)
        self._try_out(db)
        self._tell_narrow(db)

    def _tell_narrow(self, db: Database) -> None:
        """Log the columns whose types differ from those of the rows, and which store some values as others."""
        columns, types = db.columns(self._table), db.types(self._schema)
        declared = {field: columns[field.name].below or columns[field.name].type for field in self._schema}
        narrow = {field.name: kind for field, kind in declared.items() if db.changes(field, kind)}
        if narrow:
            message = "table %r has other types than the query's rows, and stores some values as others: %s; cast in the query to say how"
            pairs = ", ".join(f"{name!r} ({types[name]} into {kind})" for name, kind in narrow.items())
            _log.warning(message, ".".join(self._table), pairs)

    def _try_out(self, db: Database) -> None:
        """Try the statements on no rows: the database knows best whether types fit, and whether there is such a key."""
        loading = self._loading(db, -1)
        try:
            loading.try_out()
        except DatabaseError as error:
            msg = (
                f"table {'.'.join(self._table)!r} does not fit these rows with mode={self._mode}: {error.message}; change the table, "
                "its rights or the query; upsert and merge need a PRIMARY KEY or UNIQUE index of just the keyColumns"
            )
            raise TableMismatch(msg) from error

    def _loading(self, db: Database, batch: int) -> Loading:
        return Loading(
            db, self._table, self._schema, self._mode, self._keys, Rejects(self._rejected, self._sink_id, batch)
        )

    def _commit(self, db: Database, driver: str, batch: Batch, rows: Callable[[], Iterable[pa.RecordBatch]]) -> Applied:
        failpoints.hit("db.commit.begun")
        state = self._state(db)
        if state is None:
            raise self._gone()
        fence.check(self._nouns.state, Claim(state.driver), Claim(driver))
        if self._place(state, batch) is Standing.APPLIED:
            return Applied(0, 0, skipped=True)
        loading = self._loading(db, batch.number)
        loading.load(rows())
        failpoints.hit("db.commit.before-id")
        sql = (
            f"UPDATE {db.named(self._batches)} SET query_id = $1, batch_id = $2, fingerprint = $3 "  # noqa: S608 - the name is quoted
            "WHERE sink_id = $4 AND driver = $5 AND batch_id = $6 RETURNING batch_id"
        )
        values = (batch.query, batch.number, batch.fingerprint, self._sink_id, driver, state.batch)
        if db.execute(sql, *values) != [(batch.number,)]:
            raise self._gone()
        quarantine = [] if self._rejected is None else [self._rejected]
        db.check_fate(self._table, self._batches, *quarantine)  # it may have changed since the beginning: failure 8
        failpoints.hit("db.commit.before-commit")
        return Applied(loading.stored, loading.rejected)
