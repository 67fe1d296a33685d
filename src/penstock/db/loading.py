"""Rows on their way into the table, within a transaction.

Rows that are only appended go where they belong at once. Others go to a temporary table, and one statement takes them
from there: it decides what a key that comes again means, and converts types.

- upsert: of equal keys in a batch the last row counts, by partition and then by place in it.
- merge: equal keys in a batch are added up first. Null adds nothing.

With a quarantine each piece of a batch (what a task got at once from Spark, about 10,000 rows) has a savepoint. A piece
that the database refuses is halved until the rows are found for whose sake it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.db.database import ROW
from penstock.db.target import quoted
from penstock.errors import RowRefused
from penstock.formats import WriteFormat, encoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.db.database import Database

REJECTED = {"sink_id": "text", "batch_id": "bigint", "reason": "text", "row": "text"}
_ALIAS = quoted("penstock target")


@dataclass(frozen=True)
class Rejects:
    """Where rows go that are refused, and under which sink and batch; without a table a refused row fails the batch."""

    table: tuple[str, ...] | None
    sink_id: str
    batch: int


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
        found = db.columns(table)
        self._direct = mode == "append" and all(db.takes(found[name], kind) for name, kind in self._types.items())
        self.stored = self.rejected = 0

    def load(self, rows: Iterable[pa.RecordBatch]) -> None:
        """Load all rows; `RowRefused` for one that cannot be stored, unless there is a table for them."""
        if not self._direct:
            self._db.create(self._db.staged, {ROW: self._db.number, **self._types})
        if self._rejects.table is None:
            self._store(self._fit(rows))
        else:
            for some in self._fit(rows):
                self._store_or_reject(some)
        if not self._direct:
            self._db.execute(f"DROP TABLE {self._db.named(self._db.staged)}")

    def _fit(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows without those that are known to be bad: no key, or a value that would be stored as another."""
        for some in rows:
            fit = some
            for name in some.schema.names:
                bad, reason = self._bad(name, fit.column(name))
                if pc.any(bad).as_py():
                    self._reject(fit.filter(bad), reason)
                    fit = fit.filter(pc.invert(bad))
            if fit.num_rows:
                yield fit

    def _bad(self, name: str, column: pa.Array) -> tuple[pa.Array, str]:
        if name in self._keys:
            return pc.is_null(column), f"key column {name!r} is null"
        if types.is_floating(column.type) and not self._db.has_nan:
            return pc.fill_null(
                pc.is_nan(column), fill_value=False
            ), f"column {name!r} is NaN, which the database would store as null"
        return pa.array([], pa.bool_()), ""

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
            for some in rows:
                stored += some.num_rows
                yield self._db.prepared(some)

        schema = self._db.prepared(pa.RecordBatch.from_pylist([], self._schema)).schema
        self._db.load(self._table if self._direct else self._db.staged, schema, counted())
        if not self._direct:
            self._db.execute(self._statement())
            self._check_sums()
            self._db.execute(f"DELETE FROM {self._db.named(self._db.staged)}")  # noqa: S608 - names are quoted
        self.stored += stored

    def _reject(self, rows: pa.RecordBatch, reason: str) -> None:
        if self._rejects.table is None:
            shown = encoder(WriteFormat("json", self._schema)).encode(rows.slice(0, 1))
            msg = f"{reason}: row {bytes(shown).decode().strip()}; mend it, or take badRows=quarantine"
            raise RowRefused(msg)
        lines = bytes(encoder(WriteFormat("json", self._schema)).encode(rows)).decode().split("\n")[:-1]
        fixed = (self._rejects.sink_id, self._rejects.batch, reason.replace("\0", ""))
        columns = [pa.repeat(value, rows.num_rows) for value in fixed]
        table = pa.RecordBatch.from_arrays([*columns, pa.array(lines, pa.string())], names=list(REJECTED))
        self._db.load(self._rejects.table, table.schema, [table])
        self.rejected += rows.num_rows

    def _statement(self) -> str:
        """Return what takes the staged rows into the table. All names are quoted; there are no values."""
        target, staged, row = self._db.named(self._table), self._db.named(self._db.staged), quoted(ROW)
        names = [quoted(name) for name in self._schema.names]
        keys = [quoted(name) for name in self._keys]
        values = [name for name in names if name not in keys]
        into = f"INSERT INTO {target} AS {_ALIAS} ({', '.join(names)})"
        if self._mode == "append":
            return f"{into} SELECT {', '.join(names)} FROM {staged} ORDER BY {row}"  # noqa: S608 - as said
        by = ", ".join(keys)
        if self._mode == "upsert":
            chosen = f"SELECT {', '.join(names)} FROM {staged} WHERE {row} IN (SELECT max({row}) FROM {staged} GROUP BY {by})"  # noqa: S608 - as said
            changes = [f"{name} = excluded.{name}" for name in values]
        else:
            sums = [name if name in keys else f"sum({name})" for name in names]
            chosen = f"SELECT {', '.join(sums)} FROM {staged} WHERE true GROUP BY {by}"  # noqa: S608 - as said
            changes = [f"{n} = coalesce({_ALIAS}.{n} + excluded.{n}, {_ALIAS}.{n}, excluded.{n})" for n in values]
        action = f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING"
        return f"{into} {chosen} ON CONFLICT ({by}) DO {action}"

    def _check_sums(self) -> None:
        """Refuse sums that do not fit: SQLite would store a float, which is near them, where whole numbers were."""
        whole = [field.name for field in self._schema if types.is_integer(field.type) and field.name not in self._keys]
        if self._mode != "merge" or not whole or self._db.has_nan:
            return
        same = " AND ".join(f"{_ALIAS}.{quoted(key)} = staged.{quoted(key)}" for key in self._keys)
        floats = " OR ".join(f"typeof({_ALIAS}.{quoted(name)}) = 'real'" for name in whole)
        sql = (
            f"SELECT 1 FROM {self._db.named(self._table)} AS {_ALIAS} JOIN {self._db.named(self._db.staged)} AS staged ON {same} "  # noqa: S608 - as said
            f"WHERE {floats} LIMIT 1"
        )
        if self._db.execute(sql):
            msg = f"a sum in {', '.join(map(repr, whole))} does not fit into 64 bits"
            raise RowRefused(msg)
