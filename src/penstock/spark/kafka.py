"""`format("penstock-kafka")`: topics of Kafka as a stream, and as a batch. Its rules are those of `penstock.kafka`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.errors import OptionError
from penstock.options.internal import LIVE_TOPICS, SPLITS
from penstock.options.topics import parse_topics
from penstock.source import schemas
from penstock.spark.border import border

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.kafka.offset import Range
    from penstock.kafka.plan import TopicPlanner
    from penstock.options import Options

_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_HEADERS = ", headers array<struct<key:string,value:binary>>"


@border
class TopicDataSource(DataSource):
    """Topics as rows, with the columns of Spark's own connector; the options are those of `penstock.options`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "penstock-kafka"

    def schema(self) -> str:
        """Return the schema, with headers if they are asked for; for an ingest, the schema of its one column of splits."""
        return self._columns(self._parsed(stream=None))

    def reader(self, schema: StructType) -> TopicReader:
        """Return topics as a batch: all decided records, or the range that `startingOffsets` and `endingOffsets` say."""
        return TopicReader(self._checked(schema, stream=False))

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 - Spark's name
        """Return topics as a stream."""
        return TopicStreamReader(self._checked(schema, stream=True))

    def _checked(self, schema: StructType, *, stream: bool) -> Options:
        options = self._parsed(stream=stream)
        given = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
        if given != self._columns(options):
            msg = f"a topic has the columns {self._columns(options)}, and no others; found {given}; leave .schema(...) out"
            raise OptionError(msg)
        return options

    def _parsed(self, *, stream: bool | None) -> Options:
        return parse_topics(dict(self.options), stream=stream, table=LIVE_TOPICS)

    @staticmethod
    def _columns(options: Options) -> str:
        if options["emit"] == SPLITS:
            return schemas.SPLITS
        return _COLUMNS + _HEADERS * bool(options["includeHeaders"])


@dataclass
class RangePartition(InputPartition):
    """The range that one task reads."""

    range: Range


@dataclass
class CarriedPartition(InputPartition):
    """The range that one task of an ingest reads, in the form in which it is carried to the stage."""

    carried: str


@border
class TopicReader(DataSourceReader):
    """Topics up to the records that are decided when the query is planned."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        return tasks(self._options, *planner(self._options).whole())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task."""
        return rows(self._options, partition)


@border
class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one query. Plans in the source's process, reads in tasks."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._planner: TopicPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        return self._planning().initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit, so that a batch is limited: the options say how much it takes; this only must not be `ReadAllAvailable`."""
        return ReadMaxRows(self._options["maxOffsetsPerTrigger"] or 1)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limit the run to the records that are decided now."""
        self._planning().prepare_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Plan the next batch; Trigger.Once asks for all that is available."""
        return self._planning().latest(start, limited=not isinstance(limit, ReadAllAvailable))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, from its offsets alone; the first call after a restart."""
        if self._options["emit"] == SPLITS:
            from penstock.kafka.carried import carried

            return [CarriedPartition(text) for text in carried(start, end, self._options["tasks"])]
        return tasks(self._options, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task."""
        return rows(self._options, partition)

    def stop(self) -> None:
        """Do nothing: connections are closed with the objects that hold them."""

    def _planning(self) -> TopicPlanner:
        if self._planner is None:
            self._planner = planner(self._options)
        return self._planner

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the planner."""
        return self.__dict__ | {"_planner": None}


def planner(options: Options) -> TopicPlanner:
    """Return the planner of batches; `DependencyError` if the library is missing."""
    from penstock.kafka.cluster import Cluster
    from penstock.kafka.plan import TopicPlanner

    return TopicPlanner(options, Cluster(options))


def tasks(options: Options, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[RangePartition]:
    """Return the tasks between two offsets."""
    from penstock.kafka.offset import ranges

    return [RangePartition(each) for each in ranges(start, end, options["minPartitions"])]


def rows(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield what one task emits."""
    from penstock.kafka import read
    from penstock.session import worker
    from penstock.source.configured import carried_row

    if isinstance(partition, CarriedPartition):
        return iter([carried_row(partition.carried)])
    if not isinstance(partition, RangePartition):  # Spark makes such a partition if a batch has none
        return iter(())
    worker.settle_reader()
    return read.read(options, partition.range)
