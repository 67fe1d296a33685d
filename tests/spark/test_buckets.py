"""Directories are named as Spark's own `partitionBy` names them; the installed Spark is the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np
import pytest

from penstock.formats.conforming import conform
from penstock.formats.schema import to_arrow
from penstock.sink.buckets import BucketTemplate

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NUMBERS = [
    "0", "-0", "1", "-1.5", "0.1", "1e-3", "0.00099", "1e-4", "9999999", "1e7", "12345678.9", "1e10", "1e15", "1e17", "1e22",
    "16777216", "123456789012345680", "1.7976931348623157e308", "4.9e-324", "3.4028235e38", "1.4e-45", "NaN", "Infinity",
    "-Infinity", "0.30000000000000004", "100", "1e6", "1e-7", "-2.5e-9",
]  # fmt: skip
TIMES = [
    "2026-01-31 23:30:00", "2026-01-31 00:00:00", "2026-01-31 23:30:00.5", "2026-01-31 23:30:00.123456", "0001-01-01 00:00:00",
    "1969-12-31 23:59:59.999999", "1500-03-01 01:02:03", "2026-01-31 23:30:00.120",
    "2026-10-25 01:30:00+00:00", "2026-03-29 01:00:00+00:00", "9999-12-30 12:00:00",
]  # fmt: skip
TEXTS = [
    "de", "", "a b", "a/b", "1.0", "01", "true", "2026-01-01", "Zürich", "a=b:c", "100%", " lead", "trail ", "~", "a,b;c|d",
    "a<b>&!$@()`+", "\x7f", "\x01", r"{[^]}\\", '#*?"',
]  # fmt: skip
VALUES = {
    "float": NUMBERS,
    "double": NUMBERS,
    "tinyint": ["-128", "0", "127"],
    "bigint": ["9223372036854775807", "-9223372036854775808"],
    "boolean": ["true", "false"],
    "decimal(10,4)": ["1.5", "0", "-12.3456", "100000"],
    "decimal(38,18)": ["0.000000000000000001", "0.0000001", "12345678901234567890.5"],
    "date": ["2026-01-31", "0001-01-01", "9999-12-31", "1500-02-28"],
    "timestamp": TIMES,
    "timestamp_ntz": [time for time in TIMES if "+" not in time],
    "string": TEXTS,
    "interval day to second": ["1 02:03:04.5", "0 00:00:00", "-1 02:03:04", "106751991 04:00:54.775807"],
}


def shown(name: str, kind: str) -> str:
    """Return a directory's name; for a number, its value and its form, because Java before 19 prints some numbers with more digits."""
    text = name.removeprefix("p=")
    if kind not in {"float", "double"} or text.startswith("_"):
        return name
    return f"{np.float32(text)!r} {'E' in text}" if kind == "float" else f"{float(text)!r} {'E' in text}"


ZONED = ("date", "timestamp", "timestamp_ntz", "string")


@pytest.mark.parametrize(
    ("kind", "zone"),
    [
        *((kind, "Europe/Berlin" if kind in ZONED else "UTC") for kind in VALUES),
        *(pytest.param(kind, "UTC" if kind in ZONED else "Europe/Berlin", marks=pytest.mark.soak) for kind in VALUES),
    ],
)
def test_directories_are_those_of_sparks_own_sink(spark: SparkSession, tmp_path: Path, kind: str, zone: str) -> None:
    """Each value, and null, gets the directory that Spark gives it, and Spark infers the same value from both."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    texts = session.createDataFrame([(text,) for text in [*VALUES[kind], None]], "text string")
    rows = texts.selectExpr("1 as x", f"cast(text as {kind}) as p")
    rows.coalesce(1).write.partitionBy("p").parquet(str(tmp_path / "spark"))
    schema = to_arrow(rows.schema.json())
    template = BucketTemplate.of("p={p}", schema, zone=zone)
    batches = [conform(batch, schema) for batch in rows.toArrow().to_batches()]
    ours = {bucket for batch in batches for bucket, _ in template.split(batch, 0)}
    sparks = {path.name for path in (tmp_path / "spark").iterdir() if "=" in path.name and path.is_dir()}
    assert "p=-0.0" not in ours  # Spark writes this directory next to 0.0, and reads it back as the same value
    assert {shown(name, kind) for name in ours} == {shown(name, kind) for name in sparks - {"p=-0.0"}}
    assert {unquote(name) for name in ours} >= {"p=__HIVE_DEFAULT_PARTITION__"}


@pytest.mark.parametrize("name", ["country", "st.x", "ST.X", "`st`.`x`", "time"])
def test_names_are_those_that_spark_takes(spark: SparkSession, name: str) -> None:
    """A column name in another case, and a member of a struct, mean what they mean in one of Spark's queries."""
    rows = spark.sql("select 'de' as Country, named_struct('x', 'de') as st, 'de' as time")
    [batch] = rows.toArrow().to_batches()
    template = BucketTemplate.of(f"{{{name}}}", to_arrow(rows.schema.json()), zone="UTC")
    [(bucket, _)] = template.split(batch, 0)
    assert [(bucket,)] == rows.selectExpr(name).collect()
