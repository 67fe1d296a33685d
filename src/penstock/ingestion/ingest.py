"""`penstock.ingest`, and its checks without Spark: whether an ingest could start, whether it has work, what it would read.

An ingest is a query like any other: `emit=splits` from the source, the fused stage in the sink's options. What does not need Spark's
query runs by a loop of ours with the same steps (`here`). An ingest also does what a user would have to think of: it chooses the
checkpoint's place and the number of tasks, checks that the output is not in the input, publishes the last parts, and reports progress.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock import arguments, errors
from penstock.arguments import named
from penstock.errors import OptionError
from penstock.ingestion.job import Job
from penstock.ingestion.jobhere import JobHere, JobInSession
from penstock.ingestion.run import RunHere, SparkRun
from penstock.ingestion.schema import is_known
from penstock.ingestion.sql.query import Sql
from penstock.options.topics import is_topics
from penstock.session.connect import require_session, tasks_at_a_time
from penstock.session.local import ZONE, require_pyspark
from penstock.session.processors import cores
from penstock.session.zone import time_zone
from penstock.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from penstock.ingestion.call import IngestCall
    from penstock.ingestion.dry import DryRun
    from penstock.ingestion.ingested import Ingested
    from penstock.ingestion.run import IngestRun
    from penstock.ingestion.stage import Transform

_WATCHING = "1s"


@named
def ingest(  # noqa: PLR0913 - what users say of an ingest, by name
    spark: SparkSession,
    src: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    dst: str | os.PathLike[str],
    *,
    source: Mapping[str, Any] | None = None,
    sink: Mapping[str, Any] | None = None,
    transform: Transform | str | None = None,
    sql: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    watch: bool | str = False,
    progress: Callable[[Ingested], None] | None = None,
) -> Ingested:
    """Write every record below `src` into finished files below `dst`, exactly once, and return what was done.

    The same call again takes only what is new.

    - `src`: a path, a glob, or a list of these; or topics, "kafka://broker:9092/orders,payments", whose records have Kafka's
      columns, or, with the source's `format`, the columns of their values.
    - `source`, `sink`: options of source and sink. Here `schema` (DDL or StructType) is an option of the source. With the option
      `files`, rows name the files below `src` that are read: a streaming DataFrame with a column `path`, "published", or the path
      of lists.
    - `transform`: a function that takes and returns a `pyarrow.RecordBatch`, or a polars DataFrame if it is annotated so; or
      "module:function"; or an `AsyncMap`.
    - `sql`: instead of a transform, a select over the table `input`, answered row by row as Spark would:
      "select id, upper(name) as name from input where id > 0".
    - `checkpoint`: by default `DST/_penstock/checkpoint`.
    - `watch`: run until interrupted, and look for new files every second, or at the given interval ("10s").
    - `progress`: called a few times a second, and a last time at the end.

    It is a streaming query of Spark's if somebody waits for one (`watch`, the sink's `queryName`, a listener of the session), or if it
    calls functions of yours or reaches other hosts; otherwise its tasks are jobs of the session.

    Raises any failure as a `PenstockError`. Then nothing of the batch in flight is visible, and the same call continues from
    there. An interrupt, and an error of `progress`, are raised unchanged. However the call ends, its query has stopped by then,
    and what was committed is published; `progress` is called with that state even after a `KeyboardInterrupt`.
    """
    require_pyspark()
    require_session(spark, "ingest")
    where = None if checkpoint is None else arguments.path(checkpoint, name="checkpoint")
    first, more = _sources(src)
    reading, writing = arguments.options(source, name="source"), arguments.options(sink, name="sink")
    if more and "paths" in map(str.lower, reading):
        msg = "src is several paths, and so is the source option 'paths'; name all of them in src"
        raise OptionError(msg)
    paths = first, arguments.path(dst, name="dst")
    every = _interval(watch)
    applied = one_transform(transform, sql)

    def described() -> JobInSession:
        zone = {"sessionTimeZone": time_zone(spark)}
        job = JobInSession(spark, *paths, zone | more | reading, writing, where)
        job.describe(applied, tasks_at_a_time(spark))
        return job

    return carried_out(SparkRun(spark, described, every=every), progress)


def carried_out(run: IngestRun[Any], progress: Callable[[Ingested], None] | None) -> Ingested:
    """Run an ingest and return what was done, with the promises of `ingest`."""
    try:
        run.follow(progress)
    except BaseException as error:  # however this scope is left, no query stays running
        run.end()
        with suppress(errors.PenstockError):  # the error that is raised says more
            run.publish()
            if progress is not None and isinstance(error, KeyboardInterrupt):
                progress(run.state())
        raise
    run.publish()
    done = run.state()
    if progress is not None:
        progress(done)
    return done


def here(call: IngestCall) -> IngestRun[Any] | None:
    """Return a run of this ingest without Spark, which reads what is there and ends; `None` if the ingest needs Spark.

    Raises errors in the call, as `ingest` would.
    """
    if not is_known(call.source.get("schema")):
        return None
    job = JobHere(call.src, call.dst, {"sessionTimeZone": ZONE} | dict(call.source), dict(call.sink), call.checkpoint)
    job.describe(call.transform, tasks=cores())
    return RunHere(job) if job.may_run() else None


def one_transform(transform: Transform | str | None, sql: str | None) -> Transform | str | None:
    """Return the transform, which is given either as such or as SQL; `OptionError` if both are given."""
    if sql is None:
        return transform
    if transform is not None:
        msg = f"transform={transform!r} and sql={sql!r}: expected only one of them; let one do the work of both"
        raise OptionError(msg)
    return Sql(sql)


def _sources(src: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, dict[str, str]]:
    """Return the first path, and the option with the other paths. Raises `OptionError` if there is no path."""
    if isinstance(src, (str, os.PathLike)):
        return os.fspath(src), {}
    _check_list(src)
    paths = [arguments.path(each, name="each of src") for each in src]
    if not paths:
        msg = "src is empty: expected a path, or a list of them, such as ['/data/a', '/data/b/*.json']"
        raise OptionError(msg)
    if paths[1:] and any(map(is_topics, paths)):
        msg = f"src is {paths}: topics stand alone; name several in one address, kafka://broker:9092/orders,payments"
        raise OptionError(msg)
    return paths[0], {"paths": json.dumps(paths[1:])} if paths[1:] else {}


def _check_list(src: object) -> None:
    if not isinstance(src, Sequence):
        expected = "a path, or a list of them, such as ['/data/a', '/data/b/*.json']"
        msg = f"src is a {type(src).__name__}; expected {expected}"
        raise OptionError(msg)


def _interval(watch: bool | str) -> float | None:  # noqa: FBT001 - what the user gave
    """Return the interval in seconds between two looks for new files; None: read what is there, and end."""
    given: object = watch
    if not isinstance(given, (bool, str)):
        msg = f"watch={watch!r}; expected True or False, or how often to look for new files, such as watch='10s'"
        raise OptionError(msg)
    return parse_duration(_WATCHING if watch is True else watch, name="watch") if watch else None


def check(call: IngestCall, *, make: bool = True) -> None:
    """Raise what `ingest` would raise, as far as it is known without Spark; `make`: make the directories of output and checkpoint."""
    job = _job(call)
    if is_known(call.source.get("schema")):
        job.describe(call.transform, tasks=1)
    job.prepare(make=make)


def idle(call: IngestCall) -> Ingested | None:
    """Return the state of an ingest that has nothing to do, without Spark; `None` if it has work, or if only Spark can tell.

    Most runs of a schedule have nothing to do, and the start of Spark is nearly all of their cost. A first run always has work,
    so nothing is looked at. Raises `BrokerError`, because a run would wait for the brokers as long again.
    """
    if not is_known(call.source.get("schema")) or any(name.lower() == "files" for name in call.source):
        return None
    job = _job(call)
    try:
        if job.state().batch < 0:
            return None
        job.describe(call.transform, tasks=1)
        return job.state() if job.preview().is_idle() else None
    except errors.BrokerError:  # the run would wait for the brokers again, after the start of Spark
        raise
    except errors.PenstockError:  # the run itself reports the error
        return None


def _job(call: IngestCall) -> Job:
    return Job(call.src, call.dst, dict(call.source), dict(call.sink), call.checkpoint)


@named
def dry_run(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    source: Mapping[str, Any] | None = None,
    sink: Mapping[str, Any] | None = None,
    transform: Transform | str | None = None,
    sql: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> DryRun:
    """Return what `ingest` with the same parameters would read, and what would come out of a sample of it; write nothing.

    Needs neither Spark nor Java, unless the schema is DDL that only Spark can read. A transform is called with the sample. Raises
    errors in the call, as `ingest` would.
    """
    where = None if checkpoint is None else arguments.path(checkpoint, name="checkpoint")
    places = arguments.path(src, name="src"), arguments.path(dst, name="dst")
    job = Job(*places, arguments.options(source, name="source"), arguments.options(sink, name="sink"), where)
    job.describe(one_transform(transform, sql), tasks=1)
    return job.preview().run()
