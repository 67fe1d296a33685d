"""`penstock ingest` to an HDFS whose servers fail at random: another client then lists and reads every line once."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import unique
from penstock.storage import HdfsStorage
from tests.support.cluster import kill, spark_cluster
from tests.support.hdfs import DATA_NODES, Daemon, MiniHdfs
from tests.support.stage import Stage
from tests.support.wait import wait_for

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(1200), pytest.mark.xdist_group("programs")]

FILES, LINES = 24, 6000
BATCH = ["--max-bytes", "2m", "--source-option", "splitSize=1m", "--roll-size"]
BLOCKS_A_PART = {"many": "6m", "one": "3m"}  # a block has 4 MiB
COMMAND = [sys.executable, "-m", "penstock.cli"]
STARTS_MAX = 12
# Files of the checkpoint that Spark's JVM was writing when it ended: nobody reads them again, and the NameNode closes them in time.
SPARKS_TEMPORARY = re.compile(r"/_penstock/checkpoint/(?:\w+/)?\.[^/]+\.tmp$")


@pytest.fixture
def expected(stage: Stage) -> Counter[str]:
    """Return every line of the input once."""
    lines = {n: [f"{n:02}-{line:05}-{'x' * 90}" for line in range(LINES)] for n in range(FILES)}
    for number, some in lines.items():
        stage.put(f"{number:02}", *some)
    return Counter(line for some in lines.values() for line in some)


@contextlib.contextmanager
def failing(hdfs: MiniHdfs, seed: int) -> Iterator[list[str]]:
    """Have a server killed or stopped every few seconds; yield the list of these faults. After the block all servers run again."""
    draw, end = random.Random(seed), threading.Event()  # noqa: S311 - who fails is no secret
    done: list[str] = []

    def die(node: Daemon) -> None:
        node.kill()
        end.wait(draw.uniform(0, 6))
        hdfs.restart(node)

    def stand_still(node: Daemon) -> None:
        node.signal(signal.SIGSTOP)
        end.wait(draw.uniform(0, 25))
        node.signal(signal.SIGCONT)

    def start_again(_: Daemon) -> None:
        hdfs.name_node.kill()
        end.wait(draw.uniform(0, 6))
        hdfs.name_node.start()
        hdfs.wait()

    def run() -> None:
        while not end.wait(draw.uniform(0, 6)):
            fail, number = draw.choice([die, die, die, stand_still, start_again]), draw.randrange(DATA_NODES)
            done.append(f"{fail.__name__} {number}")
            fail(hdfs.data_nodes[number])

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        end.set()
        thread.join()


def ingest(stage: Stage, dst: str, *options: str, **variables: str) -> int:
    """Run the command until it has ingested everything; return how often it ended with an error, each time in one message."""
    command = [*COMMAND, "ingest", str(stage.src), dst, *BATCH, *options]
    for number in range(STARTS_MAX):
        done = subprocess.run(
            command, env=os.environ | variables, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode == 0:
            return number
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
    pytest.fail(f"not done in {STARTS_MAX} starts")


def check(hdfs: MiniHdfs, stage: Stage, dst: str, expected: Counter[str]) -> None:
    """Raise unless an independent reader gets every line once, `verify` finds nothing, and HDFS has no missing block and no open file."""
    assert hdfs.lines(dst) == expected
    command = [*COMMAND, "verify", dst, "--source", str(stage.src)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = hdfs.fsck(dst)
    assert "is HEALTHY" in said
    open_files = re.findall(r"(/\S+) \d+ bytes, [^/]*?OPENFORWRITE", said)
    assert ("OPENFORWRITE" in said) == bool(open_files), said
    assert [path for path in open_files if not SPARKS_TEMPORARY.search(path)] == []


def test_a_data_node_stays_dead(hdfs: MiniHdfs, stage: Stage, expected: Counter[str]) -> None:
    """One of three DataNodes stays dead: the command writes everything to the others in one start, as Hadoop's own client would."""
    dst = f"{hdfs.url}/{unique.token()}"
    dead = hdfs.data_nodes[0]
    killer = threading.Timer(15, dead.kill)
    killer.start()
    try:
        assert ingest(stage, dst, BLOCKS_A_PART["one"], "--master", "local[2]") == 0
        assert not killer.is_alive()
    finally:
        killer.join()
        hdfs.restart(dead)
    check(hdfs, stage, dst, expected)


@pytest.mark.parametrize("seed", range(5))
def test_servers_fail_under_the_command(hdfs: MiniHdfs, stage: Stage, expected: Counter[str], seed: int) -> None:
    """One server after the other fails and comes back: the command goes on, or ends with an error and continues when it is repeated."""
    dst = f"{hdfs.url}/{unique.token()}"
    with failing(hdfs, seed) as failed:
        ingest(stage, dst, BLOCKS_A_PART["many"], "--master", "local[2]")
    assert failed
    check(hdfs, stage, dst, expected)


def test_servers_and_a_worker_fail_on_a_cluster(
    hdfs: MiniHdfs, stage: Stage, expected: Counter[str], tmp_path: Path
) -> None:
    """The same on a standalone cluster that belongs to another user; one of its workers is killed with its executor."""
    home, storage = f"{hdfs.url}/{unique.token()}", HdfsStorage(hdfs.authority)
    storage.make_directory(home)
    storage._hdfs.chmod(home.removeprefix(hdfs.url), 0o777)
    (tmp_path / "spark-defaults.conf").write_text("spark.executor.memory 512m\n")

    def kill_a_worker() -> None:
        wait_for(lambda: visible(hdfs, f"{home}/out"), "a file", 600)
        kill(cluster.workers[0])

    with spark_cluster(tmp_path) as cluster, failing(hdfs, 0):
        killer = threading.Thread(target=kill_a_worker)
        killer.start()
        ingest(
            stage,
            f"{home}/out",
            BLOCKS_A_PART["many"],
            "--master",
            cluster.url,
            SPARK_CONF_DIR=str(tmp_path),
            HADOOP_USER_NAME="ann",
        )
        killer.join()
    check(hdfs, stage, f"{home}/out", expected)


def visible(hdfs: MiniHdfs, dst: str) -> bool:
    """Tell whether an independent reader sees a line, provided that the servers let it look."""
    with contextlib.suppress(OSError):
        return bool(hdfs.lines(dst))
    return False
