"""Schemas as DDL: we read them as Spark does."""

from __future__ import annotations

import json
import os
from random import Random
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from penstock.errors import OptionError
from penstock.formats.ddl import parsed
from penstock.session import ddl
from tests.support.ddl import schema
from tests.support.effort import effort

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = int(os.environ.get("PENSTOCK_SEED", "1"))


def theirs(text: str) -> str | None:
    """Return Spark's JSON of a schema; None if Spark refuses it."""
    try:
        read = StructType.fromDDL(text)
    except PySparkException:
        return None
    return read.json() if isinstance(read, StructType) else None


def disagreement(text: str) -> str | None:
    """Return how the two readings of a text differ; None if they agree, or if ours leaves the text to Spark."""
    try:
        ours = parsed(text)
    except OptionError as error:
        return f"{text!r}: {error}; Spark takes it" if theirs(text) is not None else None
    return None if ours is None or ours == theirs(text) else f"{text!r}: {ours}; Spark: {theirs(text)}"


@pytest.mark.parametrize("texts", [400, pytest.param(20_000, marks=pytest.mark.soak)])
def test_schemas_are_read_as_spark_reads_them(spark: SparkSession, texts: int) -> None:
    """Spark refuses what we refuse without it, and reads what we read in the same way; PENSTOCK_SEED=N tries other schemas."""
    random = Random(SEED)  # noqa: S311 - for texts, not for secrets
    found = [disagreement(schema(random)) for _ in range(texts)]
    assert not [each for each in found if each is not None]


def test_every_word_of_sql_may_name_a_column(spark: SparkSession) -> None:
    """Spark takes a keyword as a name, before a type and in a struct, and so do we."""
    words = [row.keyword for row in spark.sql("SELECT * FROM sql_keywords()").collect()]
    assert len(words) > 300
    texts = [f"{word} int" for word in words[:: effort(3, 1)]]
    for word in words[:: effort(20, 1)]:  # Spark is slow to refuse one
        texts += [f"a struct<{word.lower()}: {word}>", f"a int {word} int"]
    assert not [each for each in map(disagreement, texts) if each is not None]


def test_a_timestamp_is_what_the_session_says(spark: SparkSession) -> None:
    """Where the session makes `timestamp` a time without a zone, it is one in the schemas that users give us."""
    assert spark._jvm is not None
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # another test may have left its own session active
    assert json.loads(ddl.schema_json("a timestamp"))["fields"][0]["type"] == "timestamp"
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assert json.loads(ddl.schema_json("a timestamp"))["fields"][0]["type"] == "timestamp_ntz"
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_what_only_spark_can_say_it_is_asked(spark: SparkSession) -> None:
    """Spark reads the DDL that we do not read ourselves; what Spark refuses is refused."""
    assert json.loads(ddl.schema_json("a varchar(3), b int -- two"))["fields"][1]["type"] == "integer"
    with pytest.raises(OptionError, match="not a DDL schema"):
        ddl.schema_json("a varchar")
