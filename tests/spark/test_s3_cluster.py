"""A Spark cluster whose workers write to one object store: a worker and a driver are killed."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.verify import verify
from tests.support.cluster import SPARK_HOME, java_options, kill, spark_cluster, started
from tests.support.required import missing_store
from tests.support.stores import NoStore, StoreServer, running, use
from tests.support.wait import wait_for

if TYPE_CHECKING:
    import subprocess

pytestmark = [
    pytest.mark.spark,
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("programs"),
]

INGEST = """
import os, sys
from pyspark.sql import SparkSession
src, dst, checkpoint, master = sys.argv[1:]
builder = SparkSession.builder.master(master)
for name, value in {
    "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
import penstock
options = {"source": {"maxBytesPerTrigger": "20k", "splitSize": "10k"}, "sink": {"rollSize": "20k"}}
print(penstock.ingest(spark, src, dst, checkpoint=checkpoint, **options).rows)
print("DONE")
"""
FILES, LINES = 24, 400
DRIVER_SECONDS = 400


@pytest.fixture(params=["versitygw", "minio", "moto"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreServer]:
    """Yield each object store that is available here, for this process and all processes that it starts."""
    directory = tmp_path / "store"
    directory.mkdir()
    try:
        with running(request.param, directory) as server:
            use(server, monkeypatch)
            yield server
    except NoStore as error:
        missing_store(request.param, error)


def filled(store: StoreServer) -> Counter[str]:
    """Put input files; return their lines."""
    lines = [[f"{file:02}-{number:04}-{'x' * 30}" for number in range(LINES)] for file in range(FILES)]
    with closing(store.client()) as client:
        for number, own in enumerate(lines):
            data = "".join(f"{line}\n" for line in own).encode()
            client.put_object(Bucket="bucket", Key=f"in/{number:02}.txt", Body=data)
    return Counter(line for own in lines for line in own)


def visible(store: StoreServer) -> Counter[str]:
    """Return how often each line is in a finished object, read by boto3."""
    lines: Counter[str] = Counter()
    with closing(store.client()) as client:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix="out/", Delimiter="/")
        for key in [found["Key"] for page in pages for found in page.get("Contents", ())]:
            if key.removeprefix("out/")[0] not in "._":
                lines.update(client.get_object(Bucket="bucket", Key=key)["Body"].read().decode().splitlines())
    return lines


def committed(checkpoint: Path) -> int:
    """Return how many batches Spark has committed."""
    commits = checkpoint / "commits"
    return len([name for name in os.listdir(commits) if name.isdigit()]) if commits.is_dir() else 0


def test_a_worker_and_a_driver_are_killed(store: StoreServer, tmp_path: Path) -> None:
    """One of two hosts dies with its executor, then the driver dies: the next driver has every input line in its output, once."""
    source, output = f"{store.make('bucket')}/in", "s3://bucket/out"
    expected, checkpoint = filled(store), tmp_path / "checkpoint"
    variables = {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": SPARK_HOME, "SPARK_SUBMIT_OPTS": java_options()}
    with ExitStack() as stack:
        cluster = stack.enter_context(spark_cluster(tmp_path, **variables))

        def driver(number: int) -> tuple[subprocess.Popen[bytes], Path]:
            log = tmp_path / f"driver-{number}.log"
            arguments = [source, output, str(checkpoint), cluster.url]
            command = [sys.executable, "-c", INGEST, *arguments]
            return stack.enter_context(started(*command, log=log, **variables)), log

        def goes_on(process: subprocess.Popen[bytes], log: Path, batches: int) -> None:
            wait_for(
                lambda: committed(checkpoint) >= batches or process.poll() is not None,
                f"{batches} batches",
                DRIVER_SECONDS,
            )
            assert process.poll() is None, log.read_text()[-3000:]

        first, log = driver(1)
        goes_on(first, log, 2)
        kill(cluster.workers[0])
        goes_on(first, log, committed(checkpoint) + 2)
        kill(first)
        assert "DONE" not in log.read_text(), "it was done before it was killed"
        assert not visible(store) - expected
        second, log = driver(2)
        assert second.wait(DRIVER_SECONDS) == 0, log.read_text()[-3000:]
    assert visible(store) == expected
    assert verify(output, source).ok
