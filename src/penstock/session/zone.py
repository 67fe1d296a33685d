"""Passes on to our source what Spark does not tell it about its session: the time zone, and whether the read is a batch read."""

from __future__ import annotations

import functools
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from penstock.options.finished import BATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession


def time_zone(spark: SparkSession) -> str:
    """Return the zone of a session."""
    return str(spark.conf.get("spark.sql.session.timeZone"))


@functools.cache
def say_zone(*, remote: bool) -> None:
    """Make PySpark's readers pass the time zone of their session to our source, from now on; those of Connect if `remote`.

    Spark tells a Python source its options, and nothing else. So when a reader names our format, it also sets an option. The user's
    option `timeZone` is another one, and takes precedence. Readers of batches also say that they read a batch, because a source that is
    asked for its schema cannot find out.
    """
    stream: Any
    batch: Any
    if remote:
        # These need gRPC, as a session of Connect does.
        from pyspark.sql.connect.readwriter import DataFrameReader as RemoteBatch
        from pyspark.sql.connect.streaming.readwriter import DataStreamReader as RemoteReader

        stream, batch, session = RemoteReader, RemoteBatch, "_client"
    else:
        from pyspark.sql.readwriter import DataFrameReader as LocalBatch
        from pyspark.sql.streaming.readwriter import DataStreamReader as LocalReader

        stream, batch, session = LocalReader, LocalBatch, "_spark"
    stream.format = _saying(stream.format, session)
    batch.format = _saying(batch.format, session, {BATCH: "true"})


def _saying(
    method: Callable[..., Any], session: str, facts: Mapping[str, str] = MappingProxyType({})
) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(reader: Any, source: str) -> Any:  # noqa: ANN401 - a reader of PySpark's, of streams or of batches
        named = method(reader, source)
        if source.lower() != "penstock":
            return named
        return named.options(sessionTimeZone=time_zone(getattr(reader, session)), **facts)

    return call
