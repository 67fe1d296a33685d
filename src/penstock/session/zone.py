"""What Spark does not tell our source of the session that it is part of: its time zone, and whether a batch is read."""

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
    """Have PySpark's readers say the zone of their session to our source, from now on; those of Connect if `remote`.

    A source in Python is told its options, and nothing else. So whoever names the format sets an option, too; what the user
    says by `timeZone` is another one, and counts before it. Readers of batches say that they are such: a source that is asked for its
    schema cannot tell.
    """
    stream: Any
    batch: Any
    if remote:
        # They need gRPC, as such a session does.
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
