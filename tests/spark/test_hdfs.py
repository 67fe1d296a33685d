"""Input, output and checkpoint on HDFS: an ingest and a query, compared with their input."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import unique
from penstock.errors import NoSpace
from penstock.storage import HdfsStorage, locate
from penstock.verify import verify
from tests.support.hdfs import MiniHdfs
from tests.support.storage_contract import put

FILES = 5
LINES = 200


@pytest.fixture
def root(hdfs: MiniHdfs) -> str:
    """Return a directory on HDFS with some files of lines in `in`."""
    storage, path = HdfsStorage(hdfs.authority), f"{hdfs.url}/{unique.token()}"
    storage.make_directory(f"{path}/in")
    for number in range(FILES):
        put(storage, f"{path}/in/{number}.txt", "".join(f"{number}-{line}\n" for line in range(LINES)).encode())
    return path


def expected() -> list[str]:
    """Return all lines, sorted."""
    return sorted(f"{number}-{line}" for number in range(FILES) for line in range(LINES))


def test_ingest_on_hdfs(spark: SparkSession, root: str, tmp_path: Path) -> None:
    """An ingest from and to HDFS, with its checkpoint there, is complete; Spark's own reader reads it, and verify proves it."""
    options: dict[str, Any] = {"source": {"settle": "0s"}, "sink": {"rollRows": "150"}}
    done = penstock.ingest(spark, f"{root}/in", f"{root}/out", **options)
    assert (done.input_files, done.rows, done.open_rows) == (FILES, FILES * LINES, 0)
    assert penstock.ingest(spark, f"{root}/in", f"{root}/out", **options).rows == FILES * LINES
    assert sorted(row.value for row in spark.read.text(f"{root}/out").collect()) == expected()
    report = verify(f"{root}/out", f"{root}/in")
    assert report.ok, report
    crossed = penstock.ingest(spark, f"{root}/in", str(tmp_path / "out"), source={"settle": "0s"})
    assert crossed.rows == FILES * LINES


@pytest.mark.parametrize(
    ("source", "sink", "checkpoint"),
    [
        ("hdfs", "local", "hdfs"),
        pytest.param("local", "hdfs", "local", marks=pytest.mark.soak),
        pytest.param("local", "hdfs", "hdfs", marks=pytest.mark.soak),
        pytest.param("hdfs", "hdfs", "local", marks=pytest.mark.soak),
    ],
)
def test_input_output_and_checkpoint_lie_apart(
    spark: SparkSession, root: str, tmp_path: Path, source: str, sink: str, checkpoint: str
) -> None:
    """Each of the three may be on this machine or on HDFS: every line is there once, and the next call takes the new input."""
    at = {"local": str(tmp_path), "hdfs": root}
    fill(at[source])
    paths = f"{at[source]}/from", f"{at[sink]}/out"
    options: dict[str, Any] = {"source": {"settle": "0s"}, "checkpoint": f"{at[checkpoint]}/checkpoint"}
    assert penstock.ingest(spark, *paths, **options).rows == FILES * LINES
    put(locate(at[source])[0], f"{at[source]}/from/later.txt", b"later\n")
    assert penstock.ingest(spark, *paths, **options).rows == FILES * LINES + 1
    assert sorted(row.value for row in spark.read.text(paths[1]).collect()) == [*expected(), "later"]
    report = verify(paths[1], paths[0])
    assert report.ok, report


@pytest.mark.soak  # `tests/sink/test_sink_hdfs.py` tests quotas without Spark
def test_a_checkpoint_that_may_not_grow(spark: SparkSession, hdfs: MiniHdfs, root: str) -> None:
    """A quota that Spark's own files exceed, at a query's start or later, is `NoSpace` with the checkpoint's name; raised, all goes on."""
    options: dict[str, Any] = {"source": {"settle": "0s"}, "checkpoint": f"{root}/checkpoint"}
    storage = HdfsStorage(hdfs.authority)
    for directory in ("checkpoint", "checkpoint/offsets"):
        path = f"{root}/{directory}"
        storage.make_directory(path)
        put(storage, f"{root}/in/{unique.token()}", b"more\n")
        hdfs.quota(path, size=1)
        with pytest.raises(NoSpace, match=rf"checkpoint '{root}/checkpoint': The DiskSpace quota of .* is exceeded"):
            penstock.ingest(spark, f"{root}/in", f"{root}/out", **options)
        hdfs.quota(path, size=-1)
        penstock.ingest(spark, f"{root}/in", f"{root}/out", **options)
    assert hdfs.lines(f"{root}/out") == Counter(expected()) + Counter({"more": 2})


def fill(place: str) -> None:
    """Write the files of lines to `from` below a place."""
    storage, path = locate(place)
    storage.make_directory(f"{path}/from")
    for number in range(FILES):
        data = "".join(f"{number}-{line}\n" for line in range(LINES)).encode()
        put(storage, f"{path}/from/{number}.txt", data)


def test_query_on_hdfs(spark: SparkSession, root: str) -> None:
    """A query from and to HDFS gives each line the full address of its file, and ends with every line there once."""
    fields = "value string, _meta struct<path: string, modified: timestamp, size: bigint, offset: bigint>"
    lines = (
        spark.readStream.format("penstock")
        .schema(fields)
        .option("metadataColumn", "_meta")
        .option("settle", "0s")
        .load(f"{root}/in")
    )
    rows = lines.selectExpr("concat(value, ' ', _meta.path) AS value")
    query = (
        rows.writeStream.format("penstock")
        .option("checkpointLocation", f"{root}/checkpoint")
        .trigger(availableNow=True)
    )
    query.start(f"{root}/out").awaitTermination()
    found = sorted(row.value for row in spark.read.text(f"{root}/out").collect())
    assert found == sorted(f"{line} {root}/in/{line[0]}.txt" for line in expected())
