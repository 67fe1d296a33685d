"""`penstock.ingest`: source, transform and sink as one stage on the executors.

It is a query like any other: `emit=splits` from the source, the fused stage in the sink's options. What it adds is what a
user would have to think of: where the checkpoint is, how many tasks, that the output does not lie in the input, that the
last parts are published, and a report of how far it is.

An ingest is a scope: however its call is left, its query has stopped, what was committed is published, and its keeper has
ended. Two failures shaped how (`_Run`):

Failure: *an answer that is taken for another's.*
  1. The caller waits for an answer of the JVM, and is interrupted: Ctrl-C, a time-out of its own, any signal that raises.
  2. The answer comes, and nobody reads it. The next call on the connection takes it for its own, and so do all behind it.
  3. What stops the query is such a call: it runs on; or the session is of no more use.
  Rule: all calls into the JVM are made by a thread of the ingest, which nothing interrupts. The caller's thread waits
  for it, reports, and asks it to end.

Failure: *a query without a handle.*
  1. The caller is interrupted while the query is started, which takes seconds.
  2. It starts, and there is nobody who could stop it.
  Rule: whoever starts it looks whether it should end, before anything else.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock import clock, errors, unique
from penstock.arguments import named
from penstock.errors import OptionError
from penstock.formats.account import Account
from penstock.ingestion.earlier import Earlier
from penstock.ingestion.failures import meaning
from penstock.ingestion.given import given_options
from penstock.ingestion.inputs import input_of
from penstock.ingestion.late import counts
from penstock.ingestion.places import (
    check_archive,
    check_checkpoint,
    check_quarantine,
    check_reached,
)
from penstock.ingestion.replan import in_flight
from penstock.ingestion.schema import ReadSchema, is_known
from penstock.ingestion.sql.query import Sql
from penstock.ingestion.stage import Stage
from penstock.ingestion.topics import behind_of, counts_of
from penstock.options import SINK, parse
from penstock.options.kafka import is_topics
from penstock.processes import process
from penstock.query import driver as drivers
from penstock.query.checkpoint import Checkpoint
from penstock.session.connect import is_remote, require_session, tasks_at_a_time
from penstock.session.local import require_pyspark
from penstock.session.sidebyside import side_by_side
from penstock.session.zone import time_zone
from penstock.sink import keeper, quarantine, sparklog
from penstock.sink.existing import STAGE
from penstock.sink.ledger import State
from penstock.sink.sink import STATE_DIRECTORY, Sink
from penstock.source.noted import SchemaNotes
from penstock.storage import TEMPORARY, locate
from penstock.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.ingestion.dry import DryRun, Preview
    from penstock.ingestion.stage import Transform

_log = logging.getLogger("penstock.ingest")
# Tasks are as many as cores: their parts are well sized unless the input is small.
_MERGE_BELOW = "4m"
_POLL_SECONDS = 0.2
_IDLE_POLL_SECONDS = 1.0  # while a watched query waits for input: each look asks the JVM, the checkpoint and the ledger
_WATCHING = "1s"


@dataclass(frozen=True)
class Ingested:
    """What an ingest has done: input since the checkpoint began, output since the sink began.

    - `batch`: the last batch. `query`: the id by which Spark knows the query, once it has one.
    - `input_*`: what was planned. `left_*`: what is there and was not planned yet; `oldest_left_ns` is the modification time of the
      oldest such file, 0 if there is none.
    - `rows`, `output_*`: what was written. `open_parts` are not finished yet; `open_since_ns` is when the oldest of them was opened, 0 if
      there is none.
    - `waiting`: a watching ingest has taken all that is there, and waits for more.
    - Files that were not read (see `penstock.late`): `late_files` came too late; `accepted_files` did, too, and wait for the next batch;
      `held_files` changed too recently; `future_files` have a time that has not come.
    - `lost_files`: followed files that went, or were cut, before they were read to their end, with at least `lost_bytes`.
    - `aside_*`: what was set aside since the sink began: bad records, bad files, and files that changed before they were read.
    - Topics: `input_offsets` were planned and `left_offsets` were not; `left_by_partition` has at most a hundred partitions ("orders-0"),
      those with most of them.

    Of what this call has read: `null_columns` were null in every row; `unknown_fields` counts names of the data that no column has, at
    most a hundred names; `rescued` counts the records of which something was rescued; `notes` say all this to people.
    """

    batch: int
    input_files: int
    input_bytes: int
    left_files: int
    left_bytes: int
    rows: int
    output_files: int
    output_bytes: int
    open_rows: int
    waiting: bool = False
    late_files: int = 0
    accepted_files: int = 0
    held_files: int = 0
    future_files: int = 0
    null_columns: tuple[str, ...] = ()
    unknown_fields: Mapping[str, int] = field(default_factory=dict)
    rescued: int = 0
    notes: tuple[str, ...] = ()
    aside_records: int = 0
    aside_files: int = 0
    aside_changed: int = 0
    query: str = ""
    open_parts: int = 0
    open_since_ns: int = 0
    oldest_left_ns: int = 0
    lost_files: int = 0
    lost_bytes: int = 0
    input_offsets: int = 0
    left_offsets: int = 0
    left_by_partition: Mapping[str, int] = field(default_factory=dict)


@named
def ingest(  # noqa: PLR0913 - what users say of an ingest, by name
    spark: SparkSession,
    src: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    dst: str | os.PathLike[str],
    *,
    source: Mapping[str, Any] | None = None,
    sink: Mapping[str, Any] | None = None,
    transform: Transform | str | None = None,
    sql: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    watch: bool | str = False,
    progress: Callable[[Ingested], None] | None = None,
) -> Ingested:
    """Take every record below `src` into finished files below `dst`, exactly once, and return what was done.

    The same call again takes only what is new.

    - `src`: a path, a glob, or a list of these; or topics, "kafka://broker:9092/orders,payments", whose records have Kafka's columns,
      or the columns of their values by the source's `format`.
    - `source`, `sink`: options of the two tables. Here `schema` (DDL or StructType) is an option of the source. With the option `files`,
      rows name the files below `src` that are read: a streaming DataFrame with a column `path`, "published", or the path of lists.
    - `transform`: a function that takes and returns a `pyarrow.RecordBatch`, or a polars DataFrame if it is annotated so; or
      "module:function"; or an `AsyncMap`.
    - `sql`: instead of a transform, a select over the table `input`, answered row by row as Spark would:
      "select id, upper(name) as name from input where id > 0".
    - `checkpoint`: by default `DST/_penstock/checkpoint`.
    - `watch`: go on until interrupted, and look for new files every second, or as often as it says ("10s").
    - `progress`: called a few times a second, and a last time when all is done.

    Raises what went wrong as a `PenstockError`. Then nothing of the batch in flight is visible, and the same call goes on
    from there. What interrupts the call, or what `progress` raises, is raised as it is. However the call ends, by then its query
    has stopped and what was committed is published; `progress` is told of that even after a `KeyboardInterrupt`.
    """
    require_pyspark()
    require_session(spark, "ingest")
    where = None if checkpoint is None else os.fspath(checkpoint)
    first, more = _sources(src)
    if more and "paths" in map(str.lower, source or {}):
        msg = "src is several paths, and so is the source option 'paths'; name all of them in src"
        raise OptionError(msg)
    paths = first, os.fspath(dst)
    every = _interval(watch)
    applied = one_transform(transform, sql)

    def described() -> _Job:
        zone = {"sessionTimeZone": time_zone(spark)}
        job = _Job(*paths, zone | more | dict(source or {}), dict(sink or {}), where)
        job.describe(applied, tasks_at_a_time(spark))
        return job

    run = _Run(described, every=every)
    try:
        run.follow(spark, progress)
    except BaseException as error:  # whatever leaves this scope, nothing of it is left behind
        run.end()
        with suppress(errors.PenstockError):  # what is raised says more
            run.publish()
            if progress is not None and isinstance(error, KeyboardInterrupt):
                progress(run.state())
        raise
    run.publish()
    done = run.state()
    if progress is not None:
        progress(done)
    return done


def one_transform(transform: Transform | str | None, sql: str | None) -> Transform | str | None:
    """Return what happens to rows, which is said in one of two ways; `OptionError` for both."""
    if sql is None:
        return transform
    if transform is not None:
        msg = f"transform={transform!r} and sql={sql!r}: expected one of both; have the one do what the other does"
        raise OptionError(msg)
    return Sql(sql)


def _sources(src: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, dict[str, str]]:
    """Return the first path, and the option that has the others. Raises `OptionError` for none."""
    if isinstance(src, (str, os.PathLike)):
        return os.fspath(src), {}
    paths = [os.fspath(path) for path in src]
    if not paths:
        msg = "src is empty: expected a path, or a list of them, such as ['/data/a', '/data/b/*.json']"
        raise OptionError(msg)
    if paths[1:] and any(map(is_topics, paths)):
        msg = f"src is {paths}: topics stand alone; name several in one address, kafka://broker:9092/orders,payments"
        raise OptionError(msg)
    return paths[0], {"paths": json.dumps(paths[1:])} if paths[1:] else {}


def _interval(watch: bool | str) -> float | None:  # noqa: FBT001 - what the user gave
    """Return after how many seconds to look for new files again; None: what is there is taken, and no more."""
    return parse_duration(_WATCHING if watch is True else watch, name="watch") if watch else None


class _Run:
    """One run of a query of an ingest, in a thread of its own; see the module. `describe` makes the job, in that thread."""

    def __init__(self, describe: Callable[[], _Job], *, every: float | None) -> None:
        self._describe = describe
        self._every = every
        self._job: _Job | None = None
        self._query: tuple[str, str] | None = None  # once it is started: its id, and what names it and its driver
        self._thread: threading.Thread | None = None
        self._waiting = False  # for input
        self._ending = threading.Event()  # it should end
        self._over = threading.Event()
        self._error: BaseException | None = None

    def follow(self, spark: SparkSession, progress: Callable[[Ingested], None] | None) -> None:
        """Start it, report while it runs, and raise what it ended with."""
        from pyspark.util import inheritable_thread_target

        target = inheritable_thread_target(spark)(self._run)  # with the caller's pool and tags
        self._thread = threading.Thread(target=target, args=(spark,), name="penstock-ingest", daemon=True)
        self._thread.start()
        state, known_until = None, 0.0
        while not self._over.wait(_POLL_SECONDS):
            if progress is None or self._query is None:
                continue
            idles = state is not None and state.waiting and self._waiting
            if state is None or not idles or clock.monotonic() >= known_until:
                state, known_until = self.state(), clock.monotonic() + _IDLE_POLL_SECONDS
            progress(state)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Have it end, and wait for that. Whoever is interrupted here does not wait; it ends all the same."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def publish(self) -> None:
        """Publish what the query left open, if there is one."""
        if self._job is not None and self._query is not None:
            self._job.finish(*self._query)

    def state(self) -> Ingested:
        """Return how far it is."""
        return Ingested(-1, 0, 0, 0, 0, 0, 0, 0, 0) if self._job is None else self._job.state(waiting=self._waiting)

    def _run(self, spark: SparkSession) -> None:
        try:
            self._job = self._describe()
            self._await(self._job, spark)
        except BaseException as error:  # noqa: BLE001 - whatever it is, `follow` raises it
            self._error = error
        finally:
            self._over.set()

    def _await(self, job: _Job, spark: SparkSession) -> None:
        if self._ending.is_set():
            return
        try:
            query = job.start(spark, every=self._every)
            try:
                self._query = job.named(query)
                while not self._ending.is_set() and not query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]  # - it takes fractions
                    self._waiting = job.waits(query)
                    if self._waiting and self._every is not None:
                        self._ending.wait(_IDLE_POLL_SECONDS - _POLL_SECONDS)
            finally:
                self._waiting = False
                query.stop()
        except errors.PenstockError:
            raise
        except Exception as error:  # whatever Spark wraps it in
            raise meaning(error, job.checkpoint, spark) from error


def check(
    src: str,
    dst: str,
    *,
    source: Mapping[str, Any],
    sink: Mapping[str, Any],
    transform: Transform | str | None = None,
    checkpoint: str | None = None,
    make: bool = True,
) -> None:
    """Raise what `ingest` would, as far as that can be known without Spark; `make` the directories of output and checkpoint."""
    job = _Job(src, dst, dict(source), dict(sink), checkpoint)
    if is_known(source.get("schema")):
        job.describe(transform, tasks=1)
    job.prepare(make=make)


def idle(
    src: str,
    dst: str,
    *,
    source: Mapping[str, Any],
    sink: Mapping[str, Any],
    transform: Transform | str | None = None,
    checkpoint: str | None = None,
) -> Ingested | None:
    """Return how far an ingest is that has nothing to do, without Spark; `None`: it has, or only Spark can tell.

    Most of the runs of a schedule are of this kind, and the start of Spark is nearly all that they cost. For a first run
    nothing is looked at: it has something to do. Raises `BrokerError`, for which a run would wait as long again.
    """
    if not is_known(source.get("schema")) or any(name.lower() == "files" for name in source):
        return None
    job = _Job(src, dst, dict(source), dict(sink), checkpoint)
    try:
        if job.state().batch < 0:
            return None
        job.describe(transform, tasks=1)
        return job.state() if job.preview().is_idle() else None
    except errors.BrokerError:  # the run would wait for the brokers again, behind the start of Spark
        raise
    except errors.PenstockError:  # the run itself says so, in its own words
        return None


@named
def dry_run(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    source: Mapping[str, Any] | None = None,
    sink: Mapping[str, Any] | None = None,
    transform: Transform | str | None = None,
    sql: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> DryRun:
    """Return what `ingest` with the same parameters would read, and what would come out of a sample of it; write nothing.

    It needs neither Spark nor Java, unless the schema is DDL that only Spark can read. A transform is called with the sample.
    Raises what is wrong with the call, as `ingest` would.
    """
    where = None if checkpoint is None else os.fspath(checkpoint)
    job = _Job(os.fspath(src), os.fspath(dst), dict(source or {}), dict(sink or {}), where)
    job.describe(one_transform(transform, sql), tasks=1)
    return job.preview().run()


class _Job:
    """One call of `ingest`: its options, checked, and what they start. Needs Spark only from `start` on."""

    _spark: SparkSession
    _waiting = False
    _accounted = Account()  # before this call
    _schema = ReadSchema("")

    def __init__(
        self,
        src: str,
        dst: str,
        source: dict[str, Any],
        sink: dict[str, Any],
        checkpoint: str | None,
    ) -> None:
        self._output, self._dst = locate(dst, name="DST")
        check_checkpoint(self._output if checkpoint is None else locate(checkpoint, name="checkpoint")[0], checkpoint)
        state, where = locate(
            f"{self._dst}/{STATE_DIRECTORY}/checkpoint" if checkpoint is None else checkpoint, name="checkpoint"
        )
        self._given_schema = next((source.pop(name) for name in list(source) if name.lower() == "schema"), None)
        self._input = input_of(src, source, dst, checkpoint)
        check_reached((self._output, self._dst), (state, where))
        sparklog.check_apart(self._output, self._dst, checkpoint)
        # Spark's JVM knows a store of objects by the address that it was given, not by ours.
        self._checkpoint = Checkpoint(where if state.has_directories or checkpoint is None else checkpoint)
        check_archive(self._input.options.get("sourceArchiveDir"), dst)
        self._sink = {"mergeBelow": _MERGE_BELOW} | given_options(SINK, sink, self._dst, "sink")
        self._sink |= _aside_of(
            self._input.options,
            self._sink,
            lambda given: check_quarantine(given, self._input.place, self._output, self._dst),
        )
        self.sink("check")

    def describe(self, transform: Transform | str | None, tasks: int) -> None:
        """Say what happens between source and sink, in `tasks` tasks; `OptionError` if that cannot be written."""
        self._schema = self._input.read_schema(self._given_schema, self._notes(), self._committed())
        self._described = transform, tasks
        self._stage = Stage.describe(self._input.options, self._schema.json, transform, tasks, self._input.columns)
        self._tasks = tasks
        stage = Stage.of(self._stage)
        sink = self.sink("check")
        sink.check(stage.schema)
        if name := self._checkpoint.query_id():
            self._accounted = self.sink(name).ledger.head().account

    def _notes(self) -> SchemaNotes:
        """Return where the schema is noted."""
        storage, path = locate(self._checkpoint.location)
        return SchemaNotes(storage, f"{path}/penstock")

    def _committed(self) -> int:
        """Return the last batch that was committed, -1 for none."""
        query = self._checkpoint.query_id()
        decided = -1 if query is None else self.sink(query).ledger.head().last_batch(query)
        return max([decided, *self._checkpoint.numbers("commits")])

    def _note_schema(self) -> None:
        """Note what is read, before anything is; where another driver has noted what it has inferred, that counts."""
        schema = self._schema.noted(self._notes(), self._committed())
        if schema.json != self._schema.json:
            self.describe(*self._described)
        else:
            self._schema = schema

    def prepare(self, *, make: bool = True) -> None:
        """Look at what is there, and `make` what is not; a file that cannot be written is told now, not by a task or in Java."""
        Earlier(self._input.storage, self._input.options, self._output, self._dst, self._checkpoint).check()
        if not make:
            return
        checkpoint, path = locate(self._checkpoint.location)
        self._output.make_directory(f"{self._dst}/{STATE_DIRECTORY}")
        checkpoint.make_directory(path)
        for storage, directory in ((self._output, self._dst), (checkpoint, path)):
            probe = f"{directory}/{TEMPORARY}{unique.token()}"
            storage.create(probe).close()
            storage.open(probe).close()
            storage.delete(probe)
        if aside := self._sink.get("quarantineLocation"):
            quarantine.claim(self._output, aside, self._dst)

    def preview(self) -> Preview:
        """Return what looks at what this would do."""
        return self._input.preview(
            Stage.of(self._stage), self.sink("preview"), self._checkpoint, list(self._schema.told)
        )

    def start(self, spark: SparkSession, *, every: float | None) -> StreamingQuery:
        """Start the query: one that looks for new files so many seconds after it last has, or takes what is there.

        Whatever the thread, its session is the job's: Spark finds formats by the active one.
        """
        self._spark = spark
        if not is_remote(spark) and (jvm := spark.sparkContext._jvm) is not None:  # noqa: SLF001 - the only way to make it the active one
            jvm.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - what Spark's JVM knows it by
        self.prepare()
        self._note_schema()
        self._abandon_changed_plan()
        self._checkpoint.forget_unfinished()
        keeper.sweep()
        side_by_side(spark, "penstock", "penstock-kafka")
        carried = self._input.frame(spark, Stage.of(self._stage), self._checkpoint.location, self._tasks)
        writer = carried.writeStream.format("penstock").options(**self._sink, **{STAGE: self._stage.text})
        writer = writer.option("checkpointLocation", self._checkpoint.location)
        watched = None if every is None else f"{round(every * 1000)} milliseconds"
        writer = writer.trigger(processingTime=watched) if watched else writer.trigger(availableNow=True)
        return writer.start()

    def _abandon_changed_plan(self) -> None:
        """Have a batch planned anew that was planned but never decided, if files of its plan have changed since.

        That is what happens when a bad file is mended: the plan names the version before. Nothing of such a batch is
        visible, so taking its entry out of Spark's offset log loses nothing. A batch that the ledger has is left alone,
        and so is one whose driver still lives.
        """
        number, query = in_flight(self._checkpoint), self._checkpoint.query_id()
        if number is None or query is None:
            return
        head = self.sink(query).ledger.head()
        if head.last_batch(query) >= number or self._runs(query, head.owner):
            return
        changed = self._input.changed(Stage.of(self._stage), self._checkpoint, number)
        if changed:
            _log.warning(
                "batch %d was never committed and %d of its files changed; it is planned anew", number, changed
            )
            self._checkpoint.abandon(number)

    def _runs(self, query: str, driver: str) -> bool:
        """Tell whether the query runs, in this application or in another one on this host."""
        if driver == self._owner(query) and any(str(active.id) == query for active in self._spark.streams.active):
            return True
        # A server of Connect may run it for another session, of which this one hears nothing.
        return (is_remote(self._spark) or driver != self._owner(query)) and drivers.lives(driver)

    def _owner(self, query: str) -> str:
        if is_remote(self._spark):  # whose driver is not here, and has noted itself
            owner = self.sink(query).ledger.head().owner
            return owner if owner and drivers.query_of(owner) == query else ""
        jvm = self._spark.sparkContext._jvm  # noqa: SLF001 - the only way to its process id
        pid = int(jvm.java.lang.ProcessHandle.current().pid()) if jvm else 0
        return drivers.owner(query, process(pid))

    @property
    def checkpoint(self) -> str:
        """Return where the checkpoint is."""
        return self._checkpoint.location

    def named(self, query: StreamingQuery) -> tuple[str, str]:
        """Return the id of the query, and what names it with its driver in the ledger."""
        number = str(query.id)
        if is_remote(self._spark):
            _check_seen_alike(self._checkpoint, number)
            return number, ""
        return number, self._owner(number)

    def finish(self, query: str, driver: str) -> None:
        """Publish what the query left open, as the driver it was, and end its keeper."""
        if owner := driver or self._owner(query):
            keeper.finish(self.sink(query), owner)

    def sink(self, query: str) -> Sink:
        """Return the sink that the query writes to."""
        options = parse(SINK, self._sink, what="sink")
        return Sink(self._output, self._dst, options, options["sinkId"] or query)

    def state(self, *, waiting: bool = False) -> Ingested:
        """Return how far it is, from the checkpoint and the ledger."""
        batch = max(self._checkpoint.numbers("commits"), default=-1)
        offset = self._input.offset(self._checkpoint, batch) if batch >= 0 else {}
        name = self._checkpoint.query_id()
        sink = self.sink(name or "")
        head = sink.ledger.head() if name else State("")
        new = head.account.since(self._accounted)
        return replace(
            standing(sink, head, query=name or "", batch=batch, offset=offset),
            waiting=waiting,
            null_columns=tuple(new.null_columns),
            unknown_fields=dict(new.unknown),
            rescued=new.rescued,
            notes=(*self._schema.told, *new.told()),
        )

    def waits(self, query: StreamingQuery) -> bool:
        """Tell whether the query has found nothing to do: not while it looks for the first time, and on while it looks again."""
        status = query.status
        if status["isDataAvailable"]:
            self._waiting = False
        elif status["message"].startswith("Waiting for"):
            self._waiting = True
        return self._waiting


def standing(sink: Sink, head: State, *, query: str, batch: int, offset: Mapping[str, Any]) -> Ingested:
    """Return how far a query is, by its offset of `batch` and the last record of its sink; without what one call has met."""
    files, size = offset.get("read", (0, 0))
    left_files, left_size = offset.get("left", (0, 0))
    grown = sink.lengths.known(head)
    parts = [part for part in head.open if not part.is_aside]
    not_read: dict[str, Any] = counts(offset) | counts_of(offset)
    return Ingested(
        batch=batch,
        input_files=files,
        input_bytes=size,
        left_files=left_files,
        left_bytes=left_size,
        rows=head.total_rows,
        output_files=head.total_files - head.aside.parts + len(grown),
        output_bytes=head.total_bytes - head.aside.bytes + sum(grown.values()),
        open_rows=sum(part.rows for part in parts),
        **not_read,
        left_by_partition=behind_of(offset),
        aside_records=head.aside.records,
        aside_files=head.aside.files,
        aside_changed=head.aside.changes,
        query=query,
        open_parts=len(parts),
        open_since_ns=min((part.opened_ns for part in parts), default=0),
        oldest_left_ns=offset.get("oldest", 0),
    )


def _check_seen_alike(checkpoint: Checkpoint, query: str) -> None:
    """Raise `OptionError` unless the checkpoint of a query that a server elsewhere runs is the one that is seen here."""
    if checkpoint.query_id() != query:
        msg = (
            f"the Spark Connect server does not write the checkpoint {checkpoint.location!r} that this process sees: SRC, DST and "
            "checkpoint must be places that both see, such as hdfs:// or a shared disk; run the ingest where the server runs"
        )
        raise OptionError(msg)


def _aside_of(source: Mapping[str, str], sink: Mapping[str, str], located: Callable[[str], str]) -> dict[str, str]:
    """Return what the sink is told of where to set aside: the option is one of the source, and it is the sink that writes."""
    if "quarantineLocation" in sink:
        msg = "quarantineLocation is an option of the source, as badRecords is: give it there"
        raise OptionError(msg)
    return {name: located(text) for name, text in source.items() if name == "quarantineLocation"}
