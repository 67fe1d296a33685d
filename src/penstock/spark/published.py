"""`format("penstock")` with `emit=published`: the finished files of an output as a stream. Its rules are those of `sink.published`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from penstock.errors import OptionError
from penstock.options.internal import LOOK
from penstock.sink import eventrows
from penstock.spark.border import border
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.options import Options
    from penstock.sink.published import Published

_TASK_EVENTS = 10_000  # events of one task, in order


def check_schema(schema: StructType) -> None:
    """Raise `OptionError` if the schema has other columns than the events."""
    spelt = {field.name: field.dataType.simpleString() for field in schema.fields}
    columns = ", ".join(f"{name} {kind}" for name, kind in spelt.items())
    if columns.replace(" ", "") != eventrows.COLUMNS.replace(" ", ""):
        msg = f"emit=published has the columns {eventrows.COLUMNS}; found {columns}; leave .schema(...) out"
        raise OptionError(msg)


@dataclass
class EventsPartition(InputPartition):
    """The rows of one task, as an Arrow stream, because only the source's process reads the ledger."""

    rows: bytes


@border
class PublishedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one query. Reads the ledgers in the source's process; tasks only pass rows on."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._until: Mapping[str, int] | None = None
        self._opened: Published | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        return self._published().begin(self._options["startingFrom"])

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Say how much is in a batch."""
        return ReadMaxFiles(self._options["maxFilesPerTrigger"])

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limit the run to what is published now."""
        self._until = self._published().ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Plan the next batch; Trigger.Once asks for all that is available."""
        files = None if isinstance(limit, ReadAllAvailable) else self._options["maxFilesPerTrigger"]
        return self._published().plan(start, files, self._until)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, from its offsets and the ledgers; the first call after a restart."""
        events = self._published().events(start, end)
        _, root = locate(self._options["path"])
        pieces = [events[at : at + _TASK_EVENTS] for at in range(0, len(events), _TASK_EVENTS)]
        return [EventsPartition(eventrows.packed(piece, root)) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        import pyarrow as pa

        from penstock.ingestion.looks import LookWhereRead

        assert isinstance(partition, EventsPartition)  # noqa: S101 - `partitions` made it
        look = self._options[LOOK]
        with pa.ipc.open_stream(partition.rows) as stream:
            yield from stream if look is None else LookWhereRead(look).splits(stream)

    def stop(self) -> None:
        """Do nothing: no resources are held."""

    def _published(self) -> Published:
        if self._opened is None:
            from penstock.sink.published import Published

            storage, root = locate(self._options["path"])
            self._opened = Published(storage, root, self._options["sinkId"])
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without what was read."""
        return self.__dict__ | {"_opened": None}
