"""`penstock late` around a real ingest: the summary reports late files, the command accepts them, each is read once, verify proves it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import penstock
from penstock.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.stage import Stage


def test_accepted_files_are_ingested_once(spark: SparkSession, stage: Stage) -> None:
    """The ingest counts files that came too late; once accepted, Spark replays the note, and the next batch has each of them once."""
    stage.put("a", "1", "2")
    assert penstock.ingest(spark, str(stage.src), str(stage.dst)).late_files == 0
    for name in ("late-1", "late-2"):
        stage.put(name, name)
        os.utime(stage.src / name, (1_000_000, 1_000_000))
    done = penstock.ingest(spark, str(stage.src), str(stage.dst))
    assert (done.rows, done.late_files, done.future_files) == (2, 2, 0)
    told = penstock.late(stage.src, stage.dst, accept=True, query_ended=True)
    assert sorted(told.accepted) == ["late-1", "late-2"]
    for _ in range(2):
        done = penstock.ingest(spark, str(stage.src), str(stage.dst))
        assert (done.rows, done.late_files, done.accepted_files) == (4, 0, 0)
    found = verify(str(stage.dst), str(stage.src)).source
    assert found is not None
    assert (found.proved, found.files, found.output_records) == (True, 3, 4)
