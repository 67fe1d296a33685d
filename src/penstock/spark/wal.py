"""`format("penstock-wal")`: a log as a stream, and as a batch. Its rules are those of `wal.runs`.

The offset is a position; a batch is the records between two positions. The writer of the log knows nothing of its readers: purge only
what the query has committed.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from penstock.errors import NotThere, OptionError, UsageError
from penstock.options import LOG, Options, parse
from penstock.spark.border import border
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.wal import Position
    from penstock.wal.runs import LogPlanner, LogRun

SCHEMA = "segment int, offset bigint, record binary"


@border
class LogDataSource(DataSource):
    """A log as rows: the position of each record, and the record; the options are those of `penstock.options`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "penstock-wal"

    def schema(self) -> str:
        """Return the schema, which is always the same."""
        return SCHEMA

    def reader(self, schema: StructType) -> LogReader:
        """Return the log as a batch: all records that are there."""
        return LogReader(self._parsed(schema))

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802 - Spark's name
        """Return the log as a stream."""
        return LogStreamReader(self._parsed(schema))

    def _parsed(self, schema: StructType) -> Options:
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
        if columns != SCHEMA:
            msg = f"a log has the columns {SCHEMA}, and no others; found {columns}; leave .schema(...) out"
            raise OptionError(msg)
        return parse(LOG, dict(self.options), what="log")


@dataclass
class RunPartition(InputPartition):
    """The run that one task reads."""

    run: LogRun


@border
class LogReader(DataSourceReader):
    """The log up to its end when the query is planned."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        from penstock.wal import runs

        start = begin(self._options)
        with closing(planner(self._options)) as planning:
            end = planning.plan(start, size=None, split=self._options["splitSize"])
        return [RunPartition(run) for run in runs.runs(start, end)] if end != start else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task."""
        return rows(self._options, partition)


@border
class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one query. Plans in the source's process, reads in tasks."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._until: Position | None = None
        self._planner: LogPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        return begin(self._options)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Say how much is in a batch."""
        return ReadMaxBytes(self._options["maxBytesPerTrigger"])

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limit the run to the present end of the log."""
        from penstock.wal import Log

        storage, directory = locate(self._options["path"])
        self._until = Log(directory, storage=storage).info().end

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Plan the next batch; Trigger.Once asks for all that is available."""
        if self._planner is None:
            self._planner = planner(self._options)
        size = None if isinstance(limit, ReadAllAvailable) else self._options["maxBytesPerTrigger"]
        return self._planner.plan(start, size=size, split=self._options["splitSize"], until=self._until)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, from its offsets alone; the first call after a restart."""
        from penstock.wal import runs

        return [RunPartition(run) for run in runs.runs(start, end)] if end != start else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task."""
        return rows(self._options, partition)

    def stop(self) -> None:
        """Close the log."""
        if self._planner is not None:
            self._planner.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the planner."""
        return self.__dict__ | {"_planner": None}


def begin(options: Options) -> dict[str, Any]:
    """Return the offset before the first run; `OptionError` if there is no directory at the path, or it is not a log."""
    from penstock.wal import runs
    from penstock.wal.segment import check_directory

    storage, directory = locate(options["path"])
    try:
        check_directory(storage, directory)
    except (NotThere, UsageError) as error:
        msg = f"path={options['path']!r}: {error.message}"
        raise OptionError(msg) from error
    return runs.begin(directory, options["startingFrom"], storage)


def planner(options: Options) -> LogPlanner:
    """Return the planner of runs."""
    from penstock.wal import runs

    storage, directory = locate(options["path"])
    return runs.LogPlanner(directory, storage)


def rows(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield what one task emits."""
    from penstock.session import worker
    from penstock.wal import runs

    if not isinstance(partition, RunPartition):  # Spark makes such a partition if a batch has none
        return iter(())
    worker.settle_reader()
    storage, directory = locate(options["path"])
    return runs.read(directory, partition.run, storage)
