"""Batch writes to an output and batch reads of it on a real Spark: each key once, kills and replays, and the snapshot that `load` saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import penstock
from penstock import errors
from penstock.errors import OptionError
from penstock.verify import verify
from tests.support.stage import Stage, run_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def append(frame: DataFrame, stage: Stage, key: str | None, **options: str) -> None:
    """Write a batch into the output."""
    writer = frame.write.format("penstock").mode("append").options(**options)
    (writer if key is None else writer.option("batchKey", key)).save(str(stage.dst))


def test_batches_are_written_once_and_read_back(spark: SparkSession, stage: Stage) -> None:
    """Writing a key again adds nothing, writing another key does; a read has all columns, those of directories too, as of any record."""
    penstock.register(spark)
    frame = spark.range(0, 100, 1, 4).selectExpr("id", "concat('c', id % 2) AS country", "timestamp_seconds(id) AS at")
    options = {"format": "parquet", "bucketBy": "country={country}", "dropBucketColumns": "true"}
    for key in ("day/1", "day/1", "day/2"):
        append(frame, stage, key, **options)
    read = spark.read.format("penstock").load(str(stage.dst))
    assert read.schema.simpleString() == "struct<id:bigint,at:timestamp,country:string>"
    assert read.count() == 200
    append(frame, stage, "day/3", **options)
    assert read.count() == 200, "a DataFrame is what was there when it was loaded"
    assert spark.read.format("penstock").option("asOf", 2).load(str(stage.dst)).count() == 100
    now = spark.read.format("penstock").load(str(stage.dst))
    now.createOrReplaceTempView("finished")
    assert spark.sql("SELECT sum(id) FROM finished WHERE country = 'c1'").first() == (3 * 2500,)
    assert now.exceptAll(frame.select("id", "at", "country")).count() == 200
    append(spark.range(0), stage, "nothing", format="json")
    append(spark.range(0).selectExpr("id"), stage, "day/1", format="json")
    assert {path.suffix for path in stage.files()} == {".parquet"}
    with pytest.raises(PySparkException) as caught:
        append(frame, stage, "day/4", rollInterval="1m")
    assert "unknown option 'rollinterval' for the penstock batch write" in str(errors.of(caught.value))


def test_a_view_of_sql_follows_what_it_is_told(spark: SparkSession, stage: Stage) -> None:
    """SQL passes neither the batch format nor the session's zone, even after `register`: adding the options in the errors is enough."""
    penstock.register(spark)
    put = spark.sql("SELECT 7 AS id, '2026-01-02 03:04:05' AS at")
    append(put, stage, "one", format="json")
    said = {"path": str(stage.dst)}

    def rows(columns: str = "") -> list[tuple[object, ...]]:
        options = ", ".join(f"{name} '{value}'" for name, value in said.items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW told {columns} USING penstock OPTIONS ({options})")
        return [tuple(row) for row in spark.sql("SELECT id, CAST(at AS string) FROM told").collect()]

    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW told USING penstock OPTIONS (path '{stage.dst}')")
    with pytest.raises(PySparkException) as caught:
        spark.sql("SELECT * FROM told").collect()
    assert "in SQL, which penstock.register does not reach, OPTIONS (format 'json')" in str(errors.of(caught.value))
    said["format"] = "json"
    assert rows() == [(7, "2026-01-02 03:04:05")]
    session = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        with pytest.raises(PySparkException) as caught:
            rows("(id bigint, at timestamp)")
        assert "and in SQL OPTIONS (timeZone 'UTC')" in str(errors.of(caught.value))
        said["timeZone"] = "Asia/Kolkata"
        assert rows("(id bigint, at timestamp)") == [(7, "2026-01-02 03:04:05")]
    finally:
        spark.conf.set("spark.sql.session.timeZone", session)


@pytest.mark.parametrize("mode", ["overwrite", "errorifexists", "ignore"])
def test_other_modes_are_refused_by_name(spark: SparkSession, stage: Stage, mode: str) -> None:
    """A batch write never replaces an output, and never skips because one exists: the modes that mean this are refused, with advice."""
    with pytest.raises(PySparkException) as caught:
        spark.range(1).write.format("penstock").mode(mode).save(str(stage.dst))
    error = errors.of(caught.value)
    assert isinstance(error, OptionError)
    assert "expected" in error.message
    assert "mode('append')" in error.message
    assert not stage.dst.exists()


def test_partition_by_is_refused(spark: SparkSession, stage: Stage) -> None:
    """Spark itself refuses `partitionBy` in a batch, though it ignores it silently in a stream: nothing is written to the wrong place."""
    with pytest.raises(PySparkException, match="provided partitioning or clustering columns do not match"):
        spark.range(1).write.format("penstock").mode("append").partitionBy("id").save(str(stage.dst))
    assert not stage.dst.exists()


FOR_EACH = """
import os, sys, penstock
src, dst, checkpoint = sys.argv[1:]
spark = penstock.local_session()

def write(frame, batch):
    frame.write.format("penstock").mode("append").option("batchKey", f"logs/{batch}").save(dst)

def run():
    frame = spark.readStream.format("penstock").option("maxFilesPerTrigger", 1).load(src)
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()

run()
os.remove(f"{checkpoint}/commits/1")
run()
"""


@pytest.mark.soak  # tests above write a number again; `tests/sink/test_keyed.py` explores crashes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [["sink.publish.one"], ["sink.keyed.decided", "sink.publish.one"]], ids=len)
def test_for_each_batch_is_killed_and_replayed(stage: Stage, kills: list[str]) -> None:
    """A query writes each batch by its number, is killed while it publishes or before a commit, and repeats one: each row is there once."""
    for number in range(2):
        stage.put(f"{number}.txt", *(f"line {number} {row}" for row in range(50)))
    arguments = str(stage.src), str(stage.dst), str(stage.checkpoint)
    once = stage.root / "fired"
    points = ",".join(f"{point}=kill-jvm/{once}-{point}" for point in kills)
    codes = [run_python(FOR_EACH, *arguments, failpoints=points).returncode for _ in kills]
    assert 0 not in codes
    assert len(list(stage.root.glob("fired-*"))) == len(kills)
    done = run_python(FOR_EACH, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "batchKey='logs/1' is in" in done.stderr
    assert stage.lines() == {f"line {number} {row}": 1 for number in range(2) for row in range(50)}
    assert verify(str(stage.dst)).ok
