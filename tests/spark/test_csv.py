"""CSV between Spark's reader and writer and ours: every value, in both directions, in few jobs of many values."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import BadFile
from penstock.formats import Dialect, ReadFormat, WriteFormat, decoder, encoder
from penstock.formats.csv.cut import csv_stream_blocks, csv_stream_header
from penstock.formats.csv.decoder import header_names
from penstock.formats.registry import record_format

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.stage import Stage

    Row = tuple[str | None, ...]

SCHEMA = pa.schema([("id", pa.string()), ("a", pa.string()), ("b", pa.string())])
DDL = "id string, a string, b string"
SPARK = Dialect(escape="\\")
KEPT = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}  # otherwise Spark trims what it writes
MULTI = {"multiLine": "true", "lineSep": "\n"}
ODD = [
    "",
    "NA",
    "NULL",
    "\\N",
    '"',
    '""',
    '"""',
    "\\",
    "\\\\",
    'a\\"',
    '5" pipe',
    '5" pipe, x',
    'a,"',
    "a,\\",
    " a",
    "a ",
    "#x",
    "'q'",
]
ODD += [
    "\ufeffa",
    "\n",
    "\r",
    "\r\n",
    "a\n",
    '"\n',
    "\\\n",
    ",\\\\",
    '\\",',
    "\t",
    " ",
    "\0",
    "a\0",
    "C:\\dir, x",
    "C:\\\\dir, x",
]
CHARACTERS = "ab ,;|\"'\\\n\r\t#\x01\x7f\xe4\u2028\U0001f600"


def values(count: int, characters: str = CHARACTERS, seed: int = 15) -> list[Row]:
    """Return rows of values of all kinds, the odd ones first, each with an id."""
    chance = random.Random(seed)  # noqa: S311 - test data
    odd = [value for value in ODD if set(value) <= set(characters) | set("ABCDEFGHIJKLMNOPQRSTUVWXYZ5pied:r\0q\ufeff")]
    drawn = ["".join(chance.choices(characters, k=chance.randint(1, 8))) for _ in range(count)]
    first = [None, *odd, *drawn]
    second = chance.sample(first, len(first))
    return [(f"r{index}", *pair) for index, pair in enumerate(zip(first, second, strict=True))]


def put(path: Path, rows: list[Row], dialect: Dialect) -> str:
    """Write rows with our sink."""
    batch = pa.RecordBatch.from_arrays([pa.array(c, pa.string()) for c in zip(*rows, strict=True)], schema=SCHEMA)
    form = WriteFormat("csv", SCHEMA, csv=dialect)
    path.write_bytes(record_format("csv").header(form) + encoder(form).encode(batch))
    return str(path)


def in_spark(spark: SparkSession, path: str, **options: str) -> list[Row]:
    """Return the rows as Spark reads them; fail on a record that Spark calls malformed."""
    return [tuple(row) for row in spark.read.schema(DDL).options(mode="FAILFAST", **options).csv(path).collect()]


def by_spark(spark: SparkSession, path: Path, rows: list[Row], **options: str) -> bytes:
    """Return the file that Spark writes for these rows."""
    spark.createDataFrame(rows, DDL).coalesce(1).write.options(**options).csv(str(path))
    [file] = path.glob("part-*.csv")
    return file.read_bytes()


def ours(data: bytes, dialect: Dialect) -> list[Row]:
    """Return the rows as our source reads them, in small blocks."""
    blocks = csv_stream_blocks([data], 1000, dialect=dialect)
    columns = None
    if dialect.header:
        header, blocks = csv_stream_header(blocks, dialect)
        columns = header_names(header, dialect)
    decode = decoder(ReadFormat("csv", SCHEMA, csv=dialect, columns=columns)).decode
    return [tuple(row.values()) for _, block in blocks for row in decode(block).to_pylist()]


def without_empty(rows: list[Row]) -> list[Row]:
    """Return rows as Spark reads them: it reads an empty string as null unless `nullValue` is something else."""
    return [tuple(value or None for value in row) for row in rows]


def trimmed(rows: list[Row]) -> list[Row]:
    """Return rows as Spark writes them by default: without white space and control characters at the ends of values."""
    white = "".join(map(chr, range(33)))
    return [tuple(value and value.strip(white) for value in row) for row in rows]


def wrong(found: list[Row], expected: list[Row]) -> list[tuple[Row, Row]]:
    """Return the first pairs of rows that differ."""
    assert len(found) == len(expected)
    return [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]][:5]


OF_LINES = CHARACTERS.replace("\n", "").replace("\r", "")


def test_sparks_default_reader_reads_every_value(spark: SparkSession, tmp_path: Path) -> None:
    r"""Spark's default is `escape=\`, so a doubled quote was misread: `5" pipe, x` became two fields. Such a quote is escaped instead."""
    rows = values(3000, OF_LINES)
    path = put(tmp_path / "f", rows, SPARK)
    assert wrong(in_spark(spark, path), without_empty(rows)) == []
    assert wrong(in_spark(spark, path, nullValue="no value"), rows) == []


def test_spark_reads_values_over_lines(spark: SparkSession, tmp_path: Path) -> None:
    """With line breaks in values Spark needs `multiLine` and `lineSep`, whatever the escape; then it reads every value."""
    rows = values(3000)
    for dialect, escape in ((SPARK, "\\"), (Dialect(), '"')):
        path = put(tmp_path / "f", rows, dialect)
        assert wrong(in_spark(spark, path, escape=escape, **MULTI), without_empty(rows)) == []


def test_spark_reads_the_default_when_it_is_told_so(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads our default form with `escape='"'`, also line by line, with or without a header."""
    rows = values(3000, OF_LINES)
    path = put(tmp_path / "f", rows, Dialect(header=True))
    assert wrong(in_spark(spark, path, escape='"', header="true"), without_empty(rows)) == []


def test_what_sparks_default_reader_makes_of_the_default(spark: SparkSession, tmp_path: Path) -> None:
    """Without `escape='"'` Spark misreads exactly the values that the documentation names: no form of them is read alike by all readers.

    These are values with a quote, and quoted values that have two backslashes together or one at the end.
    """
    rows = values(2000, OF_LINES)
    for index, (row, found) in enumerate(zip(rows, _one_by_one(spark, tmp_path, rows), strict=True)):
        value = row[1] or ""
        quoted = any(mark in value for mark in ',"') or value[:1] == "'"
        misread = '"' in value or (quoted and ("\\\\" in value or value.endswith("\\")))
        assert (found != (value or None)) == misread, (index, row, found)


def _one_by_one(spark: SparkSession, tmp_path: Path, rows: list[Row]) -> list[str | None]:
    """Return what Spark reads for the first value of each record; such a record may have any number of fields."""
    path = put(tmp_path / "f", [(row[0], row[1], "end") for row in rows], Dialect())
    found = {row[0]: row for row in spark.read.schema(DDL).csv(path).collect()}
    return [found[row[0]][1] if found[row[0]][2] == "end" else "?" for row in rows]


def test_every_value_of_sparks_default_writer(spark: SparkSession, tmp_path: Path) -> None:
    r"""With `escape=\` the source reads everything that Spark writes by default, except what Spark has trimmed away."""
    rows = values(3000)
    assert wrong(ours(by_spark(spark, tmp_path / "default", rows), SPARK), trimmed(rows)) == []
    assert wrong(ours(by_spark(spark, tmp_path / "kept", rows, **KEPT), SPARK), rows) == []


WRITERS: dict[str, tuple[dict[str, str], Dialect]] = {
    "doubled": ({"escape": '"'}, Dialect()),
    "header": ({"header": "true"}, Dialect(escape="\\", header=True)),
    "quotes": ({"quote": "'", "emptyValue": "''"}, Dialect(quote="'", escape="\\")),
    "doubled quotes": ({"quote": "'", "escape": "'", "emptyValue": "''"}, Dialect(quote="'")),
    "separator": ({"sep": "|", "escape": "^"}, Dialect(sep="|", escape="^")),
    "comment": ({"comment": "r"}, Dialect(escape="\\", comment="r")),
    "null": ({"nullValue": "<null>"}, Dialect(escape="\\", null_value="<null>")),
}


@pytest.mark.parametrize("case", WRITERS)
def test_options_mean_what_they_mean_to_sparks_writer(spark: SparkSession, tmp_path: Path, case: str) -> None:
    """Spark's writer and our source, given the same options, agree on the values.

    Spark writes an empty string as two double quotes, whatever `quote` is, unless `emptyValue` is given.
    """
    options, dialect = WRITERS[case]
    rows = values(1000)
    assert wrong(ours(by_spark(spark, tmp_path / "w", rows, **(KEPT | options)), dialect), rows) == []


@pytest.mark.parametrize("case", WRITERS)
def test_options_mean_what_they_mean_to_sparks_reader(spark: SparkSession, tmp_path: Path, case: str) -> None:
    """Our sink and Spark's reader, given the same options, agree on the values."""
    options, dialect = WRITERS[case]
    options = {name: value for name, value in options.items() if name != "emptyValue"}
    rows = values(1000)
    path = put(tmp_path / "f", rows, dialect)
    expected = rows if "nullValue" in options else without_empty(rows)
    assert (
        wrong(in_spark(spark, path, **({"escape": dialect.escape or dialect.quote} | options | MULTI)), expected) == []
    )


READERS = [
    {},
    {"nullValue": "NA"},
    {"emptyValue": "EMPTY"},
    {"nullValue": "NA", "emptyValue": "NA"},
    {"emptyValue": "7"},
]


@pytest.mark.parametrize("options", READERS, ids=str)
def test_null_and_empty_fields_are_what_spark_says(
    spark: SparkSession, tmp_path: Path, options: dict[str, str]
) -> None:
    """Each field follows Spark's nullValue and emptyValue, except that quotes turn a field that looks like null into a value."""
    fields = ["", '""', "NA", '"NA"', " NA", "EMPTY", '"EMPTY"', "7", '"7"']
    lines = "".join(f"r{index},{field},\n" for index, field in enumerate(fields))
    (tmp_path / "f").write_text(lines)
    dialect = Dialect(escape="\\", null_value=options.get("nullValue", ""), empty_value=options.get("emptyValue"))
    found = {field: row[1] for field, row in zip(fields, ours(lines.encode(), dialect), strict=True)}
    theirs = in_spark(spark, str(tmp_path / "f"), **options)
    expected = {field: row[1] for field, row in zip(fields, theirs, strict=True)}
    deviations = {'""': "" if not options else expected['""'], '"NA"': "NA"}
    assert found == expected | deviations


def test_an_ingest_from_spark_and_back_to_it(spark: SparkSession, stage: Stage) -> None:
    """An ingest takes a file of Spark's default writer to Spark's default reader and keeps header, column order and values."""
    rows = values(500, OF_LINES)
    data = by_spark(spark, stage.root / "w", [(row[2], row[1], row[0]) for row in rows], header="true", **KEPT)
    stage.put("f.csv", *data.decode().replace("id,a,b\n", "b,a,id\n", 1).split("\n")[:-1])
    options: dict[str, Any] = {"format": "csv", "escape": "\\", "header": "true"}
    done = penstock.ingest(spark, str(stage.src), str(stage.dst), source={**options, "schema": DDL}, sink=options)
    assert done.rows == len(rows)
    found = in_spark(spark, str(stage.dst), header="true", enforceSchema="false")
    assert (
        wrong(sorted(found, key=lambda row: str(row[0])), sorted(without_empty(rows), key=lambda row: str(row[0])))
        == []
    )


@pytest.mark.parametrize("mend", ["schema", "file"])
def test_a_header_without_a_column_is_told_and_mended(spark: SparkSession, stage: Stage, mend: str) -> None:
    """The error's advice works: put the header's names into the schema, or mend the header, and call again."""
    source = {"format": "csv", "header": "true", "schema": "id bigint, name string"}
    stage.put("a.csv", "nam,id", "x,1", "y,2")
    with pytest.raises(BadFile, match=r"a\.csv': the header has no column 'name' \(did you mean 'nam'\?\)"):
        penstock.ingest(spark, str(stage.src), str(stage.dst), source=source, sink={"format": "csv"})
    assert stage.files() == []
    if mend == "schema":
        source["schema"] = "id bigint, nam string"
    else:
        stage.put("a.csv", "name,id", "x,1", "y,2")
    penstock.ingest(spark, str(stage.src), str(stage.dst), source=source, sink={"format": "csv"})
    assert stage.lines() == {"1,x": 1, "2,y": 1}


def test_a_query_with_sparks_names_of_options(spark: SparkSession, stage: Stage) -> None:
    """A plain query takes `delimiter` and `charset`, the names that Spark users know."""
    (stage.src / "a.csv").write_bytes("id;name\n1;Köln\n".encode("latin-1"))
    os.utime(stage.src / "a.csv", (1_000_000_000, 1_000_000_000))
    reader = spark.readStream.format("penstock").schema("id int, name string").option("format", "csv")
    frame = reader.options(delimiter=";", charset="ISO-8859-1", header="true").load(str(stage.src))
    writer = frame.writeStream.format("memory").queryName("names").trigger(availableNow=True)
    writer.option("checkpointLocation", str(stage.checkpoint)).start().awaitTermination()
    assert [tuple(row) for row in spark.table("names").collect()] == [(1, "Köln")]
