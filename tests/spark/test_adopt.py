"""`penstock adopt` on the output of Spark's own file sink, a killed query included; then one of our queries writes to that directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import duckdb
import pytest

import penstock
from penstock.errors import UsageError
from penstock.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.stage import Stage

DDL = "id bigint, k bigint"
COMPACT = "spark.sql.streaming.fileSink.log.compactInterval"


def put(stage: Stage, number: int) -> None:
    """Put ten records of JSON."""
    stage.put(f"{number}.json", *(f'{{"id": {i}, "k": {i % 3}}}' for i in range(number * 10, number * 10 + 10)))


def their_run(spark: SparkSession, stage: Stage) -> None:
    """Run Spark's own sink on the new input."""
    frame = spark.readStream.schema(DDL).json(str(stage.src))
    writer = frame.writeStream.format("parquet").partitionBy("k").option("checkpointLocation", str(stage.checkpoint))
    writer.trigger(availableNow=True).start(str(stage.dst)).awaitTermination()


def test_output_of_sparks_own_sink_is_adopted(spark: SparkSession, stage: Stage) -> None:
    """Readers see what Spark's readers saw before, then our rows too; a killed batch's files are set aside; verify passes on everything."""
    spark.conf.set(COMPACT, "3")
    try:
        for number in range(4):
            put(stage, number)
            their_run(spark, stage)
        # A batch that was killed after it wrote its files and before it wrote its log entry: the files are there, the entry is not.
        last = max(int(name) for name in os.listdir(stage.dst / "_spark_metadata") if name.isdecimal())
        for name in (f"{last}", f".{last}.crc"):
            os.unlink(stage.dst / "_spark_metadata" / name)
    finally:
        spark.conf.unset(COMPACT)
    listed = spark.read.parquet(str(stage.dst)).count()
    assert (listed, len(stage.files())) == (30, 12)
    sink = {"format": "parquet", "bucketBy": "k={k}", "dropBucketColumns": "true"}
    source = {"format": "json", "schema": DDL}
    ours = stage.root / "new"
    ours.mkdir()
    stage.src.rename(stage.root / "theirs")
    ours.rename(stage.src)
    put(stage, 7)
    with pytest.raises(UsageError, match="penstock adopt"):
        penstock.ingest(spark, stage.src, stage.dst, source=source, sink=sink)
    done = penstock.adopt(stage.dst, unlisted="aside")
    assert (done.done, done.files, done.rows, len(done.aside), done.missing) == (True, 9, 30, 3, ())
    assert spark.read.parquet(str(stage.dst)).count() == 30
    assert penstock.ingest(spark, stage.src, stage.dst, source=source, sink=sink).rows == 10
    for count in (
        spark.read.parquet(str(stage.dst)).count(),
        duckdb.execute(f"select count(distinct id) from read_parquet('{stage.dst}/k=*/*.parquet')").fetchall()[0][0],
    ):
        assert count == 40
    found = verify(str(stage.dst), str(stage.src))
    assert found.ok
    assert found.source is not None
    assert found.source.output_records == 10
