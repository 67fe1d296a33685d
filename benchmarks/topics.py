"""`python -m benchmarks.topics [CONTENDER...]`: topics of Kafka into Parquet: by ingests, as a stream, and by Spark's own connector.

A broker on this machine has a million records (`RECORDS`) of about 100 bytes in four partitions. Each contender is a process
with its own session, in turns; it takes the topic three times (`RUNS`), and the first run does not count. Wall and processor
seconds are those of the best run, processor seconds those of the session's processes, JVM and workers, without the broker. Spark's own
connector is not made for this version of Spark: if its jars of 4.2.0 can be fetched and work, it is shown, into our sink and into Spark's
own Parquet files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow.dataset as ds
from rich.console import Console

import penstock
from penstock.ingestion.ingest import carried_out, here
from tests.support import jars
from tests.support.kafka import running

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.support.kafka import Kafka

RECORDS, PARTITIONS, RUNS = int(os.environ.get("RECORDS", "1000000")), 4, int(os.environ.get("RUNS", "3"))
_HERTZ = os.sysconf("SC_CLK_TCK")
_NAME = "PENSTOCK_TOPICS_CONTENDER"
MARK = f"{_NAME}={os.environ.get(_NAME, '')}".encode()
_console = Console(highlight=False, soft_wrap=True)


def ingest(spark: SparkSession, servers: str, topic: str, out: str) -> None:
    """Take the topic by an ingest, with Kafka's own columns."""
    penstock.ingest(spark, f"kafka://{servers}/{topic}", out, sink={"format": "parquet"})


def without_spark(spark: SparkSession, servers: str, topic: str, out: str) -> None:  # noqa: ARG001 - as all contenders
    """Take the topic as `penstock ingest` does when nothing needs Spark: each run starts new processes."""
    run = here(f"kafka://{servers}/{topic}", out, source={}, sink={"format": "parquet"})
    assert run is not None
    carried_out(run, None)


def ingest_json(spark: SparkSession, servers: str, topic: str, out: str) -> None:
    """Take the topic by an ingest that decodes values."""
    source = {"format": "json", "schema": "id bigint, name string, rest string"}
    penstock.ingest(spark, f"kafka://{servers}/{topic}", out, source=source, sink={"format": "parquet"})


def stream(spark: SparkSession, servers: str, topic: str, out: str) -> None:
    """Take the topic by a query from `penstock-kafka` into our sink."""
    _query(spark, "penstock-kafka", servers, topic, out, "penstock")


def java_ours(spark: SparkSession, servers: str, topic: str, out: str) -> None:
    """Take the topic by a query from Spark's own connector into our sink."""
    _query(spark, "kafka", servers, topic, out, "penstock")


def java_parquet(spark: SparkSession, servers: str, topic: str, out: str) -> None:
    """Take the topic by a query from Spark's own connector into Spark's own files."""
    _query(spark, "kafka", servers, topic, out, "parquet")


def _query(spark: SparkSession, source: str, servers: str, topic: str, out: str, sink: str) -> None:
    reader = spark.readStream.format(source).option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    rows = reader.option("startingOffsets", "earliest").option("minPartitions", str(PARTITIONS)).load()
    writer = rows.writeStream.format(sink).option("checkpointLocation", f"{out}-checkpoint")
    writer = writer.option("format", "parquet") if sink == "penstock" else writer
    writer.trigger(availableNow=True).start(out).awaitTermination()


CONTENDERS: dict[str, Callable[[SparkSession, str, str, str], None]] = {
    "ingest": ingest,
    "without-spark": without_spark,
    "stream": stream,
    "connector-ours": java_ours,
    "connector-parquet": java_parquet,
    "ingest-json": ingest_json,
}


def _processor_seconds() -> float:
    """Return the processor seconds of this contender's processes so far, with those of their children that have ended."""
    return sum(map(_ticks, Path("/proc").glob("[0-9]*"))) / _HERTZ


def _ticks(process: Path) -> int:
    """Return a process's usage if it belongs to this contender, whatever its system session."""
    try:
        if MARK not in (process / "environ").read_bytes():
            return 0
        return sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
    except OSError:  # it has ended
        return 0


def contend(name: str, servers: str, topic: str, work: str) -> None:
    """Run one contender in this process, and print its measurements."""
    config = {"spark.jars": ",".join(map(str, jars.connector()))} if name.startswith("connector") else {}
    spark = penstock.local_session("local[2]", config=config)
    best: dict[str, float] = {}
    for number in range(RUNS):
        out = f"{work}/{name}-{uuid4().hex[:8]}"
        used, begun = _processor_seconds(), time.monotonic()
        CONTENDERS[name](spark, servers, topic, out)
        took = {"seconds": time.monotonic() - begun, "processor": _processor_seconds() - used}
        files = [str(path) for path in Path(out).rglob("*.parquet") if "_penstock" not in path.parts]
        if ds.dataset(files).count_rows() != RECORDS:
            sys.exit(f"{name}: wrong output")
        if number and (not best or took["seconds"] < best["seconds"]):
            best = took
    spark.stop()
    print("RESULT", json.dumps(best), flush=True)


def fill(kafka: Kafka) -> str:
    """Return a topic with the records."""
    topic = kafka.topic(partitions=PARTITIONS)
    producer = kafka.producer(**{"linger.ms": 50, "queue.buffering.max.messages": 200_000})
    for number in range(RECORDS):
        value = b'{"id":%d,"name":"name %d","rest":"%s"}' % (number, number, b"x" * 50)
        while True:
            try:
                producer.produce(topic, key=b"%d" % number, value=value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return topic


def measured(name: str, *arguments: str) -> dict[str, Any] | None:
    """Return a contender's measurements in a separate process, or `None` if it cannot run here."""
    command = [sys.executable, "-m", "benchmarks.topics", name, *arguments]
    run = subprocess.run(command, env=os.environ | {_NAME: uuid4().hex}, capture_output=True, text=True, check=False)
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT")]
    if not lines:
        _console.print(f"{name}: does not run here: {run.stderr.strip()[-300:]}")
        return None
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT"))
    return result


def main(names: list[str]) -> None:
    """Fill a topic, let each contender take it in turn, and print the figures."""
    with tempfile.TemporaryDirectory(prefix="topics-") as work:
        (Path(work) / "kafka").mkdir()
        with running(Path(work) / "kafka") as kafka:
            topic = fill(kafka)
            for name in names or CONTENDERS:
                if (result := measured(name, kafka.servers, topic, work)) is not None:
                    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
                    _console.print(
                        f"{name}: {result['seconds']:.2f} s, {RECORDS / result['seconds']:,.0f} records/s; "
                        f"{result['processor']:.2f} processor seconds; load {load}"
                    )


if __name__ == "__main__":
    if _NAME in os.environ:
        contend(*sys.argv[1:])
    else:
        main(sys.argv[1:])
