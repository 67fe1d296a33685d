"""An ingest in a session that is up: tasks of Spark's without a query, and who is given a query all the same."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryListener

import penstock
from penstock.errors import Fenced, PenstockError
from penstock.ingestion.sparktasks import SparkTasks
from penstock.ingestion.taskcalls import WorkersEnded
from penstock.query.batch import Task
from penstock.session.sidebyside import ADDED, side_by_side, variables_of
from penstock.sink.existing import sink_ids
from penstock.sink.sink import Sink
from penstock.storage import LocalStorage
from penstock.verify import verify
from tests.support.follows import follows
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from penstock.ingestion.ingested import Ingested
    from penstock.sink.ledger import State
    from tests.support.stage import Stage

pytestmark = [pytest.mark.spark]


# A session that a user has made, with a `python3` on the PATH that is not the Python of the program.
FOLLOWED = """
import os, re, sys
from pyspark.sql import SparkSession
import penstock
from penstock.errors import DependencyError

def session():
    return SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()

spark = session()
penstock.register(spark)
for name in (None, "orders"):
    try:
        penstock.ingest(spark, sys.argv[1], sys.argv[2], sink={} if name is None else {"queryName": name})
    except DependencyError as error:
        advice = re.search(r"set (PYSPARK_PYTHON)=(.*) before the session starts", error.message)
        print("TOLD", "python3" in error.message)
spark.stop()
os.environ[advice[1]] = advice[2]
print("ROWS", penstock.ingest(session(), sys.argv[1], sys.argv[2]).rows)
"""


class Heard(StreamingQueryListener):
    """A user's listener, which notes the names of the queries that start."""

    def __init__(self) -> None:
        self.names: list[str | None] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's
        """Note the name."""
        self.names.append(event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's
        """Do nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's
        """Do nothing."""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list in which each ingest notes whether it ran as a query."""
    from penstock.ingestion.job import Job  # noqa: PLC0415 - beside the one place that uses it
    from penstock.ingestion.jobhere import JobOfTasks  # noqa: PLC0415 - the same

    noted: list[str] = []

    def noting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted_call(*given: Any, **more: Any) -> Any:
            noted.append(name)
            return method(*given, **more)

        return noted_call

    monkeypatch.setattr(Job, "start", noting("query", Job.start))
    monkeypatch.setattr(JobOfTasks, "begin", noting("tasks", JobOfTasks.begin))
    return noted


def run(spark: SparkSession, stage: Stage, **options: Any) -> Ingested:
    """Ingest the stage's input."""
    return penstock.ingest(spark, stage.src, stage.dst, **options)


def head(stage: Stage) -> State:
    """Return the newest record of the only sink of the output."""
    storage = LocalStorage()
    (name,) = sink_ids(storage, str(stage.dst / "_penstock"))
    return Sink.existing(storage, str(stage.dst), name).ledger.head()


def test_tasks_of_spark_without_a_query(spark: SparkSession, stage: Stage, runs: list[str]) -> None:
    """The jobs are those of the thread that called: they are in its group."""
    stage.put("a", "1", "2")
    context, tracker = spark.sparkContext, spark.sparkContext.statusTracker()
    context.setJobGroup("mine", "of a test")
    try:
        assert run(spark, stage).rows == 2
        first = tracker.getJobIdsForGroup("mine")
        stage.put("b", "3")
        assert run(spark, stage, source={"maxFilesPerTrigger": 1}).rows == 3
        both = tracker.getJobIdsForGroup("mine")
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]  # - which removes it
    assert (len(first), len(both)) == (1, 2)
    assert runs == ["tasks", "tasks"]
    assert stage.lines() == {"1": 1, "2": 1, "3": 1}
    assert verify(str(stage.dst), source=str(stage.src)).ok


def test_a_query_where_somebody_waits_for_one(spark: SparkSession, stage: Stage, runs: list[str]) -> None:
    """A user's listener hears of an ingest, and a name is the name of a query. Spark's and our own listeners wait for nothing."""
    penstock.register(spark)
    stage.put("a", "1")
    run(spark, stage)
    heard = Heard()
    spark.streams.addListener(heard)
    try:
        stage.put("b", "2")
        run(spark, stage)
        stage.put("c", "3")
        run(spark, stage, sink={"queryName": "orders"})
        wait_for(lambda: heard.names == [None, "orders"], "two queries to be heard of")
    finally:
        spark.streams.removeListener(heard)
    stage.put("d", "4")
    run(spark, stage, sink={"queryName": "orders"})
    stage.put("e", "5")
    run(spark, stage)
    assert runs == ["tasks", "query", "query", "query", "tasks"]
    assert stage.lines() == dict.fromkeys("12345", 1)


def test_query_and_tasks_are_one_driver(spark: SparkSession, stage: Stage, runs: list[str]) -> None:
    """They follow each other in either order, and neither takes the output over from the other."""
    owners = set()
    for number, name in enumerate((None, "query", None, "query")):
        stage.put(f"f{number}", str(number))
        run(spark, stage, sink={} if name is None else {"queryName": name})
        owners.add(head(stage).owner)
    assert runs == ["tasks", "query", "tasks", "query"]
    assert len(owners) == 1
    assert stage.lines() == dict.fromkeys("0123", 1)


def test_an_ingest_beside_its_own_watch(spark: SparkSession, stage: Stage, runs: list[str]) -> None:
    """While a query of the same checkpoint runs in the session, it is Spark who decides: the newer query takes the older one's place."""
    stage.put("a", "1")
    watching = threading.Thread(target=run, args=(spark, stage), kwargs={"watch": "0.1s"})
    watching.start()
    first = stage.dst / "_penstock" / "checkpoint" / "commits" / "0"
    wait_for(first.exists, "the first batch")
    stage.put("b", "2")
    run(spark, stage)
    watching.join()
    assert runs == ["query", "query"]
    assert stage.lines() == {"1": 1, "2": 1}


def test_two_threads_at_once(spark: SparkSession, stage: Stage) -> None:
    """Two calls of one ingest at one moment: each ends or is `Fenced`, and each record is there once."""
    failed: list[BaseException] = []

    def ingest() -> None:
        try:
            run(spark, stage, source={"maxFilesPerTrigger": 1})
        except Fenced:
            pass
        except BaseException as error:  # noqa: BLE001 - the test shows it
            failed.append(error)

    for turn in range(3):
        for number in range(3):
            stage.put(f"f{turn}{number}", f"{turn}{number}")
        both = [threading.Thread(target=ingest) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
    assert not failed
    run(spark, stage)
    assert stage.lines() == {f"{turn}{number}": 1 for turn in range(3) for number in range(3)}
    assert verify(str(stage.dst), source=str(stage.src)).ok


def waits(path: str, task: Task) -> int:
    """Note that the task began, and wait for long."""
    (Path(path) / f"{task.partition}-{task.attempt}").touch()
    time.sleep(600)
    return task.partition


def doubled(_path: str, task: Task) -> int:
    """Return twice the number of the task."""
    return 2 * task.partition


def dies(path: str, task: Task) -> int:
    """End the process of the task."""
    (Path(path) / str(task.partition)).touch()
    os._exit(3)


def tasks(path: Path, count: int) -> Sequence[tuple[str, Task]]:
    """Return tasks of a batch."""
    return [(str(path), Task("query", 0, number)) for number in range(count)]


@pytest.fixture
def calls(spark: SparkSession) -> Iterator[SparkTasks]:
    """Return the caller of tasks of a run."""
    called = SparkTasks(spark, threading.Event(), "a test")
    with called:
        yield called


def test_results_are_in_the_order_of_the_tasks(calls: SparkTasks, tmp_path: Path) -> None:
    """Whichever ends first; no task is no job."""
    assert calls.each(doubled, tasks(tmp_path, 3), processes=2) == [0, 2, 4]
    assert calls.each(doubled, [], processes=0) == []


def test_a_job_that_nobody_waits_for_is_cancelled(spark: SparkSession, tmp_path: Path) -> None:
    """A run that ends early leaves the cores of the session to others (see `sparktasks`)."""
    ending, tracker = threading.Event(), spark.sparkContext.statusTracker()

    def end_it() -> None:
        wait_for(lambda: any(tmp_path.iterdir()), "a task")
        ending.set()

    asking = threading.Thread(target=end_it)
    asking.start()
    with SparkTasks(spark, ending, "a test") as calls, pytest.raises(WorkersEnded) as ended:
        calls.each(waits, tasks(tmp_path, 2), processes=2)
    asking.join()
    assert not ended.value.killed
    wait_for(lambda: not tracker.getActiveJobsIds(), "the end of the job")


def test_a_worker_that_dies_is_an_error(calls: SparkTasks, tmp_path: Path) -> None:
    """A local session tries a task once."""
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        calls.each(dies, tasks(tmp_path, 1), processes=1)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_task_that_fails_is_our_error(spark: SparkSession, stage: Stage, runs: list[str]) -> None:
    """What a task raises on an executor is raised as it is, nothing of the batch is visible, and the next call goes on."""
    stage.put("a", '{"id": 1}', '{"id": ')
    with pytest.raises(PenstockError, match="PST-2") as raised:
        run(
            spark,
            stage,
            source={"format": "json", "schema": "id bigint", "badRecords": "fail"},
            sink={"format": "json"},
        )
    assert raised.value.code
    assert not stage.files()
    stage.put("a", '{"id": 1}', '{"id": 2}')
    run(spark, stage, source={"format": "json", "schema": "id bigint"}, sink={"format": "json"})
    assert runs == ["tasks", "tasks"]
    assert stage.lines() == {'{"id":1}': 1, '{"id":2}': 1}


def test_a_format_that_spark_does_not_find_is_no_obstacle(spark: SparkSession, stage: Stage) -> None:
    """Where only a part of the code was shipped, an ingest of files once failed for want of the format of topics."""
    side_by_side(spark, "no-such-format", "penstock")
    assert variables_of(spark, "penstock").containsKey(ADDED[-1])
    stage.put("a", "1")
    assert run(spark, stage, sink={"queryName": "orders"}).rows == 1


@pytest.mark.slow
@follows("PST-103")
def test_workers_with_another_python(stage: Stage) -> None:
    """A virtual environment that is not activated: Spark takes another `python3`, without our packages. The advice leads out of it."""
    stage.put("a", "1")
    other = stage.root / "bin" / "python3"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    other.chmod(0o755)
    environment = os.environ | {"PATH": f"{other.parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYSPARK_PYTHON", None)
    command = [sys.executable, "-c", FOLLOWED, str(stage.src), str(stage.dst)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:-1] == ["TOLD True", "TOLD True", "ROWS 1"], done.stderr[-3000:]
