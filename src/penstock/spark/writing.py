"""From sink options to a `Sink`, and each of Spark's calls to the call of the sink that it means."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psutil

from penstock.errors import CheckpointMismatch, Fenced, OptionError
from penstock.formats.schema import conform, to_arrow
from penstock.processes import jvm
from penstock.sink.sink import Batch, Begun, Sink, TaskResult
from penstock.spark import fused, keeper, worker
from penstock.spark.checkpoint import Checkpoint, task_batch
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from penstock.options import Options
    from penstock.spark.datasource import Message


def schema(options: Options, spark_json: str) -> pa.Schema:
    """Return the schema of the rows that reach the sink: Spark's, or in an ingest what its stage makes of the splits."""
    return fused.Stage.of(options["ingest"]).schema if options["ingest"] else to_arrow(spark_json)


def sink(options: Options, data: pa.Schema) -> Sink:
    """Return the sink; `UsageError` if data of this schema cannot be written so."""
    storage, root = locate(options["path"])
    made = Sink(storage, root, options, _sink_id(options))
    made.check(data)
    return made


def begin(made: Sink) -> Begun:
    """Begin the batch in flight, on the driver, away from the keeper."""
    checkpoint = _checkpoint(made.options)
    batch = checkpoint.current() if checkpoint else None
    if checkpoint and batch:
        checkpoint.persist(batch.number)
    driver = _owner(made)
    keeper.batch_begins(keeper.fact_of(made, driver))
    with _overtaken_is_fenced(checkpoint, batch):
        return made.begin(driver, batch)


def write(made: Sink, begun: Begun, data: pa.Schema, rows: Iterator[pa.RecordBatch]) -> tuple[str, TaskResult]:
    """Write a task's rows, on an executor; return the query id with what was staged."""
    query, batch, partition = task_batch()
    worker.settle_writer()
    some: Iterable[pa.RecordBatch | bytes]
    if begun.has(query, batch):
        some = rows  # is only drained: what a committed batch read may be gone by now
    elif made.options["ingest"]:
        some = fused.Stage.of(made.options["ingest"]).rows(rows, text=fused.passes_text(made.options))
    else:
        some = (conform(batch, data) for batch in rows)
    return query, made.write(begun, query, batch, partition, data, some)


def commit(options: Options, data: pa.Schema, messages: list[Message], number: int) -> None:
    """Commit batch `number`, on the driver."""
    made = sink(options, data)
    driver = _owner(made)
    checkpoint = _checkpoint(options)
    batch = _batch(checkpoint, messages, number)
    with _overtaken_is_fenced(checkpoint, batch):
        done = made.commit(batch, [message.result for message in messages])
    keeper.batch_ends(keeper.fact_of(made, driver), made, driver, parts_open=bool(done.open))


def abort(options: Options, data: pa.Schema, messages: list[Message]) -> None:
    """Clean up behind a batch that failed, on the driver; the keeper stays away until the next batch or the end."""
    sink(options, data).abort(message.result for message in messages)


@contextlib.contextmanager
def _overtaken_is_fenced(checkpoint: Checkpoint | None, batch: Batch | None) -> Iterator[None]:
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


def _batch(checkpoint: Checkpoint | None, messages: list[Message], number: int) -> Batch:
    """Return the batch that is committed; the tasks know the query where the checkpoint cannot be read."""
    query = (checkpoint and checkpoint.query_id()) or (messages[0].query if messages else "")
    return checkpoint.batch(query, number) if checkpoint else Batch(query, number)


def _checkpoint(options: Options) -> Checkpoint | None:
    return Checkpoint(options["checkpointLocation"]) if options["checkpointLocation"] else None


def _sink_id(options: Options) -> str:
    if options["sinkId"]:
        return str(options["sinkId"])
    location = options["checkpointLocation"]
    query = Checkpoint(location).query_id() if location else None
    if query is None:
        msg = (
            f"the query's id cannot be read from checkpointLocation={location!r}; name the sink's state yourself: "
            '.option("sinkId", "orders")'
        )
        raise OptionError(msg)
    return query


def _owner(made: Sink) -> str:
    location = made.options["checkpointLocation"]
    query = Checkpoint(location).query_id() if location else None
    return keeper.owner(query or location or made.sink_id, jvm() or psutil.Process())
