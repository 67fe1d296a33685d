"""`penstock.ingest` of topics on a real Spark and broker: each committed record once, whatever is killed, and what a run reports."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.app import app
from penstock.errors import BadRecord, CheckpointMismatch, OptionError, RecordsLost
from penstock.verify.retry import retry
from tests.support.stage import run_python
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.ingestion.ingested import Ingested
    from tests.support.kafka import Kafka
    from tests.support.stage import Stage

DDL = "id bigint, name string"
READ = {"format": "json", "schema": DDL, "metadataColumn": "_meta"}
PROGRAM = """
import json, sys, penstock
src, dst, source = sys.argv[1:]
spark = penstock.local_session("local[2]", rows_in_jvm=False)
penstock.ingest(spark, src, dst, source=json.loads(source), sink={"format": "parquet", "rollRows": "40"})
print("DONE")
"""
CHAINS = {
    "short": ["sink.ledger.before-put=kill-jvm@2"],
    "long": [
        "kafka.read=kill-jvm",
        "sink.ledger.before-put=kill-jvm@2",
        "sink.ledger.after-put=kill-jvm@2",
        "sink.write.staged=kill-jvm@2",
        "sink.publish.one=kill-jvm",
        "sink.publish.before-note=kill-jvm",
        "kafka.read=kill-jvm",
    ],
}


def run(spark: SparkSession, stage: Stage, src: str, **source: Any) -> Ingested:
    """Ingest topics into Parquet."""
    return penstock.ingest(spark, src, stage.dst, source=source, sink={"format": "parquet"})


def places(stage: Stage) -> Counter[tuple[Any, ...]]:
    """Return how often each record is visible, by topic, partition and offset."""
    files = stage.files()
    rows = ds.dataset(files).to_table(columns=["_meta"])["_meta"].to_pylist() if files else []
    return Counter((row["topic"], row["partition"], row["offset"]) for row in rows)


def committed(kafka: Kafka, *topics: str) -> Counter[tuple[Any, ...]]:
    """Return the same counts for the records that an independent consumer gets."""
    return Counter((topic, partition, offset) for topic in topics for partition, offset, _ in kafka.committed(topic))


def produce(kafka: Kafka, topic: str, transactions: int, partitions: int = 2) -> None:
    """Produce transactions; every fourth one aborts."""
    producer = kafka.producer(topic)
    for number in range(transactions):
        producer.begin_transaction()
        for each in range(10):
            producer.produce(topic, value=b'{"id":%d,"name":"n%d"}' % (each, number), partition=each % partitions)
        producer.flush()
        producer.abort_transaction() if number % 4 == 3 else producer.commit_transaction()


def test_topics_become_files(spark: SparkSession, kafka: Kafka, stage: Stage) -> None:
    """All committed records, then the new ones, of new partitions too; a batch whose commit Spark lost is not there twice."""
    topics = [kafka.topic(partitions=2), kafka.topic()]
    produce(kafka, topics[0], 8)
    kafka.send(topics[1], b'{"id":7}')
    src = f"kafka://{kafka.servers}/{','.join(topics)}"
    done = run(spark, stage, src, maxOffsetsPerTrigger=40, **READ)
    assert (done.rows, done.input_files, done.left_offsets) == (61, 0, 0)
    assert done.input_offsets >= 81  # aborted records and markers have offsets, too
    assert done.batch >= 1
    assert places(stage) == committed(kafka, *topics)
    checkpoint = stage.dst / "_penstock" / "checkpoint"
    (checkpoint / "commits" / str(done.batch)).unlink()
    (checkpoint / "commits" / f".{done.batch}.crc").unlink(missing_ok=True)
    kafka.widen(topics[1], 2)
    kafka.send(topics[1], b'{"id":8}', b"", partition=1)
    with pytest.raises(BadRecord, match=f"{topics[1]}/1', offset 1"):
        run(spark, stage, src, **READ)
    assert places(stage) == committed(kafka, *topics) - Counter([(topics[1], 1, 0), (topics[1], 1, 1)])
    again = run(spark, stage, src, badRecords="quarantine", **READ)
    assert (again.rows, again.aside_records) == (62, 1)
    assert places(stage) == committed(kafka, *topics) - Counter([(topics[1], 1, 1)])


def test_what_else_an_ingest_says_of_topics(spark: SparkSession, kafka: Kafka, stage: Stage, tmp_path: Path) -> None:
    """SQL and buckets; a bad value whose line is named and fixed; a run without input needs no Spark; a loss is typed and accepted."""
    name = kafka.topic(settings={"retention.ms": "-1"})
    kafka.send(name, *(b'{"id":%d,"name":"n"}' % number for number in range(5)), b'{"id":"x"}')
    src, dst = f"kafka://{kafka.servers}/{name}", str(stage.dst)
    source = {"format": "json", "schema": DDL, "badRecords": "quarantine"}
    sql = "select id, upper(name) as name from input where id > 0"
    done = penstock.ingest(spark, src, dst, source=source, sink={"format": "json", "bucketBy": "name={name}"}, sql=sql)
    assert (done.rows, done.aside_records) == (4, 1)
    assert stage.lines() == Counter(f'{{"id":{number},"name":"N"}}' for number in range(1, 5))
    (aside,) = stage.dst.glob("_penstock/*/quarantine/*")
    line = json.loads(aside.read_text())
    assert (line["path"], line["offset"], line["bytes"]) == (f"{src}/0", 5, '{"id":"x"}')
    mended = tmp_path / "mended.json"
    mended.write_text(json.dumps(line | {"bytes": '{"id":9,"name":"m"}'}))
    assert retry(dst).left == 1
    assert retry(dst, mended=str(mended)).records == 1
    assert stage.lines()['{"id":9,"name":"M"}'] == 1
    flags = ["--format", "json", "--schema", DDL, "--source-option", "badRecords=quarantine", "--sql", sql]
    idle = CliRunner().invoke(app, ["ingest", src, dst, *flags, "--bucket-by", "name={name}", "--json"])
    assert json.loads(idle.stdout.splitlines()[-1])["start_seconds"] == 0.0
    assert "would read nothing" in CliRunner().invoke(app, ["ingest", src, dst, *flags, "--dry-run"]).stdout
    with pytest.raises(CheckpointMismatch, match="would be there twice"):
        penstock.ingest(spark, src, dst, source=source, sink={"format": "json"}, checkpoint=tmp_path / "other")
    with pytest.raises(CheckpointMismatch, match="of another kind"):
        penstock.ingest(
            spark, stage.src, dst, source=source, sink={"format": "json"}, checkpoint=stage.dst / "_penstock/checkpoint"
        )
    with pytest.raises(OptionError, match="topics stand alone"):
        penstock.ingest(spark, [src, str(stage.src)], dst)
    kafka.send(name, b'{"id":10,"name":"n"}', b'{"id":11,"name":"n"}')
    kafka.cut(name, 0, 7)
    with pytest.raises(RecordsLost) as lost:
        penstock.ingest(spark, src, dst, source=source, sink={"format": "json", "bucketBy": "name={name}"}, sql=sql)
    assert (lost.value.offset, lost.value.first) == (6, 7)
    lossy = penstock.ingest(
        spark, src, dst, source=source | {"failOnDataLoss": False}, sink={"format": "json", "bucketBy": "name={name}"}, sql=sql
    )  # fmt: skip
    assert lossy.rows == 6


STREAM = """
import sys, penstock
src, dst, source = sys.argv[1:]
servers, topic = src.removeprefix("kafka://").split("/")
spark = penstock.local_session("local[2]")
rows = spark.readStream.format("penstock-kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
rows = rows.option("startingOffsets", "earliest").option("kafka.queued.max.messages.kbytes", "1000").option("timeout", "5m").load()
rows = rows.selectExpr("struct(topic, partition, offset) AS _meta", "length(value) AS size")
writer = rows.writeStream.format("penstock").option("format", "parquet").option("checkpointLocation", dst + "-checkpoint")
writer.trigger(availableNow=True).start(dst).awaitTermination()
print("DONE")
"""


@pytest.mark.soak
@pytest.mark.xdist_group("kill")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", [PROGRAM, STREAM], ids=["ingest", "stream"])
def test_broker_dies_in_the_middle_of_a_batch(kafka: Kafka, stage: Stage, tmp_path: Path, program: str) -> None:
    """The broker is killed while a task has read a part of its range, and restarts: the rest comes, each record once, without an error."""
    topic = kafka.topic()
    kafka.send(topic, *(b'{"id":%d,"name":"%s"}' % (number, b"x" * 900_000) for number in range(24)))
    source = READ | {"kafka.queued.max.messages.kbytes": "1000", "timeout": "5m"}
    arguments = f"kafka://{kafka.servers}/{topic}", str(stage.dst), json.dumps(source)
    once = tmp_path / "in-the-middle"
    with ThreadPoolExecutor() as threads:
        running = threads.submit(run_python, program, *arguments, failpoints=f"kafka.read=sleep:3{once}")
        try:
            wait_for(lambda: once.exists() or running.done(), "a part of the range")
            kafka.kill()
        finally:
            kafka.restart()
        done = running.result()
    assert once.exists()
    assert "DONE" in done.stdout, done.stderr[-3000:]
    assert places(stage) == committed(kafka, topic)


@pytest.mark.soak
@pytest.mark.xdist_group("programs")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chain", ["short", "long"])
def test_ingest_of_topics_is_killed(kafka: Kafka, stage: Stage, chain: str) -> None:
    """An ingest is killed at its steps, and a broker too: each committed record is in one file, and no uncommitted record is."""
    points: Sequence[str] = CHAINS[chain]
    topic = kafka.topic(partitions=2)
    produce(kafka, topic, 8)
    arguments = f"kafka://{kafka.servers}/{topic}", str(stage.dst), json.dumps(READ | {"maxOffsetsPerTrigger": "50"})
    for point in points:
        produce(kafka, topic, 4)
        killed = run_python(PROGRAM, *arguments, failpoints=point)
        assert "DONE" not in killed.stdout, point
        assert not places(stage) - committed(kafka, topic), point
    if chain == "long":
        kafka.kill()
        kafka.restart()
        produce(kafka, topic, 4)
    total = 60 + 30 * (len(points) + (chain == "long"))
    wait_for(lambda: committed(kafka, topic).total() == total, "the end of the transactions")
    last = run_python(PROGRAM, *arguments)
    assert "DONE" in last.stdout, last.stderr[-3000:]
    assert places(stage) == committed(kafka, topic)
