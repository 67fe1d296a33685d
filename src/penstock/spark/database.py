"""`format("penstock-db")`: Spark's Python data source over the database sink. Tasks stage, the driver alone talks to the database.

So executors need neither its drivers nor its password, and one that is given up can leave nothing behind in it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.errors import OptionError
from penstock.options import DATABASE, Options, parse
from penstock.spark.border import border

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.db.database import Database
    from penstock.db.sink import BatchId, DatabaseSink
    from penstock.db.staging import Staged, StagingFiles
    from penstock.sink.sink import Batch

_log = logging.getLogger("penstock.db")


@border
class DatabaseDataSource(DataSource):
    """Tables as exactly-once sinks; the options are `penstock.options.DATABASE`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "penstock-db"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DatabaseStreamWriter:  # noqa: FBT001, N802 - Spark's signature
        """Return the sink."""
        if overwrite:
            msg = 'penstock-db cannot replace the table at every batch: use outputMode("append"), and mode=upsert or mode=merge'
            raise OptionError(msg)
        return DatabaseStreamWriter(parse(DATABASE, dict(self.options), what="database sink"), schema.json())

    def schema(self) -> NoReturn:
        """Say that tables are read by others: who reads is asked for the columns first."""
        msg = "format penstock-db does not read: expected df.writeStream; Spark's own format jdbc reads tables"
        raise OptionError(msg)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002, FBT001 - Spark's signature
        """Say that a batch, which has no id to be repeated by, is not written."""
        msg = (
            "format penstock-db is a stream: expected df.writeStream, whose batches have ids, so that one that is repeated "
            "changes nothing; for what is there now, and no more, .trigger(availableNow=True)"
        )
        raise OptionError(msg)


@dataclass
class StagedMessage(WriterCommitMessage):
    """What a task reports to the commit."""

    query: str
    staged: Staged


@border
class DatabaseStreamWriter(DataSourceStreamArrowWriter):
    """The sink of one query for one batch; see `db.sink`. It begins the batch when it is pickled, as `PenstockStreamWriter`."""

    def __init__(self, options: Options, schema: str) -> None:
        from penstock.formats.schema import to_arrow
        from penstock.spark.writing import sink_id

        self._options = options
        self._schema = to_arrow(schema)
        self._sink_id = sink_id(options)
        self._applied: int | None = None
        sink, database = self._sink()
        sink.check(database)
        self._staging("")  # refuses a location that cannot be used

    def __getstate__(self) -> dict[str, Any]:
        """Begin the batch, once, and travel with the last batch that is applied."""
        if self._applied is None:
            self._applied = self._begin()
        return self.__dict__.copy()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage one task's rows; runs on an executor."""
        from penstock.db.staging import Staged
        from penstock.formats.schema import conform
        from penstock.spark import worker
        from penstock.spark.checkpoint import task_batch

        query, batch, partition = task_batch()
        worker.settle_writer()
        assert self._applied is not None  # noqa: S101 - it was pickled to get here
        if batch <= self._applied:
            return StagedMessage(query, Staged((), sum(batch_of_rows.num_rows for batch_of_rows in iterator)))
        rows = (conform(batch_of_rows, self._schema) for batch_of_rows in iterator)
        return StagedMessage(query, self._staging(query).write(batch, partition, self._schema, rows))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Apply the batch."""
        from penstock.spark.writing import batch_of, checkpoint_of, overtaken_is_fenced, owner

        told = [message for message in messages if isinstance(message, StagedMessage)]
        checkpoint = checkpoint_of(self._options)
        batch = batch_of(checkpoint, told, batchId)
        staging, staged = self._staging(batch.query), [message.staged for message in told]
        sink, database = self._sink()
        driver = owner(self._options, self._sink_id)
        with overtaken_is_fenced(checkpoint, batch):
            done = sink.commit(database, driver, _id_of(batch), lambda: staging.read(staged))
        staging.sweep(batchId)
        rows = sum(each.rows for each in staged)
        if done.skipped:
            _log.warning("batch %d of query %s was applied before: %d rows skipped", batchId, batch.query, rows)
        elif done.rejected:
            _log.warning("batch %d of query %s: %d of %d rows rejected", batchId, batch.query, done.rejected, rows)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's signature
        """Remove what is known to be staged for nothing."""
        for message in messages:
            if isinstance(message, StagedMessage):
                self._staging(message.query).remove([message.staged])

    def _begin(self) -> int:
        from penstock.spark.writing import checkpoint_of, overtaken_is_fenced, owner

        checkpoint = checkpoint_of(self._options)
        batch = checkpoint.current() if checkpoint else None
        if checkpoint and batch:
            checkpoint.persist(batch.number)
        sink, database = self._sink()
        with overtaken_is_fenced(checkpoint, batch):
            return sink.begin(database, owner(self._options, self._sink_id), _id_of(batch) if batch else None)

    def _sink(self) -> tuple[DatabaseSink, Database]:
        from penstock.db.sink import DatabaseSink

        sink = DatabaseSink(self._options, self._sink_id, self._schema)
        return sink, _database(self._options["url"], self._options["password"])

    def _staging(self, query: str) -> StagingFiles:
        from penstock.db.staging import StagingFiles

        location = self._options["stagingLocation"] or self._options["checkpointLocation"]
        if location is None:
            msg = (
                'the sink needs a place for rows that wait for their transaction: .option("stagingLocation", directory)'
            )
            raise OptionError(msg)
        return StagingFiles(location, query)


@cache
def _database(url: str, password: str | None) -> Database:
    """Return the database; one a process, so that its connection outlives the batch."""
    from penstock.db.databases import database
    from penstock.db.target import secret

    return database(url, lambda: secret(password))


def _id_of(batch: Batch) -> BatchId:
    from penstock.db.sink import BatchId

    return BatchId(batch.query, batch.number, batch.fingerprint)
