"""`format("penstock")`: Spark's Python data source over our source and our sink.

Spark makes these objects in processes of its own, many times: the data source when a query is defined and again at every batch, the
reader in the source's process (where it plans) and in tasks (where it reads), the writer in the process that starts a batch and in the
process that commits it. So constructing them is cheap, checks what can be checked without I/O, and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from penstock.errors import OptionError, PenstockError
from penstock.options import BATCH_SINK, Options, parse
from penstock.options.finished import FOR_BATCHES, FOR_STREAMS
from penstock.options.internal import LIVE_PUBLISHED, LIVE_SOURCE, LOOK
from penstock.options.published import EMIT
from penstock.source.schemas import LINES, LOOKED_AT
from penstock.spark.border import border

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.ingestion.finished import AsLoaded
    from penstock.source.cursor import Split
    from penstock.source.followed import FollowPlanner
    from penstock.source.pace import Silence
    from penstock.source.plan import Planner
    from penstock.spark.batchwriter import BatchWriter
    from penstock.spark.finished import FinishedReader
    from penstock.spark.published import PublishedStreamReader
    from penstock.spark.writer import StreamWriter


@border
class PenstockDataSource(DataSource):
    """Files as exactly-once streams; the options are those of `penstock.options`."""

    _as_loaded: AsLoaded | None = None  # travels from the data source to the reader

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "penstock"

    def schema(self) -> StructType | str:
        """Return the schema of a source that needs none from the user, or that infers it; `OptionError` for a table.

        Spark passes an owner for a table. An inferred schema is noted, so that each call returns the same.
        """
        from penstock.source.schemas import default_schema

        if "owner" in self.options:
            msg = (
                "there are no tables of format penstock: expected spark.readStream, or spark.read.format('penstock').load(path) and "
                "createOrReplaceTempView(name) for what is finished; as files it is a table of its own format, such as CREATE TABLE ... "
                "USING parquet LOCATION ..."
            )
            raise OptionError(msg)
        if LOOK in self.options:
            return LOOKED_AT
        if self._emits_published():
            from penstock.sink.eventrows import COLUMNS

            return COLUMNS
        if self._may_be_output():
            from penstock.ingestion.finished import loaded

            self._as_loaded = loaded(self.options)
            if self._as_loaded is not None and self._as_loaded.schema is not None:
                return self._as_loaded.schema
        options = self._parsed(LIVE_SOURCE, "source")
        if options["schema"] and options["emit"] == "records":
            from penstock.source.inferred import noted_schema

            return noted_schema(options)
        return default_schema(options)

    def streamReader(self, schema: StructType) -> PenstockStreamReader | PublishedStreamReader:  # noqa: N802 - Spark's name
        """Return the source."""
        if self._emits_published():
            from penstock.spark.published import PublishedStreamReader, check_schema

            if LOOK not in self.options:
                check_schema(schema)
            return PublishedStreamReader(self._parsed(LIVE_PUBLISHED, "source with emit=published"))
        if self._as_loaded is not None and self._as_loaded.schema is not None:
            self._refuse_inferred(self._as_loaded.format)
        read = LINES if LOOK in self.options else schema.json()
        return PenstockStreamReader(self._parsed(LIVE_SOURCE, "source"), read)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802 - Spark's signature
        """Return the sink; `OptionError` in complete mode, which would replace at every batch what was written."""
        if overwrite:
            msg = "outputMode('complete') would have finished files replaced; expected append, Spark's default"
            raise OptionError(msg)
        from penstock.ingestion.stage import LIVE_SINK
        from penstock.spark.writer import StreamWriter
        from penstock.spark.writing import open_files

        options = self._parsed(LIVE_SINK, "sink")
        opens = partial(open_files, options, schema.json())
        return StreamWriter(opens, checkpoint=options["checkpointLocation"], sink_id=options["sinkId"])

    def reader(self, schema: StructType) -> FinishedReader:
        """Return the finished files of an output; `OptionError` for a directory that is not an output, which is read as a stream."""
        from penstock.spark.finished import FinishedReader

        return FinishedReader(self.options, schema, self._as_loaded)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's signature
        """Return the sink of one batch; `OptionError` in overwrite mode, which would replace what readers see."""
        if overwrite:
            msg = (
                "mode('overwrite') would have finished files replaced, and nothing of an output ever is; expected mode('append'), with a "
                "batchKey that a repetition has, too; or another directory"
            )
            raise OptionError(msg)
        from penstock.spark.batchwriter import BatchWriter

        return BatchWriter(self._parsed(BATCH_SINK, "batch write"), schema.json())

    def _may_be_output(self) -> bool:
        """Tell whether a batch of finished files may be meant: Spark does not say. For a stream this costs one stat at most."""
        given = {name.lower() for name in self.options}
        if given & FOR_BATCHES:
            return True
        if given & FOR_STREAMS:
            return False
        from penstock.storage import entry_at, locate

        try:
            storage, root = locate(self.options.get("path", ""))
            return entry_at(storage, f"{root}/_penstock") is not None
        except PenstockError:  # the code that reads it reports what is wrong
            return False

    def _refuse_inferred(self, form: str) -> NoReturn:
        msg = (
            f"path={self.options.get('path')!r} is an output of {form} files, and a stream of them needs their schema: add "
            f".option('format', {form!r}) and .schema('id bigint, name string') with your columns, or schema=infer with stateLocation"
        )
        raise OptionError(msg)

    def _emits_published(self) -> bool:
        """Tell whether this is the stream of published files, which has options of its own."""
        return any(name.lower() == "emit" and value.lower() == EMIT for name, value in self.options.items())

    def _parsed(self, table: Any, what: str) -> Options:  # noqa: ANN401 - LIVE_SOURCE or LIVE_SINK
        return parse(table, dict(self.options), what=what)


def looked_at(rows: Iterator[pa.RecordBatch], look: str) -> Iterator[pa.RecordBatch]:
    """Yield, for an ingest, the splits of the files named by rows that a source of ours has read; called in a task."""
    from penstock.ingestion.looks import LookWhereRead

    return LookWhereRead(look).splits(rows)


@dataclass
class SplitsPartition(InputPartition):
    """The splits that one task reads, and the zone for times without one; `None` if nobody had set it."""

    splits: tuple[Split, ...]
    zone: str | None


@border
class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one query. Plans in the source's process, reads in tasks; see `source.plan` and `source.read`."""

    def __init__(self, options: Options, schema: str) -> None:
        from penstock.source.configured import check_plain, reading

        check_plain(options)
        self._options = options
        self._reading = reading(options, schema)
        self._planner: Planner | FollowPlanner | None = None
        self._silence: Silence | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        return self._planning().initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit, so that a batch is limited: the options say how much it takes; this only must not be `ReadAllAvailable`."""
        return ReadMaxFiles(self._options["maxFilesPerTrigger"])

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limit the run to the files that are found when the next batch is planned."""
        self._planning().prepare_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Plan the next batch; Trigger.Once asks for all that is available."""
        planner = self._planning()
        if self._silence is not None:
            self._silence.wait()
        end = planner.latest(start, limited=not isinstance(limit, ReadAllAvailable))
        if self._silence is not None:
            self._silence.looked(found=end != start)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, from its end offset alone; the first call after a restart.

        The batch that ended at `start` is committed, because Spark continues after it.
        """
        planner = self._planning()
        planner.clean(start, end)
        zone = planner.zone(end)
        return [SplitsPartition(tuple(task), zone) for task in planner.tasks(end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task."""
        from penstock.session import worker
        from penstock.source.configured import in_zone, told

        worker.settle_reader()
        assert isinstance(partition, SplitsPartition)  # noqa: S101 - `partitions` made it
        reading = in_zone(self._options, self._reading, partition.zone, worker.session_zone)
        rows = told(self._options, reading, partition.splits)
        yield from rows if self._options[LOOK] is None else looked_at(rows, self._options[LOOK])
        worker.KEPT.give_back()

    def commit(self, end: dict[str, Any]) -> None:
        """Delete what no replay can ask for; called one batch late."""
        self._planning().committed(end)

    def stop(self) -> None:
        """Do nothing: the planner holds no resources."""

    def _planning(self) -> Planner | FollowPlanner:
        if self._planner is None:
            from penstock.source.configured import planner
            from penstock.source.pace import Silence

            self._planner = planner(self._options, self._reading)
            self._silence = Silence()
        return self._planner

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the planner."""
        return self.__dict__ | {"_planner": None, "_silence": None}
