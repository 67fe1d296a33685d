"""The time zone of a session, told to our source, which Spark tells nothing of the session that it is part of."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader


def time_zone(spark: SparkSession) -> str:
    """Return the zone of a session."""
    return str(spark.conf.get("spark.sql.session.timeZone"))


@functools.cache
def say_zone() -> None:
    """Have PySpark's readers of streams say the zone of their session to our source, from now on.

    A source in Python is told its options, and nothing else. So whoever names the format sets an option, too; what the user
    says by `timeZone` is another one, and counts before it.
    """
    from pyspark.sql.streaming.readwriter import DataStreamReader

    setattr(DataStreamReader, "format", _saying(DataStreamReader.format))  # noqa: B010 - a method of another's class


def _saying(method: Callable[..., DataStreamReader]) -> Callable[..., DataStreamReader]:
    @functools.wraps(method)
    def call(reader: DataStreamReader, source: str) -> DataStreamReader:
        named = method(reader, source)
        if source.lower() != "penstock":
            return named
        return named.option("sessionTimeZone", time_zone(reader._spark))  # noqa: SLF001 - it has no other name

    return call
