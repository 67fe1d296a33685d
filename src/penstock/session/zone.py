"""The time zone of a session, told to our source, which Spark tells nothing of the session that it is part of."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader


def time_zone(spark: SparkSession) -> str:
    """Return the zone of a session."""
    return str(spark.conf.get("spark.sql.session.timeZone"))


@functools.cache
def say_zone(*, remote: bool) -> None:
    """Have PySpark's readers of streams say the zone of their session to our source, from now on; those of Connect if `remote`.

    A source in Python is told its options, and nothing else. So whoever names the format sets an option, too; what the user
    says by `timeZone` is another one, and counts before it.
    """
    reader: Any
    if remote:
        # It needs gRPC, as such a session does.
        from pyspark.sql.connect.streaming.readwriter import DataStreamReader as RemoteReader

        reader = RemoteReader
    else:
        from pyspark.sql.streaming.readwriter import DataStreamReader as LocalReader

        reader = LocalReader
    reader.format = _saying(reader.format, "_client" if remote else "_spark")


def _saying(method: Callable[..., DataStreamReader], session: str) -> Callable[..., DataStreamReader]:
    @functools.wraps(method)
    def call(reader: DataStreamReader, source: str) -> DataStreamReader:
        named = method(reader, source)
        if source.lower() != "penstock":
            return named
        return named.option("sessionTimeZone", time_zone(getattr(reader, session)))

    return call
