"""From sink options to a `Sink`, and each of Spark's calls to the call of the sink that it means."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from penstock.errors import CheckpointMismatch, Fenced, OptionError
from penstock.formats.account import Account, Watch
from penstock.formats.schema import conform, to_arrow
from penstock.formats.strings import checked
from penstock.processes import jvm
from penstock.sink.batch import Batch, Begun, TaskResult
from penstock.sink.existing import STAGE
from penstock.sink.sink import Sink
from penstock.spark import fused, keeper, worker
from penstock.spark.checkpoint import Checkpoint, Snapshot, task_batch
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Protocol

    import pyarrow as pa

    from penstock.options import Options
    from penstock.spark.datasource import Message

    class FromTask(Protocol):
        """What tasks report to a commit."""

        query: str


def schema(options: Options, spark_json: str) -> pa.Schema:
    """Return the schema of the rows that reach the sink: Spark's, or in an ingest what its stage makes of the splits."""
    return fused.Stage.of(options[STAGE]).schema if options[STAGE] else to_arrow(spark_json)


@dataclass(frozen=True)
class Bound:
    """A batch as it was begun: what the checkpoint said then. It travels to the tasks, and with what they report to the commit.

    So the checkpoint is read once a batch, and a commit decides about the offsets that the tasks were given. `batch` is
    `None` where the checkpoint cannot be read here.
    """

    sink_id: str
    driver: str
    batch: Batch | None

    @staticmethod
    def of(options: Options) -> Bound:
        """Return what the checkpoint says now. `OptionError` if nothing names the sink's state."""
        checkpoint = checkpoint_of(options)
        snapshot = checkpoint.snapshot() if checkpoint else Snapshot()
        name = _sink_id(options, snapshot.query)
        return Bound(name, _owner(options, name, snapshot.query), snapshot.batch)


def sink(options: Options, data: pa.Schema, name: str) -> Sink:
    """Return the sink of this name; `UsageError` if data of this schema cannot be written so."""
    made = _sink(options, name)
    made.check(data)
    return made


def _sink(options: Options, name: str) -> Sink:
    storage, root = locate(options["path"])
    return Sink(storage, root, options, name)


def begin(made: Sink, bound: Bound) -> Begun:
    """Begin the batch in flight, on the driver, away from the keeper."""
    checkpoint = checkpoint_of(made.options)
    if checkpoint and bound.batch:
        checkpoint.persist(bound.batch.number)
    keeper.batch_begins(keeper.fact_of(made, bound.driver))
    with overtaken_is_fenced(checkpoint, bound.batch):
        return made.begin(bound.driver, bound.batch)


def write(made: Sink, begun: Begun, data: pa.Schema, rows: Iterator[pa.RecordBatch]) -> tuple[str, TaskResult]:
    """Write a task's rows, on an executor; return the query id with what was staged."""
    query, batch, partition = task_batch()
    worker.settle_writer()
    errors = made.options["encodingErrors"]
    account = Account()
    some: Iterable[pa.RecordBatch | bytes]
    if begun.has(query, batch):
        some = rows  # is only drained: what a committed batch read may be gone by now
    elif made.options[STAGE]:
        text = fused.passes_text(made.options)
        some = fused.Stage.of(made.options[STAGE]).rows(rows, account, text=text, errors=errors)
    else:
        some = Watch(data, account).through(checked(conform(batch, data), errors) for batch in rows)
    return query, made.write(begun, query, batch, partition, data, some, account)


def commit(options: Options, messages: list[Message], number: int) -> None:
    """Commit batch `number`, on the driver. Where no task has reported, the checkpoint is asked again."""
    bound = messages[0].bound if messages else Bound.of(options)
    made = _sink(options, bound.sink_id)  # it was checked when the batch was begun
    checkpoint = checkpoint_of(options)
    known = bound.batch is not None and bound.batch.number == number
    batch = bound.batch if known and bound.batch else batch_of(checkpoint, messages, number)
    with overtaken_is_fenced(checkpoint, batch):
        done = made.commit(batch, [message.result for message in messages])
    keeper.batch_ends(keeper.fact_of(made, bound.driver), made, bound.driver, parts_open=bool(done.open))


def abort(options: Options, messages: list[Message]) -> None:
    """Clean up behind a batch that failed, on the driver; the keeper stays away until the next batch or the end."""
    if messages:
        _sink(options, messages[0].bound.sink_id).abort(message.result for message in messages)


@contextlib.contextmanager
def overtaken_is_fenced(checkpoint: Checkpoint | None, batch: Batch | None) -> Iterator[None]:
    """Tell a driver that stood still while another went on from a checkpoint that was restored.

    To the ledger both are behind. But the checkpoint of the first has moved on since it was read.
    """
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


def batch_of(checkpoint: Checkpoint | None, messages: Sequence[FromTask], number: int) -> Batch:
    """Return the batch that is committed; the tasks know the query where the checkpoint cannot be read."""
    query = (checkpoint and checkpoint.query_id()) or (messages[0].query if messages else "")
    return checkpoint.batch(query, number) if checkpoint else Batch(query, number)


def checkpoint_of(options: Options) -> Checkpoint | None:
    """Return the query's checkpoint, if it has one."""
    return Checkpoint(options["checkpointLocation"]) if options["checkpointLocation"] else None


def sink_id(options: Options) -> str:
    """Return what names the sink's state: what the user said, else the query's id; `OptionError` if that is unknown."""
    checkpoint = None if options["sinkId"] else checkpoint_of(options)
    return _sink_id(options, checkpoint.query_id() if checkpoint else None)


def owner(options: Options, name: str) -> str:
    """Return what names this driver and its query; `name` is that of the sink, where the query is not known."""
    checkpoint = checkpoint_of(options)
    return _owner(options, name, checkpoint.query_id() if checkpoint else None)


def _sink_id(options: Options, query: str | None) -> str:
    if options["sinkId"]:
        return str(options["sinkId"])
    if query is None:
        msg = (
            f"the query's id cannot be read from checkpointLocation={options['checkpointLocation']!r}; name the sink's state "
            'yourself: .option("sinkId", "orders")'
        )
        raise OptionError(msg)
    return query


def _owner(options: Options, name: str, query: str | None) -> str:
    return keeper.owner(query or options["checkpointLocation"] or name, jvm() or psutil.Process())
