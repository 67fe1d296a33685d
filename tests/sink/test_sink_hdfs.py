"""The sink on a real HDFS: its process is killed at every step, started again, and the output read by another client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from penstock import failpoints, unique
from penstock.storage import HdfsStorage
from tests.support.hdfs import MiniHdfs

BATCHES = 4
LINES = 20  # a task and batch
WRITERS = 2

# What Spark does, without Spark: a restart begins again with the last batch it knows of.
PROGRAM = """
import sys
import pyarrow as pa
from penstock.options import SINK, parse
from penstock.sink.sink import Batch, Sink
from penstock.storage import locate

BATCHES, LINES, WRITERS = map(int, sys.argv[2:5])
given = dict(pair.split("=") for pair in sys.argv[5:])
storage, root = locate(sys.argv[1])
sink = Sink(storage, root, parse(SINK, {"path": root, **given}, what="sink"), "s")
for number in range(max(sink.ledger.head().last_batch("q"), 0), BATCHES):
    batch = Batch("q", number, f"offsets of {number}", number == BATCHES - 1)
    begun = sink.begin("driver", batch)
    results = []
    for writer in range(WRITERS):
        rows = pa.record_batch({"value": [f"{number}-{writer}-{line}" for line in range(LINES)]})
        results.append(sink.write(begun, "q", number, writer, rows.schema, iter([rows])))
    sink.commit(batch, results)
sink.finish("driver")
"""


def run(root: str, *options: str, kill: str = "") -> int:
    """Run the program once; return how it ended."""
    sizes = map(str, (BATCHES, LINES, WRITERS))
    environment = {**os.environ, failpoints.VARIABLE: f"{kill[:-2]}=kill@{kill[-1]}" if kill else ""}
    command = [sys.executable, "-c", PROGRAM, root, *sizes, *options]
    return subprocess.run(command, env=environment, check=False, timeout=120).returncode


def lines(hdfs: MiniHdfs, storage: HdfsStorage, root: str) -> Counter[str]:
    """Return every line that a reader sees, by a client that is not ours."""
    names = [entry.name for entry in storage.list(root) if not entry.is_directory and entry.name[0] not in "._"]
    found = [line for name in names for line in hdfs.cat(f"{root}/{name}").decode().split("\n")]
    return Counter(filter(None, found))


def expected(batches: int = BATCHES) -> Counter[str]:
    """Return every line once."""
    return Counter(f"{b}-{w}-{line}" for b in range(batches) for w in range(WRITERS) for line in range(LINES))


@pytest.mark.parametrize(
    "kill",
    [
        "storage.create@2",
        "storage.write@3",
        "storage.sync@4",
        "sink.write.before-sync@1",
        "sink.write.before-pack-sync@3",
        "sink.write.staged@4",
        "storage.put.sync@3",
        "storage.put.link@1",
        "storage.put.link@4",
        "sink.ledger.before-put@3",
        "sink.ledger.after-put@3",
        "sink.publish.one@2",
        "storage.publish@3",
        "sink.publish.before-note@2",
        "sink.forget@3",
        "storage.delete@2",
    ],
)
def test_killed_anywhere_and_started_again(hdfs: MiniHdfs, kill: str) -> None:
    """However a process ends, nobody ever sees a line twice; after the next start every line is there once."""
    storage, root = HdfsStorage(hdfs.authority), f"{hdfs.url}/{unique.token()}"
    options = ["rollRows=30", "mergeBelow=1"]
    assert run(root, *options, kill=kill) == -signal.SIGKILL
    seen = lines(hdfs, storage, root)
    assert not seen - expected()
    assert run(root, *options) == 0
    assert lines(hdfs, storage, root) == expected()
    assert not seen - lines(hdfs, storage, root)
    assert not list(storage.names(f"{root}/_penstock/s/staging"))


@pytest.mark.parametrize(
    "kill", ["sink.publish.grow@2", "storage.write@8", "sink.publish.before-note@2", "storage.sync@9"]
)
def test_killed_while_a_file_grows(hdfs: MiniHdfs, kill: str) -> None:
    """A growing file whose process was killed, in the middle of an append too, ends with every line once, in order."""
    root = f"{hdfs.url}/{unique.token()}"
    options = ["growing=true", "fileName=all.txt"]
    assert run(root, *options, kill=kill) == -signal.SIGKILL
    assert run(root, *options) == 0
    assert hdfs.cat(f"{root}/all.txt").decode().split() == list(expected())
