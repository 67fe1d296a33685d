"""Plain queries: `readStream` and `writeStream` with the format penstock, on a real Spark."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions

import penstock
from penstock.cli import replan as commands
from penstock.errors import Locked
from tests.support.follows import follows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.support.stage import Stage


def write(frame: DataFrame, stage: Stage, *, checkpoint: str = "checkpoint", **options: Any) -> StreamingQuery:
    """Start an AvailableNow query into the stage's output and wait for its end."""
    writer = frame.writeStream.format("penstock").options(**options)
    writer = writer.option("checkpointLocation", str(stage.root / checkpoint)).trigger(availableNow=True)
    query = writer.start(str(stage.dst))
    query.awaitTermination()
    return query


def read(spark: SparkSession, stage: Stage, **options: Any) -> DataFrame:
    """Return the stage's input as a stream."""
    return spark.readStream.format("penstock").options(**options).load(str(stage.src))


def test_every_line_is_in_one_finished_file(spark: SparkSession, stage: Stage) -> None:
    """When an AvailableNow run ends, its output is there: each line once, and only in finished files."""
    for i in range(5):
        stage.put(f"f{i}", *(f"{i} {j}" for j in range(100)))
    query = write(read(spark, stage, maxFilesPerTrigger=2), stage)
    assert [p["batchId"] for p in query.recentProgress] == [0, 1, 2]
    assert stage.lines() == {f"{i} {j}": 1 for i in range(5) for j in range(100)}
    assert len(stage.files()) == 1


def test_a_local_session_shares_a_batch_out_among_its_cores(spark: SparkSession, stage: Stage) -> None:
    """A registered session gives each core an equal share of 80 MiB, and a batch has no more tasks than it runs at a time."""
    penstock.register(spark)
    (stage.src / "f").write_bytes((b"x" * ((1 << 20) - 1) + b"\n") * 80)
    os.utime(stage.src / "f", (1000, 1000))
    tasks: list[int] = []

    def count(frame: DataFrame, _: int) -> None:
        tasks.append(frame.select(functions.spark_partition_id()).distinct().count())

    for options in ({}, {"splitSize": "20m"}):
        lines = read(spark, stage, **options)
        lines.writeStream.foreachBatch(count).trigger(availableNow=True).start().awaitTermination()
    assert tasks == [min(spark.sparkContext.defaultParallelism, 3), 4]


def test_same_query_again_takes_only_what_is_new(spark: SparkSession, stage: Stage) -> None:
    """SPK-11: started again, the query does nothing; with a new file, it takes only that file."""
    stage.put("a", "1", "2")
    write(read(spark, stage), stage)
    before = stage.files()
    write(read(spark, stage), stage)
    assert stage.files() == before
    stage.put("b", "3")
    write(read(spark, stage), stage)
    assert stage.lines() == {"1": 1, "2": 1, "3": 1}
    assert set(before) < set(stage.files())


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_deleted_commit_is_replayed_without_a_trace(spark: SparkSession, stage: Stage, times: int) -> None:
    """checkpoint/commits/<last> is deleted, new files land, the query restarts, once and twice in a row: nothing is lost or doubled."""
    for i in range(4):
        stage.put(f"f{i}", f"line {i}")
    write(read(spark, stage, maxFilesPerTrigger=2), stage, rollBatches=1)
    for round_ in range(times):
        last = max((stage.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
        stage.put(f"new{round_}", f"new {round_}")
        write(read(spark, stage, maxFilesPerTrigger=2), stage, rollBatches=1)
    assert stage.lines() == {f"line {i}": 1 for i in range(4)} | {f"new {r}": 1 for r in range(times)}


@pytest.mark.parametrize("crc", [True, False])
def test_offset_that_changed_in_the_checkpoint_fails_the_batch(spark: SparkSession, stage: Stage, crc: bool) -> None:
    """Our checksum refuses an altered offset where Spark's is not checked, or missing; once it is fixed, the query goes on.

    Here one changed digit ends the plan at the first line, so the second line would be lost.
    """
    stage.put("a", "1", "2")
    write(read(spark, stage), stage)
    shutil.rmtree(stage.dst)
    shutil.rmtree(stage.checkpoint / "commits")
    offset = stage.checkpoint / "offsets/0"
    text = offset.read_text()
    assert '["a", 0, 4, 4' in text
    offset.write_text(text.replace('["a", 0, 4, 4', '["a", 0, 2, 4'))
    if not crc:
        (stage.checkpoint / "offsets/.0.crc").unlink()
    with pytest.raises(
        PySparkException, match="Checksum error: .*offsets/0" if crc else "PST-400.*restore the checkpoint"
    ):
        write(read(spark, stage), stage)
    assert stage.files() == []
    offset.write_text(text)
    write(read(spark, stage), stage)
    assert stage.lines() == {"1": 1, "2": 1}


def test_second_checkpoint_on_the_same_output(spark: SparkSession, stage: Stage) -> None:
    """A new checkpoint on an old directory: its batches are neither skipped nor confused with the old ones."""
    stage.put("a", *(f"a{i}" for i in range(200)))
    write(read(spark, stage), stage, checkpoint="one")
    shutil.rmtree(stage.src)
    stage.src.mkdir()
    stage.put("b", *(f"b{i}" for i in range(500)))
    write(read(spark, stage), stage, checkpoint="two")
    assert sum(stage.lines().values()) == 700
    assert set(stage.lines().values()) == {1}


def test_a_checkpoint_by_its_url_is_the_one_that_spark_writes(spark: SparkSession, stage: Stage) -> None:
    """Spark takes `%20` after `file:` literally: the query is not confused with one whose checkpoint has a blank there."""
    stage.put("a", "1")
    names = ("of a", "of%20a")
    for name in names:
        writer = read(spark, stage).writeStream.format("penstock").trigger(availableNow=True)
        writer.option("checkpointLocation", f"file://{stage.root}/{name}").start(str(stage.dst)).awaitTermination()
    assert stage.lines() == {"1": 2}
    ids = {json.loads((stage.root / name / "metadata").read_text())["id"] for name in names}
    assert set(os.listdir(stage.dst / "_penstock")) == ids


def test_a_checkpoint_that_the_session_places(spark: SparkSession, stage: Stage) -> None:
    """`spark.sql.streaming.checkpointLocation` for queries with names: their last rows were not there at the end, or they were refused.

    A query without a name has a new checkpoint each time: it is refused, unless `sinkId` says that this is meant.
    """
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(stage.checkpoint))

    def run(**options: str) -> None:
        """Run the query with what is there."""
        writer = read(spark, stage).writeStream.trigger(availableNow=True)
        writer.start(str(stage.dst), format="penstock", **options).awaitTermination()

    for number in range(2):
        stage.put(f"{number}.txt", str(number))
        run(queryName="named")
        assert stage.lines() == {str(seen): 1 for seen in range(number + 1)}
    assert {path.name for path in stage.checkpoint.iterdir()} == {"named"}
    run(sinkId="other")
    assert stage.lines() == {"0": 2, "1": 2}
    with pytest.raises(PySparkException, match=r"give the query a name, \.queryName\('orders'\)"):
        run()
    assert stage.lines() == {"0": 2, "1": 2}


def test_two_queries_into_one_directory_at_the_same_time(spark: SparkSession, stage: Stage) -> None:
    """Two queries write to one directory at the same time: each line of both is there once, in a file of that query's sink."""
    queries = []
    for name in ("one", "two"):
        (stage.src / name).mkdir()
        for i in range(6):
            stage.put(f"{name}/f{i}", *(f"{name} {i} {j}" for j in range(50)))
        frame = spark.readStream.format("penstock").option("maxFilesPerTrigger", 1).load(str(stage.src / name))
        writer = frame.writeStream.format("penstock").options(sinkId=name, rollRows=80).trigger(availableNow=True)
        queries.append(writer.option("checkpointLocation", str(stage.root / name)).start(str(stage.dst)))
    for query in queries:
        query.awaitTermination()
    started, ended = zip(
        *((q.recentProgress[0]["timestamp"], q.recentProgress[-1]["timestamp"]) for q in queries), strict=True
    )
    assert max(started) < min(ended)
    assert stage.lines() == {f"{name} {i} {j}": 1 for name in ("one", "two") for i in range(6) for j in range(50)}
    for path in stage.files():
        assert {line.split()[0] for line in path.read_text().splitlines()} == {path.name.split("-")[1]}


def test_shuffled_tasks_follow_the_bytes(spark: SparkSession, stage: Stage) -> None:
    """Twenty tasks of a few rows end in one file, not in twenty."""
    stage.put("a", *(f"{i:04}" for i in range(2000)))
    write(read(spark, stage).repartition(20), stage)
    assert len(stage.files()) == 1
    assert set(stage.lines().values()) == {1}
    assert sum(stage.lines().values()) == 2000


def test_foreign_source_into_parquet_by_bucket(spark: SparkSession, stage: Stage) -> None:
    """Any stream can be written: Spark's own file source, into bucketed Parquet that a stranger reads."""
    stage.put("a", *(f'{{"id": {i}, "country": "{"de" if i % 2 else "f r/é"}"}}' for i in range(100)))
    frame = spark.readStream.format("json").schema("id bigint, country string").load(str(stage.src))
    write(frame, stage, format="parquet", bucketBy="country={country}", rollBatches=1)
    table = ds.dataset([str(path) for path in stage.files()]).to_table()
    assert sorted(table.column("id").to_pylist()) == list(range(100))
    assert {path.parent.name for path in stage.files()} == {"country=de", "country=f r%2Fé"}


def test_several_sources_of_one_query(spark: SparkSession, stage: Stage) -> None:
    """SPK-10: sources that end after one batch, after three and before the first: over repeated runs all rows are published."""
    frames = []
    for name in ("one", "three", "none"):
        (stage.src / name).mkdir()
        frames.append(spark.readStream.format("penstock").option("maxFilesPerTrigger", 1).load(str(stage.src / name)))
    stage.put("one/\udcff", "1")
    for i in range(3):
        stage.put(f"three/a\n{i}", f"3 {i}")
    union = frames[0].union(frames[1]).union(frames[2])
    write(union, stage)
    expected = {"1": 1, "3 0": 1, "3 1": 1, "3 2": 1}
    assert stage.lines() == expected
    for i in range(3, 5):
        stage.put(f"three/{i}", f"3 {i}")
    write(union, stage)
    assert stage.lines() == expected | {"3 3": 1, "3 4": 1}


def test_files_as_rows(spark: SparkSession, stage: Stage) -> None:
    """emit=files gives the path, time and size of each file instead of its contents."""
    stage.put("a", "12345")
    stage.put("b")
    frame = read(spark, stage, emit="files").selectExpr("concat_ws(' ', path, size) as value")
    write(frame, stage)
    assert stage.lines() == {f"{stage.src}/a 6": 1, f"{stage.src}/b 0": 1}


def test_metadata_column(spark: SparkSession, stage: Stage) -> None:
    """MetadataColumn adds the origin of each record with its byte offset, under any column name."""
    stage.put("a", "one", "two")
    frame = read(spark, stage, metadataColumn="me`ta").withColumnRenamed("me`ta", "_meta")
    write(frame.selectExpr("concat_ws(' ', value, _meta.path, _meta.size, _meta.offset) as value"), stage)
    assert stage.lines() == {f"one {stage.src}/a 8 0": 1, f"two {stage.src}/a 8 4": 1}


def test_processing_time_rolls_by_batches_while_it_runs(spark: SparkSession, stage: Stage) -> None:
    """A running query publishes finished parts as it goes, and takes new files as they come."""
    stage.put("a", "1")
    writer = read(spark, stage).writeStream.format("penstock").option("rollBatches", 1)
    writer = writer.option("checkpointLocation", str(stage.checkpoint)).trigger(processingTime="200 milliseconds")
    query = writer.start(str(stage.dst))
    try:
        query.processAllAvailable()
        assert stage.lines() == {"1": 1}
        stage.put("b", "2")
        query.processAllAvailable()
        assert stage.lines() == {"1": 1, "2": 1}
    finally:
        query.stop()


def test_once_takes_everything_in_one_batch(spark: SparkSession, stage: Stage) -> None:
    """Trigger.Once ignores the limits and publishes what it read."""
    for i in range(5):
        stage.put(f"f{i}", str(i))
    writer = read(spark, stage, maxFilesPerTrigger=1).writeStream.format("penstock").trigger(once=True)
    query = writer.option("checkpointLocation", str(stage.checkpoint)).start(str(stage.dst))
    query.awaitTermination()
    assert [p["batchId"] for p in query.recentProgress] == [0]
    assert sum(stage.lines().values()) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxFilePerTrigger": "1"}, "did you mean 'maxFilesPerTrigger'"),
        ({"maxFilesPerTrigger": "-1"}, "maxFilesPerTrigger='-1' is not a count"),
        ({"settle": "5"}, "settle='5' is not a duration"),
        ({"format": "jsn"}, "did you mean 'json'"),
        ({"format": "json"}, "needs a schema"),
        ({"cleanSource": "archiv"}, "did you mean 'archive'"),
    ],
)
def test_bad_source_options_are_refused(
    spark: SparkSession, stage: Stage, options: dict[str, str], message: str
) -> None:
    """An unknown option or a bad value is refused when the stream is defined, with what is expected."""
    with pytest.raises(PySparkException) as raised:
        read(spark, stage, **options)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rolSize": "1"}, "did you mean 'rollSize'"),
        ({"rollRows": "0"}, "rollRows='0' is not a count"),
        ({"bucketBy": "c={country}"}, "there is no column 'country'"),
        ({"bucketBy": "../{value}"}, "must be a relative path"),
        ({"encryptTo": "age1"}, "entry 1 of 1 is not a recipient"),
        ({"fileName": "fixed"}, "add {seq}"),
    ],
)
def test_bad_sink_options_are_refused(spark: SparkSession, stage: Stage, options: dict[str, str], message: str) -> None:
    """An unknown option, a bad value or template ends the query before anything is written."""
    stage.put("a", "1")
    with pytest.raises(PySparkException) as raised:
        write(read(spark, stage), stage, **options)
    assert message in str(raised.value)
    assert not stage.dst.exists()


def test_rows_name_their_files(spark: SparkSession, stage: Stage) -> None:
    """I6: A, B, A over batches and a restart: each growing file has the rows that name it, without the column that names it."""
    options = {"growing": "true", "fileName": "{name}.log", "dropBucketColumns": "true"}
    for turn in range(2):
        for number in range(3):
            stage.put(f"f{turn}{number}", *(f"{turn}{number}{row} {'AB/'[row % 3]}" for row in range(30)))
        frame = read(spark, stage, maxFilesPerTrigger=1).selectExpr(
            "split(value, ' ')[0] as value", "split(value, ' ')[1] as name"
        )
        write(frame, stage, **options)
    names = {path.name: Counter(path.read_text().split()) for path in stage.files()}
    assert set(names) == {"A.log", "B.log", "%2F.log"}
    for letter, name in enumerate(["A.log", "B.log", "%2F.log"]):
        rows = (f"{turn}{number}{row}" for turn in range(2) for number in range(3) for row in range(letter, 30, 3))
        assert names[name] == Counter(rows)
    with pytest.raises(PySparkException, match="there is no column 'nam'"):
        write(read(spark, stage), stage, checkpoint="other", fileName="{nam}-{seq}")


def test_what_is_no_stream_that_appends_is_refused(spark: SparkSession, stage: Stage) -> None:
    """Complete mode, which writes all rows in every batch, batch reads of input, and batches that replace are each refused."""
    stage.put("a", "1")
    counts = read(spark, stage).groupBy("value").count().selectExpr("value")
    writer = counts.writeStream.format("penstock").option("checkpointLocation", str(stage.checkpoint))
    with pytest.raises(PySparkException, match=r"\[PST-101\] outputMode\('complete'\)"):
        writer.outputMode("complete").trigger(availableNow=True).start(str(stage.dst)).awaitTermination()
    with pytest.raises(PySparkException, match="expected spark.readStream"):
        spark.read.format("penstock").load(str(stage.src)).collect()
    with pytest.raises(PySparkException, match=r"expected mode\('append'\)"):
        spark.range(1).write.format("penstock").mode("overwrite").save(str(stage.dst))
    assert not stage.files()


def test_missing_directory_is_refused(spark: SparkSession, stage: Stage) -> None:
    """The error names a missing path when the query starts."""
    stage.src.rmdir()
    with pytest.raises(PySparkException, match="does not exist"):
        write(read(spark, stage), stage)


@pytest.mark.parametrize("change", ["delete", "append", "replace"])
def test_planned_file_that_changed_fails_the_batch(spark: SparkSession, stage: Stage, change: str) -> None:
    """HZ-14..17: a planned file that vanished, grew or was replaced fails the batch by name; once it is fixed, the query goes on."""
    stage.put("a", "1")
    stage.put("b", "2")
    write(read(spark, stage), stage)
    last = stage.checkpoint / "commits/0"
    ledger = next(stage.dst.glob("_penstock/*/ledger"))
    shutil.rmtree(ledger.parent)
    for path in stage.files():
        path.unlink()
    last.unlink()
    (last.parent / ".0.crc").unlink(missing_ok=True)
    file, kept = stage.src / "b", stage.root / "kept"
    shutil.copy2(file, kept)
    if change == "append":
        with file.open("a") as more:
            more.write("3\n")
    elif change == "replace":
        file.unlink()
        file.write_text("9\n")
    else:
        file.rename(stage.root / "away")
    with pytest.raises(PySparkException, match="PST-203") as raised:
        write(read(spark, stage), stage)
    assert str(file) in str(raised.value)
    assert stage.files() == []
    planned = kept.stat().st_mtime_ns
    command = re.search(r"`(touch -d \S+)`", str(raised.value))
    assert command is not None
    file.unlink(missing_ok=True)
    file.write_bytes(kept.read_bytes())  # like a restore from a backup without times: another inode
    subprocess.run([*command[1].split(), str(file)], check=True)
    assert file.stat().st_mtime_ns == planned
    write(read(spark, stage), stage)
    assert stage.lines() == {"1": 1, "2": 1}


@pytest.mark.parametrize(
    "change",
    [
        "mend",
        "put a corrupt file anew",
        *(pytest.param(change, marks=pytest.mark.soak) for change in ("remove the record", "remove the file")),
    ],
)
@pytest.mark.usefixtures("nobody_is_ending")
@follows("PST-201")
def test_advice_of_a_bad_input_is_followed(spark: SparkSession, stage: Stage, change: str) -> None:
    """PST-201, PST-202, PST-203: after the advice of the message is followed, the batch with the bad input goes on, each record once."""
    stage.put("a.json", '{"id": 1}')
    options: dict[str, Any] = {"format": "json", "maxFilesPerTrigger": 2}

    def run() -> None:
        write(spark.readStream.format("penstock").schema("id bigint").options(**options).load(str(stage.src)), stage,
              format="json", rollBatches=1)  # fmt: skip

    run()
    bad = stage.src / "b.json.gz" if "corrupt" in change else stage.src / "b.json"
    if "corrupt" in change:
        bad.write_bytes(gzip.compress(b'{"id": 2}\n')[:-9])
        os.utime(bad, (1, bad.stat().st_mtime - 60))
    else:
        stage.put("b.json", '{"id": 2}', "{")
    stage.put("c.json", '{"id": 3}')
    for _ in range(2):
        with pytest.raises(PySparkException, match=r"penstock replan CHECKPOINT DST"):
            run()
    if change == "mend":
        stage.put("b.json", '{"id": 2}', '{"id": 4}')
    elif change == "remove the record":
        stage.put("b.json", '{"id": 2}')
    elif change == "remove the file":
        bad.unlink()
    else:
        bad.write_bytes(gzip.compress(b'{"id": 2}\n'))
        os.utime(bad, (1, bad.stat().st_mtime - 60))
    if "corrupt" not in change:
        with pytest.raises(PySparkException, match=r"PST-203.*penstock replan CHECKPOINT DST"):
            run()
    with pytest.raises(Locked, match="only its session lives, say --nothing-written"):
        commands.replan(str(stage.checkpoint), str(stage.dst), nothing_written=False, give_up_rest=False)
    commands.replan(str(stage.checkpoint), str(stage.dst), nothing_written=True, give_up_rest=False)
    run()
    expected = {"mend": [1, 2, 3, 4], "remove the file": [1, 3]}.get(change, [1, 2, 3])
    assert stage.lines() == {f'{{"id":{number}}}': 1 for number in expected}
    run()
    assert sum(stage.lines().values()) == len(expected)


@pytest.mark.parametrize("change", ["mended behind the cut", "another file"])
@pytest.mark.usefixtures("nobody_is_ending")
@follows("PST-203")
def test_file_that_was_cut_goes_on(spark: SparkSession, stage: Stage, change: str) -> None:
    """PST-203 for a file that was cut: fixed after the cut, it goes on from there; another file is read whole if the user says so."""
    lines = [f'{{"id": {number}}}' for number in range(1000, 1300)]
    stage.put("big.json", *lines[:-1], "{")
    options: dict[str, Any] = {"format": "json", "maxBytesPerTrigger": 1500}

    def run() -> None:
        write(spark.readStream.format("penstock").schema("id bigint").options(**options).load(str(stage.src)), stage,
              format="json", rollBatches=1)  # fmt: skip

    with pytest.raises(PySparkException, match="PST-201"):
        run()
    done = set(stage.lines())
    assert 200 < len(done) < 299
    more = [f'{{"id": {number}}}' for number in range(3)]
    stage.put("big.json", *(lines if change == "mended behind the cut" else more))
    with pytest.raises(PySparkException, match=r"PST-203.*penstock replan CHECKPOINT DST"):
        run()
    commands.replan(str(stage.checkpoint), str(stage.dst), nothing_written=True, give_up_rest=False)
    if change == "another file":
        with pytest.raises(PySparkException, match=r"PST-203.*penstock replan CHECKPOINT DST --give-up-rest"):
            run()
        commands.replan(str(stage.checkpoint), str(stage.dst), nothing_written=True, give_up_rest=True)
    run()
    expected = {line.replace(" ", "") for line in (lines if change != "another file" else more)} | done
    assert stage.lines() == dict.fromkeys(expected, 1)


def test_columns_of_directories_are_those_of_spark(spark: SparkSession, stage: Stage) -> None:
    """The directory names of Spark's writer are read as Spark reads them: nulls, escapes, numbers, dates."""
    texts = [
        "de",
        "a b",
        "a/b",
        "a=b:c",
        "100%",
        "%41",
        "..",
        "_x",
        "line\nbreak",
        "Zürich",
        "{}[]^",
        "'\"\\",
        "#?*",
        None,
    ]
    rows = [(i, text, i - 3, 1.5 * i, f"2026-01-{i + 1:02}") for i, text in enumerate(texts)] + [
        (99, "x", None, None, None)
    ]
    frame = spark.createDataFrame(rows, "id bigint, s string, n int, f double, d string")
    frame = frame.withColumn("d", frame.d.cast("date"))
    frame.write.partitionBy("s", "n", "f", "d").mode("append").json(str(stage.src))
    schema = "s string, id bigint, n int, f double, d date"
    expected = {row.asDict()["id"]: row.asDict() for row in spark.read.schema(schema).json(str(stage.src)).collect()}
    assert len(expected) == len(rows)
    frame = spark.readStream.format("penstock").schema(schema).options(format="json", settle="0").load(str(stage.src))
    write(frame, stage, format="parquet")
    found = {row.asDict()["id"]: row.asDict() for row in spark.read.parquet(str(stage.dst)).collect()}
    assert found == expected


@pytest.mark.parametrize("below", ["", "by/day"])
@pytest.mark.usefixtures("nobody_is_ending")
def test_a_query_that_reads_what_it_writes(spark: SparkSession, stage: Stage, below: str) -> None:
    """The source looks into the output: the batch that would read the query's own file is refused; earlier, rows went round forever.

    Once the source is told to skip such files, the query goes on; a query next to it may do so from the start. Files that others put
    into the output are input.
    """
    stage.put("a.txt", "a")
    dst, kept = stage.dst, stage.src / below
    options: dict[str, Any] = {"recursiveFileLookup": True, "settle": 0}

    def run() -> None:
        stage.dst = kept
        write(read(spark, stage, **options), stage)
        stage.dst = dst

    run()
    (kept / "b.txt").write_text("b\n")
    for _ in range(2):
        with pytest.raises(PySparkException, match=r"PST-101.*part-.*-0-0.txt' was written by this query"):
            run()
    options["pathGlobFilter"] = "?.txt"
    commands.replan(str(stage.checkpoint), str(kept), nothing_written=True, give_up_rest=False)
    run()
    run()
    assert sorted(path.read_text() for path in kept.glob("part-*")) == ["a\n", "b\n"]
    write(read(spark, stage, **options), stage, checkpoint="another")
    assert stage.lines() == {"a": 1, "b": 1}


@pytest.mark.parametrize("more", [{}, {"stateLocation": "state"}])
def test_a_query_of_several_paths_that_reads_what_it_writes(
    spark: SparkSession, stage: Stage, more: dict[str, str]
) -> None:
    """A loop that nobody noticed: one of several source paths is the output, also if the plan is stored next to the offset."""
    for number in range(400 if more else 1):
        stage.put(f"{number}-{'x' * 150}.txt", str(number))
    stage.dst.mkdir()
    (stage.dst / "b.txt").write_text("b\n")
    paths = json.dumps([str(stage.dst)])
    options = {name: str(stage.root / value) for name, value in more.items()}
    write(read(spark, stage, paths=paths, settle=0, **options), stage)
    for number in range(400 if more else 1):
        (stage.dst / f"{number}-{'y' * 150}.txt").write_text("c\n")
    with pytest.raises(PySparkException, match=r"PST-101.*out/part-.*-0-0.txt' was written by this query"):
        write(read(spark, stage, paths=paths, settle=0, **options), stage)
    if more:
        assert '"at":' in (stage.checkpoint / "offsets" / "1").read_text()
