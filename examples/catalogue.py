"""Register every finished file of an output in a table, by upsert, and compare the two: the output is its own event stream.

Run it with `python examples/catalogue.py`. One query writes events by day; a second one reads from the ledger, not from a listing,
what the first has published, and puts it into a SQLite table. Its last batch runs again, as after a crash, and the writer goes on: each
file is in the catalogue once, with its rows, and the complete day is marked as such.
"""
# ruff: noqa: INP001, T201
# An example is a standalone script, and it prints what it did.

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 1, 30, 12, tzinfo=timezone.utc)


def put(directory: Path, number: int) -> None:
    """Write 100 events of twelve hours in a file, dated back so that it is read at once."""
    moments = [START + timedelta(hours=number * 12, minutes=i * 7) for i in range(100)]
    path = directory / f"events-{number:02}.json"
    path.write_text("".join(f"{json.dumps({'ts': moment.isoformat()})}\n" for moment in moments))
    os.utime(path, (START.timestamp() + number, START.timestamp() + number))


def write(spark: SparkSession, work: Path) -> None:
    """Write what is new, by day; the statements that a day is complete are published with the files."""
    events = spark.readStream.format("penstock").option("format", "json").schema("ts timestamp").load(str(work / "in"))
    options = {
        "format": "parquet",
        "bucketBy": "dt={ts:%Y-%m-%d}",
        "partitionReady": "event",
        "partitionReadyDelay": "0s",
    }
    writer = events.writeStream.format("penstock").options(**options).trigger(availableNow=True)
    writer.option("checkpointLocation", str(work / "writer")).start(str(work / "out")).awaitTermination()


def register(spark: SparkSession, work: Path) -> None:
    """Bring what was published since the last call into the catalogue."""
    published = spark.readStream.format("penstock").option("emit", "published").load(str(work / "out"))
    # One row for each file and one for each complete day: both have their own key.
    rows = published.selectExpr("coalesce(path, bucket) AS name", "event", "bucket", "rows", "size", "digest", "time")
    catalogue = {"url": f"sqlite:///{work}/catalogue.db", "table": "files", "mode": "upsert", "keyColumns": "name"}
    writer = rows.writeStream.format("penstock-db").options(**catalogue, sinkId="catalogue").trigger(availableNow=True)
    writer.option("checkpointLocation", str(work / "reader")).start().awaitTermination()


def run_again(checkpoint: Path) -> None:
    """Take away Spark's note that the last batch is done, as if the driver had died before it."""
    max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name)).unlink()


def main() -> None:
    """Write and register in turns, with a replay in between; then compare the catalogue with the directory."""
    spark = penstock.local_session()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        (work / "in").mkdir()
        for number in range(3):
            put(work / "in", number)
            write(spark, work)
            register(spark, work)
            run_again(work / "reader")
        register(spark, work)
        with sqlite3.connect(work / "catalogue.db") as table:
            files = table.execute("SELECT name, rows FROM files WHERE event = 'published'").fetchall()
            days = table.execute("SELECT name FROM files WHERE event = 'ready'").fetchall()
        table.close()
        there = sorted(str(path) for path in (work / "out").glob("dt=*/*.parquet"))
        print(f"{len(there)} files, the same in the catalogue: {sorted(name for name, _ in files) == there}")
        print(f"{sum(rows for _, rows in files)} rows in them; complete: {', '.join(sorted(name for (name,) in days))}")
    spark.stop()


if __name__ == "__main__":
    main()
