"""Rows through the JVM and out of it again, and nothing else: a source that makes no effort and a sink that keeps nothing.

What it takes is Spark's own, for any source and sink in Python: the least that `readStream` and `writeStream` can take.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_TASKS = 8
_BATCH_ROWS = 10_000  # what Spark puts into a batch on the way out


def cross(spark: SparkSession, rows: int, width: int) -> float:
    """Send about `rows` lines of `width` bytes into the JVM and out of it; return the seconds."""
    spark.dataSource.register(Crossing)
    options = {"batches": str(max(rows // _BATCH_ROWS // _TASKS, 1)), "width": str(width)}
    start = time.perf_counter()
    spark.read.format("crossing").options(**options).load().write.format("crossing").mode("append").save()
    return time.perf_counter() - start


class Crossing(DataSource):
    """A batch of lines, again and again, to nowhere."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "crossing"

    def schema(self) -> str:
        """Return that of text."""
        return "value string"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark passes it by its name
        """Return the source."""
        return _Lines(int(self.options["batches"]), int(self.options["width"]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002, FBT001 - Spark passes it by its name
        """Return the sink."""
        return _Nowhere()


class _Lines(DataSourceReader):
    def __init__(self, batches: int, width: int) -> None:
        self._batches = batches
        self._width = width

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(_TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - all are alike
        batch = pa.record_batch({"value": pa.array(["x" * self._width] * _BATCH_ROWS)})
        for _ in range(self._batches):
            yield batch


class _Nowhere(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
