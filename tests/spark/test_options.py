"""Each option of Spark's own file formats either exists here, or gets an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.options import SOURCE
from penstock.options.elsewhere import advice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REGISTERED = [
    "catalyst.csv.CSVOptions",
    "catalyst.json.JSONOptions",
    "execution.datasources.parquet.ParquetOptions",
    "execution.datasources.text.TextOptions",
    "execution.datasources.FileIndexOptions",
]
# The options of a stream, which Spark 4.3 lists nowhere in its code (`FileStreamOptions`).
STREAM = [
    *("maxFilesPerTrigger", "maxBytesPerTrigger", "maxFileAge", "maxCachedFiles", "discardCachedInputRatio"),
    *("latestFirst", "fileNameOnly", "cleanSource", "sourceArchiveDir"),
]
# The options of the CSV dialect, of times and their other names; some of them are options here.
OF_THE_DIALECT = {
    *("quote", "escape", "nullValue", "emptyValue", "timeZone", "delimiter", "charset", "quoteAll", "escapeQuotes"),
    *("pretty", "sortKeys", "ignoreNullFields", "writeNonAsciiCharacterAsCodePoint", "parquet.compression"),
}


@pytest.mark.parametrize("kind", REGISTERED)
def test_every_option_of_sparks_formats_is_answered(spark: SparkSession, kind: str) -> None:
    """An option of Spark's given to our source works, or the error says what to use here instead, and never just the nearest name."""
    companion: Any = spark._jvm
    for part in f"org.apache.spark.sql.{kind}".split("."):
        companion = getattr(companion, part)
    names, each = [], companion.getAllOptions().iterator()
    while each.hasNext():
        names.append(str(each.next()))
    known = {option.name.lower() for option in SOURCE} | {name.lower() for name in OF_THE_DIALECT}
    assert names
    assert not [name for name in (*names, *STREAM) if name.lower() not in known and advice(name, "source") is None]
