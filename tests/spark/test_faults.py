"""Faults of real processes other than death: tasks that run again or twice at once, drivers that stand still, clocks that jump."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.cluster import SPARK_HOME, family, java_options, kill, spark_cluster, started
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.interpreter import Interpreter
    from tests.support.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("programs")]

# Tasks are tried four times. Failpoints are armed in the session's environment, which workers of the formats it registers inherit.
INGEST = """
import sys, penstock
src, dst, points = sys.argv[1:]
config = {"spark.executorEnv.PENSTOCK_FAILPOINTS": points}
spark = penstock.local_session("local[2,4]", config=config, rows_in_jvm=False)
penstock.register(spark)
penstock.ingest(spark, src, dst, source={"maxBytesPerTrigger": "50k"}, sink={"rollSize": "20k"})
print("DONE")
"""

QUERY = """
import sys, penstock
src, dst, points = sys.argv[1:]
config = {"spark.executorEnv.PENSTOCK_FAILPOINTS": points}
spark = penstock.local_session("local[2,4]", config=config, rows_in_jvm=False)
penstock.register(spark)
frame = spark.readStream.format("penstock").option("maxBytesPerTrigger", "50k").load(src)
writer = frame.writeStream.format("penstock").option("rollSize", "20k").trigger(availableNow=True)
writer.option("checkpointLocation", dst + "/_penstock/checkpoint").start(dst).awaitTermination()
print("DONE")
"""

# Goes on until it is stopped or done; a file a batch, a batch a file.
FILE_BY_FILE = """
import json, sys, penstock
src, dst, checkpoint, trigger, source, sink = sys.argv[1:]
spark = penstock.local_session("local[2]", rows_in_jvm=False)
frame = spark.readStream.format("penstock").options(maxFilesPerTrigger=1, **json.loads(source)).load(src)
writer = frame.writeStream.format("penstock").options(**json.loads(sink)).trigger(**json.loads(trigger))
writer.option("checkpointLocation", checkpoint).start(dst).awaitTermination()
print("DONE")
"""
ALL_THERE_IS, FOR_EVER = '{"availableNow": true}', '{"processingTime": "0 seconds"}'

# A cluster's session belongs to the user. The event log shows which attempts were speculative.
SPECULATING = """
import os, sys
from pyspark.sql import SparkSession
src, dst, master, events = sys.argv[1:]
builder = SparkSession.builder.master(master)
for name, value in {
    "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.executor.memory": "512m", "spark.cores.max": "2",
    "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
    "spark.speculation": "true", "spark.speculation.quantile": "0.5", "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1", "spark.speculation.minTaskRuntime": "100ms",
    "spark.eventLog.enabled": "true", "spark.eventLog.dir": events, "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
frame = spark.readStream.format("penstock").load(src).repartition(4)
writer = frame.writeStream.format("penstock").option("rollSize", "1k").trigger(availableNow=True)
writer.option("checkpointLocation", dst + "/_penstock/checkpoint").start(dst).awaitTermination()
print("DONE")
"""

# Python imports this first in every process of a Spark: our clock is ahead by as much as the file says.
JUMPING = """
import os, time
from penstock import clock

class Jumping(clock.SystemClock):
    def now_ns(self):
        with open(os.environ["AHEAD_SECONDS"]) as file:
            return time.time_ns() + int(file.read() or 0) * clock.SECOND_NS

clock._current = Jumping()
"""


def fill(stage: Stage, files: int, lines: int) -> Counter[str]:
    """Write input files; return their lines."""
    for i in range(files):
        stage.put(f"f{i:02}", *(f"{i:02} {j:04} {'x' * 30}" for j in range(lines)))
    return Counter(f"{i:02} {j:04} {'x' * 30}" for i in range(files) for j in range(lines))


@pytest.mark.parametrize(
    "program", [pytest.param(INGEST, id="ingest", marks=pytest.mark.soak), pytest.param(QUERY, id="query")]
)
def test_task_that_dies_is_tried_again(stage: Stage, tmp_path: Path, python: Interpreter, program: str) -> None:
    """One Python worker dies after it has staged, another after it has assembled a part: Spark tries again, no row is doubled."""
    expected = fill(stage, files=12, lines=400)
    died = [tmp_path / "staged", tmp_path / "assembled"]
    points = f"sink.write.staged=kill@2{died[0]},sink.write.before-sync=kill@3{died[1]}"
    done = python.run(program, str(stage.src), str(stage.dst), points)
    assert "DONE" in done.stdout, done.stderr[-3000:]
    assert [path.exists() for path in died] == [True, True]
    assert stage.lines() == expected


def test_stopped_driver_goes_on_after_its_successor(stage: Stage, python: Interpreter, tmp_path: Path) -> None:
    """A driver, its JVM and its workers are stopped in a commit; another takes over and commits; the first then ends with `Fenced`."""
    expected = fill(stage, files=4, lines=20)
    mark, log = tmp_path / "stopped", tmp_path / "first.log"
    arguments = [str(stage.src), str(stage.dst), str(stage.checkpoint)]
    options = ["{}", '{"rollBatches": 1}']
    first = [sys.executable, "-c", FILE_BY_FILE, *arguments, FOR_EVER, *options]
    with started(*first, log=log, PENSTOCK_FAILPOINTS=f"sink.ledger.before-put=stop@2{mark}") as driver:
        wait_for(mark.exists, "the commit of batch 1")
        stopped = family(driver)
        for process in stopped:
            process.suspend()
        done = python.run(FILE_BY_FILE, *arguments, ALL_THERE_IS, *options)
        assert "DONE" in done.stdout, done.stderr[-3000:]
        before = tree(stage.root)
        assert len([path for path in before if "/commits/" in path and "." not in path]) == 4
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        assert driver.wait(120) != 0
    said = log.read_text()
    assert "StreamingQueryException" in said
    assert "[PST-301]" in said
    log.unlink()
    assert tree(stage.root) == before
    assert stage.lines() == expected


def tree(root: Path) -> dict[str, bytes]:
    """Return every file of input, output and checkpoint with its contents."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for folder in ("in", "out", "checkpoint")
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Return a Spark cluster, and the file that shows that a task sleeps."""
    asleep = tmp_path / "asleep"
    with spark_cluster(tmp_path, PENSTOCK_FAILPOINTS=f"sink.write.staged=sleep:120{asleep}") as found:
        yield found.url, asleep


@pytest.mark.soak  # a cluster is six JVMs; the sink's explored histories cover two attempts of a task
def test_speculative_twin_counts_once(stage: Stage, cluster: tuple[str, Path]) -> None:
    """One of two hosts stands still with a task; Spark runs a speculative copy on the other: the rows of only one attempt are there."""
    master, asleep = cluster
    expected = fill(stage, files=4, lines=100)
    events = stage.root / "events"
    events.mkdir()
    variables = {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": SPARK_HOME, "SPARK_SUBMIT_OPTS": java_options()}
    log = stage.root / "driver.log"
    arguments = [str(stage.src), str(stage.dst), master, str(events)]
    with started(sys.executable, "-c", SPECULATING, *arguments, log=log, **variables) as driver:
        driver.wait(300)
    assert "DONE" in log.read_text(), log.read_text()[-3000:]
    assert asleep.exists()
    said = "".join(path.read_text() for path in events.iterdir())
    assert '"Speculative":true' in said
    assert stage.lines() == expected


@pytest.mark.soak  # tests without Spark give stages and readers clocks that jump
def test_clock_that_jumps_an_hour(stage: Stage, python: Interpreter, tmp_path: Path) -> None:
    """Every process's clock jumps an hour forth and back, in and between batches: with a large enough `lateness` nothing is lost."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(JUMPING)
    ahead = tmp_path / "ahead"
    ahead.write_text("0")
    variables = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "AHEAD_SECONDS": str(ahead),
    }
    arguments = [str(stage.src), str(stage.dst), str(stage.checkpoint), FOR_EVER]
    arguments += [
        '{"lateness": "3h", "settle": "0"}',
        '{"rollInterval": "10m", "rollBatches": 2, "fileName": "{time}-{seq}"}',
    ]
    jumps, log = (0, 3600, 0, -3600, 0, 3600, -3600), tmp_path / "log"
    with started(sys.executable, "-c", FILE_BY_FILE, *arguments, log=log, **variables) as driver:
        for number, seconds in enumerate(jumps):
            land(stage, 3 * number, seconds)
            land(stage, 3 * number + 1, seconds)  # these two meet the jump during or before their batch
            ahead.write_text(str(seconds))
            land(stage, 3 * number + 2, seconds)
            wait_for(lambda: committed(stage) == len(os.listdir(stage.src)) or driver.poll() is not None, "the batches")
            assert driver.poll() is None, log.read_text()[-3000:]
        kill(driver)
    ahead.write_text("0")
    land(stage, 3 * len(jumps), 0)
    done = python.run(FILE_BY_FILE, *arguments[:3], ALL_THERE_IS, *arguments[4:])
    assert "DONE" in done.stdout, done.stderr[-3000:]
    assert stage.lines() == {f"line of {n}": 1 for n in range(3 * len(jumps) + 1)}
    assert hours(stage) == {-1, 0, 1}


def land(stage: Stage, number: int, ahead_seconds: int) -> None:
    """Put a file whose time comes from a clock that is ahead."""
    path = stage.src / f".{number}"
    path.write_text(f"line of {number}\n")
    then = time.time() + ahead_seconds - 0.01
    os.utime(path, (then, then))
    path.rename(stage.src / f"{number}")


def hours(stage: Stage) -> set[int]:
    """Return how many hours from now the files' opening times lie."""
    opened = [datetime.strptime(path.name[:15], "%Y%m%d_%H%M%S").replace(tzinfo=timezone.utc) for path in stage.files()]
    return {round((moment.timestamp() - time.time()) / 3600) for moment in opened}


def committed(stage: Stage) -> int:
    """Return how many batches Spark has committed."""
    return len([path for path in (stage.checkpoint / "commits").glob("*") if path.name.isdigit()])
