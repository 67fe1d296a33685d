"""Write a stream as Parquet files, one directory a day, and read them with a library that knows nothing of Penstock.

Run it with `python examples/sink.py`. Twelve small input files come in three batches; the query shuffles each batch to four
tasks. Spark's own sink would leave twelve files. Here parts grow over several batches, so there is one file a day.
"""
# ruff: noqa: INP001, T201
# An example is a standalone script, and it prints what it did.

from __future__ import annotations

import json
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset

import penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


def make_files(directory: Path) -> None:
    """Write 1,200 events of two days in twelve files."""
    directory.mkdir()
    for number in range(12):
        moments = [START + timedelta(minutes=number * 100 + i) for i in range(100)]
        rows = [{"ts": moment.isoformat(), "id": number * 100 + i} for i, moment in enumerate(moments)]
        (directory / f"events-{number:02}.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def write(spark: SparkSession, source: Path, output: Path, checkpoint: Path) -> int:
    """Write the stream by day; return the number of batches."""
    events = (
        spark.readStream.format("penstock")
        .option("format", "json")
        .schema("ts timestamp, id bigint")
        .option("maxFilesPerTrigger", 4)
        .load(str(source))
    )
    query = (
        events.repartition(4)
        .writeStream.format("penstock")
        .option("format", "parquet")
        .option("bucketBy", "dt={ts:%Y-%m-%d}")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(output))
    )
    query.awaitTermination()
    return len(query.recentProgress)


def main() -> None:
    """Write, then read back what is visible."""
    spark = penstock.local_session()
    with tempfile.TemporaryDirectory() as work:
        source, output = Path(work, "in"), Path(work, "out")
        make_files(source)
        batches = write(spark, source, output, Path(work, "checkpoint"))
        files = sorted(output.glob("dt=*/*.parquet"))
        print(f"{batches} batches of 4 tasks, {len(files)} files:")
        for path in files:
            rows = pyarrow.dataset.dataset(str(path)).count_rows()
            print(f"  {path.relative_to(output).parent}  {rows} rows, {path.stat().st_size} bytes")
    spark.stop()


if __name__ == "__main__":
    main()
