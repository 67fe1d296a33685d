"""`python -m benchmarks.db`: the database sink against Spark's JDBC writer, one COPY, `executemany`, and Spark's empty batch.

Against COPY and `executemany`, rows are loaded in this process, on one disk, in turns, and the median of some rounds counts; staging is
included. Against JDBC they are one batch of a streaming query, in turns in one session: the same files, the same two tasks, the
same server over TCP; JDBC's is a `foreachBatch`, with batchsize 10,000. A tiny batch is a batch of a real query: one row in one
file, into the database and into Spark's `noop`. The results are ratios, not times.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from adbc_driver_postgresql import dbapi
from pyspark.errors import PySparkRuntimeError
from rich.console import Console

import penstock
from penstock.db.databases import database
from penstock.db.sink import DatabaseSink
from penstock.db.staging import StagingFiles
from penstock.options import DATABASE, parse
from penstock.query.batch import Batch
from tests.support.postgres import Postgres, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter

    from penstock.db.database import Database

ROWS, BATCH_ROWS, TASKS = 1_000_000, 10_000, 2
_ROUNDS, _TINY_BATCHES, _TINY_COUNTED = 5, 25, 15
_COLUMNS = "id bigint, word text, x double precision, ts timestamp with time zone, f boolean, k integer"
_QUERY_ROUNDS = 3
_DRIVER = "org.postgresql:postgresql:42.7.4"
_SHOWN = "{} {:,} rows: {:.2f} s; {} {:.2f} s; {:.2f}x (asked for: {})"
_console = Console(highlight=False, soft_wrap=True)


def rows() -> pa.Table:
    """Return rows of six columns of different types."""
    numbers = range(ROWS)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "word": pa.array([f"word{i % 1000}" for i in numbers]),
            "x": pa.array([i / 7 for i in numbers]),
            "ts": pa.array([1_700_000_000_000_000 + i for i in numbers], pa.timestamp("us", tz="UTC")),
            "f": pa.array([i % 2 == 0 for i in numbers]),
            "k": pa.array([i % 100 for i in numbers], pa.int32()),
        }
    )


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that the work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def sink_seconds(url: str, table: pa.Table, name: str) -> float:
    """Stage and commit one batch into a new table; return the seconds without the creation of the table."""
    client = database(url, lambda: None)
    options = parse(DATABASE, {"url": url, "table": name, "batchTable": f"{name}_batches"}, what="database sink")
    sink = DatabaseSink(options, "s", table.schema)
    sink.begin(client, "d", Batch("q", 0))
    with tempfile.TemporaryDirectory() as directory:
        staging = StagingFiles(directory, "q")
        seconds = timed(lambda: _stage_and_commit(sink, client, staging, table))
    client.close()
    return seconds


def _stage_and_commit(sink: DatabaseSink, client: Database, staging: StagingFiles, table: pa.Table) -> None:
    share = ROWS // TASKS
    staged = [
        staging.write(0, task, table.schema, table.slice(task * share, share).to_batches(BATCH_ROWS))
        for task in range(TASKS)
    ]
    done = sink.commit(client, "d", Batch("q", 0), lambda: staging.read(staged))
    assert done.rows == ROWS


def copy_seconds(url: str, table: pa.Table, name: str) -> float:
    """Load the same rows by one COPY, in a separate transaction."""
    with dbapi.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {name} ({_COLUMNS})")
        connection.commit()

        def work() -> None:
            cursor.adbc_ingest(name, table, mode="append")
            connection.commit()

        return timed(work)


def executemany_seconds(path: Path, values: list[tuple[object, ...]]) -> float:
    """Insert the same rows by `executemany` in one transaction."""
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE t ({_COLUMNS})")

    def work() -> None:
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", values)
        connection.commit()

    seconds = timed(work)
    connection.close()
    return seconds


def tiny_batch_millis(directory: Path, form: str, **options: str) -> float:
    """Return the median milliseconds of a batch of one row in a query into this format."""
    spark = penstock.local_session()
    source = spark.readStream.format("penstock").option("maxFilesPerTrigger", 1).load(str(directory / "in"))
    writer = source.writeStream.format(form).options(**options).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(directory / f"checkpoint-{form}")).start()
    query.awaitTermination()
    taken = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
    return statistics.median(taken[-_TINY_COUNTED:])  # the first ones warm up


def query_seconds(source: Path, checkpoint: Path, write: Callable[[DataStreamWriter], DataStreamWriter]) -> float:
    """Return the seconds of the one batch of a query over the rows."""
    spark = penstock.local_session()
    stream = spark.readStream.schema(spark.read.parquet(str(source)).schema).parquet(str(source))
    query = write(stream.writeStream.trigger(availableNow=True).option("checkpointLocation", str(checkpoint))).start()
    query.awaitTermination()
    (progress,) = [each for each in query.recentProgress if each["numInputRows"]]
    assert progress["numInputRows"] == ROWS
    return float(progress["durationMs"]["triggerExecution"]) / 1000


def _against_jdbc(server: Postgres, root: Path, table: pa.Table) -> None:
    """Compare with the JDBC writer with default settings, and with its driver set to write many rows as one INSERT."""
    host = f"//postgres@127.0.0.1:{server.listen()}/postgres"
    share = ROWS // TASKS
    (root / "rows").mkdir()
    for task in range(TASKS):
        pq.write_table(table.slice(task * share, share), root / "rows" / f"{task}.parquet")

    def into(name: str, **options: str) -> Callable[[DataStreamWriter], DataStreamWriter]:
        if options:
            return lambda writer: writer.format("penstock-db").options(table=name, **options)
        rewritten = str(name.startswith("rewritten")).lower()
        url = f"jdbc:postgresql:{host.replace('postgres@', '')}?user=postgres&reWriteBatchedInserts={rewritten}"

        def write(rows: DataFrame, number: int) -> None:
            assert number == 0
            options = {"url": url, "driver": "org.postgresql.Driver", "dbtable": name, "batchsize": str(BATCH_ROWS)}
            rows.write.format("jdbc").options(**options).mode("append").save()

        return lambda writer: writer.foreachBatch(write)

    found: dict[str, list[float]] = {"penstock": [], "jdbc": [], "rewritten": []}
    for number in range(_QUERY_ROUNDS + 1):
        for name, seconds in found.items():
            given = {"url": f"postgresql:{host}"} if name == "penstock" else {}
            seconds.append(query_seconds(root / "rows", root / f"{name}{number}", into(f"{name}{number}", **given)))
    middle = {name: statistics.median(seconds[1:]) for name, seconds in found.items()}  # the first ones warm up
    for name, asked in (("jdbc", "1.5x"), ("rewritten", "-")):
        ratio = middle[name] / middle["penstock"]
        _console.print(_SHOWN.format("postgresql", ROWS, middle["penstock"], name, middle[name], ratio, asked))


def _session() -> bool:
    """Start Spark, with PostgreSQL's JDBC driver if it can be fetched; tell whether it could."""
    try:
        penstock.local_session("local[2]", config={"spark.jars.packages": _DRIVER})
    except PySparkRuntimeError as error:
        _console.print(f"JDBC is left out: {_DRIVER} cannot be fetched ({error})")
        penstock.local_session("local[2]")
        return False
    return True


def _tiny(url: str, directory: Path) -> tuple[float, float]:
    (directory / "in").mkdir(parents=True)
    for number in range(_TINY_BATCHES):
        path = directory / "in" / f"{number}"
        path.write_text(f"{number}\n")
        os.utime(path, (1_700_000_000 + number,) * 2)
    empty = tiny_batch_millis(directory, "noop")
    return tiny_batch_millis(directory, "penstock-db", url=url, table="tiny"), empty


def main() -> None:
    """Print each ratio next to its required value."""
    table = rows()
    values = list(zip(*(table.column(name).to_pylist() for name in ("id", "word", "x")), strict=True))
    stamps = [str(value) for value in table.column("ts").to_pylist()]
    rest = zip(table.column("f").to_pylist(), table.column("k").to_pylist(), strict=True)
    inserted = [(*one, stamp, *more) for one, stamp, more in zip(values, stamps, rest, strict=True)]
    with running() as server, tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        found: dict[str, list[float]] = {"copy": [], "postgresql": [], "executemany": [], "sqlite": []}
        for number in range(_ROUNDS):
            found["copy"].append(copy_seconds(server.url, table, f"c{number}"))
            found["postgresql"].append(sink_seconds(server.url, table, f"p{number}"))
            found["executemany"].append(executemany_seconds(root / f"e{number}.db", inserted))
            found["sqlite"].append(sink_seconds(f"sqlite://{root}/s{number}.db", table, "s"))
        middle = {name: statistics.median(seconds) for name, seconds in found.items()}
        for name, other, asked in (("postgresql", "copy", "0.8x"), ("sqlite", "executemany", "0.7x")):
            ratio = middle[other] / middle[name]
            _console.print(_SHOWN.format(name, ROWS, middle[name], other, middle[other], ratio, asked))
        if _session():
            _against_jdbc(server, root, table)
        for name, url in (("postgresql", server.url), ("sqlite", f"sqlite://{root}/tiny.db")):
            tiny, empty = _tiny(url, root / name)
            _console.print(f"{name} tiny batch: {tiny - empty:+.0f} ms over {empty:.0f} ms (asked for: 60 ms)")


if __name__ == "__main__":
    main()
