"""A Spark cluster: executors that have only the code that the session ships to them, and a worker that is killed."""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.sink.existing import sink_ids
from penstock.sink.sink import Sink
from penstock.storage import LocalStorage
from penstock.verify import verify
from tests.support.cluster import SPARK_HOME, java_options, kill, spark_cluster, started
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from tests.support.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("programs")]

# The transform adds to each line the file from which the executor loaded Penstock. A cluster's session belongs to the user.
INGEST = """
import os, sys
from pyspark.sql import SparkSession
src, dst, master = sys.argv[1:]
builder = SparkSession.builder.master(master)
for name, value in {
    "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
    "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()

def told(batch):
    import penstock
    import pyarrow as pa
    lines = [f"{line} {penstock.__file__}" for line in batch.column(0).to_pylist()]
    return pa.record_batch([pa.array(lines, pa.string())], ["value"])

import penstock
options = {"source": {"maxBytesPerTrigger": "20k", "splitSize": "10k"}, "sink": {"rollSize": "20k"}, "transform": told}
print(penstock.ingest(spark, src, dst, **options).rows)
print("DONE")
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return an archive of Penstock's code."""
    source = Path(penstock.__file__).parent.parent
    archive = tmp_path / "code.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for path in sorted(source.glob("*penstock/**/*")):
            if path.suffix != ".pyc":
                made.write(path, path.relative_to(source))
    return archive


def fill(stage: Stage, files: int = 12, lines: int = 400) -> Counter[str]:
    """Write input files; return their lines."""
    for i in range(files):
        stage.put(f"f{i:02}", *(f"{i:02}-{j:04}-{'x' * 30}" for j in range(lines)))
    return Counter(f"{i:02}-{j:04}-{'x' * 30}" for i in range(files) for j in range(lines))


def check(stage: Stage, expected: Counter[str], log: Path) -> None:
    """Raise if a line is not there exactly once, was not made by the archive's code, or differs from the ledger."""
    assert "DONE" in log.read_text(), log.read_text()[-3000:]
    assert Counter(line.split(" ")[0] for line in stage.lines().elements()) == expected
    assert [line for line in stage.lines() if "code.zip/penstock/" not in line][:1] == []
    assert verify(str(stage.dst)).ok


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a machine that has the libraries but no Penstock: `-S` leaves out the paths that `.pth` files name."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    python.chmod(0o755)
    return {
        "PYSPARK_PYTHON": str(python),
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "SPARK_HOME": SPARK_HOME,
        "SPARK_SUBMIT_OPTS": java_options(),
    }


@pytest.fixture
def driver_variables(variables: dict[str, str], code: Path) -> dict[str, str]:
    """Return the environment of a driver, which has the archive as well."""
    return variables | {"PYTHONPATH": os.pathsep.join([variables["PYTHONPATH"], str(code)])}


@pytest.mark.soak  # a session, from Spark's own script
def test_py_files(stage: Stage, variables: dict[str, str], code: Path) -> None:
    """`spark-submit --py-files` is enough, though Spark does not give these files to the processes in which it plans a query."""
    expected = fill(stage, files=2)
    log, program = stage.root / "driver.log", stage.root / "program.py"
    own = INGEST.replace('"spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],', "")
    program.write_text(own.replace("import penstock\noptions", "import penstock\npenstock.register(spark)\noptions"))
    words = ["--py-files", str(code), str(program), str(stage.src), str(stage.dst), "local[2]"]
    submit = f"{SPARK_HOME}/bin/spark-submit"
    with started(submit, *words, log=log, **variables) as driver:
        driver.wait(300)
    check(stage, expected, log)


@pytest.mark.soak
def test_tasks_without_a_query(stage: Stage, tmp_path: Path, driver_variables: dict[str, str]) -> None:
    """An ingest without a function of its user is no query (see `ingestion.sparktasks`): its tasks, too, run on the executors."""
    expected = fill(stage)
    log = tmp_path / "driver.log"
    arguments = [str(stage.src), str(stage.dst), "local-cluster[2,1,512]"]
    plain = INGEST.replace(', "transform": told', "")
    with started(sys.executable, "-c", plain, *arguments, log=log, **driver_variables) as driver:
        driver.wait(300)
    assert "DONE" in log.read_text(), log.read_text()[-3000:]
    assert stage.lines() == expected
    assert verify(str(stage.dst), source=str(stage.src)).ok


@pytest.mark.soak
def test_local_cluster(stage: Stage, driver_variables: dict[str, str]) -> None:
    """Two executors in separate processes run the code that the session ships, and every line is there once."""
    expected = fill(stage)
    log = stage.root / "driver.log"
    arguments = [str(stage.src), str(stage.dst), "local-cluster[2,1,512]"]
    with started(sys.executable, "-c", INGEST, *arguments, log=log, **driver_variables) as driver:
        driver.wait(300)
    check(stage, expected, log)


@pytest.mark.soak  # it takes a minute; `test_faults.py` tests a task whose worker dies
def test_a_worker_is_killed(
    stage: Stage, tmp_path: Path, variables: dict[str, str], driver_variables: dict[str, str]
) -> None:
    """One of two hosts dies with its executor in the middle of the run: the other continues, and every line is there once."""
    expected = fill(stage)
    log = stage.root / "driver.log"
    with spark_cluster(tmp_path, **variables) as cluster:
        arguments = [str(stage.src), str(stage.dst), cluster.url]
        with started(sys.executable, "-c", INGEST, *arguments, log=log, **driver_variables) as driver:
            wait_for(lambda: committed(stage) >= 2 or driver.poll() is not None, "two batches")
            assert driver.poll() is None, log.read_text()[-3000:]
            kill(cluster.workers[0])
            before = committed(stage)
            driver.wait(300)
        assert committed(stage) > before
    check(stage, expected, log)


@pytest.mark.soak
def test_the_command_on_a_cluster(stage: Stage) -> None:
    """Only `--master` changes: executors in separate processes find the driver's Python, each runs a task, every line is there once."""
    expected = fill(stage)
    log = stage.root / "driver.log"
    command = [sys.executable, "-m", "penstock.cli", "ingest", str(stage.src), str(stage.dst)]
    with started(*command, "--master", "local-cluster[3,1,1024]", log=log) as ingest:
        assert ingest.wait(300) == 0, log.read_text()[-3000:]
    assert stage.lines() == expected
    assert verify(str(stage.dst)).ok
    (name,) = sink_ids(LocalStorage(), f"{stage.dst}/_penstock")
    noted = Sink.existing(LocalStorage(), str(stage.dst), name).note.stage
    assert noted is not None
    assert noted.tasks == 3


def committed(stage: Stage) -> int:
    """Return how many batches Spark has committed."""
    commits = stage.dst / "_penstock" / "checkpoint" / "commits"
    return len([name for name in os.listdir(commits) if name.isdigit()]) if commits.is_dir() else 0
