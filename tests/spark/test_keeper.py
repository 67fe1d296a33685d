"""What happens between batches and after a query: idle streams, stopped queries, applications that end."""

from __future__ import annotations

import os
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
from penstock.sink.ledger import Kind, OpenPart
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

# The script of a user who knows only the name of our format: it uses Spark's own source, and the application just ends.
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
    """Start a query that goes on until it is stopped, and have it take the available input."""
    frame = spark.readStream.format("penstock").load(str(stage.src))
    writer = frame.writeStream.format("penstock").options(**options).trigger(processingTime="200 milliseconds")
    query = writer.option("checkpointLocation", str(stage.checkpoint)).start(str(stage.dst))
    query.processAllAvailable()
    return query


@pytest.fixture
def fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostFact:
    """Return the fact that the processes of one driver share, in a private temporary directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options = parse(SINK, {"path": str(tmp_path)}, what="sink")
    return keeper.fact_of(Sink(LocalStorage(), str(tmp_path), options, "s"), "host:1:2:query")


@pytest.mark.timeout(100)
def test_keeper_that_stands_still_holds_up_nobody(fact: HostFact) -> None:
    """What a stopped process holds is skipped: other queries start and end."""
    with fact.locked() as state:
        state["owner"] = "host:1:2:query"
        keeper.sweep()
        keeper.query_ended("another", lambda: True)
    assert [each.path for each in HostFact.all()] == [fact.path]


def test_query_that_starts_again_is_not_ended(fact: HostFact) -> None:
    """The end of a query does not apply to a batch that began after it: otherwise the keeper would take the sink away from that batch."""
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
from penstock.sink.ledger import Kind, OpenPart
from penstock.storage import HostFact
print(keeper._start(HostFact(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_a_keeper_that_nobody_looks_for_is_not_waited_for(
    fact: HostFact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that started a keeper lives on and does not reap it: the process that ends the keeper waits only until it has stopped."""
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


def test_a_process_that_has_the_number_of_a_dead_keeper_is_none(
    fact: HostFact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper was killed, and another process has its number by now: a new keeper is started, or idle parts would stay open for ever."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    sink = Sink(LocalStorage(), str(tmp_path), parse(SINK, {"path": str(tmp_path)}, what="sink"), "s")
    keeper.batch_begins(fact, "host:1:2:query")
    with fact.locked() as state:
        state["keeper"] = os.getpid()
    before = set(keeper._children)
    keeper.batch_ends(fact, sink, "host:1:2:query", [PART])
    [started] = keeper._children.keys() - before
    keeper._children[started].wait(60)
    with fact.locked() as state:
        state |= {"owner": "host:1:2:query", "keeper": os.getpid()}
    keeper.sweep()
    assert HostFact.all() == []


PART = OpenPart("", 0, Kind("text", "none", ".txt", "a"), 0, 0, 0, 0, ())


class Session:
    """Stands for a Spark session; the test calls none of its methods."""


def test_an_end_that_is_heard_late(fact: HostFact) -> None:
    """The end of a failed run, heard after the next run has begun a batch, does not end the query; the end of the last run does."""
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
    """F14: without new input there is no batch, yet a part is published once rollInactivity is over, and the query goes on."""
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
    """F15: with the session registered, a query's open parts are published after it has stopped; it can start again."""
    penstock.register(spark)
    stage.put("a", "1")
    running(spark, stage, rollInactivity="1h").stop()
    assert stage.lines() == {"1": 1}
    stage.put("b", "2")
    running(spark, stage, rollInactivity="1h").stop()
    assert stage.lines() == {"1": 1, "2": 1}


def foreign(spark: SparkSession, stage: Stage, **options: Any) -> StreamingQuery:
    """Start a query of Spark's own source that takes the available input."""
    writer = spark.readStream.format("text").load(str(stage.src)).writeStream.format("penstock").options(**options)
    return writer.option("checkpointLocation", str(stage.checkpoint)).trigger(availableNow=True).start(str(stage.dst))


@pytest.mark.parametrize("seconds", [None, 60])
def test_rows_of_a_foreign_source_are_there_when_the_query_has_ended(
    spark: SparkSession, stage: Stage, seconds: int | None
) -> None:
    """A foreign source with AvailableNow: a caller that waited for the end sees every row at once, also the next time."""
    penstock.register(spark)
    for number in range(3):
        stage.put(str(number), str(number))
        assert foreign(spark, stage).awaitTermination(*filter(None, [seconds])) in {None, True}
        assert stage.lines() == {str(n): 1 for n in range(number + 1)}


def test_rows_of_a_query_that_failed_are_there_when_that_is_told(spark: SparkSession, stage: Stage) -> None:
    """Rows that were committed before a query failed are visible when its error is raised; a wait that ends before says False."""
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
    """A caller that polls whether a query is active, and does not wait, sees the rows once Spark has told its listeners of the end."""
    penstock.register(spark)
    stage.put("a", "1")
    query = foreign(spark, stage)
    assert wait_for(lambda: not query.isActive)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(20_000)
    assert wait_for(lambda: stage.lines() == {"1": 1}, seconds=30)  # the keeper would come only after a minute


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_application_that_ends_publishes_its_last_parts(stage: Stage) -> None:
    """F15: a foreign source with AvailableNow, and the application exits: its parts are published without any further action.

    Spark logs no complaint on exit about events that nobody receives.
    """
    stage.put("a", "1", "2")
    done = run_python(FOREIGN, str(stage.src), str(stage.dst))
    assert "DONE" in done.stdout, done.stderr[-3000:]
    assert wait_for(lambda: stage.lines() == {"1": 1, "2": 1})
    assert "Py4J" not in done.stderr, done.stderr[-3000:]
