"""The listener that `register` adds to a session.

What a query left open is published as soon as the query ends; what its asynchronous calls came to is logged after each batch.
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

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Log the counts of its calls, if it makes any."""
        calls = sys.modules.get("penstock.spark.calls")  # where nobody imported it, nothing is called
        query = str(event.progress.id)
        if calls is not None and (counts := calls.counts_of(query)) is not None:
            _log.info("query %s, batch %d: %s", query, event.progress.batchId, counts)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Have what the query left open published."""
        keeper.query_ended(str(event.id))
