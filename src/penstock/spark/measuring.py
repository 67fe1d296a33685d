"""What monitors are told about the queries of a session: from Spark's listener, the offsets, the ledgers, and tasks that end.

Nothing here delays a batch: a listener hears of it when it is over, and values that are not available are left out.

*Idle or hung.* A query that finds nothing reports so every ten seconds, and a query that ends a batch reports that. A batch of an hour
reports nothing meanwhile; the tasks that end tell it from one that hangs. So a heartbeat is any of the three, and a query has none for
as long as a single task takes, and no longer.
"""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any
from weakref import ref

from penstock import tally
from penstock.arguments import named
from penstock.errors import PenstockError
from penstock.ingestion.measures import left_by_partition, of_ledger, of_offset, offsets_in
from penstock.metrics.meter import Meter
from penstock.metrics.names import BY_NAME
from penstock.metrics.server import serving
from penstock.options import SINK, parse
from penstock.query import measured as counted
from penstock.session.connect import require_driver, require_session
from penstock.sink.sink import Sink
from penstock.spark.listening import QuickListener
from penstock.storage import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


_log = logging.getLogger("penstock.metrics")
_PULSE_SECONDS = 5.0
_OUTCOMES = ("rows", "calls", "retries", "timeouts", "failed", "rejected", "cached", "shared", "carried")


class MeasuringListener(QuickListener):
    """Puts into a meter what Spark reports about queries with our source or sink; most numbers of pipelines are measured elsewhere."""

    def __init__(self, spark: SparkSession, meter: Meter) -> None:
        self._session = ref(spark)
        self._meter = meter
        self._sinks: dict[str, tuple[Any, Any] | None] = {}
        self._ours: set[str] = set()
        self._counted: dict[str, dict[str, float]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Start counting its batches."""
        counted.measure(str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Take in a batch: its phases, the input according to its offset, the output according to the ledger."""
        try:
            self._measure(event.progress)
        except Exception:  # noqa: BLE001 - a number that is not available is no reason to disturb a query
            _log.debug("a batch could not be measured", exc_info=True)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Note that the query is alive."""
        if self._is_measured(str(event.id)):
            self._meter.beat(str(event.id))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Stop reporting the query, unless it belongs to a pipeline."""
        query = str(event.id)
        self._sinks.pop(query, None)
        self._ours.discard(query)
        with suppress(Exception):  # a number that cannot be read: the query has ended all the same
            self._count(query)  # what was counted after its last batch
        self._counted.pop(query, None)
        counted.forget(query)
        self._meter.forget(query)

    def _is_measured(self, query: str) -> bool:
        return query in self._ours or self._meter.is_pipeline(query)

    def _measure(self, progress: Any) -> None:  # noqa: ANN401 - PySpark's
        query = str(progress.id)
        if not self._meter.is_pipeline(query):
            read, written = self._read(progress), self._written(query)
            if not read and not written and _calls_of(query) is None:
                return
            self._ours.add(query)
            self._meter.set(query, read | written | {"batch": progress.batchId})
            if read.get("left_offsets") is not None:
                self._meter.instead(query, "left_partition_offsets", left_by_partition(_ends(progress)))
        self._meter.batch(query, {phase: ms / 1000 for phase, ms in progress.durationMs.items()})
        call_counts = _calls_of(query)
        if call_counts is not None:
            self._meter.labelled(query, "calls", {name: getattr(call_counts, name, 0) for name in _OUTCOMES})
        self._count(query)

    def _count(self, query: str) -> None:
        """Take in what its processes have counted since the last call."""
        amounts, before = counted.counts(query), self._counted.get(query, {})
        if not amounts and not before:
            counted.measure(query)  # it ran before anybody measured it
        if not amounts or not self._is_measured(query):
            return  # nothing yet, or another process holds the fact: next time
        self._counted[query] = amounts
        growth = {name: _growth(amount, before.get(name, 0.0)) for name, amount in amounts.items() if _is_told(name)}
        self._meter.count(query, growth)

    def _read(self, progress: Any) -> dict[str, float | None]:  # noqa: ANN401 - PySpark's
        """Return the input numbers in the offsets of our sources in a query; several are added up."""
        sums: dict[str, float | None] = {}
        for offset in offsets_in(_ends(progress)):
            with suppress(ValueError, TypeError):
                for name, value in of_offset(offset).items():
                    sums[name] = value if sums.get(name) is None else (sums[name] or 0) + (value or 0)
        return sums

    def _written(self, query: str) -> dict[str, float | None]:
        """Return the output numbers in the ledger of our sink, empty for a sink of another kind."""
        if query not in self._sinks:
            self._sinks[query] = self._place(query)
        place = self._sinks[query]
        if place is None:
            return {}
        (storage, root), named_sink = place
        with suppress(PenstockError):
            head = Sink(storage, root, parse(SINK, {"path": root}, what="sink"), named_sink).ledger.head()
            return of_ledger(head) if query in head.batches else {}
        return {}

    def _place(self, query: str) -> tuple[Any, Any] | None:
        """Return where our sink writes, and its id, from Spark's plan: the listener gets neither."""
        spark = self._session()
        active = spark.streams.get(query) if spark is not None else None
        if active is None:
            return None
        with suppress(Exception):  # a sink of another kind has no such options
            options = active._jsq.streamingQuery().logicalPlan().writeOptions()  # noqa: SLF001 - has no public name
            given = {name: options.get(name) for name in ("path", "sinkId", "sinkid")}
            texts = {name: str(value.get()) for name, value in given.items() if value.isDefined()}
            return locate(texts["path"]), texts.get("sinkId") or texts.get("sinkid") or query
        return None


def _ends(progress: Any) -> list[object]:  # noqa: ANN401 - PySpark's
    """Return the end offset of a query's last batch for each of its sources."""
    return [source.endOffset for source in progress.sources]


def _calls_of(query: str) -> Any:  # noqa: ANN401 - `CallCounts` of a module that may not be there
    """Return the totals of a query's calls so far, None if it makes none."""
    calls = sys.modules.get("penstock.spark.calls")  # if nobody imported it, there are no calls
    return calls.counts_of(query) if calls else None


def _growth(amount: float, before: float) -> float:
    """Return by how much a count has grown; it may have begun anew."""
    return amount - before if amount >= before else amount


def _is_told(name: str) -> bool:
    """Tell whether a count of a process has a name for monitors."""
    measure, _, label = name.partition(" ")
    return measure in BY_NAME and (measure != tally.CALLS or label in _OUTCOMES)


class Pulse:
    """Sends heartbeats for queries whose tasks end, every few seconds, in a thread of its own."""

    def __init__(self, spark: SparkSession, meter: Meter) -> None:
        self._spark = spark
        self._meter = meter
        self._ended: dict[str, int] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-pulse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._end.set()
        self._thread.join(_PULSE_SECONDS)

    def _run(self) -> None:
        while not self._end.wait(_PULSE_SECONDS):
            with suppress(Exception):  # its JVM may be gone; then there are no heartbeats
                for query in self._spark.streams.active:
                    self._look(str(query.id), str(query.runId))

    def _look(self, query: str, run: str) -> None:
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(run)[-2:]]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        ended = sum(stage.numCompletedTasks + stage.stageId for stage in stages if stage is not None)
        if self._ended.get(run, 0) != ended:
            self._ended[run] = ended
            if self._meter.heartbeat(query) is not None:
                self._meter.beat(query)


class Served:
    """Metrics that are served, at `url`, until `close`; a context manager."""

    def __init__(self, around: ExitStack, url: str, meter: Meter) -> None:
        self._around = around
        self.url = url
        self.meter = meter

    def close(self) -> None:
        """Stop serving the metrics."""
        self._around.close()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()


def measure(spark: SparkSession, meter: Meter) -> ExitStack:
    """Measure the queries of a session with a meter until the returned stack is closed."""
    around = ExitStack()
    listener = MeasuringListener(spark, meter)
    spark.streams.addListener(listener)
    pulse = Pulse(spark, meter)
    around.callback(_take_off, spark, listener)
    around.callback(pulse.close)
    return around


def _take_off(spark: SparkSession, listener: MeasuringListener) -> None:
    with suppress(Exception):  # its JVM may be gone
        spark.streams.removeListener(listener)


@named
def serve_metrics(spark: SparkSession, address: str = ":9108") -> Served:
    """Serve metrics of the session's queries that read or write with penstock, for Prometheus, at `http://address/metrics`.

    `address` is `HOST:PORT`; without a host only this machine is answered. Close the returned object to end it. `/health` and `/ready`
    are served, too. Raises `OptionError` for an address that cannot be used, `DependencyError` without prometheus-client.
    """
    require_session(spark, "serve_metrics")
    require_driver(spark, "serve_metrics", "serve metrics where the Connect server runs, or by `penstock run`")
    meter = Meter(tally.of_process)
    with ExitStack() as around:
        url = around.enter_context(serving(address, meter, name="address"))
        around.enter_context(measure(spark, meter))
        return Served(around.pop_all(), url, meter)
