"""`spark.read.format("penstock")`: the finished files of an output as a batch. Its rules are those of `ingestion.finished`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.errors import OptionError
from penstock.ingestion.finished import AsLoaded, FinishedFiles
from penstock.sink.events import EventPosition
from penstock.source import configured
from penstock.spark.border import border

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.source.cursor import Split


@dataclass
class FinishedPartition(InputPartition):
    """The splits that one task reads."""

    splits: tuple[Split, ...]


@border
class FinishedReader(DataSourceReader):
    """A batch of finished files; planned once, when Spark plans what is read."""

    def __init__(self, given: Mapping[str, str], schema: StructType, found: AsLoaded | None) -> None:
        positions = None if found is None else found.positions
        if positions is not None:
            positions = {sink: EventPosition(*at) for sink, at in positions.items()}
        if found is not None and positions is None:
            msg = (
                f"the files are {found.format}, and nothing said so when their schema was asked for: add "
                f'.option("format", "{found.format}"), or a schema, or call penstock.register(spark) before spark.read; in SQL, which '
                f"penstock.register does not reach, OPTIONS (format '{found.format}'), or columns"
            )
            raise OptionError(msg)
        files = FinishedFiles.of(given, positions)
        self._options = files.source
        self._reading = files.reading(schema.json())
        self._tasks = files.tasks(self._reading)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks; one without files if there are none, because Spark would otherwise make a partition of its own."""
        return [FinishedPartition(splits) for splits in self._tasks or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task."""
        from penstock.session import worker

        worker.settle_reader()
        assert isinstance(partition, FinishedPartition)  # noqa: S101 - `partitions` made it
        in_zone = configured.in_zone(self._options, self._reading, None, worker.session_zone)
        return configured.told(self._options, in_zone, partition.splits)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the splits of other tasks."""
        return self.__dict__ | {"_tasks": []}
