"""`penstock.register`: the format by hand, and the last parts of a query published as soon as it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from penstock.spark.session import require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_registered: WeakSet[SparkSession] = WeakSet()


def register(spark: SparkSession) -> None:
    """Register the formats `penstock` and `penstock-db` with a session. Safe to repeat.

    `penstock` is found without this when the package is installed. What this adds: a listener that has the parts
    a query leaves open published when the query stops, not only when they are idle or the application ends.
    """
    require_pyspark()
    from penstock.spark.database import DatabaseDataSource
    from penstock.spark.datasource import PenstockDataSource
    from penstock.spark.listener import EndListener

    if spark not in _registered:
        spark.dataSource.register(PenstockDataSource)
        spark.dataSource.register(DatabaseDataSource)
        spark.streams.addListener(EndListener())
        _registered.add(spark)
