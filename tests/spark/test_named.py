"""`penstock.read_files` on a real Spark: batch and streams, replays included."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import penstock
from penstock.errors import BadFile, FileChanged, OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.stage import Stage


def named(spark: SparkSession, stage: Stage, *names: str) -> DataFrame:
    """Return rows that name the stage's files."""
    rows = [(str(stage.src / name), number) for number, name in enumerate(names)]
    return spark.createDataFrame(rows, "`the.file` string, k int")


def test_batch_frame(spark: SparkSession, stage: Stage) -> None:
    """The files of a batch frame, a large one over several tasks: each record once, next to its row's columns or alone."""
    stage.put("a", '{"id": 1}', '{"id": 2}')
    stage.put("big", *(json.dumps({"id": n}) for n in range(20_000)))
    names = named(spark, stage, "a", "big", "a")
    frame = penstock.read_files(names, path="the.file", format="json", schema="id bigint", splitSize="50k")
    assert frame.columns == ["the.file", "k", "id"]
    told = frame.selectExpr("k", "id", "spark_partition_id() as task")
    [(count, tasks)] = told.where("k = 1").selectExpr("count(distinct id)", "count(distinct task)").collect()
    assert (count, tasks > 1) == (20_000, True)
    assert sorted((row.k, row.id) for row in told.where("k <> 1").collect()) == [(0, 1), (0, 2), (2, 1), (2, 2)]
    alone = penstock.read_files(names, path="the.file", schema="value string", keep_input=False, lineSep="}")
    assert alone.columns == ["value"]
    assert alone.count() == 20_000 + 4 + 1 + 2


def scanned(spark: SparkSession, stage: Stage, **options: Any) -> DataFrame:
    """Return the names of the stage's files as they come."""
    return spark.readStream.format("penstock").options(emit="files", **options).load(str(stage.src))


def write(frame: DataFrame, stage: Stage) -> None:
    """Write lines, and wait for the end."""
    writer = frame.writeStream.format("penstock").option("checkpointLocation", str(stage.checkpoint))
    writer.trigger(availableNow=True).start(str(stage.dst)).awaitTermination()


def uncommit(stage: Stage, batch: int) -> None:
    """Make Spark believe that the last batch was not committed, as after a crash."""
    (stage.checkpoint / f"commits/{batch}").unlink()
    (stage.checkpoint / f"commits/.{batch}.crc").unlink()


def test_a_scan_names_the_files_of_a_stream(spark: SparkSession, stage: Stage) -> None:
    """IBM-2: the rows of `emit=files` name a version: each file is read once, those of a later run too; a changed file fails."""
    stage.put("a", "1", "2")
    lines = penstock.read_files(scanned(spark, stage), keep_input=False)
    assert lines.isStreaming
    write(lines, stage)
    stage.put("b", "3")
    write(lines, stage)
    assert stage.lines() == {"1": 1, "2": 1, "3": 1}
    stage.put("c", "4")
    names = spark.createDataFrame([(str(stage.src / "c"), 99)], "path string, size bigint")
    with pytest.raises(Exception, match="size 2, 99 in its row") as caught:
        penstock.read_files(names).collect()
    assert isinstance(penstock.errors.of(caught.value), FileChanged)


def test_a_stream_without_versions_is_replayed(spark: SparkSession, stage: Stage) -> None:
    """A stream of bare names needs a place for notes; a replay then reads the same bytes, or fails by name, with advice that works."""
    stage.put("a", "1")
    info = os.stat(stage.src / "a")
    names = scanned(spark, stage).select("path")
    with pytest.raises(OptionError, match="set the option stateLocation"):
        penstock.read_files(names)
    notes = stage.root / "notes"
    lines = penstock.read_files(names, keep_input=False, stateLocation=str(notes))

    def seen() -> list[str]:
        rows: list[str] = []
        query = lines.writeStream.foreachBatch(lambda frame, _: rows.extend(row.value for row in frame.collect()))
        query.option("checkpointLocation", str(stage.checkpoint)).trigger(availableNow=True).start().awaitTermination()
        return rows

    assert seen() == ["1"]
    uncommit(stage, 0)
    stage.put("a", "changed")
    with pytest.raises(Exception, match="not what this batch first found there") as caught:
        seen()
    assert isinstance(penstock.errors.of(caught.value), FileChanged)
    stage.put("a", "1")
    os.utime(stage.src / "a", ns=(info.st_atime_ns, info.st_mtime_ns))
    assert seen() == ["1"]


def test_what_is_missing_is_set_aside_with_its_row(spark: SparkSession, stage: Stage) -> None:
    """A missing file fails the query by name, or becomes a separate row that has the columns of the row that named it."""
    stage.put("a", "1")
    names = named(spark, stage, "a", "gone")
    with pytest.raises(Exception, match="does not exist") as caught:
        penstock.read_files(names, path="the.file").collect()
    assert isinstance(penstock.errors.of(caught.value), BadFile)
    schema = "value string, _bad struct<path: string, offset: bigint, record: binary, reason: string>"
    frame = penstock.read_files(names, path="the.file", schema=schema, badFiles="quarantine", badRecordColumn="_bad")
    good, bad = penstock.split_bad(frame)
    assert [(row.k, row.value) for row in good.collect()] == [(0, "1")]
    assert [row.path for row in bad.collect()] == [str(stage.src / "gone")]
    assert [row.k for row in frame.where("_bad is not null").collect()] == [1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": "nope"}, "path='nope'"),
        ({"path": "k"}, "path='k' is int; expected string"),
        ({"path": "the.file", "start": "the.file"}, "start='the.file' is string; expected bigint"),
        ({"path": "the.file", "end": "none"}, "end='none'"),
        ({"path": None}, "path=None"),
        ({"path": "the.file", "format": "json"}, "needs a schema"),
        ({"path": "the.file", "format": "json", "schema": "infer"}, "infer"),
        ({"path": "the.file", "format": "jsn"}, "format"),
        ({"path": "the.file", "keep_input": "no"}, "keep_input"),
        ({"path": "the.file", "format": "json", "schema": "K int"}, "two columns"),
        ({"path": "the.file", "recursiveFileLookup": True}, "recursiveFileLookup"),
        ({"path": "the.file", "paht": True}, "did you mean"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    spark: SparkSession, stage: Stage, given: dict[str, Any], message: str
) -> None:
    """A wrong parameter or option is an `OptionError` on the driver, before anything runs."""
    with pytest.raises(OptionError, match=message):
        penstock.read_files(named(spark, stage, "a"), **given)


def test_a_column_of_another_meaning(spark: SparkSession, stage: Stage) -> None:
    """A column `size` that is not a file's size is an error and not compared; None ignores the column."""
    stage.put("a", "1")
    names = spark.createDataFrame([(str(stage.src / "a"), "XL")], "path string, size string")
    with pytest.raises(OptionError, match="size=None"):
        penstock.read_files(names)
    assert [tuple(row)[1:] for row in penstock.read_files(names, size=None).collect()] == [("XL", "1")]


def test_names_in_columns_of_other_types(spark: SparkSession, stage: Stage) -> None:
    """Names as bytes, as a struct's member, or as an array's elements are refused; the advice to make them strings works."""
    stage.put("a", "1")
    path = f"'{stage.src / 'a'}'"
    shapes = {
        f"cast({path} as binary)": "cast(`n` as string)",
        f"named_struct('size', 2L, 'the path', {path})": "`n`.`the path`",
        f"array({path})": "explode(`n`)",
    }
    for shape, advised in shapes.items():
        frame = spark.range(1).selectExpr(f"{shape} as n")
        with pytest.raises(OptionError, match=re.escape(f'selectExpr("{advised} as path")')):
            penstock.read_files(frame, path="n")
        assert [row.value for row in penstock.read_files(frame.selectExpr(f"{advised} as path")).collect()] == ["1"]


def test_columns_that_pass_to_no_python(spark: SparkSession, stage: Stage) -> None:
    """An interval of months in the input, also nested, is refused with its column's name, or dropped where the input is not kept."""
    stage.put("a", "1")
    names = named(spark, stage, "a")
    for kind in ("interval '1' month", "array(named_struct('q', interval '1' month))", "map(1, make_interval(1))"):
        odd = names.selectExpr(f"{kind} as odd", "`the.file` as path", "0L as size_of_none", "k")
        with pytest.raises(OptionError, match=r"the column 'odd' is .*interval.*keep_input=False"):
            penstock.read_files(odd)
        lines = penstock.read_files(odd, keep_input=False, start="size_of_none", lineSep="\n")
        assert [row.value for row in lines.collect()] == ["1"], kind
