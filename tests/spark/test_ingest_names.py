"""Ingests of files that rows name (`files`): a stream of names, another output's finished files, and lists, on a real Spark."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import penstock
from penstock.errors import BadFile, BadRecord, CheckpointMismatch, FileChanged, OptionError, PenstockError
from penstock.formats.schema import to_spark
from penstock.ingestion import names as named
from penstock.ingestion.call import IngestCall
from penstock.ingestion.ingest import check
from penstock.ingestion.names import Names
from penstock.ingestion.stage import Stage as Stages
from penstock.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.ingestion.ingested import Ingested
    from tests.support.stage import Stage


def scanned(spark: SparkSession, stage: Stage) -> DataFrame:
    """Return the names of the stage's files as they come, with the values of emit=files for each."""
    return spark.readStream.format("penstock").option("emit", "files").load(str(stage.src))


def run(
    spark: SparkSession, stage: Stage, files: Any, *, sink: dict[str, Any] | None = None, **source: Any
) -> Ingested:
    """Ingest the files that `files` names below the stage's input."""
    given = {"files": files, **source}
    return penstock.ingest(spark, stage.src, stage.dst, source=given, sink=sink, checkpoint=stage.checkpoint)


def test_a_stream_of_names(spark: SparkSession, stage: Stage) -> None:
    """Each file that a stream names is read once over several runs, a large one by several tasks; other files are not read."""
    stage.put("a", "1", "2")
    stage.put("big", *(str(n) for n in range(1000, 9000)))
    done = run(spark, stage, scanned(spark, stage).where("not path like '%c'"), splitSize="8k")
    assert (done.rows, done.open_rows, done.aside_files) == (8002, 0, 0)
    stage.put("b", "3")
    stage.put("c", "4")
    assert run(spark, stage, scanned(spark, stage).where("not path like '%c'")).rows == 8003
    assert stage.lines() == {str(n): 1 for n in (1, 2, 3, *range(1000, 9000))}
    told = verify(str(stage.dst), source=str(stage.src))
    assert told.source is not None
    assert "rows named the files" in told.source.reason


def test_ranges_and_versions_of_a_stream(spark: SparkSession, stage: Stage) -> None:
    """The columns start, end and size count: a range is read alone, and a file of another size than its row says is a changed file."""
    stage.put("a", "1", "2", "3")
    names = scanned(spark, stage).selectExpr("path", "2L as start", "cast(null as bigint) as end", "modified")
    assert run(spark, stage, names).rows == 2
    assert stage.lines() == {"2": 1, "3": 1}
    stage.put("b", "4")
    with pytest.raises(FileChanged, match="size 2, 99 in its row"):
        run(spark, stage, scanned(spark, stage).selectExpr("path", "99L as size", "modified"))


def test_finished_files_of_another_output(spark: SparkSession, stage: Stage) -> None:
    """`published`: SRC is an output; each file that it finishes is read once, with its bucket columns; then nothing is new."""
    raw = stage.root / "raw"
    raw.mkdir()
    (raw / "x.json").write_text("".join(f"{json.dumps({'id': n, 'c': 'de' if n % 2 else 'fr'})}\n" for n in range(10)))
    os.utime(raw / "x.json", (1, 1))
    ddl = "id bigint, c string"
    first = {"format": "json", "schema": ddl}, {"format": "parquet", "bucketBy": "c={c}", "dropBucketColumns": True}
    penstock.ingest(spark, raw, stage.src, source=first[0], sink=first[1])
    (stage.src / "stray.parquet").write_bytes(b"no file of the output")
    second: dict[str, Any] = {"format": "parquet", "schema": ddl, "sink": {"format": "json"}}
    assert run(spark, stage, "published", **second).rows == 10
    assert {json.loads(line)["c"] for line in stage.lines()} == {"de", "fr"}
    assert run(spark, stage, "published", **second).rows == 10
    (raw / "y.json").write_text('{"id": 10, "c": "it"}\n')
    os.utime(raw / "y.json", (2, 2))
    penstock.ingest(spark, raw, stage.src, source=first[0], sink=first[1])
    assert run(spark, stage, "published", **second).rows == 11
    with pytest.raises(CheckpointMismatch, match="has nothing there"):
        penstock.ingest(
            spark,
            stage.src,
            stage.dst,
            source={"files": "published", "format": "parquet", "schema": ddl},
            sink={"format": "json"},
        )


def test_a_long_list_is_several_batches(spark: SparkSession, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task holds all splits of its batch, so a list with more names than a batch takes is read in several batches; each name once."""
    for name in "abc":
        stage.put(name, name)
    (stage.root / "list").write_text("a\nb\nc\n")
    os.utime(stage.root / "list", (1, 1))
    monkeypatch.setattr(named, "_LIST_BYTES_A_BATCH", "2")
    done = run(spark, stage, str(stage.root / "list"))
    assert (done.rows, done.batch) == (3, 2)
    assert stage.lines() == {"a": 1, "b": 1, "c": 1}


def test_a_list_that_is_mended(spark: SparkSession, stage: Stage) -> None:
    """A list in UTF-16, and one with a misspelt name, fail with the list's name; after the list is fixed the next run takes it."""
    stage.put("a", "1")
    names = stage.root / "names"

    def name(data: bytes, when: int) -> None:
        names.write_bytes(data)
        os.utime(names, (when, when))

    name("a\n".encode("utf-16"), 1)
    with pytest.raises(
        BadRecord, match=f"{names}', byte 0: .*expected UTF-8, in a list of names, text in UTF-8 .*write it so"
    ) as caught:
        run(spark, stage, str(names))
    assert "encoding=" not in str(caught.value), "which is that of the files that are named"
    name(b"A\n", 2)
    with pytest.raises(BadFile, match="'A' does not exist.*mend what names it"):
        run(spark, stage, str(names))
    name(b"a\n", 3)
    assert run(spark, stage, str(names)).rows == 1
    assert stage.lines() == {"1": 1}


def test_lists_of_names(spark: SparkSession, stage: Stage) -> None:
    """A directory of lists has a name a line, relative to SRC; each line is taken once, and a name outside of SRC fails by name."""
    stage.put("a", "1")
    stage.put("b", "2")
    lists = stage.root / "lists"
    lists.mkdir()

    def name(file: str, *names: str) -> None:
        (lists / file).write_text("\n".join(names) + "\n")
        os.utime(lists / file, (len(list(lists.iterdir())),) * 2)

    name("1", "a", "")
    assert run(spark, stage, str(lists)).rows == 1
    name("2", str(stage.src / "b"))
    assert run(spark, stage, str(lists)).rows == 2
    assert stage.lines() == {"1": 1, "2": 1}
    (stage.root / "secret").write_text("no\n")
    name("3", "../secret")
    with pytest.raises(BadFile, match="leads out of"):
        run(spark, stage, str(lists))
    done = run(spark, stage, str(lists), badFiles="quarantine")
    assert (done.rows, done.aside_files) == (2, 1)


@pytest.mark.parametrize("files", ["list", "published"])
def test_names_of_our_own_source_pass_no_map(spark: SparkSession, stage: Stage, files: str) -> None:
    """The process that reads the list or output also checks its names: a map would be another Python process after the JVM."""
    stage.put("a", "1")
    penstock.ingest(spark, stage.src, stage.root / "output", checkpoint=stage.checkpoint)
    (stage.root / "list").write_text("a\n")
    src, kind = (stage.src, str(stage.root / "list")) if files == "list" else (stage.root / "output", files)
    names = Names.of(kind)
    source = {"path": str(src), "files": kind}
    text = Stages.describe(source, to_spark(pa.schema([("value", pa.string())])), None, 1, names.columns)
    frame = names.splits(spark, source, Stages.of(text), str(stage.root / "notes"), 2)
    plan = frame._jdf.queryExecution().logical().toString()
    assert "Repartition 2" in plan
    assert "MapInArrow" not in plan
    assert frame.columns == ["split"]


def test_a_batch_that_was_not_committed_reads_the_same(spark: SparkSession, stage: Stage) -> None:
    """Lists do not give versions: a replay reads the version found first, or fails, and the advice to delete its notes works."""
    stage.put("a", "1")
    (stage.root / "list").write_text("a\n")
    os.utime(stage.root / "list", (1, 1))
    fails = stage.root / "fails"
    fails.touch()

    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows and fails.exists():
            raise RuntimeError
        return batch

    def again() -> Ingested:
        return penstock.ingest(
            spark,
            stage.src,
            stage.dst,
            source={"files": str(stage.root / "list")},
            transform=transform,
            checkpoint=stage.checkpoint,
        )

    with pytest.raises(PenstockError, match="the transform failed"):
        again()
    fails.unlink()
    stage.put("a", "another")
    with pytest.raises(FileChanged, match="not what this batch first found there.*delete its notes") as caught:
        again()
    notes = str(caught.value).partition("delete its notes, '")[2].partition("'")[0]
    shutil.rmtree(notes)
    assert again().rows == 1
    assert stage.lines() == {"another": 1}
    for ask in (penstock.late, penstock.reset):
        with pytest.raises(OptionError, match="rows name the files"):
            ask(stage.src, stage.dst, checkpoint=stage.checkpoint)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"files": 3}, "files=3; expected a streaming DataFrame"),
    ({"files": ""}, "expected a streaming DataFrame"),
    ({"files": "/nowhere/at/all"}, "does not exist; expected lists of names"),
    ({"files": "/dev/null"}, "files: '/dev/null' is a pipe, a socket or a device"),
    ({"files": "published", "recursiveFileLookup": True}, "'recursiveFileLookup' says which files are read"),
    ({"files": "published", "settle": "1s"}, "'settle' says which files"),
    ({"files": "published", "startingFrom": "2026-01-01"}, "startingFrom"),
]


@pytest.mark.parametrize(("source", "message"), WRONG)
def test_what_makes_no_sense_is_refused(stage: Stage, source: dict[str, Any], message: str) -> None:
    """Wrong values, and options that choose the files to read, are refused without Spark."""
    with pytest.raises(OptionError, match=message):
        check(IngestCall(str(stage.src), str(stage.dst), source=source, sink={}))


def test_frames_that_are_refused(spark: SparkSession, stage: Stage) -> None:
    """A batch DataFrame, one without a column path, and the option in a user's own query are refused, with what to do."""
    with pytest.raises(OptionError, match=r"not a stream.*spark.readStream.table"):
        run(spark, stage, spark.createDataFrame([("a",)], "path string"))
    with pytest.raises(OptionError, match="path='path'"):
        run(spark, stage, scanned(spark, stage).select("size"))
    with pytest.raises(Exception, match="files is for an ingest; .* penstock.read_files"):
        spark.readStream.format("penstock").option("files", "published").load(str(stage.src)).writeStream.format(
            "noop"
        ).option("checkpointLocation", str(stage.checkpoint)).start().awaitTermination()
