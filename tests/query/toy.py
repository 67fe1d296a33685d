"""A third sink, to show what a sink needs: it writes rows of one string column into one SQLite table, and works with Spark."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock import failpoints
from penstock.errors import DatabaseAway
from penstock.query import fence
from penstock.query.fence import Claim
from penstock.query.order import Last, Nouns, Standing, place
from penstock.query.writing import BatchSink
from penstock.spark.writer import StreamWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.query.batch import Batch, Task

TABLES = """
CREATE TABLE IF NOT EXISTS toy (value TEXT);
CREATE TABLE IF NOT EXISTS last (sink TEXT PRIMARY KEY, driver TEXT, query TEXT, number INTEGER, fingerprint TEXT);
"""


class ToySink(BatchSink[None, list[str]]):
    """Tasks send their rows to the driver, which stores them with the batch's number in one transaction."""

    def __init__(self, path: str, sink_id: str) -> None:
        self.path, self.sink_id = path, sink_id
        self.nouns = Nouns(f"sink {sink_id!r} of {path!r}", "the database", "a new checkpoint and another sinkId")

    def check(self) -> None:
        """Do nothing: any string can be written."""

    def begin(self, driver: str, batch: Batch | None) -> None:
        """Take the sink over."""
        with self.transaction() as db:
            failpoints.hit("toy.begun")
            _, last = self.state(db)
            if batch is not None:
                place(last, batch, self.nouns)
            row = (self.sink_id, driver, last.query, last.number, last.fingerprint)
            db.execute("REPLACE INTO last VALUES (?, ?, ?, ?, ?)", row)

    def write(self, begun: None, task: Task, rows: Iterator[pa.RecordBatch]) -> list[str]:
        """Send the rows to the driver."""
        failpoints.hit("toy.write")
        return [value for batch in rows for value in batch.column(0).to_pylist()]

    def commit(self, driver: str, batch: Batch, results: Sequence[list[str]]) -> None:
        """Store the rows and the batch's number."""
        with self.transaction() as db:
            held, last = self.state(db)
            fence.check(self.nouns.state, held, Claim(driver))
            if place(last, batch, self.nouns) is Standing.APPLIED:
                return
            db.executemany("INSERT INTO toy VALUES (?)", [(value,) for result in results for value in result])
            failpoints.hit("toy.rows")
            row = (self.sink_id, driver, batch.query, batch.number, batch.fingerprint)
            db.execute("REPLACE INTO last VALUES (?, ?, ?, ?, ?)", row)
            failpoints.hit("toy.number")
        failpoints.hit("toy.committed")

    def abort(self, query: str, results: Sequence[list[str]]) -> None:
        """Do nothing: rows that are not committed are in no file."""

    def state(self, db: sqlite3.Connection) -> tuple[Claim, Last]:
        """Return who may commit, and the last batch."""
        columns = "SELECT driver, query, number, fingerprint FROM last WHERE sink = ?"
        driver, *last = db.execute(columns, (self.sink_id,)).fetchone() or ("", "", -1, "")
        return Claim(driver), Last(*last)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection; the changes within the block are applied all together, or not at all."""
        db = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            db.executescript(TABLES)
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise DatabaseAway(str(error)) from error
        finally:
            db.close()


class ToyDataSource(DataSource):
    """`format("toy")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "toy"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's signature
        """Return the sink."""
        return StreamWriter(
            partial(ToySink, self.options["path"]), checkpoint=self.options["checkpointLocation"], sink_id="s"
        )
