"""Which column type holds which values: one table for each database. A column type without a place in it is refused by name.

    Arrow (Spark)               PostgreSQL                  SQLite
    bool                        boolean                     INTEGER, 0 or 1
    int8, int16 (byte, short)   smallint                    INTEGER
    int32, int64                integer, bigint             INTEGER
    float32, float64            real, double precision      REAL; NaN is refused, as SQLite would store null
    decimal(p, s)               numeric(p, s)               -
    string                      text                        TEXT
    binary                      bytea                       BLOB
    date                        date                        TEXT: 2026-01-31
    timestamp                   timestamp with time zone    TEXT: 2026-01-31 12:00:00.000000Z
    timestamp_ntz               timestamp without time zone TEXT: 2026-01-31 12:00:00.000000
    array of the above          the same with []            -

`docs/db.md` has this table for users.
"""

from __future__ import annotations

import re
from math import inf
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.errors import OptionError
from penstock.formats.schema import spark_name

if TYPE_CHECKING:
    from collections.abc import Callable

_POSTGRESQL = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp with time zone",
    pa.timestamp("us"): "timestamp without time zone",
}
_WHOLE = frozenset({"smallint", "integer", "bigint"})
_FLOATS = frozenset({"real", "double precision"})
# The last two make 4294967295 of -1.
_CHANGED_WHOLE = frozenset(
    {("integer", "real"), ("bigint", "real"), ("bigint", "double precision"), ("smallint", "oid"), ("integer", "oid")}
)
_SQLITE = {
    **dict.fromkeys((pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()), "INTEGER"),
    **dict.fromkeys((pa.float32(), pa.float64()), "REAL"),
    **dict.fromkeys((pa.string(), pa.date32(), pa.timestamp("us", tz="UTC"), pa.timestamp("us")), "TEXT"),
    pa.binary(): "BLOB",
}
_MONEY_DIGITS = 2  # with nearly every `lc_monetary` of a server

# In this order: the first whose text is part of the declared type (sqlite.org/datatype3.html).
_AFFINITIES = {
    "INTEGER": ("INT",),
    "TEXT": ("CHAR", "CLOB", "TEXT"),
    "BLOB": ("BLOB",),
    "REAL": ("REAL", "FLOA", "DOUB"),
}


def postgresql_types(schema: pa.Schema) -> dict[str, str]:
    """Return the type of each column, by name; `OptionError` with the name of a column that PostgreSQL cannot hold."""
    return _columns(schema, _in_postgresql, "PostgreSQL")


def sqlite_types(schema: pa.Schema) -> dict[str, str]:
    """Return the type of each column, by name; `OptionError` with the name of a column that SQLite cannot hold."""
    return _columns(schema, _SQLITE.get, "SQLite")


def rounds_in_postgresql(given: str, column: str) -> bool:
    """Tell whether a column accepts values of type `given`, but stores some of them with fewer digits, or without blanks."""
    given, column = given.removesuffix("[]"), column.removesuffix("[]")
    if given == column:
        return False
    if given.startswith("timestamp"):
        return column == "date" or column.startswith("time ") or "(" in column  # a time of day loses its day
    if given == "text":
        return column in {"name", '"char"'} or bool(re.match(r"character.*\(|time.*\(|interval.", column))
    return _rounds_numbers(given, column)


def _rounds_numbers(given: str, column: str) -> bool:
    if given in _FLOATS:
        return column == "real" or column in _WHOLE or column.startswith("numeric")
    if given in _WHOLE:
        return (given, column) in _CHANGED_WHOLE
    return given.startswith("numeric") and (column in _FLOATS or _scale(column) < _scale(given))


def _scale(kind: str) -> float:
    """Return how many digits a PostgreSQL type has after the point."""
    if kind in _WHOLE:
        return 0
    if kind == "money":
        return _MONEY_DIGITS
    match = re.fullmatch(r"numeric\([0-9]+,(-?[0-9]+)\)", kind)
    return int(match[1]) if match else inf


def changes_in_sqlite(given: pa.DataType, column: str) -> bool:
    """Tell whether a column declared like this would change some of the given values, by SQLite's rules of affinity."""
    affinity = _affinity(column.upper())
    if types.is_string(given):
        return affinity in {"INTEGER", "REAL", "NUMERIC"}  # text that looks like a number becomes a number
    if affinity == "TEXT":
        return is_number(given) or types.is_boolean(given)
    return affinity == "REAL" and types.is_int64(given)


def _affinity(declared: str) -> str:
    for affinity, words in _AFFINITIES.items():
        if any(word in declared for word in words):
            return affinity
    return "NUMERIC" if declared else "BLOB"


def is_number(kind: pa.DataType) -> bool:
    """Tell whether values of the type can be added up."""
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def for_sqlite(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with dates and times as text: SQLite has no type for them."""
    return pa.RecordBatch.from_arrays([_stored(column) for column in batch.columns], names=batch.schema.names)


def _stored(column: pa.Array) -> pa.Array:
    if types.is_date(column.type):
        return pc.cast(column, pa.string())
    if not types.is_timestamp(column.type):
        return column
    local = pc.cast(pc.cast(column, pa.timestamp("us")), pa.string())  # with a zone the cast takes fifty times as long
    return local if column.type.tz is None else pc.binary_join_element_wise(local, "Z", "")


def _columns(schema: pa.Schema, type_of: Callable[[pa.DataType], str | None], database: str) -> dict[str, str]:
    columns = {}
    for field in schema:
        kind = type_of(field.type)
        if kind is None:
            msg = (
                f"column {field.name!r} is of type {spark_name(field.type)}, for which {database} has none here; convert it in "
                "the query, for instance to string with to_json or cast, or leave it out"
            )
            raise OptionError(msg)
        columns[field.name] = kind
    return columns


def _in_postgresql(kind: pa.DataType) -> str | None:
    if types.is_list(kind):
        element = None if types.is_list(kind.value_type) else _in_postgresql(kind.value_type)
        return element and f"{element}[]"
    if types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    return _POSTGRESQL.get(kind)
