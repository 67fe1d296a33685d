"""Any sink as Spark's stream writer: Spark knows only these two classes, whatever the sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.spark.border import border

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from penstock.query.writing import BatchSink, Started, TaskReport


@dataclass
class TaskMessage(WriterCommitMessage):
    """The message that Spark takes from a task to the commit."""

    report: TaskReport[Any]


@border
class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of one query for one batch; see `query.writing`.

    Spark makes one in the process that starts a batch, pickles it for the tasks, and makes another one in the process that commits. The
    only difference between the two is that the first is pickled. So the batch begins when a writer is pickled, and a writer that is
    never pickled begins nothing.
    """

    def __init__(
        self, opens: Callable[[str], BatchSink[Any, Any]], *, checkpoint: str | None, sink_id: str | None
    ) -> None:
        """Take what `QueryWriting` takes."""
        from penstock.query.writing import QueryWriting

        self._writing = QueryWriting(opens, checkpoint=checkpoint, sink_id=sink_id)
        self._started: Started[Any, Any] | None = None

    def begin(self) -> None:
        """Begin the batch in flight, once."""
        if self._started is None:
            self._started = self._writing.begin()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, with the batch begun and what the tasks must know of it."""
        self.begin()
        return self.__dict__.copy()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write one task's rows; runs on an executor."""
        from penstock.session import worker
        from penstock.session.task import task_batch

        task = task_batch()
        worker.settle_writer()
        assert self._started is not None  # noqa: S101 - it was pickled on its way here
        message = TaskMessage(self._started.write(task, iterator))
        worker.KEPT.give_back()
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit the batch."""
        self._writing.commit(_reports(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's signature
        """Remove what the reported tasks wrote in vain."""
        self._writing.abort(_reports(messages))


def _reports(messages: list[WriterCommitMessage | None]) -> list[TaskReport[Any]]:
    """Return what the tasks reported, in their order; a task that was lost has no message."""
    return [message.report for message in messages if isinstance(message, TaskMessage)]
