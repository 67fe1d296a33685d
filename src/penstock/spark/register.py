"""`penstock.register`: the format by hand, and the last parts of a query published as soon as it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark import keeper
from penstock.spark.session import require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_listening: set[int] = set()


def register(spark: SparkSession) -> None:
    """Register the format `penstock` with a session. Safe to repeat.

    The format is found without this when the package is installed. What this adds: a listener that has the parts
    a query leaves open published when the query stops, not only when they are idle or the application ends.
    """
    require_pyspark()
    from penstock.spark.datasource import PenstockDataSource  # noqa: PLC0415 - needs PySpark

    spark.dataSource.register(PenstockDataSource)
    if id(spark) not in _listening:
        spark.streams.addListener(_listener())
        _listening.add(id(spark))


def _listener():  # type: ignore[no-untyped-def]  # noqa: ANN202 - the class exists only where PySpark does
    from pyspark.sql.streaming.listener import StreamingQueryListener  # noqa: PLC0415

    class Ended(StreamingQueryListener):
        """Tells the keepers of a query that it has ended."""

        def onQueryStarted(self, event: object) -> None: ...  # noqa: N802 - Spark's names
        def onQueryProgress(self, event: object) -> None: ...  # noqa: N802
        def onQueryIdle(self, event: object) -> None: ...  # noqa: N802

        def onQueryTerminated(self, event: object) -> None:  # noqa: N802
            """Publish what the query left open."""
            keeper.query_ended(str(event.id))  # type: ignore[attr-defined]

    return Ended()
