"""One call of an ingest: checks its options together, and starts its query."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock import unique
from penstock.errors import CheckpointMismatch, Fenced, OptionError
from penstock.formats.account import Account
from penstock.ingestion.earlier import Earlier, check_follows
from penstock.ingestion.given import given_options
from penstock.ingestion.ingested import standing
from penstock.ingestion.inputs import input_of
from penstock.ingestion.places import (
    check_archive,
    check_quarantine,
    check_reached,
    checkpoint_place,
)
from penstock.ingestion.replan import in_flight
from penstock.ingestion.schema import ReadSchema
from penstock.ingestion.stage import Stage
from penstock.options import SINK, parse
from penstock.processes import process
from penstock.query import driver as drivers
from penstock.query.batch import Batch
from penstock.query.checkpoint import Checkpoint
from penstock.query.entries import Entries
from penstock.session.connect import is_remote
from penstock.session.sidebyside import side_by_side
from penstock.sink import keeper, quarantine, sparklog
from penstock.sink.existing import STAGE
from penstock.sink.ledger import State
from penstock.sink.sink import STATE_DIRECTORY, Sink
from penstock.source.noted import SchemaNotes
from penstock.storage import TEMPORARY, locate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.ingestion.dry import Preview
    from penstock.ingestion.ingested import Ingested
    from penstock.ingestion.stage import Transform

_log = logging.getLogger("penstock.ingest")
# There are as many tasks as cores, so parts have a proper size unless the input is small.
_MERGE_BELOW = "4m"


class Job:
    """One call of `ingest`: its checked options, and the query that it starts. Needs Spark only from `start` on."""

    _spark: SparkSession
    _waiting = False
    _accounted = Account()  # the account before this call
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
        state, where = locate(
            f"{self._dst}/{STATE_DIRECTORY}/checkpoint" if checkpoint is None else checkpoint, name="checkpoint"
        )
        self._checkpoint = Checkpoint(checkpoint_place(state, where, checkpoint))
        self._given_schema = next((source.pop(name) for name in list(source) if name.lower() == "schema"), None)
        self._input = input_of(src, source, dst, checkpoint)
        check_reached((self._output, self._dst), (state, where))
        sparklog.check_apart(self._output, self._dst, checkpoint)
        check_archive(self._input.options.get("sourceArchiveDir"), dst)
        self._sink = {"mergeBelow": _MERGE_BELOW} | given_options(SINK, sink, self._dst, "sink")
        self._sink |= _aside_of(
            self._input.options,
            self._sink,
            lambda given: check_quarantine(given, self._input.place, self._output, self._dst),
        )
        self.sink("check")

    def describe(self, transform: Transform | str | None, tasks: int) -> None:
        """Set what happens between source and sink, in `tasks` tasks; `OptionError` if the result cannot be written."""
        self._schema = self._input.read_schema(self._given_schema, self._notes(), self._committed())
        self._described = transform, tasks
        self._stage = Stage.describe(self._input.options, self._schema.json, transform, tasks, self._input.columns)
        self._tasks = tasks
        stage = Stage.of(self._stage)
        sink = self.sink("check")
        sink.check(stage.schema)
        if not self._input.is_in_time:
            sink.layout.check_progress(Batch("", 0))
        if name := self._checkpoint.query_id():
            self._accounted = self.sink(name).ledger.head().account

    def _notes(self) -> SchemaNotes:
        """Return the notes of the schema."""
        storage, path = locate(self._checkpoint.location)
        return SchemaNotes(storage, f"{path}/penstock")

    def _committed(self) -> int:
        """Return the last committed batch, -1 if there is none."""
        query = self._checkpoint.query_id()
        decided = -1 if query is None else self.sink(query).ledger.head().last_batch(query)
        return max([decided, *self._checkpoint.numbers("commits")])

    def _note_schema(self) -> None:
        """Note the schema before anything is read. If another driver has noted the schema that it inferred, that one is used."""
        schema = self._schema.noted(self._notes(), self._committed())
        if schema.json != self._schema.json:
            self.describe(*self._described)
        else:
            self._schema = schema

    def prepare(self, *, make: bool = True) -> None:
        """Check what is there, and with `make` make missing directories. An error in writing shows here, not in a task or in Java."""
        Earlier(self._input.storage, self._input.options, self._output, self._dst, self._checkpoint).check()
        try:
            check_follows(self._checkpoint, self.sink)
        except CheckpointMismatch:
            self._input.offset(self._checkpoint, self._committed())  # a damaged one says so
            raise
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
        """Return the preview of this job."""
        return self._input.preview(
            Stage.of(self._stage), self.sink("preview"), self._checkpoint, list(self._schema.told)
        )

    def start(self, spark: SparkSession, *, every: float | None) -> StreamingQuery:
        """Start the query: with `every`, one that looks for new files at this interval in seconds; else one that reads what is there.

        Makes the job's session the active one of this thread, because Spark finds formats by the active session.
        """
        self._spark = spark
        if not is_remote(spark) and (jvm := spark.sparkContext._jvm) is not None:  # noqa: SLF001 - the only way to make it the active one
            jvm.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - what Spark's JVM knows it by
        self.prepare()
        self._note_schema()
        self._abandon_changed_plan()
        self._checkpoint.forget_unfinished()
        self._name_query()
        keeper.sweep()
        side_by_side(spark, "penstock", "penstock-kafka")
        carried = self._input.frame(spark, Stage.of(self._stage), self._checkpoint.location, self._tasks)
        writer = carried.writeStream.format("penstock").options(**self._sink, **{STAGE: self._stage.text})
        writer = writer.option("checkpointLocation", self._checkpoint.location)
        watched = None if every is None else f"{round(every * 1000)} milliseconds"
        writer = writer.trigger(processingTime=watched) if watched else writer.trigger(availableNow=True)
        return writer.start()

    def _name_query(self) -> None:
        """Make the directories of a new checkpoint on this host, and name its query, as Spark would.

        Hadoop's local file system starts a process (`chmod`) for each directory that it makes and two for each file that it writes. This
        saves four of the eight of a query with one batch, or more with Spark's default for checkpoints.
        """
        if not is_remote(self._spark) and locate(self._checkpoint.location)[0].of_this_host:
            Entries(self._checkpoint).begin()

    def _abandon_changed_plan(self) -> None:
        """Have a batch planned again that was planned but never decided, if files of its plan have changed.

        That happens when a bad file is mended: the plan names the earlier version. Nothing of such a batch is visible, so
        removing its entry from Spark's offset log loses nothing. A batch that the ledger has stays as it is, and so does a batch
        whose driver still lives.
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
        """Tell whether the query runs in this application or in another one on this host."""
        if driver == self._owner(query) and any(str(active.id) == query for active in self._spark.streams.active):
            return True
        # A Connect server may run the query for another session, which this session does not see.
        return (is_remote(self._spark) or driver != self._owner(query)) and drivers.lives(driver)

    def _owner(self, query: str) -> str:
        if is_remote(self._spark):  # the driver is not in this process, but the ledger names it
            owner = self.sink(query).ledger.head().owner
            return owner if owner and drivers.query_of(owner) == query else ""
        jvm = self._spark.sparkContext._jvm  # noqa: SLF001 - the only way to its process id
        pid = int(jvm.java.lang.ProcessHandle.current().pid()) if jvm else 0
        return drivers.owner(query, process(pid))

    @property
    def checkpoint(self) -> str:
        """Return the location of the checkpoint."""
        return self._checkpoint.location

    def named(self, query: StreamingQuery) -> tuple[str, str]:
        """Return the id of the query, and the name of its driver in the ledger."""
        number = str(query.id)
        if is_remote(self._spark):
            _check_seen_alike(self._checkpoint, number)
            return number, ""
        return number, self._owner(number)

    def finish(self, query: str, driver: str) -> None:
        """Publish what the query left open, in the name of its driver, and end its keeper.

        If this run had no batch, an earlier driver still has the sink. If that has ended before it could publish everything, this is done
        in its place: nothing else would show these rows until something new comes.
        """
        sink = self.sink(query)
        if owner := driver or self._owner(query):
            keeper.finish(sink, owner)
        head = sink.ledger.head()
        if drivers.query_of(head.owner) == query and drivers.has_ended(head.owner) and not head.writing:
            with suppress(Fenced):  # another driver has begun meanwhile, and publishes it
                sink.finish(head.owner)

    def sink(self, query: str) -> Sink:
        """Return the sink that the query writes to."""
        options = parse(SINK, self._sink, what="sink")
        return Sink(self._output, self._dst, options, options["sinkId"] or query)

    def state(self, *, waiting: bool = False) -> Ingested:
        """Return the report of the ingest, from the checkpoint and the ledger.

        `waiting` says that it was waiting up to a second ago; a batch that Spark has planned since then is seen here.
        """
        batch = max(self._checkpoint.numbers("commits"), default=-1)
        offset = self._input.offset(self._checkpoint, batch) if batch >= 0 else {}
        name = self._checkpoint.query_id()
        sink = self.sink(name or "")
        head = sink.ledger.head() if name else State("")
        new = head.account.since(self._accounted)
        return replace(
            standing(sink, head, query=name or "", batch=batch, offset=offset),
            waiting=waiting and in_flight(self._checkpoint) is None,
            null_columns=tuple(new.null_columns),
            unknown_fields=dict(new.unknown),
            rescued=new.rescued,
            notes=(*self._schema.told, *new.told()),
        )

    def waits(self, query: StreamingQuery) -> bool:
        """Tell whether the query has found nothing to do: False during its first look, and unchanged while it looks again."""
        status = query.status
        if status["isDataAvailable"]:
            self._waiting = False
        elif status["message"].startswith("Waiting for"):
            self._waiting = True
        return self._waiting


def _check_seen_alike(checkpoint: Checkpoint, query: str) -> None:
    """Raise `OptionError` unless the checkpoint that a remote server writes is the one that this process sees."""
    if checkpoint.query_id() != query:
        msg = (
            f"the Spark Connect server does not write the checkpoint {checkpoint.location!r} that this process sees: SRC, DST and "
            "checkpoint must be places that both see, such as hdfs:// or a shared disk; run the ingest where the server runs"
        )
        raise OptionError(msg)


def _aside_of(source: Mapping[str, str], sink: Mapping[str, str], located: Callable[[str], str]) -> dict[str, str]:
    """Return the sink's option for the place of what is set aside: users give it to the source, but the sink writes there."""
    if "quarantineLocation" in sink:
        msg = "quarantineLocation is an option of the source, as badRecords is: give it there"
        raise OptionError(msg)
    return {name: located(text) for name, text in source.items() if name == "quarantineLocation"}
