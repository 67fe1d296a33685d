"""The log and the windows on a real HDFS: open files, leases, killed servers. F-W14, F-W18."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest

from penstock import failpoints, unique
from penstock.errors import Fenced, PositionError, StorageError
from penstock.storage import HdfsStorage
from penstock.wal import Log, Position, Reader, Writer, runs
from penstock.windows import WindowStore
from penstock.windows.store import artifact_at
from tests.support.hdfs import MiniHdfs
from tests.support.wait import PATIENCE_SECONDS

RECORDS = [b"%d." % number * (1 + number * 37 % 90) for number in range(40)]

# Appends the records that are not there yet, with a flush for each, and prints what is durable.
PROGRAM = """
import sys
from penstock.wal import Writer
with Writer(sys.argv[1], segment_size=700) as writer:
    for number in range(writer.sequence, 40):
        writer.append(b"%d." % number * (1 + number * 37 % 90))
        writer.flush()
        print(number, flush=True)
"""


@pytest.fixture
def root(hdfs: MiniHdfs) -> str:
    return f"{hdfs.url}/{unique.token()}"


@pytest.fixture
def storage(hdfs: MiniHdfs) -> HdfsStorage:
    return HdfsStorage(hdfs.authority)


def test_a_reader_after_a_live_writer(root: str) -> None:
    """F-W18: a reader sees closed segments and nothing of the open one, which is not damage; with `whole` it sees each flush."""
    with Writer(root, segment_size=700) as writer, Reader(root) as reader:
        seen, last = [], 0
        for record in RECORDS[:12]:
            last = writer.append(record).segment
            writer.flush()
            seen += list(reader)
            assert seen == RECORDS[: len(seen)]
        assert 0 < len(seen) < 12
        assert last > 2
        assert reader.position.segment == last - 1
    assert list(Reader(root)) == RECORDS[:12]
    with Writer(root, whole=True) as writer, Reader(root, Log(root).info().end) as reader:
        for record in RECORDS[12:15]:
            at = writer.append(record)
            writer.flush()
            assert list(reader) == [record]
            with Reader(root, at) as late:
                assert list(late) == [record]
    assert Log(root).verify().records == 15


def read(root: str, start: dict[str, Any], end: dict[str, Any], storage: HdfsStorage) -> list[bytes]:
    """Return the records between two offsets."""
    batches = [batch for run in runs.runs(start, end) for batch in runs.read(root, run, storage)]
    return [row for batch in batches for row in batch.column(2).to_pylist()]


def test_a_log_as_runs_after_a_live_writer(root: str, storage: HdfsStorage) -> None:
    """Runs read what was flushed, each record once; what has been read to its end may be purged."""
    found: list[bytes] = []
    start: dict[str, Any] | None = None
    planner = runs.LogPlanner(root, storage)
    with Writer(root, whole=True) as writer:
        for number in range(0, 12, 3):
            writer.append_many(RECORDS[number : number + 3])
            writer.flush()
            begun = start or runs.begin(root, "earliest", storage)
            end = planner.plan(begun, size=None, split=400)
            assert planner.plan(end, size=None, split=400) == end
            found += read(root, begun, end, storage)
            start = end
    assert found == RECORDS[:12]
    with Writer(root) as writer:
        writer.append(b"last")
        writer.flush()
        gone = Log(root).purge(writer.position)
    assert len(gone) > 2
    assert start is not None
    assert read(root, start, planner.plan(start, size=None, split=400), storage) == [b"last"]
    with pytest.raises(PositionError, match="was purged"):
        Reader(root, Position(1, 120))


def test_a_writer_whose_lease_was_taken(root: str) -> None:
    """F-W14: the replaced writer acknowledges nothing any more; all records that either writer acknowledged are there, once."""
    replaced = Writer(root)
    replaced.append(b"first")
    replaced.flush()
    with Writer(root) as writer:
        writer.append(b"second")
        writer.flush()
        replaced.append(b"lost")
        with pytest.raises((Fenced, StorageError)):
            replaced.flush()
        with pytest.raises((Fenced, StorageError)):
            replaced.flush()
        writer.append(b"third")
    with suppress(StorageError):
        replaced.close()
    assert list(Reader(root)) == [b"first", b"second", b"third"]


@pytest.mark.parametrize(
    "point",
    [
        "storage.sync=kill@5",
        *(
            pytest.param(point, marks=pytest.mark.soak)
            for point in ("storage.write=kill@4", "wal.roll=kill@2", "wal.rolled=kill@3")
        ),
    ],
)
def test_a_writer_that_is_killed(root: str, point: str) -> None:
    """SIGKILL after a write, before a sync, around a roll: acknowledged records are there, and the next writer continues after them."""
    environment = {**os.environ, failpoints.VARIABLE: point}
    command = [sys.executable, "-c", PROGRAM, root]
    killed = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    acknowledged = len(killed.stdout.split())
    assert 0 < acknowledged < 40
    there = list(Reader(root))
    assert there == RECORDS[: len(there)]  # without the last segment, open until another writer takes its lease
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert int(done.stdout.split()[0]) >= acknowledged
    assert list(Reader(root)) == RECORDS


def test_windows_are_loaded_while_the_store_is_open(root: str, storage: HdfsStorage) -> None:
    """A saved artifact can be loaded at once, also by another process; a replaced store cannot save any more."""
    replaced = WindowStore(root)
    for window in range(2):
        replaced.save(window, RECORDS[window])
        at = replaced.position(window)
        assert at is not None
        assert replaced.load(window) == artifact_at(root, at, storage=storage) == RECORDS[window]
    with WindowStore(root) as store:
        assert store.load(1) == RECORDS[1]
        store.save(2, b"two")
        with pytest.raises((Fenced, StorageError)):
            replaced.save(2, b"lost")
        assert store.committed(2) == [1, 2]
        assert (store.load(1), store.load(2)) == (None, b"two")
    with suppress(StorageError):
        replaced.close()


@pytest.mark.soak  # tests that follow may find a NameNode that has just started not ready
def test_windows_survive_their_servers(hdfs: MiniHdfs, root: str) -> None:
    """Every server is killed while a store is open: saved windows are there, the next store continues, and committed ones are removed."""
    store = WindowStore(root, segment_size=700)
    for window in range(5):
        store.save(window, RECORDS[window + 20])
    for daemon in (hdfs.name_node, *hdfs.data_nodes):
        daemon.kill()
    for daemon in (hdfs.name_node, *hdfs.data_nodes):
        daemon.start()
    hdfs.wait()
    with WindowStore(root, segment_size=700) as later:
        assert [later.load(window) for window in range(5)] == RECORDS[20:25]
        assert later.largest_completed() == 4
        later.save(5, b"five")
        assert later.load(5) == b"five"
        assert len(later.committed(5)) > 3
        later.save(6, b"six")
    with WindowStore(root) as later:
        assert [later.load(window) for window in (4, 5, 6)] == [None, b"five", b"six"]
    with pytest.raises((Fenced, StorageError)):
        store.save(5, b"lost")
    with suppress(StorageError):
        store.close()
