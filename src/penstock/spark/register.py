"""`penstock.register`: the formats by hand, and the last parts of a query published as soon as it ends."""

from __future__ import annotations

import atexit
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from penstock.arguments import named
from penstock.spark.session import require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

_HEARING_MILLISECONDS = 2000
_registered: WeakKeyDictionary[SparkSession, StreamingQueryListener] = WeakKeyDictionary()


@named
def register(spark: SparkSession) -> None:
    """Register the formats `penstock`, `penstock-wal` and `penstock-db` with a session. Safe to repeat.

    They are found without this when the package is installed. What this adds: a listener that has the parts
    a query leaves open published when the query stops, not only when they are idle or the application ends.
    """
    require_pyspark()
    from penstock.spark.database import DatabaseDataSource
    from penstock.spark.datasource import PenstockDataSource
    from penstock.spark.listener import EndListener
    from penstock.spark.wal import LogDataSource

    if spark in _registered:
        return
    if not _registered:
        atexit.register(_leave)
    for source in (PenstockDataSource, LogDataSource, DatabaseDataSource):
        spark.dataSource.register(source)
    _registered[spark] = EndListener(spark)
    spark.streams.addListener(_registered[spark])


def _leave() -> None:
    """Hear what is under way and take the listeners off before Python ends: Spark logs a stack for what nobody answers.

    Of a query that still runs the keepers know by the end of the application.
    """
    for spark, listener in list(_registered.items()):
        context = spark.sparkContext._jsc  # noqa: SLF001 - None once the session is stopped
        if context is None:
            continue
        with suppress(Exception):  # its JVM may be gone; or there is always something under way
            context.sc().listenerBus().waitUntilEmpty(_HEARING_MILLISECONDS)
        with suppress(Exception):
            spark.streams.removeListener(listener)
