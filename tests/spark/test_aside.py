"""Real input on a real Spark: no bad record, file or change stops a query, and each is accounted for."""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.errors import OptionError, TooMuchSetAside
from penstock.verify import verify
from tests.support.follows import follows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.stage import Stage

DDL = "id bigint, name string"
BAD = "_bad struct<path: string, offset: bigint, record: binary, reason: string>"


def damaged(data: bytes, seed: int, part: float = 0.01) -> tuple[bytes, int]:
    """Return lines, some of which hold a byte that is not valid text, and the number of those lines."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    lines = data.splitlines(keepends=True)
    chosen = [place for place in range(len(lines)) if chance.random() < part]
    for place in chosen:
        at = chance.randrange(max(len(lines[place].rstrip(b"\r\n")), 1))
        lines[place] = lines[place][:at] + b"\xff" + lines[place][at:]
    return b"".join(lines), len(chosen)


def test_damaged_logs(spark: SparkSession, stage: Stage, loghub: Path) -> None:
    """In real logs a seed damages one line of a hundred: the others are in the output, the damaged lines are set aside, none is lost."""
    count = 0
    for number, log in enumerate(sorted(loghub.glob("*.log"))[:6]):
        data, bad = damaged(log.read_bytes().decode("utf-8", "replace").encode(), seed=number)
        stage.put(log.name)
        (stage.src / log.name).write_bytes(data)
        count += bad
    source = {"badRecords": "quarantine", "settle": "0s", "recursiveFileLookup": "true"}
    done = penstock.ingest(spark, stage.src, stage.dst, source=source)
    assert (done.aside_records, done.aside_files) == (count, 0)
    report = verify(str(stage.dst), str(stage.src))
    assert report.ok, report
    assert report.source is not None
    assert report.source.set_aside == count > 0
    lines = [
        line for file in stage.dst.glob("_penstock/*/quarantine/*.json") for line in file.read_bytes().splitlines()
    ]
    assert {json.loads(line)["reason"] for line in lines} == {"expected UTF-8"}
    again = penstock.ingest(spark, stage.src, stage.dst, source=source)
    assert (again.rows, again.aside_records) == (done.rows, count)


@follows("PST-205")
def test_too_much_ends_an_ingest(spark: SparkSession, stage: Stage) -> None:
    """More bad records than allowed end the run with a specific error, and nothing is visible; with a higher limit it goes on."""
    stage.put("a.json", '{"id": 1}', "bad", "bad")
    (stage.src / "b.json.gz").write_bytes(gzip.compress(b'{"id": 2}\n' * 1000)[:-9])
    source = {"format": "json", "schema": DDL, "badRecords": "quarantine", "badFiles": "quarantine", "settle": "0s"}
    with pytest.raises(TooMuchSetAside, match="maxBadRecords=2"):
        penstock.ingest(spark, stage.src, stage.dst, source=source | {"maxBadRecords": 2}, sink={"format": "json"})
    assert stage.files() == []
    done = penstock.ingest(spark, stage.src, stage.dst, source=source | {"maxBadRecords": 3}, sink={"format": "json"})
    assert (done.rows, done.aside_records, done.aside_files) == (1, 2, 1)
    assert verify(str(stage.dst), str(stage.src)).ok


def test_a_plain_query_takes_them_along(spark: SparkSession, stage: Stage) -> None:
    """With `badRecordColumn` each unreadable record becomes a row, and `split_bad` separates those rows from the others."""
    stage.put("a.json", '{"id": 1, "name": "a"}', "no json", '{"id": 2}')
    (stage.src / "b.json.gz").write_bytes(b"\x1f\x8bno gzip")
    reader = spark.readStream.format("penstock").option("path", str(stage.src)).option("format", "json")
    reader = reader.option("badRecords", "quarantine").option("badFiles", "quarantine").option("settle", "0s")
    frame = reader.option("badRecordColumn", "_bad").schema(f"{DDL}, {BAD}").load()
    seen: dict[str, list[tuple[object, ...]]] = {}
    for name, part in zip(("good", "bad"), penstock.split_bad(frame), strict=True):
        query = part.writeStream.format("memory").queryName(f"aside_{name}").trigger(availableNow=True).start()
        query.awaitTermination()
        seen[name] = sorted(tuple(row) for row in spark.table(f"aside_{name}").collect())
    assert seen["good"] == [(1, "a"), (2, None)]
    places = [(str(path).rpartition("/")[2], offset, record) for path, offset, record, _ in seen["bad"]]
    assert places == [("a.json", 23, bytearray(b"no json")), ("b.json.gz", 0, None)]
    with pytest.raises(
        OptionError, match=r"split_bad: expected one column .* found none; it is read with badRecordColumn=_bad"
    ):
        penstock.split_bad(spark.range(1))
