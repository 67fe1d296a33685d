"""A real database with one table per test, and drivers of a query that write into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock import unique
from penstock.db.database import Database
from penstock.db.databases import database
from penstock.db.sink import Applied, DatabaseSink
from penstock.options import DATABASE, parse
from penstock.query.batch import Batch

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("n", pa.int64())])


@dataclass
class Place:
    """A database, and a table name that nobody else uses."""

    url: str
    table: str = field(default_factory=lambda: f"t{unique.token()[:12]}")
    made: list[Database] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reader = self.database()

    def database(self) -> Database:
        """Return a new client, as another process would have one."""
        self.made.append(database(self.url, lambda: None))
        return self.made[-1]

    def sink(self, schema: pa.Schema = SCHEMA, name: str = "s", **options: str) -> DatabaseSink:
        """Return a sink for this table, checked as at the start of a query."""
        given = {"batchTable": f"{self.table}_batches", "table": self.table, "url": self.url} | options
        made = DatabaseSink(parse(DATABASE, given, what="database sink"), name, schema)
        made.check(self.database())
        return made

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return rows as an independent session sees them; `{t}` is the table. A new session would take PostgreSQL 0.1 s."""
        return self.reader.run(lambda db: db.execute(sql.format(t=f'"{self.table}"', b=f'"{self.table}_batches"')))

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the table, in order."""
        return sorted(self.query("SELECT * FROM {t}"), key=str)

    def last(self) -> Any:
        """Return the last batch that was applied."""
        return self.query("SELECT batch_id FROM {b}")[0][0]

    def rejected(self) -> list[tuple[Any, ...]]:
        """Return the rejected rows with their reasons."""
        return self.query(f'SELECT reason, "row" FROM "{self.table}_rejected" ORDER BY "row"')

    def close(self) -> None:
        """Close what was opened."""
        for client in self.made:
            client.close()

    @property
    def is_sqlite(self) -> bool:
        """Tell whether the database is SQLite."""
        return self.url.startswith("sqlite:")


def batch(*rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Return rows."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def ten(number: int, *, of: str = "a") -> pa.RecordBatch:
    """Return ten rows whose ids show which batch they belong to."""
    return batch(*((10 * number + i, f"{of}{i}", 1) for i in range(10)))


At = Callable[[str], Place]


@dataclass
class Driver:
    """A driver of one query: `run` begins and commits a batch, as Spark would."""

    place: Place
    name: str = "d1"
    query: str = "q"
    options: dict[str, str] = field(default_factory=dict)
    schema: pa.Schema = SCHEMA
    sink_id: str = "s"

    def __post_init__(self) -> None:
        self.sink = self.place.sink(self.schema, self.sink_id, **self.options)
        self.db = self.place.database()

    def begin(self, number: int, mark: str = "") -> int:
        """Begin a batch."""
        return self.sink.begin(self.db, self.name, Batch(self.query, number, mark))

    def commit(self, number: int, rows: Callable[[], Iterable[pa.RecordBatch]], mark: str = "") -> Applied:
        """Commit a batch."""
        return self.sink.commit(self.db, self.name, Batch(self.query, number, mark), rows)

    def run(self, number: int, *rows: pa.RecordBatch, mark: str = "") -> Applied:
        """Begin and commit a batch."""
        self.begin(number, mark)
        return self.commit(number, lambda: rows, mark)
