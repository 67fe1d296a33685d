"""What happens between batches and after a query: idle streams, stopped queries, applications that end."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest
from pyspark.errors import PySparkException

import penstock
from penstock.options import SINK, parse
from penstock.sink import keeper
from penstock.sink.sink import Sink
from penstock.spark.listener import EndListener
from penstock.storage import HostFact, LocalStorage
from tests.support.stage import run_python
from tests.support.wait import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import QueryStartedEvent, QueryTerminatedEvent
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.support.stage import Stage

# A script of a user who knows nothing of us but the format's name: Spark's own source, and the application just ends.
FOREIGN = """
import sys, penstock
src, dst = sys.argv[1:]
spark = penstock.local_session("local[2]")
frame = spark.readStream.format("text").load(src)
writer = frame.writeStream.format("penstock").option("checkpointLocation", dst + "/_penstock/checkpoint")
writer.trigger(availableNow=True).start(dst).awaitTermination()
print("DONE")
"""


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    """Return whether the condition came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


def running(spark: SparkSession, stage: Stage, **options: Any) -> StreamingQuery:
    """Start a query that goes on until it is stopped, and have it take what is there."""
    frame = spark.readStream.format("penstock").load(str(stage.src))
    writer = frame.writeStream.format("penstock").options(**options).trigger(processingTime="200 milliseconds")
    query = writer.option("checkpointLocation", str(stage.checkpoint)).start(str(stage.dst))
    query.processAllAvailable()
    return query


@pytest.fixture
def fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostFact:
    """Return what the processes of one driver share, in a temporary directory of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options = parse(SINK, {"path": str(tmp_path)}, what="sink")
    return keeper.fact_of(Sink(LocalStorage(), str(tmp_path), options, "s"), "host:1:2:query")


@pytest.mark.timeout(100)
def test_keeper_that_stands_still_holds_up_nobody(fact: HostFact) -> None:
    """What a stopped process holds is passed over: other queries start and end."""
    with fact.locked() as state:
        state["owner"] = "host:1:2:query"
        keeper.sweep()
        keeper.query_ended("another", lambda: True)
    assert [each.path for each in HostFact.all()] == [fact.path]


def test_query_that_starts_again_is_not_ended(fact: HostFact) -> None:
    """The end of a query is not for the batch that began since: its keeper would take the sink away from it."""
    with fact.locked() as state:
        state["owner"] = "host:1:2:query"
    keeper.query_ended("query", lambda: True)
    with fact.locked() as state:
        assert state["ended"]
    keeper.batch_begins(fact, "host:1:2:query")
    with fact.locked() as state:
        assert "ended" not in state


STARTS = """
import sys
from penstock.sink import keeper
from penstock.storage import HostFact
print(keeper._start(HostFact(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_a_keeper_that_nobody_looks_for_is_not_waited_for(
    fact: HostFact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that has started a keeper lives on and does not hear of its end: whoever ends it goes on as soon as it runs no more."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(keeper, "_ENDING_SECONDS", 60.0)
    sink = Sink(LocalStorage(), str(tmp_path), parse(SINK, {"path": str(tmp_path)}, what="sink"), "s")
    here = psutil.Process()
    command = [sys.executable, "-Wignore", "-c", STARTS, fact.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        with fact.locked() as state:
            pid = int(worker.stdout.readline())
            state |= {"keeper": pid, "sink": "s", "busy": True, "jvm": [here.pid, here.create_time()]}
        begun = time.monotonic()
        keeper.finish(sink, "host:1:2:query")
        assert time.monotonic() - begun < 30
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


class Session:
    """Stands for one of Spark's, which nothing is asked of."""


def test_an_end_that_is_heard_late(fact: HostFact) -> None:
    """The end of a run that failed, heard when the next one has begun a batch, is not the query's; that of the last run is."""
    listener, (first, second) = (
        EndListener(cast("Any", Session())),
        (SimpleNamespace(id="query", runId=run) for run in "12"),
    )
    with fact.locked() as state:
        state["owner"] = "host:1:2:query"
    listener.onQueryStarted(cast("QueryStartedEvent", first))
    listener.onQueryStarted(cast("QueryStartedEvent", second))
    keeper.batch_begins(fact, "host:1:2:query")
    listener.onQueryTerminated(cast("QueryTerminatedEvent", first))
    with fact.locked() as state:
        assert "ended" not in state
    listener.onQueryTerminated(cast("QueryTerminatedEvent", second))
    with fact.locked() as state:
        assert state["ended"]


def test_idle_stream_publishes_what_is_idle(spark: SparkSession, stage: Stage) -> None:
    """F14: with no new input and so no batch, a part is published when rollInactivity is over, and the query goes on."""
    stage.put("a", "1")
    query = running(spark, stage, rollInactivity="2s")
    try:
        assert stage.lines() == {}
        assert wait_for(lambda: stage.lines() == {"1": 1})
        stage.put("b", "2")
        query.processAllAvailable()
        assert wait_for(lambda: stage.lines() == {"1": 1, "2": 1})
    finally:
        query.stop()


def test_stopped_query_publishes_its_last_parts(spark: SparkSession, stage: Stage) -> None:
    """F15: with the session registered, what a query left open is published when it has stopped; it can start again."""
    penstock.register(spark)
    stage.put("a", "1")
    running(spark, stage, rollInactivity="1h").stop()
    assert stage.lines() == {"1": 1}
    stage.put("b", "2")
    running(spark, stage, rollInactivity="1h").stop()
    assert stage.lines() == {"1": 1, "2": 1}


def foreign(spark: SparkSession, stage: Stage, **options: Any) -> StreamingQuery:
    """Start a query of Spark's own source that takes what is there."""
    writer = spark.readStream.format("text").load(str(stage.src)).writeStream.format("penstock").options(**options)
    return writer.option("checkpointLocation", str(stage.checkpoint)).trigger(availableNow=True).start(str(stage.dst))


@pytest.mark.parametrize("seconds", [None, 60])
def test_rows_of_a_foreign_source_are_there_when_the_query_has_ended(
    spark: SparkSession, stage: Stage, seconds: int | None
) -> None:
    """A foreign source with AvailableNow: who has waited for the end sees every row at once, also the next time."""
    penstock.register(spark)
    for number in range(3):
        stage.put(str(number), str(number))
        assert foreign(spark, stage).awaitTermination(*filter(None, [seconds])) in {None, True}
        assert stage.lines() == {str(n): 1 for n in range(number + 1)}


def test_rows_of_a_query_that_failed_are_there_when_that_is_told(spark: SparkSession, stage: Stage) -> None:
    """What was committed before a query failed is visible when its error is raised; a wait that ends before says False."""
    penstock.register(spark)
    stage.put("a", "1")
    query = running(spark, stage, rollInactivity="1h")
    assert query.awaitTermination(0.1) is False  # type: ignore[arg-type]  # - it takes fractions of a second
    assert stage.lines() == {}
    (stage.src / "b").write_bytes(b"\xff\n")
    with pytest.raises(PySparkException):
        query.awaitTermination(PATIENCE_SECONDS)
    assert stage.lines() == {"1": 1}


def test_rows_are_there_soon_where_nobody_waits_for_the_end(spark: SparkSession, stage: Stage) -> None:
    """Whoever looks whether a query is active, and does not wait, sees the rows when Spark has told its listeners of the end."""
    penstock.register(spark)
    stage.put("a", "1")
    query = foreign(spark, stage)
    assert wait_for(lambda: not query.isActive)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(20_000)
    assert wait_for(lambda: stage.lines() == {"1": 1}, seconds=30)  # the keeper would come after a minute


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_application_that_ends_publishes_its_last_parts(stage: Stage) -> None:
    """F15: a foreign source with AvailableNow, and the application exits: its parts are published, by nobody's further doing.

    Spark does not complain on the way out that its events find nobody at home.
    """
    stage.put("a", "1", "2")
    done = run_python(FOREIGN, str(stage.src), str(stage.dst))
    assert "DONE" in done.stdout, done.stderr[-3000:]
    assert wait_for(lambda: stage.lines() == {"1": 1, "2": 1})
    assert "Py4J" not in done.stderr, done.stderr[-3000:]
