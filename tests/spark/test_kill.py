"""Real processes are killed with SIGKILL at every step: what a reader sees then, and after the next start."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.cli.replan import replan
from tests.support.stage import run_python

if TYPE_CHECKING:
    from tests.support.interpreter import Interpreter
    from tests.support.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("programs"), pytest.mark.timeout(900)]  # several starts each

INGEST = """
import sys, penstock
src, dst, size = sys.argv[1:]
spark = penstock.local_session("local[2]", rows_in_jvm=False)
print("UP", flush=True)
penstock.ingest(spark, src, dst, source={"maxBytesPerTrigger": size}, sink={"rollSize": "20k"})
print("DONE")
"""

QUERY = """
import sys, penstock
src, dst, size = sys.argv[1:]
spark = penstock.local_session("local[2]", rows_in_jvm=False)
frame = spark.readStream.format("penstock").option("maxBytesPerTrigger", size).load(src)
writer = frame.writeStream.format("penstock").option("rollSize", "20k").trigger(availableNow=True)
writer.option("checkpointLocation", dst + "/_penstock/checkpoint").start(dst).awaitTermination()
print("DONE")
"""

# A batch that dies in its commit: the commit's process is killed, and the query with it. The JVM is the earlier program's; its workers
# inherit the armed failpoints of the formats that it registers from the session.
ENDLESS = """
import sys, penstock
src, dst, size, points = sys.argv[1:]
config = {"spark.executorEnv.PENSTOCK_FAILPOINTS": points}
spark = penstock.local_session("local[2]", config=config, rows_in_jvm=False)
penstock.register(spark)
frame = spark.readStream.format("penstock").option("maxBytesPerTrigger", size).load(src)
writer = frame.writeStream.format("penstock").option("rollSize", "20k").trigger(processingTime="0 seconds")
writer.option("checkpointLocation", dst + "/_penstock/checkpoint").start(dst).awaitTermination()
print("DONE")
"""

# Each start is killed at the next point, so that every point meets a state that another crash left. The first chain covers the most
# common case, a commit that nobody has seen. A test below covers a batch that was not committed, `tests/cli/test_ingest.py` a task
# that has written. The soak runs the other chains, with more steps and in other orders.
CHAINS = {
    "query": ["sink.ledger.after-put=kill-jvm@2"],
    "ingest": ["source.planned=kill-jvm@2", "sink.publish.one=kill-jvm@2"],
    "long ingest": [
        "sink.write.before-sync=kill-jvm",
        "sink.ledger.after-put=kill-jvm@2",
        "sink.write.staged=kill-jvm@2",
        "sink.publish.before-note=kill-jvm",
        "sink.forget=kill-jvm",
    ],
    "long query": [
        "sink.write.staged=kill-jvm@2",
        "source.read=kill-jvm@3",
        "source.planned=kill-jvm@2",
        "sink.ledger.before-put=kill-jvm@2",
        "storage.publish.linked=kill-jvm",
        "sink.publish.one=kill-jvm",
        "sink.forget=kill-jvm",
    ],
}
PROGRAMS = {"ingest": INGEST, "query": QUERY}


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """Return a directory on a disk, not in memory: these processes write to a real disk."""
    return on_disk


def fill(stage: Stage, files: int = 12, lines: int = 400) -> Counter[str]:
    """Write input files; return their lines."""
    for i in range(files):
        stage.put(f"f{i:02}", *(f"{i:02} {j:04} {'x' * 30}" for j in range(lines)))
    return Counter({f"{i:02} {j:04} {'x' * 30}": 1 for i in range(files) for j in range(lines)})


def arguments(stage: Stage) -> tuple[str, str, str]:
    """Return source, target and the byte limit of a batch."""
    return str(stage.src), str(stage.dst), "50k"


@pytest.mark.parametrize(
    "chain", [pytest.param(chain, marks=pytest.mark.soak if chain != "query" else []) for chain in CHAINS]
)
def test_kill_at_each_step(stage: Stage, python: Interpreter, chain: str) -> None:
    """HZ-19, F1-F3: the whole Spark is killed at one step after another; a reader sees no line twice; in the end each is there."""
    expected = fill(stage, files=30 if len(CHAINS[chain]) > 1 else 12)
    program = PROGRAMS[chain.rsplit(maxsplit=1)[-1]]
    for point in CHAINS[chain]:
        killed = run_python(program, *arguments(stage), failpoints=point)
        assert "DONE" not in killed.stdout, f"{point} was never reached"
        assert not stage.lines() - expected, point
    final = python.run(program, *arguments(stage))
    assert "DONE" in final.stdout, final.stderr[-3000:]
    assert stage.lines() == expected


def test_run_that_only_replays_ends_its_parts(stage: Stage, python: Interpreter) -> None:
    """Failure 6 of the plan: an endless query dies in its only batch; an AvailableNow run replays it, and ends with all lines visible."""
    expected = fill(stage, files=2)
    mark = stage.root / "killed"
    killed = python.run(ENDLESS, *arguments(stage), f"sink.ledger.before-put=kill{mark}")
    assert "StreamingQueryException" in killed.stderr
    assert mark.exists()
    assert not stage.lines()
    final = python.run(QUERY, *arguments(stage)[:2], "1m")
    assert "DONE" in final.stdout, final.stderr[-3000:]
    assert stage.lines() == expected


@pytest.mark.soak  # `tests/cli/test_replan.py` has ended applications, without Spark
def test_batch_of_a_query_that_died_is_planned_anew(stage: Stage, python: Interpreter) -> None:
    """The application is killed in the middle of a batch, and a file changes: `replan` sees that nobody can have committed the batch."""
    expected = fill(stage, files=2)
    killed = run_python(QUERY, *arguments(stage), failpoints="sink.ledger.before-put=kill-jvm")
    assert "DONE" not in killed.stdout
    changed = min(stage.src.iterdir())
    changed.write_text(changed.read_text() + "one more\n")
    os.utime(changed, (changed.stat().st_mtime - 30,) * 2)
    failed = run_python(QUERY, *arguments(stage))  # its application must have ended, too
    assert "PST-203" in failed.stderr
    done = replan(f"{stage.dst}/_penstock/checkpoint", None, nothing_written=False, give_up_rest=False)
    assert done.facts["batch"] == 0
    final = python.run(QUERY, *arguments(stage))
    assert "DONE" in final.stdout, final.stderr[-3000:]
    assert stage.lines() == expected + Counter({"one more": 1})


@pytest.mark.soak  # a sink test of the same name makes the calls that Spark makes here
def test_commit_that_fails_after_its_put_is_aborted_by_spark(stage: Stage, python: Interpreter) -> None:
    """Failure 6 of the sink: the batch is decided, publishing fails, Spark aborts it; the next start has every line."""
    expected = fill(stage)
    failed = run_python(QUERY, *arguments(stage), failpoints="sink.publish.one=error")
    assert "DONE" not in failed.stdout
    assert "Input/output error" in failed.stderr or "failpoint" in failed.stderr
    final = python.run(QUERY, *arguments(stage))
    assert "DONE" in final.stdout, final.stderr[-3000:]
    assert stage.lines() == expected


class Watcher(threading.Thread):
    """A reader that lists and reads the output all the time, and keeps what must never be seen."""

    def __init__(self, stage: Stage, expected: Counter[str]) -> None:
        super().__init__(daemon=True)
        self.stage, self.expected = stage, expected
        self.wrong: list[str] = []
        self.looks = 0
        self.over = threading.Event()

    def run(self) -> None:
        """Look until told to stop."""
        while not self.over.is_set():
            if self.stage.dst.exists():
                self._look()
            time.sleep(0.02)

    def _look(self) -> None:
        seen: Counter[str] = Counter()
        for path in self.stage.files():
            text = path.read_text()
            if text and not text.endswith("\n"):
                self.wrong.append(f"half a record in {path}")
            seen.update(text.splitlines())
        self.wrong += list(seen - self.expected)
        self.looks += 1


@pytest.mark.timeout(1200)
@pytest.mark.soak
@pytest.mark.parametrize("kills", [2, 50])
def test_kills_at_random_moments_of_real_logs(stage: Stage, python: Interpreter, loghub: Path, kills: int) -> None:
    """B29, F36: real logs; kills at random moments, again and again, while a reader looks: at the end each record is there once."""
    expected: Counter[str] = Counter()
    for number, path in enumerate(sorted(loghub.glob("*.log"))):
        for half, lines in enumerate(_halves(path.read_bytes().decode("utf-8", "replace").splitlines())):
            unique = [f"{number}/{half}/{i} {line}" for i, line in enumerate(lines)]
            stage.put(f"{path.stem} {half}.log", *unique)
            expected.update(unique)
    watcher = Watcher(stage, expected)
    watcher.start()
    chance = random.Random(20261120)  # noqa: S311 - moments to kill at, repeatable
    for _ in range(kills):
        _run_and_kill(stage, chance.uniform(0.5, 4))
    final = python.run(INGEST, str(stage.src), str(stage.dst), "200k")
    watcher.over.set()
    watcher.join()
    assert "DONE" in final.stdout, final.stderr[-3000:]
    assert watcher.wrong == []
    assert watcher.looks > 10
    assert stage.lines() == expected


def _halves(lines: list[str]) -> tuple[list[str], list[str]]:
    lines = [line for line in lines if line]
    return lines[: len(lines) // 2], lines[len(lines) // 2 :]


def _run_and_kill(stage: Stage, seconds: float) -> None:
    """Kill an ingest, unless it has ended, the given seconds after its session is up: before that there is nothing to lose."""
    command = [sys.executable, "-c", INGEST, str(stage.src), str(stage.dst), "200k"]
    said = subprocess.PIPE
    with subprocess.Popen(command, stdout=said, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        assert process.stdout is not None
        assert b"UP\n" in process.stdout
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
