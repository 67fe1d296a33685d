"""The reader of a stream that an ingest starts: its source has a name in a session that wants one of each source."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

_NAMES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"  # Spark then refuses a source without a name, else one with a name


def stream_reader(spark: SparkSession, source: str) -> DataStreamReader:
    """Return the reader of a query's only stream, in the format `source`."""
    reader = spark.readStream.format(source)
    return reader.name("input") if str(spark.conf.get(_NAMES, "false")).lower() == "true" else reader
