"""Who listens to the queries of a session: users' listeners, monitors, or nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

# Spark's own, which shows queries on its page.
_OF_SPARK = "org.apache.spark.sql.streaming.ui."
_only_ends: WeakKeyDictionary[SparkSession, StreamingQueryListener] = WeakKeyDictionary()


def add_listener_of_ends(spark: SparkSession, listener: StreamingQueryListener) -> None:
    """Add the listener of `register`, which reports nothing to anybody: it publishes what a query left open."""
    _only_ends[spark] = listener
    spark.streams.addListener(listener)


def is_heard(spark: Any) -> bool:  # noqa: ANN401 - py4j is not typed
    """Tell whether a listener waits for queries of this session, apart from Spark's own and that of `register`. Not for Spark Connect."""
    heard = spark._jsparkSession.streams().listListeners()  # noqa: SLF001 - PySpark does not show it
    ours = _only_ends.get(spark)
    return any(
        not listener.getClass().getName().startswith(_OF_SPARK)
        and (ours is None or not listener.equals(ours._jlistener))  # noqa: SLF001 - what the JVM knows it by
        for listener in heard
    )
