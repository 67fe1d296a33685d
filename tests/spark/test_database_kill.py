"""Real drivers that write to a database: killed with SIGKILL at every step, and one that stands still while another takes over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter

import psutil
import pytest

from tests.support.database import Place
from tests.support.postgres import Postgres
from tests.support.stage import Stage, run_python
from tests.support.wait import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.xdist_group("programs"), pytest.mark.timeout(600)]

QUERY = """
import sys, penstock
src, checkpoint, url, table = sys.argv[1:]
spark = penstock.local_session("local[2]")
lines = spark.readStream.format("penstock").option("maxFilesPerTrigger", 2).option("splitSize", "1k").load(src)
options = {"url": url, "table": table, "batchTable": table + "_batches", "mode": "merge", "keyColumns": "line"}
writer = lines.selectExpr("value AS line", "1L AS n").writeStream.format("penstock-db").options(**options)
query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
print("DONE")
"""
POINTS = ["staged", "commit.begun", "commit.some-rows", "commit.before-id", "commit.before-commit", "commit.done"]


def fill(stage: Stage) -> Counter[str]:
    """Write files that need many batches; return their lines."""
    texts = [[f"{i} line {j} {'x' * 30}" for j in range(100)] for i in range(2 * len(POINTS) + 4)]
    for i, text in enumerate(texts):
        stage.put(f"f{i:02}", *text)
    return Counter(line for text in texts for line in text)


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_driver_is_killed_at_each_step(stage: Stage, postgres: Postgres, kind: str) -> None:
    """D2: all of Spark, and the PostgreSQL server with it, is killed at one step after another: every line is counted once."""
    expected = fill(stage)
    place = Place(postgres.url if kind == "postgresql" else f"sqlite://{stage.root}/x.db")
    arguments = (str(stage.src), str(stage.checkpoint), place.url, place.table)
    for point in POINTS:
        killed = run_python(QUERY, *arguments, failpoints=f"db.{point}=kill-jvm@2")
        assert "DONE" not in killed.stdout, f"{point} was never reached"
        postgres.restart()
        seen = dict(place.rows())
        assert set(seen.values()) <= {1}, point
        assert len(seen) == 200 * (place.last() + 1), point
    final = run_python(QUERY, *arguments)
    assert "DONE" in final.stdout, final.stderr[-3000:]
    assert dict(place.rows()) == expected


def test_driver_that_stood_still_is_fenced(stage: Stage, postgres: Postgres) -> None:
    """F-D4: SIGSTOP stops a driver before a commit, and another driver finishes the work; the first then continues, and changes nothing."""
    expected = fill(stage)
    place = Place(postgres.url)
    arguments = (str(stage.src), str(stage.checkpoint), place.url, place.table)
    command = [sys.executable, "-c", QUERY, *arguments]
    environment = os.environ | {"PENSTOCK_FAILPOINTS": "db.commit.begun=stop@2"}
    first = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )

    def stopped() -> list[psutil.Process]:
        below = psutil.Process(first.pid).children(recursive=True)
        return [each for each in below if each.status() == psutil.STATUS_STOPPED]

    wait_for(stopped, "a driver that stands still")
    (still,) = stopped()
    second = run_python(QUERY, *arguments)
    assert "DONE" in second.stdout, second.stderr[-3000:]
    still.send_signal(signal.SIGCONT)
    out, err = first.communicate(timeout=120)
    assert "DONE" not in out
    assert "PST-301" in err, err[-3000:]
    assert dict(place.rows()) == expected
