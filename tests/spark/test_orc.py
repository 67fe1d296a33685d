"""Spark's types that ORC can hold go through our ORC and back: Spark reads the same values, and we read the same from Spark's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.formats import ReadFormat
from penstock.formats.registry import table_format
from penstock.formats.schema import to_arrow
from tests.formats.test_tables import InMemory
from tests.support.frames import arrow, shown, written

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

VALUES = {
    "tinyint": "cast(-128 as tinyint)",
    "smallint": "cast(7 as smallint)",
    "int": "7",
    "bigint": "9223372036854775807L",
    "float": "float('1.5')",
    "double": "double('-0.0')",
    "boolean": "true",
    "string": "'ü'",
    "binary": "X'00FF'",
    "decimal_1_1": "cast(0.5 as decimal(1,1))",
    "decimal_38_18": "cast(1.25 as decimal(38,18))",
    "date": "date'2026-01-31'",
    "old_date": "date'1600-01-01'",
    "timestamp": "timestamp'2026-01-31 01:02:03.456789'",
    "old_timestamp": "timestamp'1700-01-31 01:02:03'",
    "list": "array(1,null,3)",
    "list_of_structs": "array(named_struct('a',1,'b','x'), null)",
    "map": "map('a',1,'b',null)",
    "struct": "named_struct('a',1,'B',array('x'))",
}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """A row of values and a row of nulls, with a column of each type, in UTC, since the workers and the JVM may have other zones."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    full = session.sql("select " + ", ".join(f"{value} as `{name}`" for name, value in VALUES.items()))
    return full.unionAll(full.selectExpr(*(f"if(true, null, `{name}`) as `{name}`" for name in VALUES)))


@pytest.mark.parametrize("options", [{"rollBatches": "1"}, {}, {"compression": "snappy"}])
def test_spark_reads_our_orc(rows: DataFrame, tmp_path: Path, options: dict[str, str]) -> None:
    """The values come back, whether a part was written at once or staged over batches."""
    out = written(rows, tmp_path / "out", format="orc", **options)
    found = rows.sparkSession.read.schema(rows.schema).orc(out)
    assert shown(found) == shown(rows)


def test_our_source_reads_sparks_orc(rows: DataFrame, tmp_path: Path) -> None:
    """Our source reads Spark's own ORC with the types that the schema names."""
    rows.coalesce(1).write.orc(str(tmp_path / "spark"))
    [path] = (tmp_path / "spark").glob("*.orc")
    schema, data = to_arrow(rows.schema.json()), path.read_bytes()
    zone = str(rows.sparkSession._jvm.java.util.TimeZone.getDefault().getID())  # type: ignore[union-attr]  # a session of this process
    fmt = ReadFormat("orc", schema, zone=zone)
    batches = table_format("orc").rows(fmt, InMemory(data), len(data), (0, len(data)))
    found = [row for batch in batches for row in batch.to_pylist()]
    expected = [row for batch in arrow(rows, schema) for row in batch.to_pylist()]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
