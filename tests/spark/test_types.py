"""Every type of Spark that files can hold, through our Parquet and back: Spark and our source read the same types and values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.formats.parquet import parquet_batches
from penstock.formats.schema import to_arrow
from tests.support.frames import arrow, shown, written

pytest.importorskip("pyspark")

from pyspark.sql import functions

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

VALUES = {
    "tinyint": "cast(-128 as tinyint)",
    "smallint": "cast(7 as smallint)",
    "int": "7",
    "bigint": "9223372036854775807L",
    "float": "float('NaN')",
    "double": "double('-0.0')",
    "boolean": "true",
    "string": "'ü'",
    "empty": "''",
    "collated": "'ab' collate UNICODE_CI",
    "collated array": "array('ab' collate UTF8_LCASE)",
    "binary": "X'00FF'",
    "decimal(1,1)": "cast(0.5 as decimal(1,1))",
    "decimal(9,0)": "cast(123456789 as decimal(9,0))",
    "decimal(18,3)": "cast(1.25 as decimal(18,3))",
    "decimal(38,18)": "cast(1.25 as decimal(38,18))",
    "decimal(38,38)": "cast(-0.25 as decimal(38,38))",
    "date": "date'2026-01-31'",
    "old date": "date'0001-01-01'",
    "timestamp": "timestamp'2026-01-31 01:02:03.456789'",
    "old timestamp": "timestamp'1500-01-31 01:02:03.456789'",
    "timestamp_ntz": "timestamp_ntz'2026-01-31 01:02:03.456789'",
    "interval day to second": "interval '-1 02:03:04.5' day to second",
    "interval day": "interval '3' day",
    "interval hour to minute": "interval '3:04' hour to minute",
    "interval second": "interval '3.000001' second",
    "time": "time'01:02:03.456789'",
    "time(0)": "cast('23:59:59' as time(0))",
    "time(3)": "cast('01:02:03.456' as time(3))",
    "array": "array(1,null,3)",
    "empty array": "cast(array() as array<string>)",
    "array of structs": "array(named_struct('a',1,'b','x'), null)",
    "array of arrays": "array(array(1),null,array())",
    "array of intervals": "array(interval '3' day)",
    "array of times": "array(time'01:02:03', null)",
    "map": "map('a',1,'b',null)",
    "map of structs": "map(1,named_struct('a',1))",
    "map of intervals": "map('k',interval '3' hour)",
    "map by times": "map(time'01:02:03.5', 1)",
    "struct": "named_struct('a',1,'B','x')",
    "struct of many": "named_struct('i',interval '3' day,'t',time'01:02:03','c',named_struct('b',array(map('k',1))))",
    "void": "null",
    "array of void": "array(null)",
    "map of void": "map('a', null)",
    "name b,;{}()=\t.ü": "1",
}
METADATA = {"comment": "what it \N{EURO SIGN} is", "n": [1, 2], "__CHAR_VARCHAR_TYPE_STRING": "varchar(7)"}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """A row of values and a row of nulls, with a column of each type; each column has a comment and other metadata."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.timeType.enabled", "true")
    names = {name: name.replace(" ", "_") for name in VALUES}
    full = session.sql("select " + ", ".join(f"{value} as `{names[name]}`" for name, value in VALUES.items()))
    null = full.selectExpr(*(f"if(true, null, `{names[name]}`) as `{names[name]}`" for name in VALUES))
    both = full.unionAll(null)
    described = [
        functions.col(f"`{name}`").alias(name, metadata=both.schema[name].metadata | METADATA) for name in both.columns
    ]
    return both.select(*described)


@pytest.mark.parametrize("options", [{"rollBatches": "1"}, {}, {"rollRows": "1"}])
def test_spark_reads_what_it_gave(rows: DataFrame, tmp_path: Path, options: dict[str, str]) -> None:
    """Types, comments, other metadata and values come back, whether a part was written at once or staged over batches."""
    out = written(rows, tmp_path / "out", format="parquet", **options)
    found = rows.sparkSession.read.parquet(out)
    expected = json.loads(rows.schema.json())
    for field in json.loads(found.schema.json())["fields"]:
        [given] = [each for each in expected["fields"] if each["name"] == field["name"]]
        assert loose(field) == loose(given)
    assert shown(found) == shown(rows)


def loose(kind: Any) -> Any:
    """Return the type with every part nullable, as Spark reads it from files."""
    if isinstance(kind, dict):
        return {
            key: True if key in {"nullable", "containsNull", "valueContainsNull"} else loose(value)
            for key, value in kind.items()
        }
    return [loose(value) for value in kind] if isinstance(kind, list) else kind


def test_our_source_reads_what_spark_wrote(rows: DataFrame, tmp_path: Path) -> None:
    """Spark's own Parquet, which stores an interval as a number and a void as a flag, is read with the types that the schema names."""
    rows.coalesce(1).write.parquet(str(tmp_path / "spark"))
    [path] = (tmp_path / "spark").glob("*.parquet")
    schema = to_arrow(rows.schema.json())
    with path.open("rb") as file:
        found = [row for batch in parquet_batches(file, 0, path.stat().st_size, schema) for row in batch.to_pylist()]
    expected = [row for batch in arrow(rows, schema) for row in batch.to_pylist()]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
