"""The end of a query that reads what is there (`Trigger.AvailableNow`) and whose calls are carried from batch to batch (`drain`).

Spark ends such a run when there is no new data and nothing asks for another batch; a processor with timers of processing time always
does, whether it has set one or not (SPARK-50180). So the run would never end. Whoever hears of its batches (`listener`) ends it:

1. Rows are carried, or output is held, behind the last batch with data. Rule: a batch is *quiet* if no source had anything new for it
   and the lanes hold nothing when it has ended. Sources that such a run reads are at their end then: they were asked.
2. The last rows that came out have moved a watermark, and windows behind the calls wait for a batch that sees it. Rule: the run ends behind
   two quiet batches in a row that began with the same watermark.
3. A run is ended in mid batch, and a sink is interrupted in its commit. Rule: it is ended as Spark ends it itself, by its state, which it
   looks at when a batch has ended, and before a planned one begins: that one is left to the next run. Where the state cannot be
   reached the run is stopped.
4. Another query of the session, without lanes, has a processor with timers of its own, which may wait for something. Rule: only a
   query whose tasks have told of lanes is ended, and only when no processor of it holds anything.
"""

from __future__ import annotations

import logging
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

_OPERATOR = "transformWithState"  # begins the names of Spark's operators with processors
_STATES = "org.apache.spark.sql.execution.streaming.runtime"
_AVAILABLE_NOW = "AvailableNowTrigger"
_log = logging.getLogger("penstock.aio")


class Draining:
    """Hears of the batches of the queries of a session that have lanes. Called by one thread."""

    def __init__(self) -> None:
        # By run the watermark of its last batch, if that was quiet.
        self._quiet: dict[str, str] = {}
        # These runs were ended, or wait for new data and are not to end.
        self._decided: set[str] = set()

    def heard(self, spark: SparkSession, progress: StreamingQueryProgress) -> None:
        """End the query's run if it reads what is there and everything of that has come out."""
        run = str(progress.runId)
        if run in self._decided:
            return
        watermark = str(progress.eventTime.get("watermark", ""))
        if not is_quiet(progress):
            self._quiet.pop(run, None)
        elif self._quiet.get(run) != watermark:
            self._quiet[run] = watermark
        else:
            self._decide(spark, progress, run)

    def _decide(self, spark: SparkSession, progress: StreamingQueryProgress, run: str) -> None:
        """End the run, of which all has come out, if it is one that ends."""
        query = spark.streams.get(str(progress.id))
        if query is None or str(query.runId) != run:
            return
        self._decided.add(run)
        if query._jsq.streamingQuery().trigger().toString() == _AVAILABLE_NOW:  # noqa: SLF001 - Python is not told
            _log.info("query %s: all that was there has come out behind batch %d", progress.id, progress.batchId)
            _end(spark, query)

    def forget(self, run: str) -> None:
        """Forget a run that has ended."""
        self._quiet.pop(run, None)
        self._decided.discard(run)


def is_quiet(progress: StreamingQueryProgress) -> bool:
    """Tell whether a batch had nothing new to read, and no processor holds anything behind it."""
    operators = [operator for operator in progress.stateOperators if operator.operatorName.startswith(_OPERATOR)]
    if not operators or any(operator.numRowsTotal for operator in operators):
        return False
    return all(source.startOffset == source.endOffset for source in progress.sources)


def _end(spark: SparkSession, query: Any) -> None:  # noqa: ANN401 - Spark's StreamingQuery
    """Let the run end with the batch that is under way."""
    try:
        package = spark._jvm  # noqa: SLF001 - py4j's
        for name in _STATES.split("."):
            package = getattr(package, name)
        query._jsq.streamingQuery().state().set(getattr(getattr(package, "TERMINATED$"), "MODULE$"))  # noqa: SLF001 - no name of Python's
    except Exception:  # noqa: BLE001 - whatever another Spark has made of it
        Thread(target=query.stop, name="penstock-end", daemon=True).start()  # which waits for the listener, too
