"""A hand-written sink of less than a hundred lines, in a real query."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from tests.query.toy import ToyDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.stage import Stage


def test_a_third_sink_is_exactly_once(spark: SparkSession, stage: Stage) -> None:
    """Two batches reach the table; Spark repeats the second, because it lost its note, and no row is there twice."""
    spark.dataSource.register(ToyDataSource)
    path = str(stage.dst) + ".db"
    stage.put("a", "1", "2")
    stage.put("b", "3")

    def run() -> list[tuple[str]]:
        frame = spark.readStream.format("penstock").option("maxFilesPerTrigger", 1).load(str(stage.src))
        writer = frame.writeStream.format("toy").option("checkpointLocation", str(stage.checkpoint))
        writer.trigger(availableNow=True).start(path).awaitTermination()
        with closing(sqlite3.connect(path)) as db:
            return sorted(db.execute("SELECT value FROM toy"))

    assert run() == [("1",), ("2",), ("3",)]
    (stage.checkpoint / "commits/1").unlink()
    (stage.checkpoint / "commits/.1.crc").unlink()
    stage.put("c", "4")
    assert run() == [("1",), ("2",), ("3",), ("4",)]
