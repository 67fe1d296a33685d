"""An output's published files as a stream on a real Spark: a row for each file, once, over restarts and replays of both sides."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from typer.testing import CliRunner

from penstock import errors
from penstock.cli.app import app
from penstock.errors import CallbackFailed, EventsLost, OptionError
from tests.support.stage import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def write(spark: SparkSession, stage: Stage, name: str, *lines: str) -> None:
    """Run the query that writes the output; it publishes each of these lines in a separate file."""
    stage.put(name, *lines)
    frame = spark.readStream.format("penstock").load(str(stage.src))
    writer = frame.writeStream.format("penstock").option("rollRows", "1").trigger(availableNow=True)
    writer.option("checkpointLocation", str(stage.root / "writer")).start(str(stage.dst)).awaitTermination()


def read(spark: SparkSession, stage: Stage, **options: Any) -> None:
    """Bring the new events into files next to the output, by a query that continues from its checkpoint."""
    frame = spark.readStream.format("penstock").option("emit", "published").options(**options).load(str(stage.dst))
    writer = frame.writeStream.format("penstock").options(format="json", rollBatches="1").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(stage.checkpoint)).start(str(stage.root / "events"))
    query.awaitTermination()


def told(stage: Stage) -> list[dict[str, Any]]:
    """Return the rows that were written, in the order of the ledger."""
    lines = [line for path in (stage.root / "events").glob("*.json") for line in path.read_text().splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda row: (row["record"], row["path"]))


def last_commit(checkpoint: Path) -> Path:
    """Return the file in which Spark notes that the last batch is done."""
    return max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))


def test_each_file_is_a_row_over_restarts_and_replays(spark: SparkSession, stage: Stage) -> None:
    """Files of two runs, in batches of two; the reader repeats a batch, and so does the writer: each file has one event."""
    write(spark, stage, "a.txt", "one", "two", "three")
    read(spark, stage, maxFilesPerTrigger=2)
    assert len(told(stage)) == 3
    last_commit(stage.checkpoint).unlink()
    last_commit(stage.root / "writer").unlink()
    write(spark, stage, "b.txt", "four")
    read(spark, stage, maxFilesPerTrigger=2)
    rows = told(stage)
    assert sorted(row["path"] for row in rows) == sorted(map(str, stage.files()))
    for row in rows:
        assert row["event"] == "published"
        assert (row["rows"], row["size"]) == (1, (stage.dst / row["path"]).stat().st_size)
        assert row["time"].startswith("20")
    assert len({row["sink"] for row in rows}) == 1


def test_a_query_that_is_told_of_what_it_writes(spark: SparkSession, stage: Stage) -> None:
    """A loop that nobody noticed: an output received the events of its own files. Once the intended sink is named, the query goes on."""
    write(spark, stage, "a", "1")
    (sink,) = (path.name for path in (stage.dst / "_penstock").iterdir())

    def follow(**options: str) -> None:
        frame = spark.readStream.format("penstock").option("emit", "published").options(**options).load(str(stage.dst))
        writer = frame.select("path").writeStream.format("penstock").trigger(availableNow=True)
        writer.option("checkpointLocation", str(stage.checkpoint)).start(str(stage.dst)).awaitTermination()

    def files() -> int:
        return len(list(stage.dst.glob("part-*")))

    follow()
    assert files() == 2
    for _ in range(2):
        with pytest.raises(PySparkException, match="PST-101.*reads the events of its own output") as caught:
            follow()
    line = str(errors.of(caught.value)).partition("and then: penstock ")[2]
    assert CliRunner().invoke(app, [*shlex.split(line), "--nothing-written"]).exit_code == 0
    for _ in range(2):
        follow(sinkId=sink)
    write(spark, stage, "b", "2")
    follow(sinkId=sink)
    assert files() == 4


def test_what_cannot_be_told_is_an_error_of_ours(spark: SparkSession, stage: Stage) -> None:
    """Unsupported options and columns are refused by name; if the ledger is gone, the query ends with EventsLost."""
    write(spark, stage, "a.txt", "one")
    reader = spark.readStream.format("penstock").option("emit", "Published")
    for name, value in (("splitSize", "1m"), ("startingFrom", "yesterday")):
        with pytest.raises(PySparkException) as refused:
            read(spark, stage, **{name: value})
        assert isinstance(errors.of(refused.value), OptionError)
    frame = reader.schema("path string").load(str(stage.dst))
    query = frame.writeStream.format("noop").option("checkpointLocation", str(stage.root / "c")).start()
    with pytest.raises(PySparkException) as refused:
        query.awaitTermination()
    assert isinstance(error := errors.of(refused.value), OptionError)
    assert "leave .schema(...) out" in error.message
    read(spark, stage)
    (ledger,) = stage.dst.glob("_penstock/*/ledger")
    ledger.rename(ledger.parent / "gone")
    with pytest.raises(PySparkException) as lost:
        read(spark, stage)
    assert isinstance(errors.of(lost.value), EventsLost)


def test_a_function_is_told_over_its_own_failures(spark: SparkSession, stage: Stage) -> None:
    """It fails in a batch's commit: the query ends with CallbackFailed, the files are visible, and the next start calls it again."""
    stage.put("a.txt", "one", "two")
    (stage.root / "fail").touch()
    frame = spark.readStream.format("penstock").load(str(stage.src))
    writer = frame.writeStream.format("penstock").option("rollRows", "1").trigger(availableNow=True)
    writer = writer.option("onPublish", "tests.support.told:note").option("checkpointLocation", str(stage.checkpoint))
    with pytest.raises(PySparkException) as failed:
        writer.start(str(stage.dst)).awaitTermination()
    assert isinstance(errors.of(failed.value), CallbackFailed)
    assert stage.lines() == {"one": 1, "two": 1}
    stage.put("b.txt", "three")
    writer.start(str(stage.dst)).awaitTermination()
    told_of = [json.loads(line)["path"] for line in (stage.root / "told.jsonl").read_text().splitlines()]
    assert sorted(told_of) == sorted(map(str, stage.files()))
    assert stage.lines() == {"one": 1, "two": 1, "three": 1}
