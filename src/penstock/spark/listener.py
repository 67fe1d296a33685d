"""The listener that `register` adds to a session.

What a query left open is published as soon as the query ends; totals of its asynchronous calls are logged after each batch; and an
AvailableNow query that carries calls over is ended when all of them have been emitted (`draining`).

Failure: *an end that is heard late.*

1. A query fails. Its end goes to the listeners through a queue of Spark.
2. The same query is started again, and begins a batch.
3. The end of the first run is heard; the keeper takes over the sink to publish what was left, and the batch is `Fenced`.

Rule: a query has ended when the run that was started last has ended. Starts are heard before anything of the run, because they do not
go through the queue.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING
from weakref import ref

from penstock.sink import keeper
from penstock.spark.draining import Draining
from penstock.spark.listening import QuickListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_log = logging.getLogger("penstock.aio")


class EndListener(QuickListener):
    """Tells the keepers of a query that it has ended, and logs its calls. Spark calls it in the user's driver process."""

    def __init__(self, spark: SparkSession) -> None:
        self._session = ref(spark)
        self._draining = Draining()
        self._runs: dict[str, str] = {}  # query -> its run that was started last

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Note the run."""
        self._runs[str(event.id)] = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Log the counts of its calls, if it makes any, and end it if it carries calls over and all have been emitted."""
        calls = sys.modules.get("penstock.spark.calls")  # if nobody imported it, there are no calls
        if calls is None:
            return
        query, spark = str(event.progress.id), self._session()
        if (counts := calls.counts_of(query)) is not None:
            _log.info("query %s, batch %d: %s", query, event.progress.batchId, counts)
        if spark is not None and calls.has_lanes(query):
            self._draining.heard(spark, event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Publish what the query left open, unless it was started again."""
        query, run = str(event.id), str(event.runId)
        self._draining.forget(run)
        keeper.query_ended(query, lambda: self._runs.get(query, run) == run)
        if self._runs.get(query) == run:
            del self._runs[query]

    def ended(self, query: str, run: str) -> None:
        """Do the same when the end is known before Spark reports it, if this is the listener of the query."""
        if self._runs.get(query) == run:
            keeper.query_ended(query, lambda: self._runs.get(query) == run)
