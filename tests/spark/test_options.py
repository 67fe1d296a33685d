"""The options that Spark's own file formats have: each is one here, or is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.elsewhere import advice
from penstock.options import SOURCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REGISTERED = [
    "catalyst.csv.CSVOptions",
    "catalyst.json.JSONOptions",
    "execution.datasources.parquet.ParquetOptions",
    "execution.datasources.text.TextOptions",
    "execution.datasources.FileIndexOptions",
]
# Those of the stream, which Spark 4.3 keeps nowhere as a list (`FileStreamOptions`).
STREAM = [
    *("maxFilesPerTrigger", "maxBytesPerTrigger", "maxFileAge", "maxCachedFiles", "discardCachedInputRatio"),
    *("latestFirst", "fileNameOnly", "cleanSource", "sourceArchiveDir"),
]
# Of the dialect of csv, of times and of names for them, of which some are options here.
OF_THE_DIALECT = {
    *("quote", "escape", "nullValue", "emptyValue", "timeZone", "delimiter", "charset", "quoteAll", "escapeQuotes"),
    *("pretty", "sortKeys", "ignoreNullFields", "writeNonAsciiCharacterAsCodePoint", "parquet.compression"),
}


@pytest.mark.parametrize("kind", REGISTERED)
def test_every_option_of_sparks_formats_is_answered(spark: SparkSession, kind: str) -> None:
    """Whoever gives our source an option of Spark's gets it, or is told what is here instead, never the nearest name."""
    companion: Any = spark._jvm
    for part in f"org.apache.spark.sql.{kind}".split("."):
        companion = getattr(companion, part)
    names, each = [], companion.getAllOptions().iterator()
    while each.hasNext():
        names.append(str(each.next()))
    known = {option.name.lower() for option in SOURCE} | {name.lower() for name in OF_THE_DIALECT}
    assert names
    assert not [name for name in (*names, *STREAM) if name.lower() not in known and advice(name, "source") is None]
