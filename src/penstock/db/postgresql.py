"""PostgreSQL as the sink sees it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.db.database import STAGED, Column, Database
from penstock.db.silence import Socket, heard, sockets
from penstock.db.target import check_length, connection_url, ports_of
from penstock.db.types import postgresql_types, rounds_in_postgresql
from penstock.errors import TableMismatch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_IDLE_MILLIS = 30_000  # after which the server ends the transaction of a stalled driver

# The classes of SQLSTATE that the server has. The author of a trigger made up a state of any other class, about a row.
_CLASSES = frozenset(
    {
        "00", "01", "02", "03", "08", "09", "0A", "0B", "0F", "0L", "0P", "0Z", "10", "20", "21", "22", "23", "24",
        "25", "26", "27", "28", "2B", "2D", "2F", "34", "38", "39", "3B", "3D", "3F", "40", "42", "44", "53", "54",
        "55", "57", "58", "72", "F0", "HV", "P0", "XX",
    }
)  # fmt: skip

# A domain accepts no null if it, or a domain that it is made of, does not. A text is cast only to types that Spark does not have, or
# arrays of them, and without a length: the INSERT itself checks the length, and truncates nothing. A time of day, which Spark does not
# have, is in the category of dates, which it has. A dropped column has no type. A type that is no domain has 0 as its base.
_COLUMNS = """
WITH RECURSIVE base AS (
    SELECT oid AS domain, typnotnull, typbasetype, typtypmod FROM pg_catalog.pg_type WHERE typtype = 'd'
    UNION SELECT domain, below.typnotnull, below.typbasetype, below.typtypmod
        FROM pg_catalog.pg_type below JOIN base ON below.oid = base.typbasetype
), made AS (
    SELECT domain, format_type(base.typbasetype, base.typtypmod) AS below FROM base
        JOIN pg_catalog.pg_type last ON last.oid = base.typbasetype WHERE last.typtype <> 'd'
)
SELECT attname::text, format_type(atttypid, atttypmod),
    (attnotnull OR EXISTS (SELECT FROM base WHERE domain = atttypid AND typnotnull))
    AND NOT atthasdef AND attidentity = '' AND type.typdefault IS NULL AND NOT relhastriggers,
    CASE WHEN one.typcategory NOT IN ('A', 'B', 'D', 'N', 'S') AND 'bytea'::regtype NOT IN (one.oid, one.typbasetype)
        OR 'time'::regtype IN (one.oid, one.typbasetype) OR 'timetz'::regtype IN (one.oid, one.typbasetype)
        THEN format_type(atttypid, -1) END,
    coalesce((SELECT below FROM made WHERE domain = atttypid), (SELECT below || '[]' FROM made WHERE domain = one.oid))
FROM pg_catalog.pg_attribute JOIN pg_catalog.pg_class class ON class.oid = attrelid JOIN pg_catalog.pg_type type ON type.oid = atttypid
    JOIN pg_catalog.pg_type one ON one.oid = CASE WHEN type.typcategory = 'A' AND type.typelem <> 0 THEN type.typelem ELSE type.oid END
WHERE attrelid = to_regclass($1) AND attnum > 0 ORDER BY attnum
"""


class PostgreSQL(Database):
    """PostgreSQL 12 or newer."""

    begin, for_update = "BEGIN", " FOR UPDATE"
    number = "bigint GENERATED ALWAYS AS IDENTITY"
    staged = ("pg_temp", STAGED)
    has_nan = True
    days = (-2_440_588, 2**31 - 1)  # from 4714 BC; PostgreSQL itself refuses what is too late
    driver = "adbc_driver_postgresql"
    # Lost connections, shutting down, starting up, too many clients, serialization, deadlock, locked, idle too long.
    _again = ("08", "57P", "53300", "40001", "40P01", "55P03", "25P03")
    # Data, constraints, a view's option, errors raised by triggers; equal keys in a table's own types; too large for a
    # page or an index.
    _rows = ("22", "23", "44", "P0", "21000", "54000")
    # Errors that waiting does not mend. If the server speaks another language, a few tries are made in vain.
    _for_good = (
        "authentication failed",
        "does not exist",
        "no pg_hba.conf entry",
        "permission denied",
        "no password",
        "definition of service",
        "URI",
        "invalid ",
    )
    _before: frozenset[Socket] = frozenset()
    _own: frozenset[Socket] | None = frozenset()  # sockets of the connection; None while it is being made

    def types(self, schema: pa.Schema) -> dict[str, str]:
        """Return the type of each column, by name; `OptionError` for one that PostgreSQL cannot hold."""
        return postgresql_types(schema)

    def check_name(self, name: str) -> None:
        """Raise `OptionError` for a name that PostgreSQL would truncate."""
        check_length(name)

    def columns(self, table: tuple[str, ...]) -> dict[str, Column]:
        """Return a table's columns, by name; none if there is no table. Columns that a trigger may fill in are not called needed."""
        return {name: Column(*column) for name, *column in self.execute(_COLUMNS, self.named(table))}

    def takes(self, table: tuple[str, ...], given: dict[str, str]) -> bool:
        """Tell whether the types are the same, as binary `COPY` converts nothing, and the table allows `COPY` and has no rules.

        A column that is left out gets a null, and `COPY` does not check whether its domain accepts one.
        """
        columns = self.columns(table)
        sql = (
            "SELECT relkind IN ('r', 'p') AND NOT relhasrules AND NOT row_security_active(oid) AND NOT EXISTS (SELECT "
            "FROM pg_catalog.pg_attribute JOIN pg_catalog.pg_type type ON type.oid = atttypid "
            "WHERE attrelid = class.oid AND attnum > 0 AND typtype = 'd' AND NOT $2::text::jsonb ? attname::text) "
            "FROM pg_catalog.pg_class class WHERE oid = to_regclass($1)"
        )
        return self.execute(sql, self.named(table), json.dumps(list(given))) == [(True,)] and all(
            columns[name].type == kind for name, kind in given.items()
        )

    def changes(self, field: pa.Field, column: str) -> bool:
        """Tell whether an `INSERT` rounds some values for a column of this type."""
        return rounds_in_postgresql(self.types(pa.schema([field]))[field.name], column)

    def check_fate(self, *tables: tuple[str, ...]) -> None:
        """Raise `TableMismatch` for a table or partition that a crash of the server empties, or that another server keeps."""
        given = ", ".join(f"(${number}::text)" for number in range(1, len(tables) + 1))
        sql = (
            f"SELECT given.name, relname::text FROM (VALUES {given}) given (name), "  # noqa: S608 - numbers of parameters alone
            "LATERAL (SELECT to_regclass(given.name)::oid AS oid UNION SELECT relid::oid FROM pg_partition_tree(to_regclass(given.name))) "
            "part JOIN pg_catalog.pg_class class ON class.oid = part.oid WHERE relpersistence <> 'p' OR relkind = 'f' LIMIT 1"
        )
        for name, relation in self.execute(sql, *map(self.named, tables)):
            (table,) = (candidate for candidate in tables if self.named(candidate) == name)
            part = "" if relation == table[-1] else f"partition {relation!r} of "
            msg = (
                f"{part}table {'.'.join(table)!r} is UNLOGGED, TEMPORARY or FOREIGN: its rows would not be kept exactly when the "
                "batch is; use a table of the database itself (ALTER TABLE ... SET LOGGED)"
            )
            raise TableMismatch(msg)

    def check_table(self, table: tuple[str, ...], keys: tuple[str, ...] = ()) -> None:
        """Raise `TableMismatch` for a table that is not committed with a transaction, or checks that `keys` are unique too late."""
        self.check_fate(table)
        sql = (
            "SELECT 1 FROM pg_catalog.pg_index JOIN pg_catalog.pg_attribute ON attrelid = indrelid "
            "AND attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1]) WHERE indrelid = to_regclass($1) AND NOT indimmediate "
            "GROUP BY indexrelid HAVING jsonb_agg(attname) @> $2::text::jsonb AND jsonb_agg(attname) <@ $2::text::jsonb"
        )
        if keys and self.execute(sql, self.named(table), json.dumps(keys)):
            msg = (
                f"table {'.'.join(table)!r} has its keyColumns in a DEFERRABLE constraint, which PostgreSQL does not accept for an upsert: "
                "make it NOT DEFERRABLE"
            )
            raise TableMismatch(msg)

    def prepared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows unchanged."""
        return batch

    def _connect(self) -> Any:  # noqa: ANN401 - a connection of a library without types
        from adbc_driver_postgresql import dbapi

        url = connection_url(self._url, self._password())
        self._before, self._own = sockets(), None
        return dbapi.connect(url, autocommit=True)

    def _heard(self) -> AbstractContextManager[None]:
        return heard(lambda: self._new() if self._own is None else self._own)

    def _new(self) -> frozenset[Socket]:
        # The driver does not reveal its socket. It is the new socket to a port of the URL. If another thread opens one
        # at the same time, there are two, and neither is returned.
        ports = ports_of(self._url)
        new = frozenset(each for each in sockets() - self._before if each.asked in ports)
        return new if len(new) == 1 else frozenset()

    def _settle(self) -> None:
        # Set limits, unless others are set. A crash of the server must not lose an acknowledged commit. The server
        # converts between the two kinds of timestamps by the session's zone, so that must not be the zone of a machine.
        # All text in Arrow is UTF-8.
        sql = (
            "SELECT set_config(name, CASE name WHEN 'lock_timeout' THEN $1 WHEN 'synchronous_commit' THEN 'on' "
            "WHEN 'TimeZone' THEN 'UTC' WHEN 'client_encoding' THEN 'UTF8' ELSE $2 END, false) FROM pg_catalog.pg_settings "
            "WHERE name IN ('lock_timeout', 'idle_in_transaction_session_timeout') AND setting = '0' "
            "OR name = 'synchronous_commit' AND setting = 'off' OR name = 'TimeZone' AND source <> 'client' "
            "OR name = 'client_encoding'"
        )
        self.execute(sql, str(self._lock_millis), str(_IDLE_MILLIS))
        # The server knows our socket among the new ones, unless there is a proxy between us.
        ((port,),) = self.execute("SELECT coalesce(inet_client_port()::text, current_setting('port'))")
        self._own = frozenset(each for each in sockets() - self._before if each.port == port) or self._new()

    def _ingest(self, table: tuple[str, ...], rows: pa.RecordBatchReader) -> None:
        # The full name: without a schema the driver would look for the table only in the first schema of the search
        # path.
        sql = (
            "SELECT nspname::text FROM pg_catalog.pg_class class JOIN pg_catalog.pg_namespace space "
            "ON space.oid = relnamespace WHERE class.oid = to_regclass($1)"
        )
        schemas = self.execute(sql, self.named(table))
        self._cursor.adbc_ingest(table[-1], rows, mode="append", db_schema_name=schemas[0][0] if schemas else None)

    def _name(self) -> str:
        return f"PostgreSQL at {self._url.partition('?')[0]!r}"

    def _words(self, words: str) -> str:
        return re.sub(r"^.*?(?=ERROR: )| Query was: .*(?=\. SQLSTATE: )", "", words)

    def _once_more(self, error: Any, words: str, *, opening: bool) -> bool:  # noqa: ANN401 - an error of the driver
        if error.sqlstate is None:
            import adbc_driver_manager as adbc

            for_good = opening and any(text in words for text in self._for_good)
            return isinstance(error, adbc.OperationalError) and not for_good
        return bool(error.sqlstate.startswith(self._again))

    def _is_about_rows(self, error: Any, words: str) -> bool:  # noqa: ANN401, ARG002 - the driver's; its number tells
        state: str = error.sqlstate or ""
        return bool(state) and (state.startswith(self._rows) or state[:2] not in _CLASSES)
