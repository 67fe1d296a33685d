"""The sink on a real HDFS: its process is killed at every step and restarted, and another client reads the output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock import failpoints, unique
from penstock.errors import Fenced, FilesCleaned, NoSpace, StorageError
from penstock.options import SINK, parse
from penstock.sink.sink import Batch, Begun, Sink, TaskResult
from penstock.source.cleaned import Marks, Reached, check_not_cleaned_since, home_of
from penstock.storage import HdfsStorage, _hdfs
from tests.support.hdfs import MiniHdfs

if TYPE_CHECKING:
    from penstock.storage._base import Data
    from penstock.storage._hdfs_calls import HdfsWriter

BATCHES = 4
LINES = 20  # per task and batch
WRITERS = 2

# What Spark does, without Spark: a restart begins with the last batch that it knows.
PROGRAM = """
import os, sys
import pyarrow as pa
from penstock.options import SINK, parse
from penstock.sink.sink import Batch, Sink
from penstock.storage import locate

BATCHES, LINES, WRITERS = map(int, sys.argv[2:5])
given = dict(pair.split("=") for pair in sys.argv[5:])
storage, root = locate(sys.argv[1])
driver = f"driver {os.getpid()}"
sink = Sink(storage, root, parse(SINK, {"path": root, **given}, what="sink"), "s")
for number in range(max(sink.ledger.head().last_batch("q"), 0), BATCHES):
    batch = Batch("q", number, f"offsets of {number}", number == BATCHES - 1)
    begun = sink.begin(driver, batch)
    results = []
    for writer in range(WRITERS):
        rows = pa.record_batch({"value": [f"{number}-{writer}-{line}" for line in range(LINES)]})
        results.append(sink.write(begun, "q", number, writer, rows.schema, iter([rows])))
    sink.commit(batch, results)
sink.finish(driver)
"""


def run(root: str, *options: str, kill: str = "") -> int:
    """Run the program once; return its exit status."""
    sizes = map(str, (BATCHES, LINES, WRITERS))
    environment = {**os.environ, failpoints.VARIABLE: f"{kill[:-2]}=kill@{kill[-1]}" if kill else ""}
    command = [sys.executable, "-c", PROGRAM, root, *sizes, *options]
    return subprocess.run(command, env=environment, check=False, timeout=120).returncode


def play(sink: Sink) -> None:
    """Do the same as the program, in this process."""
    for number in range(max(sink.ledger.head().last_batch("q"), 0), BATCHES):
        batch = Batch("q", number, f"offsets of {number}", final=number == BATCHES - 1)
        begun = sink.begin("driver", batch)
        sink.commit(batch, [write(sink, begun, number, writer) for writer in range(WRITERS)])
    sink.finish("driver")


def write(sink: Sink, begun: Begun, number: int, writer: int) -> TaskResult:
    """Write the rows of one task in a batch."""
    rows = pa.record_batch({"value": [f"{number}-{writer}-{line}" for line in range(LINES)]})
    return sink.write(begun, "q", number, writer, rows.schema, iter([rows]))


def expected(batches: int = BATCHES) -> Counter[str]:
    """Return every line once."""
    return Counter(f"{b}-{w}-{line}" for b in range(batches) for w in range(WRITERS) for line in range(LINES))


KILLS = ["storage.put.link@4", "sink.ledger.after-put@3"]
MORE_KILLS = [
    "storage.sync@4",
    "storage.put.sync@3",
    "storage.publish@3",
    "storage.create@2",
    "storage.write@3",
    "sink.write.before-sync@1",
    "sink.write.before-pack-sync@3",
    "sink.write.staged@4",
    "storage.put.link@1",
    "sink.ledger.before-put@3",
    "sink.publish.one@2",
    "sink.publish.before-note@2",
    "sink.forget@3",
    "storage.delete@2",
]  # the simulated HDFS explores each of them in every run


@pytest.mark.parametrize("kill", [*KILLS, *(pytest.param(kill, marks=pytest.mark.soak) for kill in MORE_KILLS)])
def test_killed_anywhere_and_started_again(hdfs: MiniHdfs, kill: str) -> None:
    """However a process ends, nobody ever sees a line twice; after the next start every line is there once, and no file is open."""
    storage, root = HdfsStorage(hdfs.authority), f"{hdfs.url}/{unique.token()}"
    options = ["rollRows=30", "mergeBelow=1"]
    assert run(root, *options, kill=kill) == -signal.SIGKILL
    seen = hdfs.lines(root)
    assert not seen - expected()
    assert run(root, *options) == 0
    assert hdfs.lines(root) == expected()
    assert not seen - hdfs.lines(root)
    assert not list(storage.names(f"{root}/_penstock/s/staging"))
    assert "OPENFORWRITE" not in hdfs.fsck(root)


@pytest.mark.parametrize(
    "kill",
    [
        "storage.write@8",
        *(
            pytest.param(kill, marks=pytest.mark.soak)
            for kill in ("sink.publish.grow@2", "sink.publish.before-note@2", "storage.sync@9")
        ),
    ],
)
def test_killed_while_a_file_grows(hdfs: MiniHdfs, kill: str) -> None:
    """A process is killed while a file grows, also in the middle of an append: the file ends with every line once, in order."""
    root = f"{hdfs.url}/{unique.token()}"
    options = ["growing=true", "fileName=all.txt"]
    assert run(root, *options, kill=kill) == -signal.SIGKILL
    assert run(root, *options) == 0
    assert hdfs.cat(f"{root}/all.txt").decode().split() == list(expected())
    assert "OPENFORWRITE" not in hdfs.fsck(root)


@pytest.mark.soak
@pytest.mark.parametrize("kill", ["sink.publish.grow@9", "storage.sync@9"])
def test_killed_while_many_files_grow(hdfs: MiniHdfs, kill: str) -> None:
    """Files named by rows, forty per batch, whose process is killed while some of them grow: every line is once in the file it names."""
    root = f"{hdfs.url}/{unique.token()}"
    options = ["growing=true", "fileName=n-{value}.txt"]
    assert run(root, *options, kill=kill) == -signal.SIGKILL
    assert not hdfs.lines(root) - expected()
    assert run(root, *options) == 0
    assert hdfs.lines(root) == expected()
    assert hdfs.cat(f"{root}/n-0-1-7.txt").decode() == "0-1-7\n"
    assert "OPENFORWRITE" not in hdfs.fsck(root)


# -- servers that fail -------------------------------------------------------------------------------------------------

At = Callable[[str, int, Callable[[], object]], None]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> At:
    """Return a function that has something done in this process at the n-th hit of a failpoint."""
    waiting: dict[str, tuple[int, Callable[[], object]]] = {}

    def hit(name: str) -> None:
        if name in waiting:
            left, action = waiting.pop(name)
            if left > 1:
                waiting[name] = left - 1, action
            else:
                action()

    def arm(name: str, number: int, action: Callable[[], object]) -> None:
        waiting[name] = number, action

    monkeypatch.setattr(failpoints, "hit", hit)
    monkeypatch.setattr(_hdfs, "_PATIENCE_SECONDS", (0.5, 1.0))
    return arm


@pytest.fixture
def sink(hdfs: MiniHdfs) -> Iterator[Sink]:
    """Return a sink on HDFS; after the test its output must be complete, with nothing open, missing or left over."""
    root = f"{hdfs.url}/{unique.token()}"
    made = Sink(
        HdfsStorage(hdfs.authority),
        root,
        parse(SINK, {"path": root, "rollRows": "30", "mergeBelow": "1"}, what="sink"),
        "s",
    )
    yield made
    play(made)
    assert hdfs.lines(root) == expected()
    assert not list(made.storage.names(made.staging))
    said = hdfs.fsck(root)
    assert "is HEALTHY" in said
    assert "OPENFORWRITE" not in said, said


def interrupted(sink: Sink) -> StorageError | None:
    """Play until something fails, and return the error; nobody sees uncommitted rows, or anything twice."""
    try:
        play(sink)
    except StorageError as error:
        return error
    finally:
        assert not seen(sink) - expected()
    return None


def seen(sink: Sink) -> Counter[str]:
    """Return every line that a reader sees, read by our client, which can read even if a DataNode is dead."""
    entries = [entry for entry in sink.storage.list(sink.root) if not entry.is_directory]
    found = [line for e in entries for line in sink.storage.read(f"{sink.root}/{e.name}").decode().split("\n")]
    return Counter(filter(None, found))


@pytest.mark.parametrize(
    ("point", "number"),
    [
        pytest.param("storage.write", 6, id="a segment"),
        pytest.param("sink.write.before-sync", 3, id="an assembly", marks=pytest.mark.soak),
        pytest.param("sink.ledger.after-put", 4, id="put and not published", marks=pytest.mark.soak),
    ],
)
def test_a_data_node_dies(hdfs: MiniHdfs, sink: Sink, at: At, point: str, number: int) -> None:
    """A DataNode is killed during a batch and not yet noticed: the batch succeeds or fails; with the DataNode back it continues."""
    at(point, number, hdfs.data_nodes[1].kill)
    try:
        interrupted(sink)
    finally:
        hdfs.restart(hdfs.data_nodes[1])


@pytest.mark.soak  # takes half a minute; the test above lets one DataNode die
def test_two_of_three_data_nodes_die(hdfs: MiniHdfs, sink: Sink, at: At) -> None:
    """With one DataNode left, each write is an error that names the file, and reads still work; with the others back everything works."""

    def kill_two() -> None:
        for node in hdfs.data_nodes[:2]:
            node.kill()

    at("sink.ledger.after-put", 3, kill_two)
    try:
        for _ in range(2):
            error = interrupted(sink)
            assert error is not None
            assert "/_penstock/s/" in str(error)
        assert seen(sink)
    finally:
        for node in hdfs.data_nodes[:2]:
            hdfs.restart(node)


@pytest.mark.soak  # takes half a minute
def test_the_name_node_is_started_again_in_mid_batch(hdfs: MiniHdfs, sink: Sink, at: At) -> None:
    """The sink waits for a killed NameNode to come back; the batch succeeds, or fails because of safe mode or a lost answer."""

    def again() -> None:
        hdfs.name_node.kill()
        hdfs.name_node.start()
        hdfs.wait()

    at("sink.write.staged", 4, again)
    error = interrupted(sink)
    assert error is None or "safe mode" in str(error) or "disconnected" in str(error)


def test_safe_mode_in_mid_batch(hdfs: MiniHdfs, sink: Sink, at: At) -> None:
    """Safe mode after the put of a record fails the commit with a typed error; the next start publishes what was decided."""
    at("sink.ledger.after-put", 3, lambda: hdfs.admin("-safemode", "enter"))
    try:
        error = interrupted(sink)
        assert error is not None
        assert "safe mode" in str(error)
    finally:
        hdfs.admin("-safemode", "leave")


def test_quota_in_mid_batch(hdfs: MiniHdfs, sink: Sink, at: At) -> None:
    """An exceeded quota fails the whole batch with `NoSpace`; after the quota is raised the same calls succeed."""
    at("sink.write.staged", 4, lambda: hdfs.quota(sink.root, size=1))
    assert type(interrupted(sink)) is NoSpace
    hdfs.quota(sink.root, size=-1)


def test_a_zombies_segment_appears_after_the_commit(hdfs: MiniHdfs, sink: Sink) -> None:
    """An executor that was given up writes its segments after its batch was committed: they are never visible, and are swept."""
    batch = Batch("q", 0, "offsets of 0")
    begun = sink.begin("driver", batch)
    sink.commit(batch, [write(sink, begun, 0, writer) for writer in range(WRITERS)])
    before = set(sink.storage.names(sink.staging))
    write(sink, begun, 0, 1)
    assert len(set(sink.storage.names(sink.staging)) - before) == 1


def test_an_overtaken_driver_is_fenced_wherever_it_stands(hdfs: MiniHdfs) -> None:
    """Another driver sweeps the file that a task still writes, and takes the number of the commit: `Fenced`, and nothing else."""
    root = f"{hdfs.url}/{unique.token()}"
    sink = Sink(HdfsStorage(hdfs.authority), root, parse(SINK, {"path": root}, what="sink"), "s")
    batch = Batch("q", 0, "offsets of 0")
    begun = sink.begin("driver 1", batch)
    staged = [write(sink, begun, 0, writer) for writer in range(WRITERS)]

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": ["x" * 5000] * 2000})
        assert len(set(sink.storage.names(sink.staging))) > len(staged)
        taken = sink.begin("driver 2", batch)
        sink.commit(batch, [write(sink, taken, 0, writer) for writer in range(WRITERS)])
        yield pa.record_batch({"value": ["x" * 5000] * 2000})

    with pytest.raises(Fenced, match="let it start again to take the sink over"):
        sink.write(begun, "q", 0, 0, pa.schema([("value", pa.string())]), overtaken())
    with pytest.raises(Fenced, match="let it start again to take the sink over"):
        sink.commit(batch, staged)
    sink.finish()
    assert hdfs.lines(root) == expected(1)


def test_what_a_failed_task_staged_is_closed_and_gone(hdfs: MiniHdfs, sink: Sink) -> None:
    """A task whose rows end with an error in the middle of a pack, and after whole parts, leaves no file, open or closed."""
    begun = sink.begin("driver", Batch("q", 0, "offsets of 0"))

    def failing() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            yield pa.record_batch({"value": [f"{line}" for line in range(LINES)]})
        msg = "the rows end here"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="the rows end here"):
        sink.write(begun, "q", 0, 0, pa.schema([("value", pa.string())]), failing())
    assert list(sink.storage.names(sink.staging)) == []


def test_marks_of_what_was_cleaned(hdfs: MiniHdfs) -> None:
    """The last mark of a reader alone stays; a checkpoint that knows less is refused, one that knows as much is not."""
    storage, root = HdfsStorage(hdfs.authority), f"{hdfs.url}/{unique.token()}"
    storage.make_directory(home_of(root, "r"))
    for files in (3, 5, 4, 5):
        Marks(storage, root).mark("r", Reached(0, files))
    Marks(storage, root).mark("r", Reached(1, 2))
    assert list(storage.names(home_of(root, "r"))) == ["cleaned-1-2"]
    offset = {"reader": "r", "resets": 1, "cursor": None}
    check_not_cleaned_since(storage, root, {**offset, "read": [2, 0]})
    with pytest.raises(FilesCleaned, match="found 1 file planned, expected 2 or more"):
        check_not_cleaned_since(storage, root, {**offset, "read": [1, 0]})


def test_a_batch_waits_for_two_closes(hdfs: MiniHdfs) -> None:
    """Between its begin and its commit a small batch closes two files with data: the pack of its task, and its record."""
    storage = HdfsStorage(hdfs.authority)
    root = f"{hdfs.url}/{unique.token()}"
    closed: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(storage._hdfs, name)

        def create(self, path: str, mode: int, replicas: int = 0) -> object:
            return Counted(storage._hdfs.create(path, mode, replicas))

    class Counted:
        def __init__(self, file: HdfsWriter) -> None:
            self._file = file
            self._size = 0

        def write(self, data: Data) -> int:
            self._size += len(memoryview(data))
            return self._file.write(data)

        def hsync(self, seconds: float) -> None:
            self._file.hsync(seconds)

        def close(self) -> None:
            self._file.close()
            closed.append(self._size)

    counting = HdfsStorage(hdfs.authority, Counting())  # type: ignore[arg-type]
    sink = Sink(counting, root, parse(SINK, {"path": root}, what="sink"), "s")
    for number in range(3):
        batch = Batch("q", number, f"offsets of {number}")
        begun = sink.begin("driver", batch)
        closed.clear()
        sink.commit(batch, [write(sink, begun, number, 0)])
        assert len([size for size in closed if size]) == 2
