"""A query that writes to a sink, batch by batch: Spark's calls, in their order, and the precautions that every sink needs.

    driver     begin     read the checkpoint, make the batch in flight durable there, and have the sink begin it
    tasks      write     have the sink write a task's rows where nobody sees them
    driver     commit    have the sink decide: all of the batch counts, or nothing of it
    driver     abort     have the sink clean up after a batch that failed

Each may run in another process. What one call learns travels to the next: `Started` to the tasks, a `TaskReport` of each task back to
the commit. Nothing else travels. So the checkpoint is read once for each batch, when it begins, and a commit decides about the offsets
that the tasks were given.

The failures that are the same for every sink (those of order are in `query.order`, those of drivers in `query.fence`):

1. *Plan not durable.* Spark does not sync its checkpoint. A power cut removes the plan of a batch that the sink has; Spark plans the
   batch again, and the sink has to refuse it. Rule: the plan is made durable before the sink begins the batch.
2. *Overtaken, and taken for restored.* Driver A reads the checkpoint at batch 1 and stands still; B commits 1, 2 and 3; A continues.
   The sink sees a batch that is older than its last one, as if the checkpoint had been restored. But the checkpoint has moved on since
   A read it. Rule: a driver that is refused looks at the checkpoint again, and is `Fenced` if it has changed.
3. *Offsets that changed between begin and commit.* A commit that reads the checkpoint anew may find another batch there than its tasks
   have written. Rule: what the checkpoint said travels with the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.errors import CheckpointMismatch, Fenced, OptionError
from penstock.query import driver as drivers
from penstock.query import measured
from penstock.query.batch import Batch
from penstock.query.checkpoint import Checkpoint, Snapshot
from penstock.tally import Counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from penstock.query.batch import Task

BegunT = TypeVar("BegunT")
ResultT = TypeVar("ResultT")


class BatchSink(ABC, Generic[BegunT, ResultT]):
    """What a sink provides so that a query can write to it. Picklable: it travels to the tasks with the batch that began.

    Every sink passes the tests of crashes, fences and replays in `tests/query/suite.py`.
    """

    @abstractmethod
    def check(self) -> None:
        """Raise `UsageError` if rows cannot be written with these settings. Touches nothing.

        Called on the driver before each batch begins, and nowhere else: it may take its time.
        """

    @abstractmethod
    def begin(self, driver: str, batch: Batch | None) -> BegunT:
        """Take the sink over for `driver` if another one had it; return what the tasks must know.

        Called on the driver before the tasks of a batch run, once or more. `batch` is `None` if the checkpoint cannot be read before
        the tasks run. Raises `CheckpointMismatch` for a batch that is neither the last one nor the next.
        """

    @abstractmethod
    def write(self, begun: BegunT, task: Task, rows: Iterator[pa.RecordBatch]) -> ResultT:
        """Write the rows of a task where nobody sees them; return what the commit must know.

        Called on executors, once for each attempt of a task: several attempts may run in parallel, and any of them may die or be
        abandoned. Only what is in the results that are passed to `commit` may count.
        """

    @abstractmethod
    def commit(self, driver: str, batch: Batch, results: Sequence[ResultT]) -> None:
        """Make the batch count, whole or not at all; do nothing if it counts already.

        Called on the driver, perhaps in another process than `begin`, with one result a task, in the order of the partitions. With no
        results it is a batch without rows, which counts like any other. Raises `Fenced` if another driver has the sink, and
        `CheckpointMismatch` as `begin` does.
        """

    @abstractmethod
    def abort(self, query: str, results: Sequence[ResultT]) -> None:
        """Remove what these tasks wrote for a batch that failed, as far as it does not count.

        Called on the driver. Not guaranteed: a driver that dies aborts nothing. A batch whose commit failed after the moment at which
        it counted is aborted, too.
        """


@dataclass(frozen=True)
class Bound:
    """A batch as it was begun: the name of the sink's state, the driver, and the batch that the checkpoint had.

    `batch` is `None` if the checkpoint cannot be read here.
    """

    sink_id: str
    driver: str
    batch: Batch | None


@dataclass(frozen=True)
class TaskReport(Generic[ResultT]):
    """A task's report to the commit; `query` is the id that Spark gave the task, `counted` are the numbers of its work for monitors."""

    query: str
    bound: Bound
    result: ResultT
    counted: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Started(Generic[BegunT, ResultT]):
    """A batch that has begun, as it travels to the tasks."""

    bound: Bound
    sink: BatchSink[BegunT, ResultT]
    begun: BegunT

    def write(self, task: Task, rows: Iterator[pa.RecordBatch]) -> TaskReport[ResultT]:
        """Write the rows of a task."""
        counted = Counted()
        result = self.sink.write(self.begun, task, rows)
        return TaskReport(task.query, self.bound, result, counted.amounts())


class QueryWriting(Generic[BegunT, ResultT]):
    """The writing of one query to one sink. Cheap to make and picklable; Spark makes one for each batch and each commit.

    `opens` opens the sink of a name; it is cheap and picklable. `checkpoint` is the location of the query's checkpoint, `sink_id` is
    the user's name for the state of the sink.
    """

    def __init__(
        self, opens: Callable[[str], BatchSink[BegunT, ResultT]], *, checkpoint: str | None, sink_id: str | None
    ) -> None:
        self._opens = opens
        self._location = checkpoint
        self._sink_id = sink_id

    def bound(self) -> Bound:
        """Return what the checkpoint says now; each of its files is read once. `OptionError` if the sink's state has no name."""
        checkpoint = self._checkpoint()
        snapshot = checkpoint.snapshot() if checkpoint else Snapshot()
        name = self._name(snapshot.query)
        return Bound(name, drivers.this(snapshot.query or self._location or name), snapshot.batch)

    def begin(self, bound: Bound | None = None) -> Started[BegunT, ResultT]:
        """Begin the batch in flight, on the driver. `bound` is what the checkpoint said, if it was read already."""
        counted = Counted()
        bound, checkpoint = bound or self.bound(), self._checkpoint()
        if checkpoint and bound.batch and bound.batch.number:
            # Read each time: a query may be started again in this process after its checkpoint was put back.
            follows = checkpoint.fingerprint(bound.batch.number - 1)
            bound = replace(bound, batch=replace(bound.batch, follows=follows))
        sink = self._opens(bound.sink_id)
        sink.check()
        if checkpoint and bound.batch:
            checkpoint.persist(bound.batch.number)
        with _overtaken_is_fenced(checkpoint, bound.batch):
            started = Started(bound, sink, sink.begin(bound.driver, bound.batch))
        if bound.batch:
            measured.note(bound.batch.query, [("begin", counted.amounts())])
        return started

    def commit(self, reports: Sequence[TaskReport[ResultT]], number: int, bound: Bound | None = None) -> None:
        """Commit batch `number`, on the driver. If no task has reported, and `bound` is not given, the checkpoint is read again."""
        counted = Counted()
        bound = reports[0].bound if reports else bound or self.bound()
        checkpoint, batch = self._checkpoint(), bound.batch
        if batch is None or batch.number != number:
            batch = _named(checkpoint, reports, number)
        with _overtaken_is_fenced(checkpoint, batch):
            self._opens(bound.sink_id).commit(bound.driver, batch, [report.result for report in reports])
        written = [("write", report.counted) for report in reports]
        measured.note(batch.query, [*written, ("commit", counted.amounts())])

    def abort(self, reports: Sequence[TaskReport[ResultT]]) -> None:
        """Clean up after a batch that failed, on the driver."""
        if reports:
            sink = self._opens(reports[0].bound.sink_id)
            sink.abort(reports[0].query, [report.result for report in reports])

    def _checkpoint(self) -> Checkpoint | None:
        return Checkpoint(self._location) if self._location else None

    def _name(self, query: str | None) -> str:
        """Return the name of the sink's state: the user's name, otherwise the query's id."""
        if self._sink_id or query is not None:
            return self._sink_id or str(query)
        reason = f"the query's id cannot be read from checkpointLocation={self._location!r}"
        if self._location is None:
            reason = (
                "the query has no option checkpointLocation, and Spark tells a sink nothing of spark.sql.streaming.checkpointLocation: "
                "set the option; or call penstock.register(spark), and give the query a name, .queryName('orders'), without which Spark "
                "begins a new checkpoint at each start"
            )
        msg = f"{reason}; or name the sink's state yourself: .option('sinkId', 'orders')"
        raise OptionError(msg)


def _named(checkpoint: Checkpoint | None, reports: Iterable[TaskReport[ResultT]], number: int) -> Batch:
    """Return the batch that is committed; if the checkpoint cannot be read, the tasks know the query."""
    query = (checkpoint and checkpoint.query_id()) or next((report.query for report in reports), "")
    return checkpoint.batch(query, number) if checkpoint else Batch(query, number)


@contextmanager
def _overtaken_is_fenced(checkpoint: Checkpoint | None, batch: Batch | None) -> Iterator[None]:
    """Distinguish a driver that stood still while another continued from a checkpoint that was restored (failure 2)."""
    try:
        yield
    except CheckpointMismatch as error:
        if checkpoint is None or batch is None or checkpoint.current() == batch:
            raise
        msg = (
            f"batch {batch.number} of query {batch.query} is not the last one of its checkpoint {checkpoint.location!r} any "
            "more: another driver of this query has gone on from it; this one has changed nothing; stop it"
        )
        raise Fenced(msg) from error
