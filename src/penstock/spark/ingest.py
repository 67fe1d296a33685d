"""`penstock.ingest`: source, transform and sink as one stage on the executors.

It is a query like any other: `emit=splits` from the source, the fused stage in the sink's options. What it adds is what a
user would have to think of: where the checkpoint is, how many tasks, that the output does not lie in the input, that the
last parts are published, and a report of how far it is.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import errors
from penstock.errors import DamagedState, NotThere, OptionError
from penstock.options import SINK, SOURCE, parse
from penstock.processes import process
from penstock.sink.sink import STATE_DIRECTORY, Sink
from penstock.spark import ddl, fused, keeper, reading
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.session import has_ended, require_pyspark
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.source.cursor import Split
    from penstock.storage import Storage

_log = logging.getLogger("penstock.ingest")
_FILES_A_BATCH = "100000"  # plans of an ingest have a place beside the offset, so batches need not be small
_MERGE_BELOW = "4m"  # tasks are as many as cores: their parts are well sized unless the input is small
_POLL_SECONDS = 0.2
_JVM_ENDED = (
    "Spark's JVM has ended under way (killed, or out of memory); what is committed stays, nothing else is visible, and the "
    "same call goes on from there in a new session"
)


@dataclass(frozen=True)
class Ingested:
    """What an ingest has done: input since the checkpoint began, output since the sink began; `batch` is the last one."""

    batch: int
    input_files: int
    input_bytes: int
    left_files: int
    left_bytes: int
    rows: int
    output_files: int
    output_bytes: int
    open_rows: int


def ingest(
    spark: SparkSession,
    src: str,
    dst: str,
    *,
    source: Mapping[str, Any] | None = None,
    sink: Mapping[str, Any] | None = None,
    transform: fused.Transform | str | None = None,
    checkpoint: str | None = None,
    watch: bool = False,
    progress: Callable[[Ingested], None] | None = None,
) -> Ingested:
    """Take every record below `src` into finished files below `dst`, exactly once, and return what was done.

    `source` and `sink` are options of the two tables (`schema`, DDL or StructType, is one of the source's here).
    `transform` takes and returns a `pyarrow.RecordBatch`, or a polars DataFrame by its annotation; it may be a function or
    "module:function", or an `AsyncMap`, given itself. The checkpoint defaults to `DST/_penstock/checkpoint`; the same call
    again takes only what is new.
    `watch` goes on until it is interrupted. `progress` is called a few times a second.

    Raises what went wrong as a `PenstockError`; nothing of the batch in flight is then visible, and the same call goes on
    from there.
    """
    require_pyspark()
    job = _Job(spark, src, dst, dict(source or {}), dict(sink or {}), transform, checkpoint)
    query = job.start(watch=watch)
    try:
        while not query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]  # - it takes fractions of a second
            if progress is not None:
                progress(job.state())
    except KeyboardInterrupt:
        query.stop()
    except Exception as error:  # whatever Spark wraps it in, our error is in its text
        found = errors.from_text(str(error))
        if type(found) is errors.PenstockError and has_ended(spark):
            found = errors.PenstockError(_JVM_ENDED)
        raise found from error
    job.finish(query)
    done = job.state()
    if progress is not None:
        progress(done)
    return done


class _Job:
    """One call of `ingest`: its options, checked, and what they start."""

    def __init__(
        self,
        spark: SparkSession,
        src: str,
        dst: str,
        source: dict[str, Any],
        sink: dict[str, Any],
        transform: fused.Transform | str | None,
        checkpoint: str | None,
    ) -> None:
        self._spark = spark
        self._input, src_path = locate(src, name="SRC")
        self._output, self._dst = locate(dst, name="DST")
        check_apart(self._input, src_path, self._dst)
        state, where = locate(checkpoint or f"{self._dst}/{STATE_DIRECTORY}/checkpoint", name="checkpoint")
        check_reached((self._output, self._dst), (state, where))
        self._checkpoint = Checkpoint(where)
        schema = source.pop("schema", None)
        self._source = {"path": src_path, "maxFilesPerTrigger": _FILES_A_BATCH} | _texts(source)
        parse(SOURCE, self._source, what="source")
        self._schema = _schema_json(schema, self._source)
        tasks = spark.sparkContext.defaultParallelism
        stage = fused.Stage.describe(self._source, self._schema, transform, tasks)
        self._sink = {"path": self._dst, "mergeBelow": _MERGE_BELOW} | _texts(sink) | {"ingest": stage}
        options = parse(SINK, self._sink, what="sink")
        Sink(self._output, self._dst, options, options["sinkId"] or "check").check(fused.Stage.of(stage).schema)

    def start(self, *, watch: bool) -> StreamingQuery:
        """Start the query."""
        spark = self._spark
        carried = self._source | self._carried() | {"tasks": str(spark.sparkContext.defaultParallelism)}
        self._output.make_directory(f"{self._dst}/{STATE_DIRECTORY}")
        storage, path = locate(self._checkpoint.location)
        storage.make_directory(path)  # Spark would, but what it says if it may not is a Java stack
        self._abandon_changed_plan()
        keeper.sweep()
        frame = spark.readStream.format("penstock").options(**carried).load()
        writer = frame.writeStream.format("penstock").options(**self._sink)
        writer = writer.option("checkpointLocation", self._checkpoint.location)
        writer = writer.trigger(processingTime="1 second") if watch else writer.trigger(availableNow=True)
        return writer.start()

    def _abandon_changed_plan(self) -> None:
        """Have a batch planned anew that was planned but never decided, if files of its plan have changed since.

        That is what happens when a bad file is mended: the plan names the version before. Nothing of such a batch is
        visible, so taking its entry out of Spark's offset log loses nothing. A batch that the ledger has is left alone,
        and so is one whose driver still lives.
        """
        planned, query = self._checkpoint.numbers("offsets"), self._checkpoint.query_id()
        if not planned or query is None or planned[-1] in self._checkpoint.numbers("commits"):
            return
        number = planned[-1]
        head = self.sink(query).ledger.head()
        if head.last_batch(query) >= number or self._runs(query, head.owner):
            return
        changed = [split.file.path for split in self._splits(self._offset(number)) if not self._is_as_planned(split)]
        if changed:
            _log.warning(
                "batch %d was never committed and %d of its files changed; it is planned anew", number, len(changed)
            )
            self._checkpoint.abandon(number)

    def _runs(self, query: str, driver: str) -> bool:
        """Tell whether the query runs, in this application or in another one on this host."""
        if driver == self._owner(query):
            return any(str(active.id) == query for active in self._spark.streams.active)
        return keeper.lives(driver)

    def _owner(self, query: str) -> str:
        jvm = self._spark.sparkContext._jvm  # noqa: SLF001 - the only way to its process id
        pid = int(jvm.java.lang.ProcessHandle.current().pid()) if jvm else 0
        return keeper.owner(query, process(pid))

    def _splits(self, offset: dict[str, Any]) -> list[Split]:
        options = parse(SOURCE, self._source | self._carried(), what="source")
        return reading.planner(options, fused.Stage.of(self._sink["ingest"]).reading).splits(offset)

    def _is_as_planned(self, split: Split) -> bool:
        path = f"{self._source['path']}/{split.file.path}" if split.file.path else self._source["path"]
        try:
            now = self._input.stat(path)
        except NotThere:
            return False
        return (now.size, now.modified_ns, now.identity) == (
            split.file.size,
            split.file.modified_ns,
            split.file.identity,
        )

    def _carried(self) -> dict[str, str]:
        """Return the source options that make splits of the plan."""
        return {"emit": "splits", "stateLocation": f"{self._checkpoint.location}/penstock"}

    def finish(self, query: StreamingQuery) -> None:
        """Publish what the query left open, as the driver it was."""
        keeper.finish(self.sink(str(query.id)), self._owner(str(query.id)))

    def sink(self, query: str) -> Sink:
        """Return the sink that the query writes to."""
        options = parse(SINK, self._sink, what="sink")
        return Sink(self._output, self._dst, options, options["sinkId"] or query)

    def state(self) -> Ingested:
        """Return how far it is, from the checkpoint and the ledger."""
        batch = max(self._checkpoint.numbers("commits"), default=-1)
        offset = self._offset(batch) if batch >= 0 else {}
        files, size = offset.get("read", (0, 0))
        left_files, left_size = offset.get("left", (0, 0))
        query = self._checkpoint.query_id()
        head = self.sink(query).ledger.head() if query else None
        rows, made, written = (head.total_rows, head.total_files, head.total_bytes) if head else (0, 0, 0)
        open_rows = sum(part.rows for part in head.open) if head else 0
        return Ingested(batch, files, size, left_files, left_size, rows, made, written, open_rows)

    def _offset(self, number: int) -> dict[str, Any]:
        """Return the end offset of a batch."""
        offsets = self._checkpoint.offsets(number)
        if len(offsets) != 1 or offsets[0] is None:
            place = f"{self._checkpoint.location}/offsets/{number}"
            msg = (
                f"{place!r} is damaged or missing: it has no offset of this source; restore the checkpoint from a copy"
            )
            raise DamagedState(msg)
        return offsets[0]


def check_apart(storage: Storage, src: str, dst: str) -> None:
    """Raise `OptionError` unless SRC is there and neither of the two lies in the other."""
    try:
        storage.stat(src)
    except NotThere as error:
        msg = f"SRC={src!r} does not exist; expected a directory or a file to read"
        raise OptionError(msg) from error
    if f"{dst}/".startswith(f"{src}/"):
        msg = f"DST={dst!r} lies in SRC={src!r}: the output would be read as input; choose a directory outside of it"
        raise OptionError(msg)
    if f"{src}/".startswith(f"{dst}/"):
        msg = f"SRC={src!r} lies in DST={dst!r}: input and output would be one directory; choose another DST"
        raise OptionError(msg)


def check_reached(*places: tuple[Storage, str]) -> None:
    """Raise `StorageError` if a file system does not answer, or does not let us look; nothing need be there yet."""
    for storage, path in places:
        with suppress(NotThere):
            storage.stat(path)


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def _schema_json(schema: Any, source: dict[str, str]) -> str:  # noqa: ANN401 - DDL or a StructType
    """Return Spark's JSON of the schema that the source reads."""
    options = parse(SOURCE, source, what="source")
    return ddl.schema_json(ddl.default_schema(options) if schema is None or options["emit"] == "files" else schema)
