"""Processes of a test that must not outlive it, and a cluster of Spark's made of them."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyspark

from penstock.session import archive
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTS = ("127.0.0.2", "127.0.0.3")
SPARK_HOME = str(Path(pyspark.__file__).resolve().parent)


@contextmanager
def started(*command: str, log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command that writes to `log`; when the block ends, the command and all that it has started are gone."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=os.environ | variables, stdout=out, stderr=out, start_new_session=True)
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill a process and all its descendants. List them first: nobody can find the descendants of a dead process any more."""
    for member in family(process):
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def family(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    """Return a process and all its descendants: Spark's Python workers have process groups of their own."""
    try:
        top = psutil.Process(process.pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def java_options() -> str:
    """Return options for the JVMs of a cluster. They are many and live for seconds, so they use the archive of `penstock warmup`."""
    return " ".join([os.environ.get("SPARK_SUBMIT_OPTS", archive.QUICK_COMPILER), *archive.flags()])


@dataclass(frozen=True)
class SparkCluster:
    """A standalone master and its workers: one worker with one core on each of `HOSTS`."""

    url: str
    workers: tuple[subprocess.Popen[bytes], ...]


@contextmanager
def spark_cluster(directory: Path, **variables: str) -> Iterator[SparkCluster]:
    """Yield a cluster that keeps its logs below `directory`; all its processes get the environment variables."""
    spark_class, log = f"{SPARK_HOME}/bin/spark-class", directory / "master.log"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    url = f"spark://127.0.0.1:{port}"
    variables |= {
        "SPARK_HOME": SPARK_HOME,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": java_options(),
    }
    with ExitStack() as running:
        name = "org.apache.spark.deploy.master.Master"
        arguments = ["--host", "127.0.0.1", "--port", port, "--webui-port", "0"]
        running.enter_context(started(spark_class, name, *arguments, log=log, **variables))
        wait_for(lambda: "New state: ALIVE" in log.read_text(), "the master")
        workers = []
        for host in HOSTS:
            name = "org.apache.spark.deploy.worker.Worker"
            arguments = ["--host", host, "--cores", "1", "--memory", "512m", "--webui-port", "0", "--work-dir"]
            arguments += [str(directory / host), url]
            worker = started(spark_class, name, *arguments, log=directory / f"{host}.log", **variables)
            workers.append(running.enter_context(worker))
        wait_for(lambda: log.read_text().count("Registering worker") == len(HOSTS), "the workers")
        yield SparkCluster(url, tuple(workers))
