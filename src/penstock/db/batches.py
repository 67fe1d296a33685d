"""The database sink as a query writes to it: tasks stage rows, and only the driver talks to the database.

So executors need neither the database's drivers nor its password, and an executor that is lost can leave nothing behind
in it.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

from penstock import clock, tally
from penstock.db.staging import Staged, StagingFiles
from penstock.errors import OptionError
from penstock.formats.conforming import conform
from penstock.query.writing import BatchSink

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from penstock.db.database import Database
    from penstock.db.sink import DatabaseSink
    from penstock.options import Options
    from penstock.query.batch import Batch, Task

_log = logging.getLogger("penstock.db")


class TableBatches(BatchSink[int, Staged]):
    """A `DatabaseSink`, and the place where the rows of its batches wait. A batch begins with the number of the last applied batch."""

    def __init__(self, options: Options, sink_id: str, schema: pa.Schema) -> None:
        self._options, self._sink_id, self._schema = options, sink_id, schema

    def check(self) -> None:
        """Raise `OptionError` for anything that can be found without asking the database."""
        self._sink().check(self._database())
        self._staging("")  # refuses a location that cannot be used

    def begin(self, driver: str, batch: Batch | None) -> int:
        """Take the sink over; return the last applied batch."""
        return self._sink().begin(self._database(), driver, batch)

    def write(self, begun: int, task: Task, rows: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a task's rows. If the batch is already applied, only count them."""
        if task.batch <= begun:
            return Staged((), sum(batch.num_rows for batch in rows))
        conformed = (conform(batch, self._schema) for batch in rows)
        return self._staging(task.query).write(task.batch, task.partition, self._schema, conformed)

    def commit(self, driver: str, batch: Batch, results: Sequence[Staged]) -> None:
        """Apply the batch; log what was skipped or rejected."""
        staging = self._staging(batch.query)
        begin = clock.monotonic()
        done = self._sink().commit(self._database(), driver, batch, lambda: staging.read(results))
        took = {tally.DATABASE_SECONDS: clock.monotonic() - begin, tally.DATABASE_SKIPPED: done.skipped}
        tally.add(took | {tally.DATABASE_ROWS: done.rows, tally.DATABASE_REJECTED: done.rejected})
        staging.sweep(batch.number)
        rows = sum(staged.rows for staged in results)
        if done.skipped:
            _log.warning("batch %d of query %s was applied before: %d rows skipped", batch.number, batch.query, rows)
        elif done.rejected:
            _log.warning("batch %d of query %s: %d of %d rows rejected", batch.number, batch.query, done.rejected, rows)

    def abort(self, query: str, results: Sequence[Staged]) -> None:
        """Remove files that are known to be staged in vain."""
        self._staging(query).remove(results)

    def _sink(self) -> DatabaseSink:
        from penstock.db.sink import DatabaseSink  # tasks do not need it

        return DatabaseSink(self._options, self._sink_id, self._schema)

    def _database(self) -> Database:
        return _database(self._options["url"], self._options["password"])

    def _staging(self, query: str) -> StagingFiles:
        location = self._options["stagingLocation"] or self._options["checkpointLocation"]
        if location is None:
            msg = (
                'the sink needs a place for rows that wait for their transaction: .option("stagingLocation", directory)'
            )
            raise OptionError(msg)
        return StagingFiles(location, query)


@cache
def _database(url: str, password: str | None) -> Database:
    """Return the database; there is one per process, so its connection outlives the batch."""
    from penstock.db.databases import database
    from penstock.storage import secret

    return database(url, lambda: None if password is None else secret(password, "password"))
