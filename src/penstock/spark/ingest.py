"""`penstock.ingest`: source, transform and sink as one stage on the executors.

It is a query like any other: `emit=splits` from the source, the fused stage in the sink's options. What it adds is what a
user would have to think of: where the checkpoint is, how many tasks, that the output does not lie in the input, that the
last parts are published, and a report of how far it is.
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import errors
from penstock.arguments import named
from penstock.errors import CheckpointMismatch, DamagedState, NoSpace, NotThere, OptionError, StorageError
from penstock.options import SINK, SOURCE, Option, parse
from penstock.processes import process
from penstock.sink.existing import sink_ids
from penstock.sink.sink import STATE_DIRECTORY, Sink
from penstock.source.cursor import Cursor
from penstock.source.scan import Scan, name_filter
from penstock.spark import ddl, fused, keeper, reading
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.session import has_ended, require_pyspark
from penstock.storage import HdfsStorage, locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.sink.ledger import State
    from penstock.source.cursor import Split
    from penstock.storage import Storage

_log = logging.getLogger("penstock.ingest")
_FILES_A_BATCH = "100000"  # plans of an ingest have a place beside the offset, so batches need not be small
_MERGE_BELOW = "4m"  # tasks are as many as cores: their parts are well sized unless the input is small
_POLL_SECONDS = 0.2
_NO_OPTIONS = {
    "path": "src and dst",
    "checkpointlocation": "checkpoint",
    "ingest": "transform",
    "statelocation": "checkpoint",
    "tasks": "the session's cores",
}  # of an ingest, which would ignore them
_SELECTING = ("path", "pathGlobFilter", "pattern", "startingFrom")
# What Spark says where two drivers write one checkpoint: in the same batch, in the first one, in one application.
_ANOTHER_DRIVER = ("CONCURRENT_STREAM_LOG_UPDATE", "concurrently using", "CONCURRENT_QUERY")
_DAMAGED = re.compile(r"Checksum error: \S+|Failed to read log file \S+|batch \d+ doesn't exist")
# What an HDFS has refused Spark's JVM, at the start and later; of all that an ingest has it writes the checkpoint alone.
_REFUSED = re.compile(r"(?:\n: [\w.$()]+|terminated with exception): (.+)(?:\n.*){0,2}?\n\s+at org\.apache\.hadoop\.")
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


@named
def ingest(
    spark: SparkSession,
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    source: Mapping[str, Any] | None = None,
    sink: Mapping[str, Any] | None = None,
    transform: fused.Transform | str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
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
    where = None if checkpoint is None else os.fspath(checkpoint)
    job = _Job(spark, os.fspath(src), os.fspath(dst), dict(source or {}), dict(sink or {}), transform, where)
    try:
        query = job.start(watch=watch)
    except errors.PenstockError:
        raise
    except Exception as error:  # whatever Spark wraps it in
        raise job.told(error) from error
    try:
        while not query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]  # - it takes fractions of a second
            if progress is not None:
                progress(job.state())
    except KeyboardInterrupt:
        query.stop()
    except Exception as error:  # as above
        raise job.told(error) from error
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
        check_apart(src, dst, checkpoint)
        state, where = locate(
            f"{self._dst}/{STATE_DIRECTORY}/checkpoint" if checkpoint is None else checkpoint, name="checkpoint"
        )
        check_reached((self._output, self._dst), (state, where))
        self._checkpoint = Checkpoint(where)
        schema = source.pop("schema", None)
        self._source = {"maxFilesPerTrigger": _FILES_A_BATCH} | _given(SOURCE, source, src_path, "source")
        self._schema = _schema_json(schema, self._source)
        tasks = spark.sparkContext.defaultParallelism
        stage = fused.Stage.describe(self._source, self._schema, transform, tasks)
        self._sink = {"mergeBelow": _MERGE_BELOW} | _given(SINK, sink, self._dst, "sink") | {"ingest": stage}
        options = parse(SINK, self._sink, what="sink")
        Sink(self._output, self._dst, options, options["sinkId"] or "check").check(fused.Stage.of(stage).schema)

    def start(self, *, watch: bool) -> StreamingQuery:
        """Start the query."""
        spark = self._spark
        self._check_input()
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

    def _check_input(self) -> None:
        """Raise `CheckpointMismatch` where the checkpoint would have one input taken for another.

        A new one would have rows twice that DST has of files that are still there. One of another input that is still
        there, and so was not just renamed, would have files of this input taken for those that were read.
        """
        query, path = self._checkpoint.query_id(), self._source["path"]
        for sink, source, head in self._ingests():
            same = all(source.get(name) == self._source.get(name) for name in _SELECTING)
            if query is None and same and self._were_read(sink, head.time_ns):
                msg = (
                    f"DST={self._dst!r} has what was ingested from {path!r} under the checkpoint "
                    f"{sink.options['checkpointLocation']!r}, and {self._checkpoint.location!r} is a new one: records "
                    "would be there twice; go on with that checkpoint, restore it, or choose another DST"
                )
                raise CheckpointMismatch(msg)
            if query in head.batches and self._is_other(source["path"]):
                msg = (
                    f"the checkpoint {self._checkpoint.location!r} is that of an ingest from {source['path']!r}, which is still "
                    f"there: files of {path!r} could be taken for files of it that were read; give this input a checkpoint of "
                    "its own, or another DST"
                )
                raise CheckpointMismatch(msg)

    def _ingests(self) -> Iterator[tuple[Sink, dict[str, str], State]]:
        """Yield the sinks of DST that ingests have given rows to, with their source's options and last record.

        Without those whose state is damaged: that is said by whoever needs it.
        """
        names: list[str] = []
        with suppress(NotThere):
            names = sink_ids(self._output, f"{self._dst}/{STATE_DIRECTORY}")
        for name in names:
            with suppress(DamagedState):
                sink = Sink.existing(self._output, self._dst, name)
                source, head = json.loads(sink.options["ingest"] or "{}").get("source"), sink.ledger.head()
                if source is not None and head.total_rows:
                    yield sink, source, head

    def _were_read(self, sink: Sink, committed_ns: int) -> bool:
        """Tell whether there are files that `sink` was given; where its checkpoint is lost, files from before its last commit."""
        options = parse(SOURCE, self._source, what="source")
        if options["startingFrom"] == "latest":
            return False
        accept = name_filter(options["pathGlobFilter"], options["pattern"])
        recursive, follow = options["recursiveFileLookup"], options["followSymlinks"]
        files = Scan(self._input, options["path"], recursive=recursive, follow=follow, accept=accept).refresh()
        before = Checkpoint(sink.options["checkpointLocation"] or self._checkpoint.location)
        offsets = [offset for number in before.numbers("commits")[-1:] for offset in before.offsets(number) if offset]
        cursor = Cursor.from_json(offsets[0]) if offsets else Cursor((committed_ns, b""))
        return any(cursor.passed(file) or file == cursor.cut for file, _ in files)

    def _is_other(self, before: str) -> bool:
        """Tell whether what was ingested before is there, and is not what is ingested now under another name."""
        storage, path = locate(before, name="SRC")
        try:
            then, now = storage.stat(path), self._input.stat(self._source["path"])
        except StorageError:
            return False
        same = then.identity == now.identity if then.identity else before == self._source["path"]
        return not same

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

    def told(self, error: Exception) -> errors.PenstockError:
        """Return what an error of Spark means: our own error is in its text, or in that of what caused it."""
        text = _with_causes(error)
        found = errors.from_text(text)
        if type(found) is not errors.PenstockError:
            return found
        if any(condition in text for condition in _ANOTHER_DRIVER):
            return errors.Fenced(
                f"another driver uses the checkpoint {self._checkpoint.location!r} of this ingest; this one has changed nothing "
                "more; leave it to the other, or run the same command again when that has ended"
            )
        if damaged := _DAMAGED.search(text):
            return DamagedState(
                f"Spark cannot read the checkpoint {self._checkpoint.location!r}: {damaged[0]}; restore it from a copy, with the "
                ".crc beside each file; nothing was changed"
            )
        if refused := _REFUSED.search(text):
            kind = NoSpace if "quota" in refused[1].lower() else StorageError
            return kind(
                f"Spark cannot write the checkpoint {self._checkpoint.location!r}: {refused[1]}; nothing of this batch is "
                "visible, and the same call goes on from there"
            )
        return errors.PenstockError(_JVM_ENDED) if has_ended(self._spark) else errors.PenstockError(str(error))

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


def _with_causes(error: BaseException | None) -> str:
    """Return what an error of Spark says, and each that caused it: where an abort fails, too, the first says nothing of why."""
    said = []
    while error is not None:
        said.append(str(error))
        error = getattr(error, "_cause", None)
    return "\n".join(said)


def check_apart(src: str, dst: str, checkpoint: str | None = None) -> None:
    """Raise `OptionError` unless SRC is there, DST is no file, and neither they nor the checkpoint lie in one another.

    Where they really lie counts, whatever links lead there; what is in DST below its state is no input.
    """
    storage, source = locate(src, name="SRC")
    try:
        storage.stat(source)
    except NotThere as error:
        msg = f"SRC={source!r} does not exist; expected a directory or a file to read"
        raise OptionError(msg) from error
    really = storage.resolve(source)
    for name, given in (("DST", dst), ("checkpoint", checkpoint)):
        if given is None:
            continue
        place, path = locate(given, name=name)
        target = _by_address_of(storage, place, path)
        if f"{target}/".startswith(f"{really}/"):
            msg = f"{name}={path!r} lies in SRC={source!r}: it would be read as input; choose a directory outside of it"
            raise OptionError(msg)
        if f"{really}/".startswith(f"{target}/"):
            msg = f"SRC={source!r} lies in {name}={path!r}: they would be one directory; choose another {name}"
            raise OptionError(msg)
        if _is_file(place, path):
            msg = f"{name}={path!r} is a file; expected a directory, which is made if it is not there"
            raise OptionError(msg)


def _by_address_of(storage: Storage, place: Storage, path: str) -> str:
    """Return where `path` of `place` really lies; where that is the HDFS that `storage` is, too, by the address it has there.

    An HDFS has many addresses, and one root: when that was last changed, to the millisecond, is the same by all of them.
    """
    target = place.resolve(path)
    if (
        isinstance(storage, HdfsStorage)
        and isinstance(place, HdfsStorage)
        and storage.authority != place.authority
        and storage.stat("/").modified_ns == place.stat("/").modified_ns
    ):
        return f"hdfs://{storage.authority}{target.removeprefix(f'hdfs://{place.authority}')}"
    return target


def check_reached(*places: tuple[Storage, str]) -> None:
    """Raise `StorageError` if a file system does not answer, or does not let us look; nothing need be there yet."""
    for storage, path in places:
        with suppress(NotThere):
            storage.stat(path)


def _is_file(storage: Storage, path: str) -> bool:
    try:
        return not storage.stat(path).is_directory
    except NotThere:
        return False


def _given(table: tuple[Option, ...], options: Mapping[str, Any], path: str, what: str) -> dict[str, str]:
    """Return what the user gave, by the names of the table, and the path."""
    for name in options:
        if name.lower() in _NO_OPTIONS:
            msg = f"{what} option {name!r}: an ingest takes that from {_NO_OPTIONS[name.lower()]}; leave it out"
            raise OptionError(msg)
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return dict(parse(table, texts | {"path": path}, what=what).given)


def _schema_json(schema: Any, source: dict[str, str]) -> str:  # noqa: ANN401 - DDL or a StructType
    """Return Spark's JSON of the schema that the source reads."""
    options = parse(SOURCE, source, what="source")
    return ddl.schema_json(ddl.default_schema(options) if schema is None or options["emit"] == "files" else schema)
