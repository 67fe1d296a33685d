"""An ingest is a scope: however its call ends, nothing of it keeps running, and an interrupt passes through."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest

import penstock
from penstock.errors import BadRecord
from penstock.ingestion.run import SparkRun
from penstock.storage import HostFact
from tests.support.wait import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from penstock.ingestion.ingested import Ingested
    from tests.support.stage import Stage

pytest.importorskip("pyspark")

FILES = 8
ONE_BY_ONE = {"maxFilesPerTrigger": 1}


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform slow enough to be interrupted."""
    import time  # noqa: PLC0415 - it travels by value

    time.sleep(0.2)
    return batch


def fill(stage: Stage) -> None:
    """Write input files, of ten lines each."""
    for i in range(FILES):
        stage.put(f"f{i:02}", *(f"{i}-{j}" for j in range(10)))


def left_over(spark: SparkSession, stage: Stage) -> list[str]:
    """Return what still runs of an ingest into the stage: queries, threads, keepers, and the keepers' notes."""
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-ingest")]
    facts = []
    for fact in HostFact.all():
        with fact.locked() as state:
            facts += [fact.name] if str(stage.dst) in str(state) else []
    commands = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    keepers = [command[-1] for command in commands if "penstock.sink.keeper" in command and command[-1] in facts]
    return [*(str(query.id) for query in spark.streams.active), *threads, *facts, *keepers]


class Reports:
    """A callback that remembers its reports, and does something once the first batch is committed."""

    def __init__(self, action: Any) -> None:
        self.heard: list[Ingested] = []
        self._action = action

    def __call__(self, state: Ingested) -> None:
        self.heard.append(state)
        if state.batch >= 0 and self._action is not None:
            action, self._action = self._action, None
            action()


def check_stopped_part_of_the_way(stage: Stage, last: Ingested) -> None:
    """Raise unless the report, the output and an independent reader agree, and part of the input is missing from all of them."""
    lines = stage.lines()
    assert (last.rows, last.open_rows, last.output_files) == (lines.total(), 0, len(stage.files()))
    assert 0 < last.input_files < FILES
    assert last.rows == 10 * last.input_files
    assert set(lines.values()) == {1}


@pytest.mark.soak  # an interrupt, below, ends it in the same way
def test_callback_that_raises_ends_the_ingest(spark: SparkSession, stage: Stage) -> None:
    """The callback's own error comes out unchanged; no query keeps running; what was committed is visible."""

    def fail() -> None:
        raise ZeroDivisionError(here)

    here = "the caller's own"
    fill(stage)
    reports = Reports(fail)
    with pytest.raises(ZeroDivisionError, match=here):
        penstock.ingest(spark, stage.src, stage.dst, source=ONE_BY_ONE, transform=slowly, watch=True, progress=reports)
    assert left_over(spark, stage) == []
    assert 0 < stage.lines().total() < 10 * FILES


def test_interrupt_passes_and_is_reported(spark: SparkSession, stage: Stage) -> None:
    """Ctrl-C is not a success: it comes out after a last report, in which all committed data is published; the same call goes on."""
    fill(stage)
    reports = Reports(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        penstock.ingest(spark, stage.src, stage.dst, source=ONE_BY_ONE, transform=slowly, progress=reports)
    assert left_over(spark, stage) == []
    check_stopped_part_of_the_way(stage, reports.heard[-1])
    assert penstock.ingest(spark, stage.src, stage.dst).rows == 10 * FILES


@pytest.mark.parametrize("delay", [0.05, pytest.param(1.0, marks=pytest.mark.soak)])
def test_interrupt_at_any_moment_of_a_start(spark: SparkSession, stage: Stage, delay: float) -> None:
    """An interrupt also stops a query that is just starting, and the session keeps working: no answer of Spark's is left unread."""
    fill(stage)
    threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        penstock.ingest(spark, stage.src, stage.dst, source=ONE_BY_ONE, transform=slowly, watch=True)
    assert left_over(spark, stage) == []
    assert spark.range(7).count() == 7
    assert penstock.ingest(spark, stage.src, stage.dst).rows == 10 * FILES
    assert stage.lines().total() == 10 * FILES


def test_query_that_fails_leaves_nothing_open(spark: SparkSession, stage: Stage) -> None:
    """If a later batch cannot be read, what the earlier batches committed is visible, and no process keeps parts open."""
    stage.put("a", '{"id": 1}')
    stage.put("b", '{"id": x}')
    os.utime(stage.src / "a", (1e9, 1e9))
    source = {"format": "json", "schema": "id bigint", **ONE_BY_ONE}
    with pytest.raises(BadRecord):
        penstock.ingest(spark, stage.src, stage.dst, source=source, sink={"format": "json"})
    assert left_over(spark, stage) == []
    assert stage.lines() == {'{"id":1}': 1}


def test_ingests_in_threads(spark: SparkSession, stage: Stage) -> None:
    """Any thread may ingest, and several at once: Spark looks up formats in a thread's session, and a new thread has none."""
    fill(stage)
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda name: penstock.ingest(spark, stage.src, stage.root / name), "xy"))
    assert [each.rows for each in done] == [10 * FILES] * 2


class StartingJob:
    """A job whose query is slow to start, and then runs until it is stopped."""

    def __init__(self) -> None:
        self.begun, self.go_on, self.stopped = threading.Event(), threading.Event(), threading.Event()

    def start(self, spark: SparkSession, *, every: float | None) -> StartingJob:
        self.begun.set()
        assert self.go_on.wait(10)
        return self

    def waits(self, query: StartingJob) -> bool:
        return False

    def named(self, query: StartingJob) -> tuple[str, str]:
        return "query", "driver"

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802 - Spark's name
        return self.stopped.wait(seconds)

    def stop(self) -> None:
        self.stopped.set()


def test_query_that_starts_after_an_interrupt_is_stopped(spark: SparkSession) -> None:
    """A query without a handle: an impatient caller has gone before there is a query to stop."""
    job = StartingJob()
    run = SparkRun(spark, lambda: cast("Any", job), every=1.0)
    caller = threading.Thread(target=lambda: run.follow(None))
    caller.start()
    assert job.begun.wait(10)
    run._ending.set()
    job.go_on.set()
    caller.join(PATIENCE_SECONDS)
    assert job.stopped.is_set()
    assert not caller.is_alive()


def test_error_of_a_call_is_raised_where_it_was_made(tmp_path: Path, spark: SparkSession) -> None:
    """The caller sees the error of a bad call unchanged, although another thread of the ingest found it."""
    with pytest.raises(penstock.PenstockError, match="SRC=.* does not exist"):
        penstock.ingest(spark, tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "in").mkdir()
    with pytest.raises(penstock.PenstockError, match="transform"):
        penstock.ingest(spark, tmp_path / "in", tmp_path / "out", transform=cast("Any", 5))
