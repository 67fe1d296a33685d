"""SQLite as the sink sees it."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from penstock.db.database import STAGED, Column, Database
from penstock.db.target import SQLITE
from penstock.db.types import changes_in_sqlite, for_sqlite, sqlite_types
from penstock.errors import OptionError
from penstock.storage import entry_at, locate

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import pyarrow as pa


class SQLite(Database):
    """A file of SQLite."""

    begin, for_update = "BEGIN IMMEDIATE", ""
    number = "INTEGER PRIMARY KEY"
    staged = ("temp", STAGED)
    has_nan = False
    days = (-719_162, 2_932_896)  # years of four digits: SQLite cannot read others, and as texts they sort wrongly
    driver = "adbc_driver_sqlite"
    _again = ("database is locked",)
    _rows = ("constraint failed", "integer overflow", "datatype mismatch", "cannot store")
    _opened: str | None = None  # the identity of the file that the connection has open

    def types(self, schema: pa.Schema) -> dict[str, str]:
        """Return the type of each column, by name; `OptionError` for one that SQLite cannot hold."""
        return sqlite_types(schema)

    def check_name(self, name: str) -> None:
        """Raise `OptionError` for a name that would end at a NUL."""
        if "\0" in name:
            msg = f"{name!r} is not a name for SQLite: it contains a NUL"
            raise OptionError(msg)

    def columns(self, table: tuple[str, ...]) -> dict[str, Column]:
        """Return a table's columns, by name; none if there is no table. SQLite fills in an INTEGER PRIMARY KEY (the row's number)."""
        sql = (
            "SELECT name, type, \"notnull\" AND dflt_value IS NULL AND NOT hidden AND NOT (pk AND upper(type) = 'INTEGER' "
            "AND (SELECT max(pk) FROM pragma_table_xinfo($1)) = 1 AND NOT (SELECT wr FROM pragma_table_list($1) WHERE schema = 'main')) "
            "FROM pragma_table_xinfo($1)"
        )
        return {name: Column(kind, bool(needed)) for name, kind, needed in self.execute(sql, table[-1])}

    def takes(self, table: tuple[str, ...], given: dict[str, str]) -> bool:  # noqa: ARG002 - signature of the base class
        """Tell whether the table has no triggers: a column takes any value, but only a statement tells what a trigger refuses."""
        sql = "SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND tbl_name = $1 COLLATE NOCASE LIMIT 1"
        return not self.execute(sql, table[-1])

    def changes(self, field: pa.Field, column: str) -> bool:
        """Tell whether the affinity of a column changes some of these values."""
        return changes_in_sqlite(field.type, column)

    def check_fate(self, *tables: tuple[str, ...]) -> None:
        """Do nothing: all tables of a file take part in its transactions."""

    def check_table(self, table: tuple[str, ...], keys: tuple[str, ...] = ()) -> None:
        """Do nothing: all tables of a file take part in its transactions, and check uniqueness at once."""

    def prepared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with times as text."""
        return for_sqlite(batch)

    def _connect(self) -> Any:  # noqa: ANN401 - a connection of a library without types
        from adbc_driver_sqlite import dbapi

        self._opened = None
        return dbapi.connect(self._url.removeprefix(SQLITE), autocommit=True)

    def _is_elsewhere(self) -> bool:
        """Tell whether another file, or none, has the name of the one that is open: SQLite would go on in that, if it is in WAL mode."""
        return self._opened is not None and self._opened != self._identity()

    def _identity(self) -> str | None:
        storage, path = locate(self._url.removeprefix(SQLITE), name="url")
        entry = entry_at(storage, path)
        return None if entry is None else entry.identity

    def _heard(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _settle(self) -> None:
        self.execute(f"PRAGMA busy_timeout = {self._lock_millis}")
        # Removing the journal is the commit, and this syncs the removal, too.
        self.execute("PRAGMA synchronous = EXTRA")
        self.execute("PRAGMA foreign_keys = ON")  # SQLite ignores them by default
        self.execute("PRAGMA schema_version")  # opens the file, which connecting does not
        self._opened = self._identity()

    def _ingest(self, table: tuple[str, ...], rows: pa.RecordBatchReader) -> None:
        catalog = table[0] if len(table) > 1 else None
        self._cursor.adbc_ingest(table[-1], rows, mode="append", catalog_name=catalog)

    def _name(self) -> str:
        return f"SQLite at {self._url.removeprefix(SQLITE)!r}"

    def _words(self, words: str) -> str:
        words = re.sub(r" query was: .*", "", words)
        return re.sub(
            "failed to allocate memory$", "see that its directory is there, and that the driver may write in it", words
        )

    def _once_more(self, error: Any, words: str, *, opening: bool) -> bool:  # noqa: ANN401, ARG002 - the driver's; SQLite tells by words
        return any(text in words for text in self._again)

    def _is_about_rows(self, error: Any, words: str) -> bool:  # noqa: ANN401 - an error of the driver
        import adbc_driver_manager as adbc

        return isinstance(error, adbc.IntegrityError) or any(text in words for text in self._rows)
