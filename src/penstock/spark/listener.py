"""The listener that `register` adds to a session.

What a query left open is published as soon as the query ends; what its asynchronous calls came to is logged after each batch.

Failure: *an end that is heard late.*
  1. A query fails. Its end goes to the listeners by a queue of Spark's.
  2. The same query is started again, and begins a batch.
  3. The end of the first run is heard; the keeper takes the sink to publish what was left, and the batch is `Fenced`.
  Rule: a query has ended when the run that was started last has. Starts are heard before anything of the run, not by the queue.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.spark import keeper

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_log = logging.getLogger("penstock.aio")


class EndListener(StreamingQueryListener):
    """Tells the keepers of a query that it has ended, and the log what it called. Spark calls it in the user's driver process."""

    def __init__(self) -> None:
        self._runs: dict[str, str] = {}  # query -> the run of it that was started last

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Note the run."""
        self._runs[str(event.id)] = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Log the counts of its calls, if it makes any."""
        calls = sys.modules.get("penstock.spark.calls")  # where nobody imported it, nothing is called
        query = str(event.progress.id)
        if calls is not None and (counts := calls.counts_of(query)) is not None:
            _log.info("query %s, batch %d: %s", query, event.progress.batchId, counts)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Have what the query left open published, unless it was started again."""
        query, run = str(event.id), str(event.runId)
        keeper.query_ended(query, lambda: self._runs.get(query, run) == run)
        if self._runs.get(query) == run:
            del self._runs[query]

    def ended(self, query: str, run: str) -> None:
        """Do the same where the end is known before it is heard, if this is the listener of the query."""
        if self._runs.get(query) == run:
            keeper.query_ended(query, lambda: self._runs.get(query) == run)
