"""The advice of errors of the log and the window store is followed: acknowledged records are there once, and it goes on."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import failpoints
from penstock.errors import CheckpointMismatch, DamagedState, Fenced, PositionError, StorageError, UsageError
from penstock.storage import LocalStorage
from penstock.testing import ObjectStore
from penstock.wal import Log, Manager, Reader, Writer, runs
from penstock.windows import WindowStore
from penstock.windows.replay import Replay
from tests.support.advice import penstock
from tests.support.follows import follows


def write(root: Path, *records: bytes) -> None:
    """Append records, each in a separate segment if it is long."""
    with Writer(root, segment_size=1024) as writer:
        for record in records:
            writer.append(record)
            writer.flush()


def damaged(root: Path, number: int) -> Path:
    """Change a byte in the middle of a segment; return its path."""
    path = sorted(root.glob("*.wal"))[number]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


RECORDS = [bytes([letter]) * 900 for letter in b"abc"]


@pytest.mark.parametrize("remedy", ["restored", "repaired", "repaired by the command"])
@follows("PST-400")
def test_damaged_log(tmp_path: Path, remedy: str) -> None:
    """`DamagedState`: a log restored from a copy has every record; a repaired log ends before the damage. Both go on."""
    root = tmp_path / "log"
    write(root, *RECORDS)
    shutil.copytree(root, tmp_path / "copy")
    path = damaged(root, 1)
    with pytest.raises(
        DamagedState, match="restore it from a copy, or repair the log, which drops what comes after"
    ) as caught:
        list(Reader(root))
    assert str(path) in caught.value.message
    if remedy == "restored":
        shutil.copy(tmp_path / "copy" / path.name, path)
    elif remedy == "repaired":
        assert Log(root).repair() != []
    else:
        assert penstock("wal", "repair", root)[0] == 0
    kept = RECORDS if remedy == "restored" else RECORDS[:1]
    assert list(Reader(root)) == kept
    write(root, b"more")
    assert list(Reader(root)) == [*kept, b"more"]


@follows("PST-500")
def test_writer_that_failed(tmp_path: Path) -> None:
    """`StorageError` of a writer: the log, opened again, has all acknowledged records, and takes the rest."""
    writer = Writer(tmp_path)
    writer.append(b"acknowledged")
    writer.flush()
    writer.append(b"lost, maybe")
    failpoints.arm("storage.sync=error")
    with pytest.raises(StorageError):
        writer.flush()
    failpoints.arm("")
    with pytest.raises(StorageError, match="open the log again, it knows what is durable"):
        writer.append(b"refused")
    writer.close()
    with Writer(tmp_path) as again:
        again.append(b"more")
    records = list(Reader(tmp_path))
    assert (records[0], records[-1], len(records) <= 3) == (b"acknowledged", b"more", True)


def follow(root: Path, start: dict[str, Any] | None) -> tuple[list[bytes], dict[str, Any]]:
    """Run a batch of a log as a stream, from an offset or from a new checkpoint; return its records and its end."""
    storage = LocalStorage()
    begun = start or runs.begin(str(root), "earliest", storage)
    with closing(runs.LogPlanner(str(root), storage)) as planner:
        end = planner.plan(begun, size=None, split=1 << 30)
    batches = [batch for run in runs.runs(begun, end) for batch in runs.read(str(root), run, storage)]
    return [record for batch in batches for record in batch.column("record").to_pylist()], end


@follows("PST-104")
def test_log_that_was_begun_anew(tmp_path: Path) -> None:
    """`PositionError` of a stream whose log was replaced by a new one: a new checkpoint reads all of it."""
    write(tmp_path, b"of the first")
    _, at = follow(tmp_path, None)
    shutil.rmtree(tmp_path)
    write(tmp_path, b"of the first", b"of the second")
    with pytest.raises(PositionError, match="it was begun again, or is another one; give it a new checkpoint"):
        follow(tmp_path, at)
    assert follow(tmp_path, None)[0] == [b"of the first", b"of the second"]


@follows("PST-104")
def test_log_that_was_purged_before_it_was_read(tmp_path: Path) -> None:
    """`PositionError` of a stream that began before its log, which was purged since: a new checkpoint reads the kept records."""
    tmp_path.joinpath("log").mkdir()
    begun = runs.begin(str(tmp_path / "log"), "earliest", LocalStorage())
    write(tmp_path / "log", *RECORDS)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    with closing(Reader(tmp_path / "log")) as reader:
        positions = [reader.position for _ in reader]
    Log(tmp_path / "log").purge(before=positions[-1])
    with pytest.raises(PositionError, match="restore it, or give it a new checkpoint, which begins with what is kept"):
        follow(tmp_path / "log", begun)
    assert follow(tmp_path / "log", None)[0] == RECORDS[-1:]
    assert follow(tmp_path / "copy", begun)[0] == RECORDS


@follows("PST-104")
def test_position_that_was_purged(tmp_path: Path) -> None:
    """`PositionError`: the first position, which the message names, can be read."""
    write(tmp_path, *RECORDS)
    start = Log(tmp_path).info().start
    with closing(Reader(tmp_path)) as reader:
        last = [reader.position for _ in reader][-1]
    Log(tmp_path).purge(before=last)
    with pytest.raises(PositionError, match=r"it was purged; the first position is (\d+:\d+)") as caught:
        next(iter(Reader(tmp_path, start=start)))
    first = re.search(r"the first position is (\d+:\d+)", caught.value.message)
    assert first is not None
    assert list(Reader(tmp_path, start=type(start).parse(first[1]))) == RECORDS[-1:]


@follows("PST-301")
def test_writer_whose_log_was_taken_over() -> None:
    """`Fenced` of a writer on storage without locks: it ends, and the other one's log has all records that either acknowledged."""
    storage = ObjectStore().storage()
    stale = Writer("/log", storage=storage)
    stale.append(b"acknowledged")
    stale.flush()
    with Writer("/log", storage=storage) as successor:
        successor.append(b"theirs")
        successor.flush()
        stale.append(b"stale")
        with pytest.raises(Fenced, match="end this one, nothing of it was acknowledged since"):
            stale.flush()
        stale.close()
        successor.append(b"more")
    assert list(Reader("/log", storage=storage)) == [b"acknowledged", b"theirs", b"more"]


@pytest.mark.parametrize("remedy", ["put back", "new"])
@follows("PST-302")
def test_window_store_of_another_time(tmp_path: Path, remedy: str) -> None:
    """`CheckpointMismatch` of a stream that can be read only once: with both from one time, or both new, nothing is skipped."""
    upstream = iter([b"1", b"2", b"3", b"4"])
    with WindowStore(tmp_path / "store") as store:
        replay = Replay(store, lambda _: next(upstream, None))
        first = replay.latest(replay.initial())
        at = replay.latest(first)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with WindowStore(tmp_path / "store") as store:
        replay = Replay(store, lambda _: next(upstream, None))
        ahead = replay.latest(replay.latest(at))
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(tmp_path / "copy", tmp_path / "store")
    with (
        WindowStore(tmp_path / "store") as store,
        pytest.raises(CheckpointMismatch, match="put both back as they were, or give a new checkpoint a new store"),
    ):
        Replay(store, lambda _: b"never").latest(ahead)
    rest = iter([b"3", b"4", None])
    place, start = (tmp_path / "store", at) if remedy == "put back" else (tmp_path / "new", Replay.initial())
    with WindowStore(place) as store:
        replay = Replay(store, lambda _: next(rest))
        windows = [start]
        while (end := replay.latest(windows[-1])) != windows[-1]:
            windows.append(end)
        assert [store.load(end["window"]) for end in windows[-1:]] == [b"4"]
        assert len(windows) == 3


def test_window_store_that_was_written_on_by_another(tmp_path: Path) -> None:
    """A store is put back, and a query with another checkpoint fills it up again: the numbers fit, and the windows are others."""
    at = Replay.initial()
    with WindowStore(tmp_path / "store") as store:
        at = Replay(store, lambda _: b"1").latest(at)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with WindowStore(tmp_path / "store") as store:
        ahead = Replay(store, lambda _: b"2").latest(at)
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(tmp_path / "copy", tmp_path / "store")
    with WindowStore(tmp_path / "store") as store:
        other = Replay(store, lambda _: b"other").latest(at)
    told: list[bytes] = []
    for use in (Replay.position, Replay.latest):
        with (
            WindowStore(tmp_path / "store") as store,
            pytest.raises(CheckpointMismatch, match="window 1 of the store is another one"),
        ):
            use(Replay(store, lambda _: b"never", told.append), ahead)
    assert told == []
    with WindowStore(tmp_path / "store") as store:
        replay = Replay(store, lambda _: None, told.append)
        replay.position({"v": 1, "window": 1})  # as an earlier version has written it
        assert replay.latest(other) == other
        assert told == [b"other"]


@follows("PST-100")
def test_window_that_has_ended(tmp_path: Path) -> None:
    """`UsageError` of a window that is ended twice: the next number, which the message names, works."""
    with closing(Manager(tmp_path, lambda *_: None)) as manager:
        manager.end_window(7)
        with pytest.raises(UsageError, match=r"expected one after (\d+)") as caught:
            manager.end_window(7)
        number = re.search(r"expected one after (\d+)", caught.value.message)
        assert number is not None
        manager.end_window(int(number[1]) + 1)
