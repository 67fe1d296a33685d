"""Ends an AvailableNow query (`Trigger.AvailableNow`) whose calls are carried over from batch to batch (`drain`).

Spark ends such a run when there is no new data and nothing asks for another batch. A processor with timers of processing time always
asks for one, whether it has set a timer or not (SPARK-50180), so the run would never end. The listener, which hears of its batches
(`listener`), ends it:

1. Rows are carried over, or output is held, after the last batch with data. Rule: a batch is *quiet* if no source had anything new for
   it and the lanes hold nothing when it has ended. The sources of such a run are at their end then, because they were asked.
2. The last rows that were emitted have moved a watermark, and windows after the calls wait for a batch that sees it. Rule: the run ends
   after two quiet batches in a row that began with the same watermark.
3. A run is ended in the middle of a batch, and a sink is interrupted in its commit. Rule: the run is ended as Spark itself does it, by
   setting its state. Spark reads the state when a batch has ended, and before a planned batch begins: that batch is left to the next
   run. If the state cannot be set, the run is stopped.
4. Another query of the session, without lanes, has a processor with timers of its own, which may wait for something. Rule: only a query
   whose tasks have reported lanes is ended, and only when none of its processors holds anything.
"""

from __future__ import annotations

import logging
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

_OPERATOR = "transformWithState"  # the beginning of the names of Spark's operators with processors
_STATES = "org.apache.spark.sql.execution.streaming.runtime"
_AVAILABLE_NOW = "AvailableNowTrigger"
_log = logging.getLogger("penstock.aio")


class Draining:
    """Hears of the batches of the queries of a session that have lanes. Called by one thread."""

    def __init__(self) -> None:
        # For each run the watermark of its last batch, if that was quiet.
        self._quiet: dict[str, str] = {}
        # Runs that were ended, or that wait for new data and must not be ended.
        self._decided: set[str] = set()

    def heard(self, spark: SparkSession, progress: StreamingQueryProgress) -> None:
        """End the query's run if it is an AvailableNow run and all its output has been emitted."""
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
        """End the run, whose output has all been emitted, if its trigger is AvailableNow."""
        query = spark.streams.get(str(progress.id))
        if query is None or str(query.runId) != run:
            return
        self._decided.add(run)
        if query._jsq.streamingQuery().trigger().toString() == _AVAILABLE_NOW:  # noqa: SLF001 - Python has no name for it
            _log.info(
                "query %s: everything that was there has been emitted after batch %d", progress.id, progress.batchId
            )
            _end(spark, query)

    def forget(self, run: str) -> None:
        """Forget a run that has ended."""
        self._quiet.pop(run, None)
        self._decided.discard(run)


def is_quiet(progress: StreamingQueryProgress) -> bool:
    """Tell whether a batch had nothing new to read, and no processor holds anything after it."""
    operators = [operator for operator in progress.stateOperators if operator.operatorName.startswith(_OPERATOR)]
    if not operators or any(operator.numRowsTotal for operator in operators):
        return False
    return all(source.startOffset == source.endOffset for source in progress.sources)


def _end(spark: SparkSession, query: Any) -> None:  # noqa: ANN401 - Spark's StreamingQuery
    """Make the run end with the current batch."""
    try:
        package = spark._jvm  # noqa: SLF001 - has no public name
        for name in _STATES.split("."):
            package = getattr(package, name)
        query._jsq.streamingQuery().state().set(getattr(getattr(package, "TERMINATED$"), "MODULE$"))  # noqa: SLF001 - Python has no name for it
    except Exception:  # noqa: BLE001 - another Spark may have changed it in any way
        # In a thread, because `stop` waits for the listener, too.
        Thread(target=query.stop, name="penstock-end", daemon=True).start()
