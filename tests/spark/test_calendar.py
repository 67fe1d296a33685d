"""Old dates in files that Spark wrote are read as Spark reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import penstock

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.stage import Stage

# Every 97th day from 0001-01-01 to 1700, the days around the reform, and around 29 February of years that have it in only one calendar.
ROWS = """
select d, array(d, null) as l, named_struct('d', d) as s from (
  select explode(concat(
    sequence(date'0001-01-01', date'1700-01-01', interval 97 days),
    sequence(date'1582-09-20', date'1582-11-01', interval 1 day),
    flatten(transform(sequence(100, 1500, 100), y -> sequence(make_date(y, 2, 27), make_date(y, 3, 2), interval 1 day))),
    array(null)
  )) as d
)
"""
SCHEMA = "d date, l array<date>, s struct<d: date>"


@pytest.mark.parametrize(
    ("form", "mode"),
    [("orc", "CORRECTED"), ("parquet", "LEGACY"), pytest.param("parquet", "CORRECTED", marks=pytest.mark.soak)],
)
def test_old_days_of_sparks_files(spark: SparkSession, stage: Stage, tmp_path: Path, form: str, mode: str) -> None:
    """Spark's ORC counts days before 1582-10-15 in the Julian calendar; its Parquet does so only when configured to."""
    session = spark.newSession()
    session.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", mode)
    session.sql(ROWS).coalesce(1).write.mode("append").format(form).save(str(stage.src))
    penstock.ingest(
        session, stage.src, stage.dst, source={"format": form, "schema": SCHEMA}, sink={"format": "parquet"}
    )
    theirs = session.read.schema(SCHEMA).format(form).load(str(stage.src))
    ours = session.read.schema(SCHEMA).parquet(str(stage.dst))
    assert ours.count() == theirs.count() > 6000
    assert ours.exceptAll(theirs).count() == 0
