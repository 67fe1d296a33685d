"""Read a directory of JSON files as a stream: batches within limits, and no file twice.

Run it with `python examples/source.py`. It makes its own input in a temporary directory and removes it at the end.
"""
# ruff: noqa: INP001, T201
# An example is a standalone script, and it prints what it did.

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import penstock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id bigint, country string"


def make_files(directory: Path, first: int, last: int) -> None:
    """Write one file of three records for each number from `first` to `last`."""
    for number in range(first, last + 1):
        rows = [{"id": 10 * number + i, "country": ("de", "fr", "it")[i]} for i in range(3)]
        (directory / f"events-{number}.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def read(spark: SparkSession, directory: Path, checkpoint: Path) -> None:
    """Take what is new in the directory, at most two files a batch, and print each batch."""
    frame = (
        spark.readStream.format("penstock")
        .option("format", "json")
        .schema(SCHEMA)
        .option("maxFilesPerTrigger", 2)
        .load(str(directory))
    )

    def show(batch: DataFrame, number: int) -> None:
        print(f"  batch {number}: {sorted(row.id for row in batch.collect())}")

    writer = frame.writeStream.foreachBatch(show).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    """Read three files, then two more that have come since."""
    spark = penstock.local_session()
    with tempfile.TemporaryDirectory() as work:
        directory, checkpoint = Path(work, "in"), Path(work, "checkpoint")
        directory.mkdir()
        make_files(directory, 1, 3)
        print("three files:")
        read(spark, directory, checkpoint)
        make_files(directory, 4, 5)
        print("two more, and the same query again:")
        read(spark, directory, checkpoint)
    spark.stop()


if __name__ == "__main__":
    main()
