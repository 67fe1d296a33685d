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

STAGED = "penstock staged"  # the temporary table of a transaction, and its column that numbers the rows
ROW = "penstock row"
_DELAYS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)  # seconds before the tries behind the first
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

    _lock_millis = 5_000  # of waiting for a lock, a try

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
        failed: list[BaseException] = []

        def watched() -> Iterator[pa.RecordBatch]:
            try:
                for batch in rows:
                    yield batch
                    failpoints.hit("db.commit.some-rows")
            except GeneratorExit:  # nobody asks for the rest
                raise
            except BaseException as error:  # kept, as is one that ends the process: ADBC hands on no more than its text
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
        """Create a table unless it is there."""
        lines = [f"{quoted(name)} {kind}" for name, kind in columns.items()]
        lines += [f"PRIMARY KEY ({', '.join(map(quoted, key))})"] if key else []
        try:
            self.execute(f"CREATE TABLE IF NOT EXISTS {self.named(table)} ({', '.join(lines)})")
        except RowRefused as error:
            # Another session creates it at this moment; PostgreSQL's own tables refuse the second row of that name.
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
                self._commit()
                done = True
            finally:
                if not done:
                    self.close()

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
    def changes(self, field: pa.Field, column: str) -> bool:
        """Tell whether a column of the table, of this type, stores some values of a column of the rows as others."""

    @abstractmethod
    def check_fate(self, *tables: tuple[str, ...]) -> None:
        """Raise `TableMismatch` for a table that does not share the fate of a transaction.

        Of one that this transaction has written to, nobody can change that before it ends.
        """

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
    def _words(self, words: str) -> str:
        """Return what the database says, without what its driver says of that."""

    @abstractmethod
    def _once_more(self, error: Any, words: str, *, opening: bool) -> bool:  # noqa: ANN401 - an error of the driver
        ...

    @abstractmethod
    def _is_about_rows(self, error: Any, words: str) -> bool:  # noqa: ANN401 - an error of the driver
        ...


def shortened(text: str) -> str:
    """Return a text that is not too long for a message, with how it begins and ends."""
    return text if len(text) <= 2 * _SHOWN else f"{text[:_SHOWN]} [...] {text[-_SHOWN:]}"


def _close(*opened: Any) -> None:  # noqa: ANN401 - objects of the driver
    """Close a statement, then its connection: the driver complains of any other order, at the latest when Python ends."""
    for resource in opened:
        with suppress(Exception):  # whatever the driver says of a connection that is given up
            resource.close()
