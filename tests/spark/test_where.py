"""Several paths, patterns of times, and whole documents on a real Spark, in an ingest and a plain query; with Spark's own scenarios."""

from __future__ import annotations

import datetime as dt
import json
import os
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.errors import OptionError, of
from penstock.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def put(file: Path, text: str, seconds: float = 1_769_860_800) -> None:
    """Write a file that has settled."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (seconds, seconds))


def test_an_ingest_of_several_paths_is_proved(spark: SparkSession, tmp_path: Path) -> None:
    """SPK-14 and globs: an ingest of a glob and a path, twice; files that came to match in between are read, and `verify` proves both."""
    put(tmp_path / "in-1" / "dt=2026-01-01" / "a.csv", "1,31.01.2026\n")
    put(tmp_path / "old" / "b.csv", "2,01.02.2026\n")
    put(tmp_path / "not-in" / "c.csv", "3,none\n")
    source = {"format": "csv", "schema": "id bigint, day date", "dateFormat": "dd.MM.yyyy"}
    paths, dst = [tmp_path / "in-*", tmp_path / "old"], tmp_path / "out"
    first = penstock.ingest(spark, paths, dst, source=source, sink={"format": "parquet"})
    assert (first.rows, first.input_files) == (2, 2)
    put(tmp_path / "in-2" / "d.csv", "4,28.02.2026\n", 1_769_860_900)
    assert penstock.ingest(spark, paths, dst, source=source, sink={"format": "parquet"}).rows == 3
    report = verify(str(dst), str(paths[0]))
    assert report.source is not None
    assert report.source.proved, report.source.reason
    days = [row.day for row in spark.read.parquet(str(dst)).orderBy("id").collect()]
    assert days == [dt.date(2026, 1, 31), dt.date(2026, 2, 1), dt.date(2026, 2, 28)]


def test_a_query_of_documents_below_a_glob(spark: SparkSession, tmp_path: Path) -> None:
    """A plain query: arrays of JSON with times by a pattern, of files after a time; `latestFirst` is refused, with the alternative."""
    rows = [{"id": number, "at": f"31/Jan/2026:12:00:0{number} +0100"} for number in range(3)]
    put(tmp_path / "a-1" / "f.json", json.dumps(rows, indent=1))
    put(tmp_path / "a-1" / "older.json", "[{]", 1_000)
    reader = (
        spark.readStream.format("penstock")
        .options(
            format="json",
            multiLine="true",
            mode="FAILFAST",
            modifiedAfter="2026-01-01",
            timestampFormat="dd/MMM/yyyy:HH:mm:ss Z",
        )
        .schema("id bigint, at timestamp")
    )
    frame = reader.load(str(tmp_path / "a-*"))
    frame.writeStream.format("memory").queryName("documents").trigger(availableNow=True).start().awaitTermination()
    found = spark.table("documents").selectExpr("id", "unix_timestamp(at)").collect()
    assert sorted(map(tuple, found)) == [(number, 1_769_857_200 + number) for number in range(3)]
    frame = reader.option("latestFirst", "true").load(str(tmp_path / "a-*"))
    query = frame.writeStream.format("memory").queryName("latest").trigger(availableNow=True).start()
    with pytest.raises(Exception, match="files are read from the oldest on") as caught:
        query.awaitTermination()
    assert isinstance(of(caught.value), OptionError)
