"""Bytes that are not UTF-8, other encodings and Hadoop's codecs, on a real Spark, compared with what Spark reads and writes itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import penstock
from penstock.cli.app import app
from penstock.errors import OptionError
from tests.support.follows import follows
from tests.support.stage import Stage

LINES = [b"good", b"caf\xe9", b"\xf0\x9f\x98x", b"cut \xc3", "säy \U0001f600".encode(), b""]
REPLACED = [line.decode("utf-8", "replace") for line in LINES]


def put(stage: Stage, name: str, data: bytes) -> None:
    """Write an input file that has settled."""
    path = stage.src / name
    path.write_bytes(data)
    os.utime(path, (1, 1))


def write(frame: DataFrame, stage: Stage, **options: Any) -> None:
    """Run an AvailableNow query into the stage's output, which is there when the query ends."""
    given = {"checkpointLocation": str(stage.checkpoint), "rollBatches": "1", **options}
    writer = frame.writeStream.format("penstock").options(**given)
    writer.trigger(availableNow=True).start(str(stage.dst)).awaitTermination()


def strangers(form: str, path: Path) -> list[list[str | None]]:
    """Return the column as strict readers see it, which refuse what is not UTF-8; an empty line of text is an empty string."""
    if form == "text":
        return [[*path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]]
    if form == "parquet":
        by_polars = pl.read_parquet(path)
    else:
        by_polars = (
            pl.read_ndjson(path) if form == "json" else pl.read_csv(path, has_header=False, new_columns=["value"])
        )
    names = "" if form != "csv" else ", names=['value'], header=false, quote='\"', allow_quoted_nulls=false"
    reader = {"json": "read_json", "csv": "read_csv", "parquet": "read_parquet"}[form]
    by_duckdb = duckdb.connect().execute(f"select value from {reader}('{path}'{names})").fetchall()
    return [by_polars["value"].to_list(), [value for (value,) in by_duckdb]]


@pytest.mark.parametrize("form", ["text", "json", "csv", "parquet"])
@follows("PST-101")
def test_strings_of_spark_that_are_no_text(spark: SparkSession, stage: Stage, form: str) -> None:
    """Spark's text source passes any bytes as strings: the sink refuses invalid ones by name, or writes what every reader takes.

    The advice of the error works: the same query, with `encodingErrors=replace`, goes on from its checkpoint.
    """
    put(stage, "a", b"\n".join(LINES))
    lines = spark.readStream.format("text").load(str(stage.src))
    with pytest.raises(
        PySparkException, match=r"PST-101\] column 'value': found 'caf\\\\*xe9', expected UTF-8; set encodingErrors"
    ):
        write(lines, stage, format=form)
    assert stage.files() == []
    write(lines, stage, format=form, encodingErrors="replace")
    [file] = stage.files()
    for found in strangers(form, file):
        assert [value or "" for value in found] == REPLACED[:-1]
    back = spark.read.schema("value string").format(form).load(str(stage.dst))
    assert sorted(row.value or "" for row in back.collect()) == sorted(REPLACED[:-1])


def test_bytes_pass_where_the_user_says_binary(spark: SparkSession, stage: Stage) -> None:
    """The bytes of a binary column are written unchanged, as lines of text and in Parquet."""
    put(stage, "a", b"\n".join(LINES))
    lines = spark.readStream.format("text").load(str(stage.src)).selectExpr("cast(value as binary) value")
    write(lines, stage, format="text")
    assert [file.read_bytes() for file in stage.files()] == [b"".join(line + b"\n" for line in LINES[:-1])]


def test_source_and_sink_agree_with_each_other(spark: SparkSession, stage: Stage) -> None:
    """The source and the sink turn such bytes into the same text, and so does Spark's JSON writer."""
    put(stage, "a", b"\n".join(LINES))
    lines = spark.readStream.format("penstock").option("encodingErrors", "replace").load(str(stage.src))
    write(lines, stage, format="json")
    ours = [json.loads(line)["value"] for file in stage.files() for line in file.read_text("utf-8").splitlines()]
    spark.read.text(str(stage.src)).coalesce(1).write.json(str(stage.root / "sparks"))
    [sparks] = (stage.root / "sparks").glob("part-*")
    assert ours == [json.loads(line)["value"] for line in sparks.read_text("utf-8").splitlines()] == REPLACED[:-1]
    with pytest.raises(PySparkException, match="PST-201.*encodingErrors=replace"):
        write(
            spark.readStream.format("penstock").load(str(stage.src)), stage, checkpointLocation=str(stage.root / "two")
        )


def wrong(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that turns bytes into strings without checking them."""
    halves = pa.array([b"\xc3", b"a\n\xff"] * batch.num_rows, pa.binary()).slice(0, batch.num_rows).view(pa.string())
    return pa.RecordBatch.from_arrays([halves, batch.column(0)], names=["half", "line"])


def test_transforms_that_make_no_text(spark: SparkSession, stage: Stage) -> None:
    """An ingest, too, refuses or replaces such strings, also in the column that names the bucket; verify repeats it."""
    stage.put("a", "1", "2", "3")
    how: dict[str, Any] = {"transform": f"{__name__}:wrong"}
    with pytest.raises(OptionError, match="column 'half': found"):
        penstock.ingest(spark, str(stage.src), str(stage.root / "refused"), sink={"format": "json"}, **how)
    sink = {"format": "json", "encodingErrors": "replace", "bucketBy": "half={half}"}
    penstock.ingest(spark, str(stage.src), str(stage.dst), sink=sink, **how)
    rows = [
        (json.loads(line), file.parent.name) for file in stage.files() for line in file.read_text("utf-8").splitlines()
    ]
    assert sorted((row["line"], row["half"]) for row, _ in rows) == [
        ("1", "\ufffd"),
        ("2", "a\n\ufffd"),
        ("3", "\ufffd"),
    ]
    assert {bucket for _, bucket in rows} == {"half=\ufffd", "half=a%0A\ufffd"}
    command = ["verify", str(stage.dst), "--source", str(stage.src), "--transform", how["transform"], "--json"]
    verified = CliRunner().invoke(app, command)
    assert json.loads(verified.stdout)["source"]["proved"] is True


@pytest.mark.parametrize(
    ("form", "encoding", "sep"),
    [
        ("json", "ISO-8859-1", "§"),
        ("text", "UTF-16LE", "\n"),
        ("json", "UTF-16BE", "|"),
        ("text", "UTF-8", "||"),
        pytest.param("text", "ISO-8859-1", "§", marks=pytest.mark.soak),
        pytest.param("json", "ISO-8859-1", "\n", marks=pytest.mark.soak),
        pytest.param("text", "ISO-8859-1", "\n", marks=pytest.mark.soak),
        pytest.param("json", "UTF-16LE", "\n", marks=pytest.mark.soak),
        pytest.param("text", "UTF-16BE", "|", marks=pytest.mark.soak),
        pytest.param("json", "UTF-8", "||", marks=pytest.mark.soak),
    ],
)
def test_separators_in_other_encodings_as_in_spark(
    spark: SparkSession, stage: Stage, form: str, encoding: str, sep: str
) -> None:
    """Where Spark reads an encoding with a `lineSep`, the rows are the same, however small the splits are."""
    rows = ["aä", "b", "", "ü" * 40, "é\n" if sep != "\n" else "x"]
    texts = [json.dumps({"value": row}, ensure_ascii=False) for row in rows] if form == "json" else rows
    put(stage, "a", "".join(text + sep for text in texts).encode(encoding))
    options = {"encoding": encoding, "lineSep": sep}
    sparks = spark.read.schema("value string").options(**options).format(form).load(str(stage.src))
    if form == "text":  # Spark only cuts the bytes here, and calls them a string as they are
        expected = [row.value.decode(encoding) for row in sparks.selectExpr("cast(value as binary) value").collect()]
    else:
        expected = [row.value for row in sparks.collect()]
    ours = spark.readStream.format("penstock").schema("value string").options(**options, format=form, splitSize="7")
    write(ours.load(str(stage.src)), stage, format="json")
    found = [json.loads(line)["value"] for file in stage.files() for line in file.read_text("utf-8").splitlines()]
    assert sorted(found) == sorted(expected) == sorted(rows)


@pytest.mark.parametrize(
    ("form", "codec"),
    [
        ("text", "snappy"),
        ("json", "lz4"),
        ("json", "bzip2"),
        *(pytest.param("text", codec, marks=pytest.mark.soak) for codec in ("lz4", "deflate", "gzip", "bzip2")),
        *(pytest.param("json", codec, marks=pytest.mark.soak) for codec in ("snappy", "deflate", "gzip")),
    ],
)
def test_what_spark_compressed_is_read(spark: SparkSession, stage: Stage, codec: str, form: str) -> None:
    """Files in the codecs of Spark's own writers are read correctly, also with values longer than one of Hadoop's blocks."""
    wide = "concat(id, '-', case when id % 500 = 0 then repeat(md5(cast(id as string)), 20000) else 'x' end) value"
    spark.range(2000).selectExpr(wide).coalesce(2).write.option("compression", codec).format(form).save(
        str(stage.root / "w")
    )
    for number, file in enumerate(sorted((stage.root / "w").glob("part-*"))):
        put(stage, f"{number}{file.name}", file.read_bytes())
    frame = spark.readStream.format("penstock").schema("value string").option("format", form).load(str(stage.src))
    write(frame, stage, format="parquet")
    found = [value for file in stage.files() for value in pq.read_table(file)["value"].to_pylist()]
    expected = spark.read.schema("value string").format(form).load(str(stage.root / "w")).collect()
    assert len(found) == 2000
    assert sorted(found) == sorted(row.value for row in expected)


def test_binary_lines_of_another_encoding_are_ingested_as_they_are(spark: SparkSession, stage: Stage) -> None:
    """An ingest passes binary lines on as the file's own bytes; if it cannot cut an encoding that way, it refuses before it reads."""
    put(stage, "a", "ä§b\n§".encode("latin-1"))
    source = {"schema": "value binary", "encoding": "latin-1", "lineSep": "§"}
    penstock.ingest(spark, str(stage.src), str(stage.dst), source=source, sink={"format": "parquet"})
    [file] = stage.files()
    assert pq.read_table(file)["value"].to_pylist() == ["ä".encode("latin-1"), b"b\n"]
    source = {"schema": "value binary", "encoding": "shift_jis", "lineSep": "|"}
    with pytest.raises(OptionError, match="a binary value is the bytes.*shift_jis with lineSep='|'.*type string"):
        penstock.ingest(spark, str(stage.src), str(stage.root / "other"), source=source)
