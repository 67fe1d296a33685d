"""Undocumented behaviour of Spark on which we rely, checked against the installed Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import OptionError
from penstock.query.checkpoint import Checkpoint
from penstock.session import interpreter
from penstock.session.sidebyside import ADDED, side_by_side, variables_of
from penstock.session.task import task_batch
from penstock.sink.existing import noted
from penstock.sink.sink import Sink
from penstock.storage import LocalStorage
from tests.support.advice import penstock as penstock_command

pytest.importorskip("pyspark")

from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.spark.datasource import PenstockDataSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.stage import Stage


CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"


def whoami(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replace a task's rows by what the task knows of its batch."""
    for _ in batches:
        query, batch, *_ = task_batch()
        yield pa.RecordBatch.from_arrays([pa.array([f"{query} {batch}"])], names=["value"])


def test_tasks_and_checkpoint_name_query_and_batch(spark: SparkSession, stage: Stage) -> None:
    """A task sees the ids of its query and batch; the checkpoint holds them too, and the sources' offsets from the third line on."""
    stage.put("a", "1")
    stage.put("b", "2")
    frame = spark.readStream.format("penstock").option("maxFilesPerTrigger", 1).load(str(stage.src))
    writer = frame.mapInArrow(whoami, "value string").writeStream.format("penstock").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(stage.checkpoint)).start(str(stage.dst))
    query.awaitTermination()
    assert stage.lines() == {f"{query.id} 0": 1, f"{query.id} 1": 1}
    checkpoint = Checkpoint(str(stage.checkpoint))
    assert checkpoint.query_id() == str(query.id)
    current = checkpoint.current()
    assert current is not None
    assert (current.query, current.number, current.final) == (str(query.id), 1, True)
    assert not checkpoint.batch(str(query.id), 0).final
    lines = (stage.checkpoint / "offsets/1").read_text().splitlines()
    assert (lines[0], json.loads(lines[2])["cursor"][1]) == ("v1", "b")
    assert {path.name for path in (stage.checkpoint / "commits").iterdir() if path.name.isdigit()} == {"0", "1"}


def test_sources_with_names(spark: SparkSession, stage: Stage) -> None:
    """`readStream.name(...)`: Spark then writes its offset log in another form, in which no line of a source was taken for ours.

    1. A query reads what it writes itself: it was not refused, and its rows came round for ever.
    2. The last batch of a run was not known for the last, so its parts were left open.
    3. An ingest that is a query was refused by Spark, and one without names ended with `DamagedState` after it had committed.
    """
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true")
    session.conf.set("spark.sql.streaming.offsetLog.formatVersion", "2")
    stage.put("a", "1")
    stage.put("b", "2")

    def run(dst: Path) -> Checkpoint:
        reader = session.readStream.name("lines").format("penstock").option("recursiveFileLookup", "true")
        checkpoint = stage.checkpoint / dst.name
        writer = reader.option("settle", "0").load(str(stage.src)).writeStream.format("penstock")
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writer.start(str(dst)).awaitTermination()
        return Checkpoint(str(checkpoint))

    checkpoint = run(stage.dst)
    assert list(checkpoint.entry(0).sources) == ["lines"]
    current = checkpoint.current()
    assert current is not None
    assert current.final
    assert stage.lines() == {"1": 1, "2": 1}
    sink = {"queryName": "named", "sinkId": "s"}
    ingested = penstock.ingest(session, str(stage.src), str(stage.root / "ingested"), sink=sink)
    assert (ingested.rows, ingested.open_rows) == (2, 0)
    run(stage.src / "inner")
    with pytest.raises(StreamingQueryException, match="PST-101"):
        run(stage.src / "inner")


def test_sources_in_another_order(spark: SparkSession, stage: Stage) -> None:
    """A union whose sources change places is refused before rows are there twice; the advice takes the query back to its former order."""
    stage.put("a", "1")
    other = stage.root / "other"
    other.mkdir()
    (other / "b").write_text("2\n")

    def run(*places: Path) -> None:
        reader = spark.readStream.format("penstock").option("settle", "0")
        first, second = (reader.load(str(place)) for place in places)
        writer = first.union(second).writeStream.format("penstock").trigger(availableNow=True)
        writer.option("checkpointLocation", str(stage.checkpoint)).start(str(stage.dst)).awaitTermination()

    run(stage.src, other)
    stage.put("c", "3")
    with pytest.raises(StreamingQueryException, match="PST-302.*penstock replan"):
        run(other, stage.src)
    status, said = penstock_command(
        "replan", stage.checkpoint, stage.dst, "--nothing-written"
    )  # this application lives
    assert status == 0, said
    run(stage.src, other)
    assert stage.lines() == {"1": 1, "2": 1, "3": 1}


def test_a_query_adds_no_variables_to_those_that_all_queries_share(spark: SparkSession, stage: Stage) -> None:
    """Spark's runners take no lock: if two queries add to the shared map at once, the map can break so that no task can be serialized."""
    spark.dataSource.register(PenstockDataSource)  # it has a new map, which nothing has used
    side_by_side(spark, "penstock")
    before = set(variables_of(spark, "penstock"))
    assert before >= set(ADDED)
    stage.put("a", "1")
    frame = spark.readStream.format("penstock").load(str(stage.src))
    writer = frame.writeStream.format("penstock").trigger(availableNow=True)
    writer.option("checkpointLocation", str(stage.checkpoint)).start(str(stage.dst)).awaitTermination()
    assert stage.lines() == {"1": 1}
    assert set(variables_of(spark, "penstock")) == before


def test_processes_that_plan_are_told_where_penstock_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark gives them no file of `--py-files`, so a Penstock that came in that way must be on their path."""
    place = tmp_path / "penstock.zip"
    monkeypatch.setattr(interpreter, "__file__", str(place / "penstock/session/interpreter.py"))
    spark.dataSource.register(PenstockDataSource)
    variables_of(spark, "penstock").put("PYTHONPATH", "/of/others")
    side_by_side(spark, "penstock")
    assert variables_of(spark, "penstock")["PYTHONPATH"] == f"{place}:/of/others"


def test_batches_without_rows_have_their_record(spark: SparkSession, stage: Stage) -> None:
    """A batch whose rows were all filtered out, and one that Spark adds without input, are committed like any other."""
    for name, hour in [("a", 0), ("b", 1), ("c", 5)]:
        stage.put(name, f"2026-01-01T{hour:02}:00:00")
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", 2)  # instead of 200 tasks a batch
    frame = session.readStream.format("penstock").option("maxFilesPerTrigger", 1).load(str(stage.src))
    timed = (
        frame.where("value not like '%01:00:00'")
        .selectExpr("to_timestamp(value) as at")
        .withWatermark("at", "1 second")
    )
    counted = timed.groupBy("at").count().selectExpr("concat(at, ' ', count) as value")
    writer = counted.writeStream.format("penstock").trigger(availableNow=True).option("sinkId", "s")
    query = writer.option("checkpointLocation", str(stage.checkpoint)).start(str(stage.dst))
    query.awaitTermination()
    assert [progress["numInputRows"] for progress in query.recentProgress][-1] == 0
    head = Sink.existing(LocalStorage(), str(stage.dst), "s").ledger.head()
    assert head.last_batch(str(query.id)) == query.recentProgress[-1]["batchId"]
    assert head.n == 1 + len(query.recentProgress)


def test_checkpoint_file_takes_no_file_away(spark: SparkSession, stage: Stage) -> None:
    """The class with which our sessions have Spark write its logs refuses a name that is taken, and leaves the existing file unchanged."""
    stage.checkpoint.mkdir()
    jvm: Any = spark._jvm
    hadoop = jvm.org.apache.hadoop
    there = hadoop.fs.Path(str(stage.checkpoint))
    configuration = spark._jsc.hadoopConfiguration()
    configuration.set(CHECKPOINT_FILES, spark.conf.get(CHECKPOINT_FILES))
    package = jvm.org.apache.spark.sql.execution.streaming.checkpointing
    manager = package.CheckpointFileManager.create(there, configuration)
    assert manager.getClass().getSimpleName() == "FileSystemBasedCheckpointFileManager"
    path = hadoop.fs.Path(str(stage.checkpoint / "0"))
    first, second = manager.createAtomic(path, False), manager.createAtomic(path, False)
    for stream, text in ((first, b"first"), (second, b"second")):
        stream.write(bytearray(text))
    first.close()
    with pytest.raises(Py4JJavaError, match="already exists"):
        second.close()
    assert (stage.checkpoint / "0").read_bytes() == b"first"


def test_a_first_write_of_the_offset_log_that_was_killed(spark: SparkSession, stage: Stage) -> None:
    """Spark refuses a first batch while a temporary file is in the log; an ingest removes it, and so does a user who follows the advice."""
    stage.put("a", "1")
    unfinished = stage.checkpoint / "offsets/.0.6f3a1c0e-7f3b-4f9a-9a3b-1b5cf6b0a3e1.tmp"
    unfinished.parent.mkdir(parents=True)
    frame = spark.readStream.format("penstock").load(str(stage.src))
    writer = frame.writeStream.format("penstock").option("checkpointLocation", str(stage.checkpoint))
    writer = writer.trigger(availableNow=True)
    unfinished.touch()
    with pytest.raises(StreamingQueryException, match="STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"):
        writer.start(str(stage.dst)).awaitTermination()
    for temporary in unfinished.parent.glob(".0.*.tmp"):  # as docs/operations.md advises
        temporary.unlink()
    writer.start(str(stage.dst)).awaitTermination()
    assert stage.lines() == {"1": 1}


@pytest.mark.parametrize("named", ["partitionBy", "clusterBy"])
def test_a_python_sink_is_not_told_of_directories(spark: SparkSession, stage: Stage, named: str) -> None:
    """Spark passes `partitionBy` and `clusterBy` to no Python sink. If a Spark version starts to, we must honour or refuse them."""
    stage.put("a", "1")
    options = {"path": str(stage.dst), "sinkId": "s", "checkpointLocation": str(stage.checkpoint)}
    writer = spark.readStream.format("penstock").load(str(stage.src)).writeStream.format("penstock").options(**options)
    spark_own = getattr(DataStreamWriter, named).__wrapped__  # `register` has it refused
    query = spark_own(writer, "value").trigger(availableNow=True).start()
    query.awaitTermination()
    assert dict(noted(LocalStorage(), f"{stage.dst}/_penstock/s").options) == options
    assert [path.parent for path in stage.files()] == [stage.dst]


@pytest.mark.parametrize("named", ["partitionBy", "clusterBy"])
def test_directories_of_a_stream_are_refused_in_any_order(spark: SparkSession, stage: Stage, named: str) -> None:
    """A registered session refuses `partitionBy` of our sinks before anything starts, with the option to write; other sinks have it."""
    rows = spark.readStream.format("penstock").load(str(stage.src))
    expected = f"{named}\\('value', 'b'\\) has no effect on format penstock, .*bucketBy', 'value={{value}}/b={{b}}'\\).*dropBucketColumns"
    with pytest.raises(OptionError, match=expected):
        getattr(rows.writeStream.format("penstock"), named)("value", "b")
    with pytest.raises(OptionError, match=expected):
        getattr(rows.writeStream, named)(["value", "b"]).format("Penstock")
    with pytest.raises(OptionError, match="format penstock-db.* a table has no directories"):
        getattr(rows.writeStream, named)("value").start(format="penstock-db")
    if named == "partitionBy":
        with pytest.raises(OptionError, match="has no effect"):
            rows.writeStream.start(str(stage.dst), format="penstock", partitionBy="value")
    getattr(rows.writeStream.format("penstock"), named)()
    getattr(rows.writeStream.format("parquet"), named)("value")
