"""A database as the sink sees it: its transactions are retried as a whole, and each of its errors has one meaning.

PostgreSQL and SQLite are both used through ADBC: Arrow goes in, `COPY` or a bound statement comes out, and no Python
runs per row. We write the transaction statements ourselves (`BEGIN`, `SAVEPOINT`, `COMMIT`), because ADBC's own
transactions have no savepoints.

A transaction ends in one of four ways:

- it is committed;
- `_Again`: the connection was lost, the server is starting, the other side of a deadlock went first, or a lock could
  not be had. The whole transaction is run again, on a new connection, a few times; then it is `DatabaseAway`. If the
  reply to a COMMIT was lost, nobody guesses whether it was done: each new run looks first (see `db.sink`).
- `RowRefused`: a row breaks a constraint or does not fit;
- `DatabaseError`: anything else, in the words of the database.

In every case, a connection that saw an error is closed, which rolls back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import finalize

import pyarrow as pa

from penstock import clock, failpoints
from penstock.db.target import quoted
from penstock.errors import (
    DatabaseAway,
    DatabaseError,
    PenstockError,
    RowRefused,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

T = TypeVar("T")

STAGED = "penstock staged"  # name of a transaction's temporary table, and of its column that numbers the rows
ROW = "penstock row"
_DELAYS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)  # seconds before each try after the first
_SHOWN = 1_000  # characters of each end of a database's message, which may repeat a long statement


class _Again(Exception):
    """The transaction may succeed if it is run again."""


class Column(NamedTuple):
    """A column of a table: its type, whether each row must have a value for it, and the type that a text must be cast to, if any.

    `below` is the type that its values are stored as if that has another name: what a domain is made of.
    """

    type: str
    needed: bool
    cast: str | None = None
    below: str | None = None


class Database(ABC):
    """One database, with a connection that is kept while nothing goes wrong. Belongs to one process and one thread at a time."""

    _lock_millis = 5_000  # of waiting for a lock, per try

    def __init__(self, url: str, password: Callable[[], str | None]) -> None:
        self._url, self._password = url, password
        self._connection: Any = None
        self._cursor: Any = None
        self._at_end: Callable[[], object] = lambda: None

    def run(self, work: Callable[[Database], T]) -> T:
        """Run `work` in a transaction, commit it, and return its result. If a retry may help, all of it is run again.

        `work` must look first at what is committed already, before it changes anything. Raises `DatabaseAway` when all
        tries failed, what `work` raises, and the kinds of `DatabaseError`.
        """
        for delay in (*_DELAYS, None):
            try:
                with self._transaction():
                    return work(self)
            except _Again as error:  # noqa: PERF203 - the loop exists for this
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
        failed: list[BaseException] = []

        def watched() -> Iterator[pa.RecordBatch]:
            try:
                for batch in rows:
                    yield batch
                    failpoints.hit("db.commit.some-rows")
            except GeneratorExit:  # the rest is not needed
                raise
            except BaseException as error:  # kept, even if it ends the process: ADBC passes only its text on
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
        except RowRefused as error:
            self._undo(error)
            raise
        self.execute("RELEASE SAVEPOINT penstock")

    def _undo(self, refused: RowRefused) -> None:
        try:
            self.execute("ROLLBACK TO SAVEPOINT penstock")
        except DatabaseError as error:
            msg = (
                f"{refused.message}; the whole transaction was rolled back with the row, so that it cannot be set aside: a constraint or "
                "trigger of SQLite says ROLLBACK; let it say ABORT, or mend the row"
            )
            raise DatabaseError(msg) from error
        self.execute("RELEASE SAVEPOINT penstock")

    def create(self, table: tuple[str, ...], columns: dict[str, str], key: tuple[str, ...] = ()) -> None:
        """Create a table if it does not exist."""
        lines = [f"{quoted(name)} {kind}" for name, kind in columns.items()]
        lines += [f"PRIMARY KEY ({', '.join(map(quoted, key))})"] if key else []
        try:
            self.execute(f"CREATE TABLE IF NOT EXISTS {self.named(table)} ({', '.join(lines)})")
        except RowRefused as error:
            # Another session is creating it at this moment; PostgreSQL's own tables refuse the second row of that name.
            raise _Again(error.message) from error
        except DatabaseError as error:
            msg = (
                f"table {'.'.join(table)!r} cannot be created: {error.message}; see that its schema is there and that the role may create "
                "tables in it, or create it yourself; a column that no table can have needs another name in the query"
            )
            raise DatabaseError(msg) from error

    def named(self, table: tuple[str, ...]) -> str:
        """Return the name of a table in SQL."""
        return ".".join(map(quoted, table))

    def close(self) -> None:
        """Close the connection, which rolls back what was not committed. It is opened again when needed."""
        self._at_end()
        self._cursor = self._connection = None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        done = False
        with self._heard():
            try:
                if self._is_elsewhere():
                    self.close()
                if self._connection is None:
                    with self._translated(opening=True):
                        self._connection = self._connect()
                    self._cursor = self._connection.cursor()
                    self._at_end = finalize(self, _close, self._cursor, self._connection)
                    self._settle()
                self.execute(self.begin)
                yield
                self._commit()
                self._check_place()
                done = True
            finally:
                if not done:
                    self.close()

    def _is_elsewhere(self) -> bool:
        """Tell whether the connection is to a database that is no longer at the url."""
        return False

    def _check_place(self) -> None:
        """Have a transaction that was committed run again if others do not see it at the url: what it finds there decides."""
        if self._is_elsewhere():
            msg = "it was moved or replaced while a transaction ran"
            raise _Again(msg)

    def _commit(self) -> None:
        try:
            self.execute("COMMIT")
        except RowRefused as error:
            msg = (
                f"{error.message}; the constraint is checked at COMMIT, when no row can be set aside any more: mend the row, or make the "
                "constraint INITIALLY IMMEDIATE, then badRows=quarantine finds it"
            )
            raise RowRefused(msg) from error

    @contextmanager
    def _translated(self, *, opening: bool = False) -> Iterator[None]:
        import adbc_driver_manager as adbc

        try:
            yield
        except adbc.Error as error:
            words = shortened(self._words(" ".join(str(error).split())))
            if self._once_more(error, words, opening=opening):
                raise _Again(words) from error
            kind = RowRefused if self._is_about_rows(error, words) else DatabaseError
            msg = f"{self._name()} says: {words}"
            raise kind(msg) from error

    begin: str
    for_update: str
    number: str
    """The type of the column that numbers staged rows by itself."""
    staged: tuple[str, ...]
    """The name of a transaction's temporary table."""
    has_nan: bool
    days: tuple[int, int]
    """The first and the last day that the database can hold, counted from 1970."""
    driver: str

    @abstractmethod
    def types(self, schema: pa.Schema) -> dict[str, str]:
        """Return the type of each column, by name; `OptionError` for one that the database cannot hold."""

    @abstractmethod
    def check_name(self, name: str) -> None:
        """Raise `OptionError` for a name that the database would take for another one."""

    @abstractmethod
    def columns(self, table: tuple[str, ...]) -> dict[str, Column]:
        """Return a table's columns, by name; none if there is no table."""

    @abstractmethod
    def takes(self, table: tuple[str, ...], given: dict[str, str]) -> bool:
        """Tell whether values of these types can be loaded straight into a table, without a statement that converts them."""

    @abstractmethod
    def changes(self, field: pa.Field, column: str) -> bool:
        """Tell whether a column of the table, of this type, would store some values of a column of the rows as other values."""

    @abstractmethod
    def check_fate(self, *tables: tuple[str, ...]) -> None:
        """Raise `TableMismatch` for a table that is not committed and rolled back with a transaction.

        Nobody can change this for a table that the transaction has written to, until it ends.
        """

    @abstractmethod
    def check_table(self, table: tuple[str, ...], keys: tuple[str, ...] = ()) -> None:
        """Raise `TableMismatch` for a table that is not committed with a transaction, or checks that `keys` are unique too late."""

    @abstractmethod
    def prepared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the values that will be stored."""

    @abstractmethod
    def _connect(self) -> Any:  # noqa: ANN401 - a connection of a library without types
        ...

    @abstractmethod
    def _heard(self) -> AbstractContextManager[None]:
        """Return a context that ends the waits in its block if there is nobody at the other end."""

    @abstractmethod
    def _settle(self) -> None:
        """Set up the session."""

    @abstractmethod
    def _ingest(self, table: tuple[str, ...], rows: pa.RecordBatchReader) -> None: ...

    @abstractmethod
    def _name(self) -> str: ...

    @abstractmethod
    def _words(self, words: str) -> str:
        """Return the database's own message, without what its driver adds."""

    @abstractmethod
    def _once_more(self, error: Any, words: str, *, opening: bool) -> bool:  # noqa: ANN401 - an error of the driver
        ...

    @abstractmethod
    def _is_about_rows(self, error: Any, words: str) -> bool:  # noqa: ANN401 - an error of the driver
        ...


def shortened(text: str) -> str:
    """Return a text shortened for a message, with its beginning and its end."""
    return text if len(text) <= 2 * _SHOWN else f"{text[:_SHOWN]} [...] {text[-_SHOWN:]}"


def _close(*opened: Any) -> None:  # noqa: ANN401 - objects of the driver
    """Close a statement, then its connection: the driver complains about any other order, at the latest when Python ends."""
    for resource in opened:
        with suppress(Exception):  # the driver may say anything about a connection that is given up
            resource.close()
