"""A database as the sink sees it: transactions that are tried again as a whole, and errors with one meaning each.

PostgreSQL and SQLite, both through ADBC: Arrow in, `COPY` or a bound statement out, no Python per row. Transactions are
ours (`BEGIN`, `SAVEPOINT`, `COMMIT` as statements): ADBC's own would know nothing of savepoints.

A transaction ends in one of four ways:

- it is committed;
- `_Again`: the connection was lost, the server is starting, the other side of a deadlock went first, a lock was not to be
  had. All of it is run again, in a new transaction on a new connection, some times; then it is `DatabaseAway`. Whether a
  COMMIT whose reply was lost was done is nothing to be guessed: whoever runs again looks first (see `db.sink`).
- `RowRefused`: a row breaks a constraint or does not fit;
- `DatabaseError`: anything else, in the words of the database.

Whatever it was, a connection that saw an error is closed: that rolls back.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import finalize

import pyarrow as pa

from penstock import clock, failpoints
from penstock.db.silence import Socket, heard, sockets
from penstock.db.target import SQLITE, check_length, connection_url, quoted
from penstock.db.types import for_sqlite, postgresql_types, sqlite_types
from penstock.errors import (
    DatabaseAway,
    DatabaseError,
    DependencyError,
    OptionError,
    PenstockError,
    RowRefused,
    TableMismatch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

T = TypeVar("T")

STAGED = "penstock staged"  # the temporary table of a transaction, and its column that numbers the rows
ROW = "penstock row"
_DELAYS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)  # seconds before the tries behind the first
_LOCK_MILLIS = 5_000  # of waiting for a lock, a try
_IDLE_MILLIS = 30_000  # a driver that stands still in a transaction is put out of it
_SHOWN = 1_000  # characters of each end of what a database says; it likes to repeat a statement


class _Again(Exception):
    """The transaction may succeed if it is run again."""


class Column(NamedTuple):
    """A column of a table: its type, whether a row must have a value for it, and what a text is cast to for it, if it must be."""

    type: str
    needed: bool
    cast: str | None = None


class Database(ABC):
    """One database, with a connection that is kept while nothing goes wrong. Of one process; not shared between threads."""

    def __init__(self, url: str, password: Callable[[], str | None]) -> None:
        self._url, self._password = url, password
        self._connection: Any = None
        self._cursor: Any = None
        self._at_end: Callable[[], object] = lambda: None

    def run(self, work: Callable[[Database], T]) -> T:
        """Return what `work` returns, having run it in a transaction that is committed: again, as a whole, where that may help.

        `work` must look what is committed already before it changes anything. Raises `DatabaseAway` when all tries failed,
        what `work` raises, and the kinds of `DatabaseError`.
        """
        for delay in (*_DELAYS, None):
            try:
                with self._transaction():
                    return work(self)
            except _Again as error:  # noqa: PERF203 - it is what the loop is for
                if delay is None:
                    msg = (
                        f"{self._name()} cannot be used; tried {len(_DELAYS) + 1} times: {error}; see that it runs and can be "
                        "reached, and who holds its locks; then start the query again"
                    )
                    raise DatabaseAway(msg) from error
                clock.sleep(delay)
        raise AssertionError

    def execute(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement with `$1`, `$2`... and return its rows."""
        with self._translated():
            self._cursor.execute(sql, list(values) or None)
            return list(self._cursor.fetchall()) if self._cursor.description else []

    def load(self, table: tuple[str, ...], schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> None:
        """Append rows to a table, by name of column."""
        failed: list[Exception] = []

        def watched() -> Iterator[pa.RecordBatch]:
            try:
                for some in rows:
                    yield some
                    failpoints.hit("db.commit.some-rows")
            except Exception as error:  # kept: ADBC hands on no more than its text
                failed.append(error)
                raise

        reader = pa.RecordBatchReader.from_batches(schema, watched())
        try:
            with self._translated():
                self._ingest(table, reader)
        except (PenstockError, _Again):
            if failed:
                raise failed[0] from None
            raise

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what the block did if it raises `RowRefused`, and go on with the transaction."""
        self.execute("SAVEPOINT penstock")
        try:
            yield
        except RowRefused:
            self.execute("ROLLBACK TO SAVEPOINT penstock")
            self.execute("RELEASE SAVEPOINT penstock")
            raise
        self.execute("RELEASE SAVEPOINT penstock")

    def create(self, table: tuple[str, ...], columns: dict[str, str], key: tuple[str, ...] = ()) -> None:
        """Create a table unless it is there."""
        lines = [f"{quoted(name)} {kind}" for name, kind in columns.items()]
        lines += [f"PRIMARY KEY ({', '.join(map(quoted, key))})"] if key else []
        try:
            self.execute(f"CREATE TABLE IF NOT EXISTS {self.named(table)} ({', '.join(lines)})")
        except RowRefused as error:
            # Another session creates it at this moment; PostgreSQL's own tables refuse the second row of that name.
            raise _Again(error.message) from error

    def named(self, table: tuple[str, ...]) -> str:
        """Return the name of a table in SQL."""
        return ".".join(map(quoted, table))

    def close(self) -> None:
        """Close the connection, which rolls back what was not committed. It is opened again when it is needed."""
        self._at_end()
        self._cursor = self._connection = None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        done = False
        with self._heard():
            try:
                if self._connection is None:
                    with self._translated(opening=True):
                        self._connection = self._connect()
                    self._cursor = self._connection.cursor()
                    self._at_end = finalize(self, _close, self._cursor, self._connection)
                    self._settle()
                self.execute(self.begin)
                yield
                self.execute("COMMIT")
                done = True
            finally:
                if not done:
                    self.close()

    @contextmanager
    def _translated(self, *, opening: bool = False) -> Iterator[None]:
        import adbc_driver_manager as adbc

        try:
            yield
        except adbc.Error as error:
            said = self._words(" ".join(str(error).split()))
            if len(said) > 2 * _SHOWN:
                said = f"{said[:_SHOWN]} [...] {said[-_SHOWN:]}"
            if self._once_more(error, said, opening=opening):
                raise _Again(said) from error
            kind = RowRefused if self._is_about_rows(error, said) else DatabaseError
            msg = f"{self._name()} says: {said}"
            raise kind(msg) from error

    begin: str
    for_update: str
    number: str
    """The type of the column that numbers staged rows by itself."""
    staged: tuple[str, ...]
    """The temporary table of a transaction."""
    has_nan: bool
    days: tuple[int, int]
    """The first and the last day that it has, counted from 1970."""
    driver: str

    @abstractmethod
    def types(self, schema: pa.Schema) -> dict[str, str]:
        """Return the type of each column, by name; `OptionError` for one that the database cannot hold."""

    @abstractmethod
    def check_name(self, name: str) -> None:
        """Raise `OptionError` for a name that would be taken for another one."""

    @abstractmethod
    def columns(self, table: tuple[str, ...]) -> dict[str, Column]:
        """Return a table's columns, by name; none if there is no table."""

    @abstractmethod
    def takes(self, table: tuple[str, ...], given: dict[str, str]) -> bool:
        """Tell whether values of these types can be loaded into a table at once, without a statement that converts them."""

    @abstractmethod
    def check_table(self, table: tuple[str, ...], keys: tuple[str, ...] = ()) -> None:
        """Raise `TableMismatch` for a table that does not share the fate of a transaction, or is unique in `keys` too late."""

    @abstractmethod
    def prepared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the values that are stored."""

    @abstractmethod
    def _connect(self) -> Any:  # noqa: ANN401 - a connection of a library without types
        ...

    @abstractmethod
    def _heard(self) -> AbstractContextManager[None]:
        """Return what ends the waits in its block if there is nobody at the other end."""

    @abstractmethod
    def _settle(self) -> None:
        """Say how this session shall be."""

    @abstractmethod
    def _ingest(self, table: tuple[str, ...], rows: pa.RecordBatchReader) -> None: ...

    @abstractmethod
    def _name(self) -> str: ...

    @abstractmethod
    def _words(self, said: str) -> str:
        """Return what the database says, without what its driver says of that."""

    @abstractmethod
    def _once_more(self, error: Any, said: str, *, opening: bool) -> bool:  # noqa: ANN401 - as above
        ...

    @abstractmethod
    def _is_about_rows(self, error: Any, said: str) -> bool:  # noqa: ANN401 - as above
        ...


class PostgreSQL(Database):
    """PostgreSQL 12 or newer."""

    begin, for_update = "BEGIN", " FOR UPDATE"
    number = "bigint GENERATED ALWAYS AS IDENTITY"
    staged = ("pg_temp", STAGED)
    has_nan = True
    days = (-2_440_588, 2**31 - 1)  # from 4714 BC; what is too late it refuses by itself
    driver = "adbc_driver_postgresql"
    # Lost connections, shutting down, starting up, too many clients, serialization, deadlock, locked, idle too long.
    _again = ("08", "57P", "53300", "40001", "40P01", "55P03", "25P03")
    # Data, constraints, the option of a view, what triggers raise; equal keys in a table's own types; too large for a page or an index.
    _rows = ("22", "23", "44", "P0", "21000", "54000")
    # What no waiting mends; where a server speaks another language it is tried a few times for nothing.
    _for_good = (
        "authentication failed",
        "does not exist",
        "no pg_hba.conf entry",
        "permission denied",
        "no password",
        "URI",
        "invalid ",
    )
    _before: frozenset[Socket] = frozenset()
    _own: frozenset[Socket] | None = frozenset()  # of the connection; None while it is made

    def types(self, schema: pa.Schema) -> dict[str, str]:
        """Return the type of each column, by name; `OptionError` for one that PostgreSQL cannot hold."""
        return postgresql_types(schema)

    def check_name(self, name: str) -> None:
        """Raise `OptionError` for a name that PostgreSQL would cut off."""
        check_length(name)

    def columns(self, table: tuple[str, ...]) -> dict[str, Column]:
        """Return a table's columns, by name; none if there is no table. What a trigger may fill in is not called needed."""
        # A text is cast only to types that Spark has not, and without a length: that is checked as in any INSERT, and cuts nothing.
        sql = (
            "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = '' "
            "AND typdefault IS NULL AND NOT relhastriggers, CASE WHEN typcategory NOT IN ('A', 'B', 'D', 'N', 'S') "
            "AND 'bytea'::regtype NOT IN (type.oid, typbasetype) THEN format_type(atttypid, -1) END FROM pg_catalog.pg_attribute "
            "JOIN pg_catalog.pg_type type ON type.oid = atttypid JOIN pg_catalog.pg_class class ON class.oid = attrelid "
            "WHERE attrelid = to_regclass($1) AND attnum > 0 ORDER BY attnum"  # one that was dropped has no type
        )
        return {name: Column(*column) for name, *column in self.execute(sql, self.named(table))}

    def takes(self, table: tuple[str, ...], given: dict[str, str]) -> bool:
        """Tell whether the types are the same, as binary `COPY` converts nothing, and the table is one for `COPY`, without rules."""
        found = self.columns(table)
        sql = (
            "SELECT relkind IN ('r', 'p') AND NOT relhasrules AND NOT row_security_active(oid) FROM pg_catalog.pg_class "
            "WHERE oid = to_regclass($1)"
        )
        return self.execute(sql, self.named(table)) == [(True,)] and all(
            found[name].type == kind for name, kind in given.items()
        )

    def check_table(self, table: tuple[str, ...], keys: tuple[str, ...] = ()) -> None:
        """Raise `TableMismatch` for one that a crash of the server empties, that is kept by another server, or is unique too late."""
        sql = (
            "SELECT relname::text FROM pg_catalog.pg_class WHERE (relpersistence <> 'p' OR relkind = 'f') AND "
            "(oid = to_regclass($1) OR oid IN (SELECT relid FROM pg_partition_tree(to_regclass($1)))) LIMIT 1"
        )
        if found := self.execute(sql, self.named(table)):
            part = "" if found[0][0] == table[-1] else f"partition {found[0][0]!r} of "
            msg = (
                f"{part}table {'.'.join(table)!r} is UNLOGGED, TEMPORARY or FOREIGN: its rows would not be there exactly when the "
                "batch is; take a table of the database itself (ALTER TABLE ... SET LOGGED)"
            )
            raise TableMismatch(msg)
        sql = (
            "SELECT 1 FROM pg_catalog.pg_index JOIN pg_catalog.pg_attribute ON attrelid = indrelid "
            "AND attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1]) WHERE indrelid = to_regclass($1) AND NOT indimmediate "
            "GROUP BY indexrelid HAVING jsonb_agg(attname) @> $2::text::jsonb AND jsonb_agg(attname) <@ $2::text::jsonb"
        )
        if keys and self.execute(sql, self.named(table), json.dumps(keys)):
            msg = (
                f"table {'.'.join(table)!r} has its keyColumns in a DEFERRABLE constraint, which PostgreSQL takes for no upsert: "
                "make it NOT DEFERRABLE"
            )
            raise TableMismatch(msg)

    def prepared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they are."""
        return batch

    def _connect(self) -> Any:  # noqa: ANN401 - a connection of a library without types
        from adbc_driver_postgresql import dbapi

        url = connection_url(self._url, self._password())
        self._before, self._own = sockets(), None
        return dbapi.connect(url, autocommit=True)

    def _heard(self) -> AbstractContextManager[None]:
        return heard(lambda: self._new() if self._own is None else self._own)

    def _new(self) -> frozenset[Socket]:
        # The driver does not tell its socket: it is the new one. Another thread may open one at the same time: then none is.
        new = sockets() - self._before
        return new if len(new) == 1 else frozenset()

    def _settle(self) -> None:
        # Limits, unless there are others. A commit that is acknowledged must be one that a crash of the server does not take. By
        # the zone it converts between the two kinds of timestamps, so it is not that of a machine. All text in Arrow is UTF-8.
        sql = (
            "SELECT set_config(name, CASE name WHEN 'lock_timeout' THEN $1 WHEN 'synchronous_commit' THEN 'on' "
            "WHEN 'TimeZone' THEN 'UTC' WHEN 'client_encoding' THEN 'UTF8' ELSE $2 END, false) FROM pg_catalog.pg_settings "
            "WHERE name IN ('lock_timeout', 'idle_in_transaction_session_timeout') AND setting = '0' "
            "OR name = 'synchronous_commit' AND setting = 'off' OR name = 'TimeZone' AND source <> 'client' "
            "OR name = 'client_encoding'"
        )
        self.execute(sql, str(_LOCK_MILLIS), str(_IDLE_MILLIS))
        # The server knows our socket among the new ones, unless somebody stands between us.
        ((port,),) = self.execute("SELECT coalesce(inet_client_port()::text, current_setting('port'))")
        self._own = frozenset(each for each in sockets() - self._before if each.port == port) or self._new()

    def _ingest(self, table: tuple[str, ...], rows: pa.RecordBatchReader) -> None:
        # Said in full: without a schema the driver would look for the table in the first one of the search path alone.
        sql = (
            "SELECT nspname::text FROM pg_catalog.pg_class class JOIN pg_catalog.pg_namespace space "
            "ON space.oid = relnamespace WHERE class.oid = to_regclass($1)"
        )
        found = self.execute(sql, self.named(table))
        self._cursor.adbc_ingest(table[-1], rows, mode="append", db_schema_name=found[0][0] if found else None)

    def _name(self) -> str:
        return f"PostgreSQL at {self._url.partition('?')[0]!r}"

    def _words(self, said: str) -> str:
        return re.sub(r"^.*?(?=ERROR: )| Query was: .*(?=\. SQLSTATE: )", "", said)

    def _once_more(self, error: Any, said: str, *, opening: bool) -> bool:  # noqa: ANN401 - as above
        if error.sqlstate is None:
            import adbc_driver_manager as adbc

            for_good = opening and any(text in said for text in self._for_good)
            return isinstance(error, adbc.OperationalError) and not for_good
        return bool(error.sqlstate.startswith(self._again))

    def _is_about_rows(self, error: Any, said: str) -> bool:  # noqa: ANN401, ARG002 - as above
        return bool(error.sqlstate and error.sqlstate.startswith(self._rows))


class SQLite(Database):
    """A file of SQLite."""

    begin, for_update = "BEGIN IMMEDIATE", ""
    number = "INTEGER PRIMARY KEY"
    staged = ("temp", STAGED)
    has_nan = False
    days = (-719_162, 2_932_896)  # years of four digits: beyond them texts have another order, and no meaning to it
    driver = "adbc_driver_sqlite"
    _again = ("database is locked",)
    _rows = ("constraint failed", "integer overflow", "datatype mismatch", "cannot store")

    def types(self, schema: pa.Schema) -> dict[str, str]:
        """Return the type of each column, by name; `OptionError` for one that SQLite cannot hold."""
        return sqlite_types(schema)

    def check_name(self, name: str) -> None:
        """Raise `OptionError` for a name that would end at a NUL."""
        if "\0" in name:
            msg = f"{name!r} is no name for SQLite: it has a NUL in it"
            raise OptionError(msg)

    def columns(self, table: tuple[str, ...]) -> dict[str, Column]:
        """Return a table's columns, by name; none if there is no table."""
        sql = (
            'SELECT name, type, "notnull" AND dflt_value IS NULL AND NOT pk AND NOT hidden FROM pragma_table_xinfo($1)'
        )
        return {name: Column(kind, bool(needed)) for name, kind, needed in self.execute(sql, table[-1])}

    def takes(self, table: tuple[str, ...], given: dict[str, str]) -> bool:  # noqa: ARG002 - as of the base
        """Say yes: a column of SQLite takes what it is given."""
        return True

    def check_table(self, table: tuple[str, ...], keys: tuple[str, ...] = ()) -> None:
        """Do nothing: all tables of a file are in its transactions, and unique at once."""

    def prepared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with times as text."""
        return for_sqlite(batch)

    def _connect(self) -> Any:  # noqa: ANN401 - a connection of a library without types
        from adbc_driver_sqlite import dbapi

        return dbapi.connect(self._url.removeprefix(SQLITE), autocommit=True)

    def _heard(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _settle(self) -> None:
        self.execute(f"PRAGMA busy_timeout = {_LOCK_MILLIS}")
        self.execute("PRAGMA synchronous = EXTRA")  # the removal of the journal is what commits, and is synced too
        self.execute("PRAGMA foreign_keys = ON")  # it heeds them only where it is told to

    def _ingest(self, table: tuple[str, ...], rows: pa.RecordBatchReader) -> None:
        catalog = table[0] if len(table) > 1 else None
        self._cursor.adbc_ingest(table[-1], rows, mode="append", catalog_name=catalog)

    def _name(self) -> str:
        return f"SQLite at {self._url.removeprefix(SQLITE)!r}"

    def _words(self, said: str) -> str:
        said = re.sub(r" query was: .*", "", said)
        return re.sub(
            "failed to allocate memory$", "see that its directory is there, and that the driver may write in it", said
        )

    def _once_more(self, error: Any, said: str, *, opening: bool) -> bool:  # noqa: ANN401, ARG002 - as above
        return any(text in said for text in self._again)

    def _is_about_rows(self, error: Any, said: str) -> bool:  # noqa: ANN401, ARG002 - as above
        return any(text in said for text in self._rows)


def _close(*opened: Any) -> None:  # noqa: ANN401 - as above
    """Close a statement, then its connection: the driver complains of any other order, at the latest when Python ends."""
    for each in opened:
        with suppress(Exception):  # whatever the driver says of a connection that is given up
            each.close()


def database(url: str, password: Callable[[], str | None]) -> Database:
    """Return the database at a checked url; asks nobody yet. `DependencyError` if its driver is not installed."""
    kind = SQLite if url.startswith(SQLITE) else PostgreSQL
    if find_spec("adbc_driver_manager") is None or find_spec(kind.driver) is None:
        msg = f"{kind.driver} is not installed; install it with: pip install 'penstock[db]'"
        raise DependencyError(msg)
    return kind(url, password)
