"""Loading rows into the table, within a transaction.

Rows that are only appended go straight into the table. Other rows go to a temporary table, from which one statement
takes them into the table: it resolves keys that come again, and converts types.

- upsert: of equal keys in a batch the last row counts, by partition and then by position in it.
- merge: equal keys in a batch are added up first. Null adds nothing.

With a quarantine each piece of a batch (what a task got from Spark at once, about 10,000 rows) has a savepoint. A piece
that the database refuses is halved until the refused rows are found. Without a quarantine, a refused batch is loaded
once more in this way and rolled back, so that the error can show the first refused row: databases do not say which row
it is.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.db.database import ROW, shortened
from penstock.db.target import quoted
from penstock.errors import OptionError, PenstockError, RowRefused, TableMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.db.database import Column, Database

REJECTED = {"sink_id": "text", "batch_id": "bigint", "reason": "text", "row": "text"}
_ALIAS = quoted("penstock target")
_DAY_MICROS = 86_400_000_000
_LONG_MAX = 2**63 - 1
_MEND = "mend it, or use badRows=quarantine"


@dataclass(frozen=True)
class Rejects:
    """Where refused rows go, and under which sink and batch; without a table a refused row fails the batch."""

    table: tuple[str, ...] | None
    sink_id: str
    batch: int


def check_columns(columns: Mapping[str, Column], names: Iterable[str], table: tuple[str, ...]) -> None:
    """Raise `TableMismatch` unless a table has these columns, and needs no other columns."""
    missing = [name for name in names if name not in columns]
    if missing:
        msg = (
            f"table {'.'.join(table)!r} has no column {', '.join(map(repr, missing))}: found {', '.join(columns) or 'no table'}; add it "
            "to the table, or leave it out of the query (names are compared with regard to case)"
        )
        raise TableMismatch(msg)
    needed = [name for name, column in columns.items() if column.needed and name not in names]
    if needed:
        msg = (
            f"table {'.'.join(table)!r} needs a value for {', '.join(map(repr, needed))} in every row, and has no default: "
            "give it a default, let it be null, or add the column to the query"
        )
        raise TableMismatch(msg)


class Loading:
    """The rows of one batch. `stored` and `rejected` count them."""

    def __init__(
        self,
        db: Database,
        table: tuple[str, ...],
        schema: pa.Schema,
        mode: str,
        keys: tuple[str, ...],
        rejects: Rejects,
    ) -> None:
        self._db, self._table, self._schema = db, table, schema
        self._mode, self._keys, self._rejects = mode, keys, rejects
        self._types = db.types(schema)
        self._columns = db.columns(table)
        check_columns(self._columns, schema.names, table)
        self._direct = mode == "append" and db.takes(table, self._types)
        self._checks = list(self._tests())
        self.stored = self.rejected = 0

    def try_out(self) -> None:
        """Run the loading statements on no rows."""
        with self._staged():
            self._store([])

    def load(self, rows: Iterable[pa.RecordBatch], *, singly: bool = False) -> None:
        """Load all rows; `RowRefused` for a row that cannot be stored, unless there is a table for such rows.

        `singly`: take the longer way of a quarantine even without one, so that the error has the first row that is
        refused on its own.
        """
        with self._staged():
            if self._rejects.table is None and not singly:
                self._store(self._fit(rows))
            else:
                for batch in self._fit(rows):
                    self._store_or_reject(batch)

    @contextmanager
    def _staged(self) -> Iterator[None]:
        if not self._direct:
            self._db.create(self._db.staged, {ROW: self._db.number, **self._types})
        yield
        if not self._direct:
            self._db.execute(f"DROP TABLE {self._db.named(self._db.staged)}")

    def _fit(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows without those that are known to be bad: no key, or a value that would be stored as another one."""
        for batch in rows:
            fit = batch
            for name, reason, test in self._checks:
                bad = pc.fill_null(test(fit.column(name)), fill_value=False)
                if pc.any(bad).as_py():
                    self._reject(fit.filter(bad), reason)
                    fit = fit.filter(pc.invert(bad))
            if fit.num_rows:
                yield fit

    def _tests(self) -> Iterator[tuple[str, str, Callable[[pa.Array], pa.Array]]]:
        """Yield each column, why a row of it may be bad, and a test for bad rows."""
        for field in self._schema:
            for reason, test in self._tests_of(field):
                yield field.name, reason, test

    def _tests_of(self, field: pa.Field) -> Iterator[tuple[str, Callable[[pa.Array], pa.Array]]]:
        """Yield why a value of one column may be bad, and a test for bad values."""
        name, is_key = field.name, field.name in self._keys
        kind = _element(field.type)
        if is_key:
            yield f"key column {name!r} is null", pc.is_null
        if types.is_floating(field.type) and not self._db.has_nan:
            yield f"column {name!r} is NaN, which the database would store as null", pc.is_nan
            if self._mode == "merge" and not is_key:
                yield f"column {name!r} is infinite, and a sum with it may not be a number", pc.is_inf
        if types.is_string(kind):
            yield f"column {name!r} is not text in UTF-8", partial(_within, _is_no_text)
        if types.is_temporal(kind):
            yield f"column {name!r} has a time that the database cannot hold", partial(_within, self._is_out_of_time)

    def _is_out_of_time(self, column: pa.Array) -> pa.Array:
        first, last = self._db.days
        if types.is_date(column.type):
            values = column.view(pa.int32())
        else:
            values = column.view(pa.int64())
            first, last = first * _DAY_MICROS, min((last + 1) * _DAY_MICROS - 1, _LONG_MAX)
        return pc.or_(pc.less(values, first), pc.greater(values, last))

    def _store_or_reject(self, rows: pa.RecordBatch) -> None:
        try:
            with self._db.savepoint():
                self._store([rows])
        except RowRefused as error:
            half = rows.num_rows // 2
            if half == 0:
                self._reject(rows, error.message)
                return
            self._store_or_reject(rows.slice(0, half))
            self._store_or_reject(rows.slice(half))

    def _store(self, rows: Iterable[pa.RecordBatch]) -> None:
        stored = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal stored
            for batch in rows:
                stored += batch.num_rows
                yield self._db.prepared(batch)

        schema = self._db.prepared(pa.RecordBatch.from_pylist([], self._schema)).schema
        self._db.load(self._table if self._direct else self._db.staged, schema, counted())
        if not self._direct:
            self._db.execute(self._statement())
            self._check_sums()
            self._db.execute(f"DELETE FROM {self._db.named(self._db.staged)}")  # noqa: S608 - names are quoted
        self.stored += stored

    def _reject(self, rows: pa.RecordBatch, reason: str) -> None:
        if self._rejects.table is None:
            msg = f"{reason}: row {shortened(_lines(rows.slice(0, 1))[0])}; {_MEND}"
            raise RowRefused(msg)
        fixed = (self._rejects.sink_id, self._rejects.batch, reason)
        columns = [pa.repeat(value, rows.num_rows) for value in fixed]
        table = pa.RecordBatch.from_arrays([*columns, pa.array(_lines(rows), pa.string())], names=list(REJECTED))
        self._db.load(self._rejects.table, table.schema, [table])
        self.rejected += rows.num_rows

    def _statement(self) -> str:
        """Return the statement that takes the staged rows into the table. All names are quoted; there are no values."""
        target, staged, row = self._db.named(self._table), self._db.named(self._db.staged), quoted(ROW)
        names = [quoted(name) for name in self._schema.names]
        into = f"INSERT INTO {target} AS {_ALIAS} ({', '.join(names)})"
        casts = [
            self._columns[field.name].cast if types.is_string(_element(field.type)) else None for field in self._schema
        ]
        taken = [f"{name}::{cast}" if cast else name for name, cast in zip(names, casts, strict=True)]
        if self._mode == "append":
            return f"{into} SELECT {', '.join(taken)} FROM {staged} ORDER BY {row}"  # noqa: S608 - names are quoted
        return f"{into} {self._resolved(staged, row, names, taken)}"

    def _resolved(self, staged: str, row: str, names: list[str], taken: list[str]) -> str:
        """Return what one row of each key becomes, and what it does to an existing row; the arguments are SQL."""
        keys = [quoted(name) for name in self._keys]
        values = [name for name in names if name not in keys]
        by = ", ".join(keys)
        if self._mode == "upsert":
            rows = f"SELECT {', '.join(taken)} FROM {staged} WHERE {row} IN (SELECT max({row}) FROM {staged} GROUP BY {by})"  # noqa: S608 - names are quoted
            changes = [f"{name} = excluded.{name}" for name in values]
        else:
            sums = [value if name in keys else f"sum({name})" for name, value in zip(names, taken, strict=True)]
            rows = f"SELECT {', '.join(sums)} FROM {staged} WHERE true GROUP BY {by}"  # noqa: S608 - names are quoted
            changes = [f"{n} = coalesce({_ALIAS}.{n} + excluded.{n}, {_ALIAS}.{n}, excluded.{n})" for n in values]
        action = f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING"
        return f"{rows} ON CONFLICT ({by}) DO {action}"

    def _check_sums(self) -> None:
        """Refuse sums that do not fit: SQLite would store a nearby float instead of a whole number, and infinity for floats."""
        sums = [field for field in self._schema if field.name not in self._keys]
        if self._mode != "merge" or not sums or self._db.has_nan:
            return
        same = " AND ".join(f"{_ALIAS}.{quoted(key)} = staged.{quoted(key)}" for key in self._keys)
        floats = ", ".join(map(_is_too_large, sums))
        sql = (
            f"SELECT 1 FROM {self._db.named(self._table)} AS {_ALIAS} JOIN {self._db.named(self._db.staged)} AS staged ON {same} "  # noqa: S608 - names are quoted
            f"WHERE 1 IN ({floats}) LIMIT 1"
        )
        if self._db.execute(sql):
            msg = f"a sum in {', '.join(repr(field.name) for field in sums)} does not fit into 64 bits"
            raise RowRefused(msg)


def names_row(error: PenstockError) -> bool:
    """Tell whether an error shows the row that was refused."""
    return isinstance(error, RowRefused) and error.message.endswith(_MEND)


def _is_too_large(field: pa.Field) -> str:
    """Return SQL that tells whether SQLite stored a sum as a float instead of a whole number, or as infinity."""
    column = f"{_ALIAS}.{quoted(field.name)}"
    end = "9e999" if types.is_floating(field.type) else str(_LONG_MAX + 1)
    return f"typeof({column}) = 'real' AND ({column} >= {end} OR {column} <= -{end})"


def _element(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values: of a list, that of its values, else the type itself."""
    return kind.value_type if types.is_list(kind) else kind


def _within(test: Callable[[pa.Array], pa.Array], column: pa.Array) -> pa.Array:
    """Tell for which values a test holds; for a list, whether it holds for one of its values."""
    if not types.is_list(column.type):
        return test(column)
    bad = pc.fill_null(test(column.flatten()), fill_value=False)
    return pc.is_in(pa.array(np.arange(len(column))), pc.list_parent_indices(column).filter(bad))


def _is_no_text(column: pa.Array) -> pa.Array:
    """Tell which texts are not UTF-8: Spark accepts any bytes as text, and Arrow does not check."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        half = len(column) // 2
        halves = (column.slice(0, half), column.slice(half)) if half else ()
        return pa.concat_arrays(map(_is_no_text, halves)) if half else pa.array([True])
    return pa.repeat(False, len(column))  # noqa: FBT003 - a value of Arrow


def _lines(rows: pa.RecordBatch) -> list[str]:
    """Return rows as JSON. Times whose year does not have four digits are counts of days or microseconds from 1970."""
    from penstock.formats.json.lines import json_lines  # only for refused rows, of which there are few

    try:
        text = json_lines(rows)
    except OptionError:
        return _lines(rows.cast(pa.schema([field.with_type(_counted(field.type)) for field in rows.schema])))
    return bytes(text).decode(errors="replace").split("\n")[:-1]


def _counted(kind: pa.DataType) -> pa.DataType:
    if types.is_list(kind):
        return pa.list_(_counted(kind.value_type))
    return pa.int32() if types.is_date(kind) else pa.int64() if types.is_timestamp(kind) else kind
