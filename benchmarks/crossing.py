"""Rows go through the JVM and out again, and nothing else: a source that does no work and a sink that keeps nothing.

The time is Spark's own, for any source and sink in Python: the minimum for `readStream` and `writeStream`.
"""

from __future__ import annotations

import tempfile
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

from benchmarks.data import ddl, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_TASKS = 8
_BATCH_ROWS = 10_000  # Spark's batch size on the way out


def cross(spark: SparkSession, rows: int, width: int, *, where: str | None = None, by: str | None = None) -> float:
    """Send about `rows` rows into the JVM and out of it; return the seconds.

    They are lines of `width` bytes; with 0 the plain records of `data`. `where` filters the rows that go out; with `by` none go out,
    and the rows are counted by that column.
    """
    spark.dataSource.register(Crossing)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    batch = pa.record_batch({"value": pa.array(["x" * width] * _BATCH_ROWS)}) if width else plain(_BATCH_ROWS)
    with tempfile.NamedTemporaryFile(suffix=".arrow") as ready:
        with pa.ipc.new_stream(ready, batch.schema) as stream:
            stream.write_batch(batch)
        ready.flush()
        options = {
            "batches": str(max(rows // _BATCH_ROWS // _TASKS, 1)),
            "rows": ready.name,
            "columns": _columns(width),
        }
        start = time.perf_counter()
        frame = spark.read.format("crossing").options(**options).load()
        if by is not None:
            frame.groupBy(by).count().collect()
        else:
            (frame.where(where) if where else frame).write.format("crossing").mode("append").save()
        return time.perf_counter() - start


def _columns(width: int) -> str:
    return "value string" if width else ddl("json")


class Crossing(DataSource):
    """One batch of rows, repeated, that goes nowhere."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "crossing"

    def schema(self) -> str:
        """Return the schema of the prepared rows."""
        return self.options["columns"]

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark passes it by its name
        """Return the source."""
        return _Rows(int(self.options["batches"]), self.options["rows"])

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002, FBT001 - Spark passes it by its name
        """Return the sink."""
        return _Nowhere()


class _Rows(DataSourceReader):
    def __init__(self, batches: int, rows: str) -> None:
        self._batches = batches
        self._rows = rows

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(_TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - all are alike
        with pa.OSFile(self._rows) as file, pa.ipc.open_stream(file) as stream:
            batch = stream.read_next_batch()
        for _ in range(self._batches):
            yield batch


class _Nowhere(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
