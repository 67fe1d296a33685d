"""`penstock-db` in real queries: tables hold each row once, whatever is repeated, and errors come before anything runs."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.database import Place
from tests.support.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.postgres import Postgres


@pytest.fixture(params=["postgresql", "sqlite"])
def place(request: pytest.FixtureRequest, stage: Stage) -> Place:
    """Return the address of a place in one of the two databases."""
    url = f"sqlite://{stage.root}/x.db" if request.param == "sqlite" else request.getfixturevalue("postgres").url
    return Place(url)


def lines(spark: SparkSession, stage: Stage) -> DataFrame:
    """Return the input as a stream of several batches of several tasks."""
    source = spark.readStream.format("penstock").option("maxFilesPerTrigger", 2).option("splitSize", "1k")
    return source.load(str(stage.src))


def run(frame: DataFrame, stage: Stage, place: Place, **options: str) -> Any:
    """Run a query until it has taken all available input; return it."""
    given = {"url": place.url, "table": place.table, "batchTable": f"{place.table}_batches"} | options
    writer = frame.writeStream.format("penstock-db").options(**given).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(stage.checkpoint)).start()
    query.awaitTermination()
    return query


def fill(stage: Stage, first: int = 0) -> list[str]:
    """Write four files; return their lines."""
    texts = [[f"{i} line {j} {'x' * 30}" for j in range(100)] for i in range(first, first + 4)]
    for i, text in enumerate(texts, first):
        stage.put(f"f{i}", *text)
    return [line for text in texts for line in text]


def test_rows_are_there_once(spark: SparkSession, stage: Stage, place: Place) -> None:
    """D3: two batches of several tasks; then the checkpoint's last commit is removed: no new rows; and then the query goes on."""
    expected = fill(stage)
    run(lines(spark, stage), stage, place)
    assert Counter(row[0] for row in place.rows()) == Counter(expected)
    assert place.last() == 1
    for name in ("1", ".1.crc"):
        (stage.checkpoint / "commits" / name).unlink(missing_ok=True)
    expected += fill(stage, 4)
    run(lines(spark, stage), stage, place)
    assert Counter(row[0] for row in place.rows()) == Counter(expected)
    assert place.last() == 3
    (staging,) = [path for path in stage.checkpoint.iterdir() if path.name.startswith("penstock-db-")]
    assert os.listdir(staging) == []


ONE_PLACE = pytest.mark.parametrize(
    "place", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)], indirect=True
)


@ONE_PLACE
def test_counts_are_added_up(spark: SparkSession, stage: Stage, place: Place) -> None:
    """Merge: keys come in every task of every batch, and their counts are those of all rows."""
    expected = fill(stage)
    counts = lines(spark, stage).selectExpr("split(value, ' ')[2] AS line", "1L AS n")
    run(counts, stage, place, mode="merge", keyColumns="line", sinkId="counts", queryName="of its own")
    assert dict(place.rows()) == Counter(line.split()[2] for line in expected)


@ONE_PLACE
def test_new_checkpoint_is_refused_without_a_row(spark: SparkSession, stage: Stage, place: Place) -> None:
    """D6: the checkpoint is deleted and the sinkId stays: the query ends with advice, and no row is doubled."""
    expected = fill(stage)
    run(lines(spark, stage), stage, place, sinkId="s")
    shutil.rmtree(stage.checkpoint)
    with pytest.raises(Exception, match=r"\[PST-302\] sink 's' in .* was written by query .* use another sinkId"):
        run(lines(spark, stage), stage, place, sinkId="s")
    assert Counter(row[0] for row in place.rows()) == Counter(expected)


@ONE_PLACE
def test_bad_rows_are_set_aside(spark: SparkSession, stage: Stage, place: Place) -> None:
    """D9: rows without a key go to the table for rejected rows, in the transaction that also applies the rest and the batch id."""
    fill(stage)
    frame = lines(spark, stage).selectExpr("nullif(split(value, ' ')[2], '7') AS line", "1 AS n")
    run(frame, stage, place, mode="merge", keyColumns="line", badRows="quarantine")
    assert len(place.rows()) == 99
    assert place.rejected() == [("key column 'line' is null", '{"n":1}')] * 4


@pytest.mark.parametrize(
    ("options", "columns", "message"),
    [
        ({"tabel": "x"}, ["value"], "did you mean 'table'"),
        ({"url": "postgresql://me:s3cr3t@h/d"}, ["value"], "password in it"),
        ({"mode": "merge", "keyColumns": "value"}, ["value", "value AS b"], "column 'b' is not a number"),
        ({}, ["named_struct('a', 1) AS s"], "column 's' is of type struct<a: int>"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(
    spark: SparkSession, stage: Stage, options: dict[str, str], columns: list[str], message: str
) -> None:
    """A wrong option or type ends the query before it reads a row; the error names it and shows no secret."""
    fill(stage)
    place = Place(f"sqlite://{stage.root}/x.db")
    with pytest.raises(Exception, match=message) as error:
        run(lines(spark, stage).selectExpr(*columns), stage, place, **options)
    assert "s3cr3t" not in str(error.value)
    assert not (stage.root / "x.db").exists()


def test_complete_mode_is_refused(spark: SparkSession, stage: Stage) -> None:
    """A query that would replace the table in every batch is refused, with what to do instead."""
    fill(stage)
    counts = lines(spark, stage).groupBy("value").count()
    given = {"url": f"sqlite://{stage.root}/x.db", "table": "t", "checkpointLocation": str(stage.checkpoint)}
    with pytest.raises(Exception, match="mode=upsert or mode=merge"):
        counts.writeStream.format("penstock-db").outputMode("complete").options(**given).trigger(
            availableNow=True
        ).start().awaitTermination()


def test_password_by_reference(spark: SparkSession, stage: Stage, postgres: Postgres) -> None:
    """A query logs in with a password from a file; no file of the checkpoint holds it, and no message shows it when it is wrong."""
    expected = fill(stage)
    rules = Path(postgres.directory) / "pg_hba.conf"
    rules.write_text("local all clerk2 scram-sha-256\n" + rules.read_text())
    postgres.psql(
        "CREATE ROLE clerk2 LOGIN PASSWORD 's3cr3t'; GRANT ALL ON SCHEMA public TO clerk2; SELECT pg_reload_conf()"
    )
    place, word = Place(postgres.url), stage.root / "word"
    clerk = {"url": postgres.url.replace("postgres@", "clerk2@"), "password": f"file:{word}"}
    word.write_text("s3cr3ts")
    with pytest.raises(Exception, match="password authentication failed") as error:
        run(lines(spark, stage), stage, place, **clerk)
    assert "s3cr3t" not in str(error.value)
    word.write_text("s3cr3t\n")
    run(lines(spark, stage), stage, place, **clerk)
    assert Counter(row[0] for row in place.rows()) == Counter(expected)
    files = [path for path in stage.checkpoint.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"s3cr3t" in path.read_bytes()]
