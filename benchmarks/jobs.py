"""The contenders' work, as it runs in their processes: a query over all available files, or one that waits for files.

Both sides of a comparison are the program that a user would write: the same source, the same kind of output, a checkpoint.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks.data import format_of, schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_BATCH_SECONDS_MAX = 900
_POLL_SECONDS = 0.05
_LINE = b"2026-03-01 00:00:00,000 INFO [worker-0] one line\n"
_DATED_BACK_SECONDS = 5  # so that a landed file counts as settled at once


@dataclass(frozen=True)
class Job:
    """Files of `form` below `src` are converted to files of `to` below `dst`.

    `engine` is `spark` (its own source and sink), `plain` (ours, rows cross the JVM) or `ingest` (ours, no rows cross). `source` and
    `sink` are options. `partition` names the column whose values become directories; `where` is a condition, for queries only.
    """

    engine: str
    src: str
    dst: str
    form: str
    to: str
    source: dict[str, str] = field(default_factory=dict)
    sink: dict[str, str] = field(default_factory=dict)
    partition: str | None = None
    where: str | None = None

    @property
    def sink_options(self) -> dict[str, str]:
        """Return the options of our sink."""
        column = self.partition
        buckets = {"bucketBy": f"{column}={{{column}}}", "dropBucketColumns": "true"} if column else {}
        return {"format": self.to, **self.sink, **buckets}

    @property
    def checkpoint(self) -> str:
        """Return the path of the query's checkpoint: in the output directory, hidden from readers."""
        return f"{self.dst}/_checkpoint" if self.engine == "spark" else f"{self.dst}/_penstock/checkpoint"


def spark_session() -> SparkSession:
    """Return a session as Spark makes it, with two cores, but without its web server, whose start takes some time."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - a process without Spark uses this module, too

    builder = SparkSession.builder.master("local[2]").appName("benchmark")
    for name in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(name, "false")
    return _quiet(builder.config("spark.sql.session.timeZone", "UTC").getOrCreate())


def cluster_session(master: str) -> SparkSession:
    """Return the session of `penstock ingest --master`, for workers with little memory and this machine's packages."""
    import penstock  # noqa: PLC0415 - not in the process of the other contender

    config = {"spark.executor.memory": "512m", "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}
    return penstock.local_session(master, config=config, rows_in_jvm=False)


def penstock_session(engine: str) -> SparkSession:
    """Return the session that Penstock itself starts for an engine, with two cores."""
    import penstock  # noqa: PLC0415 - not in the process of the other contender

    session = penstock.local_session("local[2]", rows_in_jvm=engine != "ingest")
    if engine == "plain":
        penstock.register(session)  # so that a stopped query's open parts are published at once, as in an ingest
    return session


def _quiet(session: SparkSession) -> SparkSession:
    session.sparkContext.setLogLevel("ERROR")
    return session


def run(spark: SparkSession, job: Job) -> float:
    """Take all available input; return the seconds from the definition of the query to its end."""
    start = time.perf_counter()
    if job.engine == "ingest":
        import penstock  # noqa: PLC0415 - not in the process of the other contender

        penstock.ingest(spark, job.src, job.dst, source=_ingest_source(job), sink=job.sink_options)
    else:
        _query(spark, job, availableNow=True).awaitTermination()
    return time.perf_counter() - start


def counted(spark: SparkSession, job: Job, *, by: str) -> float:
    """Count all available records for each value of a column, into Parquet; return the seconds as `run` does.

    Two partitions are used: with Spark's default, two hundred tasks that keep state would dominate the measurement.
    """
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    start = time.perf_counter()

    def put(counts: DataFrame, _batch: int) -> None:
        counts.coalesce(1).write.mode("overwrite").parquet(job.dst)

    counts = _records(spark, job).groupBy(by).count()
    writer = counts.writeStream.outputMode("complete").option("checkpointLocation", f"{job.dst}.checkpoint")
    writer.foreachBatch(put).trigger(availableNow=True).start().awaitTermination()
    return time.perf_counter() - start


def _records(spark: SparkSession, job: Job) -> DataFrame:
    from pyspark.sql.types import StructType  # noqa: PLC0415 - not in the process of the other contender

    own = job.engine == "spark"
    reader = spark.readStream.format(format_of(job.form) if own else "penstock").options(**job.source)
    reader = reader.schema(StructType.fromJson(json.loads(schema(job.form))))
    frame = (reader if own else reader.option("format", format_of(job.form))).load(job.src)
    return frame.where(job.where) if job.where else frame


def _query(spark: SparkSession, job: Job, **trigger: Any) -> StreamingQuery:  # noqa: ANN401 - Spark's own choice of triggers
    own = job.engine == "spark"
    writer = _records(spark, job).writeStream.format(job.to if own else "penstock")
    writer = writer.options(**(job.sink if own else job.sink_options)).option("checkpointLocation", job.checkpoint)
    if own and job.partition:
        writer = writer.partitionBy(job.partition)
    return writer.trigger(**trigger).start(job.dst)


def _ingest_source(job: Job) -> dict[str, Any]:
    from pyspark.sql.types import StructType  # noqa: PLC0415 - not in the process of the other contender

    return {"format": format_of(job.form), "schema": StructType.fromJson(json.loads(schema(job.form))), **job.source}


def trickle(spark: SparkSession, job: Job, *, batches: int) -> list[float]:
    """Run a waiting query and land one file of one line after the other; return Spark's milliseconds for each trigger."""
    landing = _Landing(job, batches)
    if job.engine == "ingest":
        import penstock  # noqa: PLC0415 - not in the process of the other contender

        def step(_state: object) -> None:
            (query,) = spark.streams.active
            if landing.step(query):
                raise KeyboardInterrupt

        source, sink = _ingest_source(job), job.sink_options
        with suppress(KeyboardInterrupt):  # an interrupt ends a watch
            penstock.ingest(
                spark, job.src, job.dst, source=source, sink=sink, watch=True, progress=_until_done(landing, step)
            )
        return landing.milliseconds
    query = _query(spark, job, processingTime="0 seconds")
    while not landing.step(query):
        time.sleep(_POLL_SECONDS)
    query.stop()
    return landing.milliseconds


def _until_done(landing: _Landing, step: Callable[[object], None]) -> Callable[[object], None]:
    """Return the callback without its last call, which comes when the query has ended."""
    return lambda state: None if landing.done else step(state)


class _Landing:
    """Lands a file, waits for its batch, lands the next. Files appear by rename, as complete files do."""

    def __init__(self, job: Job, batches: int) -> None:
        self._directory = job.src
        self._batches = batches
        self._last = -1
        self._waiting_since: float | None = None
        self.milliseconds: list[float] = []

    @property
    def done(self) -> bool:
        """Tell whether all batches have been seen."""
        return len(self.milliseconds) >= self._batches

    def step(self, query: StreamingQuery) -> bool:
        """Do the next action; tell whether it was the last one."""
        if self._waiting_since is None:
            self._land()
            self._waiting_since = time.monotonic()
            return False
        progress = query.lastProgress
        if (
            progress is None
            or "addBatch" not in progress["durationMs"]
            or progress["batchId"] <= self._last
            or not progress["numInputRows"]  # the very first batch, if it began before the first file was there
        ):
            self._complain(query)
            return False
        self._last = int(progress["batchId"])
        self.milliseconds.append(float(progress["durationMs"]["triggerExecution"]))
        self._waiting_since = None
        return self.done

    def _land(self) -> None:
        now = time.time_ns()
        then = now - _DATED_BACK_SECONDS * 1_000_000_000
        hidden, path = f"{self._directory}/.new-{now}", f"{self._directory}/new-{now}.log"
        if path.startswith("hdfs:"):
            import hdfs_native  # noqa: PLC0415 - only where it is used

            client = hdfs_native.Client(self._directory)
            hidden, path = (urlsplit(each).path for each in (hidden, path))
            with client.create(hidden) as landing:
                landing.write(_LINE)
            client.set_times(hidden, then // 1_000_000, then // 1_000_000)
            client.rename(hidden, path)
            return
        with open(hidden, "wb") as file:  # noqa: PTH123 - the directory has 100,000 files, so nothing is listed here
            file.write(_LINE)
        os.utime(hidden, ns=(then, then))
        os.rename(hidden, path)  # noqa: PTH104 - of 100,000 files none is listed

    def _complain(self, query: StreamingQuery) -> None:
        failed = query.exception()
        if failed is not None:
            raise failed
        waited = time.monotonic() - (self._waiting_since or 0)
        if waited > _BATCH_SECONDS_MAX:
            msg = f"no batch for {waited:.0f} s after a file was landed in {self._directory}"
            raise TimeoutError(msg)
