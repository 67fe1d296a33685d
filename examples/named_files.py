"""Read the files that a stream names: one query scans a directory and emits names; another, perhaps on a cluster, reads the files.

Run it with `python examples/named_files.py`. It makes its own input in a temporary directory and removes it at the end.
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

# The columns of emit=files; a message on a topic would have the same.
NAMES = "path string, modified timestamp, size bigint, identity string"
EVENTS = "id bigint, country string"


def make_files(directory: Path, first: int, last: int) -> None:
    """Write one file of three records for each number from `first` to `last`."""
    for number in range(first, last + 1):
        rows = [{"id": 10 * number + i, "country": ("de", "fr", "it")[i]} for i in range(3)]
        (directory / f"events-{number}.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def run(frame: DataFrame, directory: Path, checkpoint: Path, form: str) -> None:
    """Write the available rows of a stream."""
    writer = frame.writeStream.format("penstock").option("format", form).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start(str(directory)).awaitTermination()


def scan(spark: SparkSession, work: Path) -> None:
    """Emit the names of new files, as JSON lines."""
    names = spark.readStream.format("penstock").option("emit", "files").load(str(work / "in"))
    run(names, work / "names", work / "scan", "json")


def read(spark: SparkSession, work: Path) -> None:
    """Read the files with new names, and write their records, each with the size of its file."""
    lines = spark.readStream.format("penstock").option("format", "json").schema(NAMES).load(str(work / "names"))
    # A name says which version it means: a file that was replaced fails the query, and never gives other rows.
    events = penstock.read_files(lines, format="json", schema=EVENTS, basePath=str(work / "in"))
    run(events.select("id", "country", "size"), work / "out", work / "read", "parquet")


def main() -> None:
    """Scan and read three files, then two that have come since."""
    spark = penstock.local_session()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        (work / "in").mkdir()
        for first, last in ((1, 3), (4, 5)):
            make_files(work / "in", first, last)
            scan(spark, work)
            read(spark, work)
            rows = spark.read.parquet(str(work / "out"))
            print(f"{last} files named, {rows.count()} records read, {rows.select('id').distinct().count()} different")
    spark.stop()


if __name__ == "__main__":
    main()
