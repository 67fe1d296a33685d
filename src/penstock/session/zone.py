"""Passes on to our source what Spark does not tell it: the time zone of its session, its cores, and whether a batch is read."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from penstock.options.finished import BATCH
from penstock.session.connect import tasks_at_a_time
from penstock.session.master import is_here

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


def time_zone(spark: SparkSession) -> str:
    """Return the zone of a session."""
    return str(spark.conf.get("spark.sql.session.timeZone"))


@functools.cache
def say_session(*, remote: bool) -> None:
    """Make PySpark's readers tell our source about their session, from now on; those of Connect if `remote`.

    Spark tells a Python source its options, and nothing else. So when a reader names our format, it also sets options: the time zone of
    the session (the user's option `timeZone` is another one, and takes precedence), and for a stream in a local session how many tasks
    that runs at a time. A cluster's executors may come and go, and a session of Connect says it only by a job. Readers of batches say
    that they read a batch, because a source that is asked for its schema cannot find out.
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
    stream.format = _saying(stream.format, session, _nothing if remote else _cores)
    batch.format = _saying(batch.format, session, lambda _: {BATCH: "true"})


def _nothing(_: object) -> dict[str, str]:
    return {}


def _cores(spark: SparkSession) -> dict[str, str]:
    return {"sessionCores": str(tasks_at_a_time(spark))} if is_here(spark.sparkContext.master or "") else {}


def _saying(method: Callable[..., Any], session: str, facts: Callable[[Any], dict[str, str]]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(reader: Any, source: str) -> Any:  # noqa: ANN401 - a reader of PySpark's, of streams or of batches
        named = method(reader, source)
        if source.lower() != "penstock":
            return named
        spark = getattr(reader, session)
        return named.options(sessionTimeZone=time_zone(spark), **facts(spark))

    return call
