"""`df.write.format("penstock")`: one batch into an output, exactly once. Its rules are those of `sink.keyed`.

Spark makes a writer in a process of the driver, and pickles it for the tasks and for the process that commits. So the batch begins
once, when the writer is pickled, and what it learned at its beginning travels: unlike in a stream, the writer that began the batch also
commits it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from penstock.options import SINK, parse
from penstock.sink.keyed import KeyedBatch
from penstock.sink.sink import Sink
from penstock.spark.border import border
from penstock.spark.writing import columns_of_spark, of_spark
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.options import Options
    from penstock.sink.batch import Begun, TaskResult


@dataclass
class TaskWritten(WriterCommitMessage):
    """The message that Spark takes from a task to the commit; `None` from a task that had nothing to do."""

    result: TaskResult | None


@border
class BatchWriter(DataSourceArrowWriter):
    """The sink for one batch."""

    def __init__(self, options: Options, schema: str) -> None:
        """Take the options of `BATCH_SINK`, and the columns as Spark's JSON."""
        own = parse(SINK, {**options.given_of(SINK), "sinkId": options["sinkId"]}, what="batch write")
        columns = columns_of_spark(schema)
        storage, root = locate(own["path"])
        sink = Sink(storage, root, own, own["sinkId"])
        self._batch = KeyedBatch(sink, columns, partial(of_spark, own, columns), options["batchKey"])
        self._begun: Begun | None = None

    def begin(self) -> Begun:
        """Begin the batch, once."""
        if self._begun is None:
            self._batch.check()
            self._begun = self._batch.begin()
        return self._begun

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, with the batch begun."""
        self.begin()
        return self.__dict__.copy()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Write one task's rows; runs on an executor."""
        from pyspark import TaskContext

        from penstock.session import worker

        worker.settle_writer()
        task = TaskContext.get()
        partition, attempt = (task.partitionId(), task.attemptNumber()) if task else (0, 0)
        written = TaskWritten(self._batch.write(self.begin(), partition, attempt, iterator))
        worker.KEPT.give_back()
        return written

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the batch."""
        results = [message.result for message in messages if isinstance(message, TaskWritten) and message.result]
        self._batch.commit(self.begin(), results)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's signature
        """Abort the batch: what was staged is swept."""
        self._batch.abort(self.begin())
