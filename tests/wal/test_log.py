"""The purpose of a log: order, positions, groups, one writer, following readers, purges; on every storage."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import failpoints, unique
from penstock.errors import DamagedState, Fenced, Locked, OptionError, PositionError, StorageError, UsageError
from penstock.storage import LocalStorage, Storage
from penstock.storage._local import LocalReadHandle
from penstock.testing import CrashDisk, CrashHdfs, Fault, FaultySystem, ObjectStore
from penstock.wal import Log, Manager, Position, Reader, Writer, form
from penstock.wal.segment import LogSegment
from tests.support.damage import unsynced
from tests.support.storages import STORAGES

ROOT = "/log"


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest) -> Storage:
    return STORAGES[request.param]()


def test_records_come_back_by_any_position(storage: Storage) -> None:
    """APX-56, APX-57, APX-68: records of any length, one by one or in groups, are read from each position to the end, across segments."""
    records = [os.urandom(n * 37 % 300) for n in range(100)]
    with Writer(ROOT, segment_size=2048, storage=storage) as writer:
        at = [writer.append(record) for record in records[:50]]
        writer.flush()
        at += [writer.append_many(records[start : start + 10]) for start in range(50, 100, 10)]
        writer.flush()
        assert len({p.segment for p in at}) > 3
    for start, position in enumerate(at[:50]):
        with Reader(ROOT, start=position, storage=storage) as reader:
            assert (reader.position, reader.sequence) == (position, start)
            assert list(reader) == records[start:]
        with Reader(ROOT, start=position, storage=storage) as reader:
            assert [r for batch in reader.batches() for r in batch.records()] == records[start:]
    assert at == sorted(at)


def test_nothing_is_made_before_something_is_written(storage: Storage) -> None:
    """A writer that writes nothing creates no segment; the directory that it created is an empty log, however often it is read."""
    with Writer(ROOT, storage=storage) as writer:
        writer.flush()
        writer.append_many([])
    reader = Reader(ROOT, storage=storage)
    assert not reader.advance()
    assert not reader.advance()
    with pytest.raises(PositionError):
        reader.get()
    assert Log(ROOT, storage=storage).verify().segments == ()
    assert Log(ROOT, storage=storage).repair() == []


def test_segments_have_the_length_that_was_asked_for(root: str) -> None:
    """APX-58: a segment ends before the record that would exceed its size; 100 records of 1 KiB fill four segments of 32 KiB."""
    with Writer(root, segment_size="32k", storage=unsynced()) as writer:
        at = [writer.append(bytes(1024)) for _ in range(100)]
        writer.flush()
    sizes = [path.stat().st_size for path in sorted(Path(root).iterdir())]
    assert len(sizes) == 4
    assert max(sizes) <= 32 << 10
    for segment in (2, 3, 4):
        first = next(n for n, p in enumerate(at) if p.segment == segment)
        with Reader(root, start=Position(segment, form.FIRST_ENTRY)) as reader:
            assert len(list(reader)) == 100 - first
        with Reader(root, start=at[first + 3]) as reader:
            assert len(list(reader)) == 100 - first - 3


def test_a_segment_is_filled_to_its_last_byte(root: str) -> None:
    """A group or record that ends exactly at the segment size still fits; one a byte longer does not. An empty group fits anywhere."""
    with Writer(root, segment_size=200, storage=unsynced()) as writer:
        for at in ((1, 120), (1, 176), (2, 120), (2, 176)):  # groups of 56 bytes
            assert writer.append(bytes(8)) == at
            writer.flush()
        given = [writer.append(bytes(size)) for size in (8, 41, 8, 42)]  # groups of one record or two
        writer.flush()
    assert given == [(3, 120), (3, 128), (4, 120), (5, 120)]
    assert [path.stat().st_size for path in sorted(Path(root).iterdir())] == [200, 200, 200, 144, 184]
    with Writer(root, segment_size=form.FIRST_ENTRY, storage=unsynced()) as writer:
        assert writer.append_many([]) == (5, 216)
        assert [writer.append(b""), writer.append(b"")] == [(6, 120), (7, 120)]


def test_what_is_not_flushed_does_not_pile_up(root: str) -> None:
    """Of many unflushed megabytes the writer keeps only a few in memory: the others can be read before the flush."""
    with Writer(root, storage=unsynced()) as writer:
        for _ in range(20):
            writer.append(bytes(1 << 20))
        assert 10 <= Log(root).info().records < 20


def test_batches_are_arrow_arrays(root: str) -> None:
    """A batch as an array has exactly its records, also a batch that is read from the middle."""
    records = [b"", b"a", b"bc" * 50]
    with Writer(root) as writer:
        at = writer.append_many(records)
    with Reader(root, start=Position(at.segment, at.offset + 8)) as reader:
        (batch,) = reader.batches()
    assert batch.array().to_pylist() == batch.records() == records[1:]
    assert batch.position(0) == Position(at.segment, at.offset + 8)


def test_each_writer_goes_on_after_the_last(storage: Storage) -> None:
    """E10: ten writers in turn: one sequence, one log, and a new epoch for each; a closed writer fails on append."""
    for number in range(10):
        with Writer(ROOT, storage=storage) as writer:
            assert writer.sequence == number
            writer.append(b"%d" % number)
    assert list(Reader(ROOT, storage=storage)) == [b"%d" % n for n in range(10)]
    assert Log(ROOT, storage=storage).info().epoch == 10
    with pytest.raises(StorageError, match="was closed"):
        writer.append(b"x")
    writer.close()


def test_a_second_writer_is_refused(root: str) -> None:
    """While one writer is open, another, in this process or any, gets `Locked`; readers and `verify` do not, and repair does."""
    with Writer(root) as writer:
        writer.append(b"a")
        writer.flush()
        for refused in (lambda: Writer(root), Log(root).repair):
            with pytest.raises(Locked, match="held by another process"):
                refused()
        assert Log(root).verify().records == 1
    Writer(root).close()


@pytest.mark.parametrize(("make", "error"), [(CrashHdfs, StorageError), (ObjectStore, Fenced)])
def test_a_stalled_writer_is_fenced(
    make: Callable[[], CrashHdfs | ObjectStore], error: type[StorageError | Fenced]
) -> None:
    """Without locks, a writer that stalled while another took over acknowledges nothing any more."""
    storage = make().storage()
    stalled = Writer(ROOT, storage=storage)
    stalled.append(b"first")
    stalled.flush()
    with Writer(ROOT, storage=storage) as newer:
        newer.append(b"second")
        newer.flush()
        stalled.append(b"lost")
        for _ in range(2):
            with pytest.raises(error):
                stalled.flush()
        newer.append(b"third")
    assert list(Reader(ROOT, storage=storage)) == [b"first", b"second", b"third"]


def test_a_writer_stalled_so_long_that_its_number_is_free_again() -> None:
    """Another writer created the segment that this one was to create, and it was purged: this one removes its own: `Fenced`."""
    storage = ObjectStore().storage()
    stalled = Writer(ROOT, storage=storage)
    with Writer(ROOT, storage=storage) as newer:
        for number in range(3):
            newer.append(b"%d" % number)
            newer.flush()
        Log(ROOT, storage=storage).purge(newer.position)
    stalled.append(b"lost")
    with pytest.raises(Fenced, match="has taken over"):
        stalled.flush()
    assert list(Reader(ROOT, storage=storage)) == [b"2"]


@pytest.mark.parametrize("make", [CrashHdfs, ObjectStore])
def test_a_writer_that_is_overtaken_after_its_new_segment(
    make: Callable[[], CrashHdfs | ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failure 6: another writer continues after the new segment before its maker checks: it stays; acknowledged records are read."""
    storage = make().storage()
    with Writer(ROOT, storage=storage) as writer:
        writer.append(b"first")
    overtaken = Writer(ROOT, storage=storage)
    look = overtaken._end._check_alone

    def look_late(number: int) -> None:
        with Writer(ROOT, storage=storage) as newer:
            newer.append(b"second")
        look(number)

    monkeypatch.setattr(overtaken._end, "_check_alone", look_late)
    overtaken.append(b"not acknowledged")
    with pytest.raises(Fenced, match="has taken over"):
        overtaken.flush()
    records = list(Reader(ROOT, storage=storage))
    assert [record for record in records if record != b"not acknowledged"] == [b"first", b"second"]


def test_a_writer_that_is_overtaken_by_one_without_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failure 6: the other writer has created its segment without a header yet: that header will name the segment before, which stays."""
    storage = CrashHdfs().storage()
    with Writer(ROOT, storage=storage) as writer:
        writer.append(b"first")
    overtaken = Writer(ROOT, storage=storage)
    look, create = overtaken._end._check_alone, storage.create

    def look_late(number: int) -> None:
        def create_and_let_look(path: str) -> Any:
            file = create(path)
            with pytest.raises(Fenced, match="has taken over"):
                look(number)
            return file

        with Writer(ROOT, storage=storage) as newer:
            monkeypatch.setattr(storage, "create", create_and_let_look)
            newer.append(b"acknowledged")
        look(number)

    monkeypatch.setattr(overtaken._end, "_check_alone", look_late)
    overtaken.append(b"not acknowledged")
    with pytest.raises(Fenced):
        overtaken.flush()
    assert list(Reader(ROOT, storage=storage)) == [b"first", b"acknowledged"]


def test_a_sync_that_fails_poisons_the_writer(root: str) -> None:
    """The flush that fails, the flushes waiting for it and all later calls fail; acknowledged records are there."""
    writer = Writer(root)
    writer.append(b"a")
    writer.flush()
    writer.append(b"b")
    errors: list[StorageError] = []

    def wait() -> None:
        try:
            writer.append(b"c")
            writer.flush()
        except StorageError as error:
            errors.append(error)

    failpoints.arm("storage.sync=error")
    try:
        threads = [threading.Thread(target=wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        failpoints.arm("")
    assert len(errors) == 4
    for call in (writer.flush, lambda: writer.append(b"d")):
        with pytest.raises(StorageError, match="open the log again"):
            call()
    writer.close()
    found = list(Reader(root))
    assert found[0] == b"a"
    assert found == [b"a", b"b", *[b"c"] * (len(found) - 2)][: len(found)]


def test_a_full_disk_loses_nothing_acknowledged() -> None:
    """The disk is full at any write of an append or a roll: an error, and the next writer continues after the acknowledged records."""
    for at in range(1, 60):
        disk = CrashDisk()
        faulty = FaultySystem(disk, Fault(errno.ENOSPC), at)
        acknowledged = 0
        try:
            with Writer(ROOT, segment_size=300, storage=LocalStorage(faulty)) as writer:
                for number in range(6):
                    writer.append(b"%d" % number * 40)
                    writer.flush()
                    acknowledged = number + 1
        except StorageError:
            pass
        with Writer(ROOT, storage=disk.storage()) as writer:
            assert acknowledged <= writer.sequence <= acknowledged + 1
        found = list(Reader(ROOT, storage=disk.storage()))
        assert found == [b"%d" % n * 40 for n in range(len(found))]


class _ReadOnly:
    """A disk that is mounted read-only."""

    def open(self, path: str, flags: int, *mode: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return os.open(path, flags, *mode)

    def __getattr__(self, name: str) -> Any:
        if name in {"write", "link", "unlink", "rmdir", "chmod"}:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return getattr(os, name)


def test_a_log_on_a_medium_that_cannot_be_written(root: str) -> None:
    """F-W22: it can be read, verified and held like any other log; a write or a purge is refused, and changes nothing."""
    with Writer(root, segment_size=200) as writer:
        at = [writer.append(b"%d" % number * 90) for number in range(6)]
    storage = LocalStorage(_ReadOnly())
    with Reader(root, start=at[2], storage=storage) as reader:
        assert [record[:1] for record in reader] == [b"2", b"3", b"4", b"5"]
    log = Log(root, storage=storage)
    assert (log.verify().records, log.repair()) == (6, [])
    for refused in (lambda: Writer(root, storage=storage), lambda: log.purge(at[5])):
        with pytest.raises(StorageError, match="Read-only"):
            refused()
    assert len(list(Reader(root))) == 6


def test_a_reader_follows_a_live_writer(root: str) -> None:
    """APX-63: a reader next to a writer that rolls every few records sees each once, in order, and takes no partial write for damage."""
    total, seen = 3000, []
    done = threading.Event()

    def write() -> None:
        with Writer(root, segment_size=6000, storage=unsynced()) as writer:
            for number in range(0, total, 5):
                writer.append_many([b"%d." % n * (n % 60) for n in range(number, number + 5)])
                writer.flush()
        done.set()

    os.mkdir(root)
    thread = threading.Thread(target=write)
    thread.start()
    with Reader(root) as reader:
        ended = False
        while not ended:
            ended = done.is_set()
            seen += list(reader)
    thread.join()
    assert seen == [b"%d." % n * (n % 60) for n in range(total)]


def test_a_header_that_is_being_written_is_not_there_yet(root: str) -> None:
    """A new segment gets its header and a group just after a reader looked for its header: that is the end, not damage."""
    with Writer(root) as writer:
        writer.append(b"first")
        writer.flush()
    path = Path(root) / "000000000001.wal"
    whole = path.read_bytes()
    path.write_bytes(b"")

    class Slow(LocalReadHandle):
        def read(self, offset: int, length: int) -> bytes:
            found = super().read(offset, length)
            path.write_bytes(whole)
            return found

    class Disk(LocalStorage):
        def open(self, path: str) -> LocalReadHandle:
            return Slow(path)

    assert LogSegment(Disk(), root, 1).header is None
    assert list(Reader(root)) == [b"first"]


@pytest.mark.slow
def test_half_a_group_is_not_there_yet(root: str) -> None:
    """A group that appears byte by byte is read at once when it is whole; before that it is the end."""
    with Writer(root) as writer:
        writer.append(b"first")
        writer.flush()
        path = Path(root) / "000000000001.wal"
        before = path.read_bytes()
        writer.append(b"second" * 100)
    whole = path.read_bytes()
    reader = Reader(root)
    path.write_bytes(before)
    assert list(reader) == [b"first"]
    for end in range(len(before), len(whole)):
        path.write_bytes(whole[:end])
        assert not reader.advance()
    path.write_bytes(whole)
    assert list(reader) == [b"second" * 100]


@pytest.mark.parametrize(("times", "rolled"), [(1, False), (2, False), (3, False), (1, True)])
def test_a_group_that_is_read_while_it_is_written(root: str, times: int, rolled: bool) -> None:
    """A read that returns the start of a group and then zeros is not damage: neither the first time nor the second."""
    with Writer(root, segment_size=400) as writer:
        writer.append(b"first")
        writer.flush()
        length = (Path(root) / "000000000001.wal").stat().st_size
        writer.append(b"second" * 30)
        writer.flush()
        if rolled:
            writer.append(b"third" * 30)

    class Early(LocalReadHandle):
        left = times

        def read(self, offset: int, length: int) -> bytes:
            found = super().read(offset, length)
            end = offset + len(found)
            if self._path.endswith("1.wal") and offset < mid < end and Early.left:
                Early.left -= 1
                return found[: mid - offset] + bytes(end - mid)
            return found

    class Disk(LocalStorage):
        def open(self, path: str) -> LocalReadHandle:
            return Early(path)

    mid = length + 100
    found: list[bytes] = []
    with Reader(root, storage=Disk()) as reader:
        for _ in range(3):  # this may be the end for now
            found += list(reader)
    assert [record[:5] for record in found] == [b"first", b"secon", b"third"][: 2 + rolled]


def test_segments_are_ordered_by_number_alone(root: str) -> None:
    """F-W20: clocks that step back, or a copy with other file times, change neither what is read nor what is purged."""
    with Writer(root, segment_size=200) as writer:
        at = [writer.append(b"%d" % number * 90) for number in range(6)]
    for age, path in enumerate(sorted(Path(root).glob("*.wal"))):
        os.utime(path, (2_000_000_000 - age, 2_000_000_000 - age))
    assert [record[:1] for record in Reader(root)] == [b"%d" % number for number in range(6)]
    assert Log(root).purge(at[3]) == [1, 2, 3]
    with Writer(root) as writer:
        assert writer.append(b"6") == Position(7, form.FIRST_ENTRY)
    assert [record[:1] for record in Reader(root)] == [b"%d" % number for number in range(3, 7)]


def test_purges_stop_at_readers(root: str) -> None:
    """APX-64: whole segments are purged, oldest first, never the last one, and none that a reader is in; that reader then continues."""
    with Writer(root, segment_size=300, storage=unsynced()) as writer:
        at = [writer.append(b"%d" % n * 100) for n in range(20)]
        writer.flush()
        log, last = Log(root), at[-1].segment
        with Reader(root, start=at[4]) as reader:
            assert log.purge(at[0]) == []
            assert log.purge(at[-1]) == list(range(1, at[4].segment))
            assert len(list(reader)) == 16
        assert log.purge(Position(10**6, 0)) == list(range(at[4].segment, last))
        assert log.info().start == Position(last, form.FIRST_ENTRY)
        writer.append(b"more")
    assert list(Reader(root))[-1] == b"more"


def test_a_purge_ends_where_records_are_still_wanted(root: str) -> None:
    """APX-65, APX-66: of ten records in segments of three the four from the third on stay; within a segment nothing is cut off."""
    with Writer(root, segment_size=form.FIRST_ENTRY + 3 * 140, storage=unsynced()) as writer:
        at = []
        for number in range(10):
            at.append(writer.append(b"%d" % number * 90))
            writer.flush()
        assert [position.segment for position in at] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4]
        assert Log(root).purge(Position(3, 0)) == [1, 2]
        assert list(Reader(root)) == [b"%d" % number * 90 for number in range(6, 10)]
        assert Log(root).purge(at[8]) == []
        assert [*Reader(root, start=at[8])] == [b"8" * 90, b"9" * 90]


def test_two_records_of_nearly_the_length_of_a_segment(root: str) -> None:
    """APX-59: each gets a segment to itself, and both are read."""
    with Writer(root, segment_size=form.FIRST_ENTRY + 1024, storage=unsynced()) as writer:
        assert [writer.append(b"%d" % n * 1000).segment for n in range(2)] == [1, 2]
        writer.flush()
        assert list(Reader(root)) == [b"0" * 1000, b"1" * 1000]


def test_a_reader_whose_segment_was_purged(storage: Storage) -> None:
    """A reader that has read all of the purged segment continues with the next one, also where readers cannot hold segments."""
    with Writer(ROOT, whole=True, storage=storage) as writer:
        writer.append(b"first")
        writer.flush()
        with Reader(ROOT, storage=storage) as reader:
            assert list(reader) == [b"first"]
            writer.append(b"second")
            writer.flush()
            Log(ROOT, storage=storage).purge(writer.position)
            assert list(reader) == [b"second"]


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.integers(0, 400), min_size=1, max_size=6), min_size=1, max_size=6),
    st.sampled_from([300, 2000, 1 << 20]),
    st.sampled_from([0.0, 0.0005]),
)
def test_threads_that_append_and_wait(threads: list[list[int]], segment_size: int, delay: float) -> None:
    """Threads append in any interleaving, each in its own order: after its flush each record is there, once, at its position."""
    storage = CrashDisk().storage()
    given_out: dict[bytes, Position] = {}
    with Writer(ROOT, segment_size=segment_size, delay=delay, storage=storage) as writer:

        def work(number: int, sizes: list[int]) -> None:
            for turn, size in enumerate(sizes):
                record = b"%d:%d" % (number, turn) + b"." * size
                if size % 2:
                    given_out[record] = writer.append_many([record, b""])
                else:
                    given_out[record] = writer.append(record)
                writer.flush()
                with Reader(ROOT, start=given_out[record], storage=storage) as reader:
                    assert next(iter(reader)) == record

        failed: list[BaseException] = []

        def guarded(number: int, sizes: list[int]) -> None:
            try:
                work(number, sizes)
            except BaseException as error:  # noqa: BLE001 - a thread's failure is the test's
                failed.append(error)

        running = [threading.Thread(target=guarded, args=each) for each in enumerate(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert failed == []
    records = [r for r in Reader(ROOT, storage=storage) if r]
    assert sorted(records) == sorted(given_out)
    assert [r for r, _ in sorted(given_out.items(), key=lambda item: item[1])] == records
    for number in range(len(threads)):
        own = [r for r in records if r.startswith(b"%d:" % number)]
        assert own == sorted(own, key=lambda r: int(r.split(b":")[1].rstrip(b".")))


def test_bad_options(root: str) -> None:
    """A segment size that holds nothing, or is not a size, and an unknown mode are refused before anything is created."""
    for size in ("1x", "10", 0):
        with pytest.raises(OptionError):
            Writer(root, segment_size=size)
    with pytest.raises(OptionError, match="expected one of tail, strict, salvage"):
        Reader(root, mode="lax")
    assert not Path(root).exists()


def managed(storage: Storage, checkpointed: int = -1) -> tuple[Manager, list[tuple[int, list[bytes]]]]:
    """Return a restored manager with segments of a few windows, and what it handed back."""
    found: list[tuple[int, list[bytes]]] = []
    manager = Manager(ROOT, lambda window, records: found.append((window, records)), segment_size=200, storage=storage)
    try:
        manager.restore(checkpointed)
    except DamagedState:
        manager.close()
        raise
    return manager, found


def test_windows_after_the_checkpoint_come_back(storage: Storage) -> None:
    """The records of completed windows come back from any checkpoint on, in order; those of an incomplete window do not."""
    manager, found = managed(storage)
    assert (found, manager.flushed) == ([], -1)
    windows = {w: [b"%d-%d" % (w, n) for n in range(w % 3)] for w in (0, 1, 2, 5, 8)}
    for window, records in windows.items():
        for record in records:
            manager.append(record)
        manager.end_window(window)
    manager.append(b"of a window that never ended")
    manager.close()
    for checkpointed in range(-1, 9):
        again, found = managed(storage, checkpointed)
        assert found == [(w, r) for w, r in windows.items() if w > checkpointed]
        assert again.flushed == 8
        again.close()
    again, _ = managed(storage, 8)
    again.append(b"anew")
    again.end_window(9)
    for window in (9, 8, -1):
        with pytest.raises(UsageError, match="has ended before"):
            again.end_window(window)
    again.close()
    again, found = managed(storage, 8)
    assert found == [(9, [b"anew"])]
    again.close()


def test_what_is_committed_goes_and_what_is_not_stays(storage: Storage) -> None:
    """A commit removes whole segments before its window; a state older than that, or newer than the log, is refused."""
    manager, _ = managed(storage)
    for window in range(12):
        manager.append(b"%d" % window * 30)
        manager.end_window(window)
    assert manager.committed(6)
    assert manager.committed(6) == []
    manager.close()
    again, found = managed(storage, 6)
    assert [window for window, _ in found] == list(range(7, 12))
    again.close()
    for checkpointed, why in ((1, "committed and purged"), (12, "has lost its end")):
        with pytest.raises(DamagedState, match=why):
            managed(storage, checkpointed)


@pytest.mark.parametrize("count", [0, 1, 9])
def test_a_state_older_than_what_was_purged(storage: Storage, count: int) -> None:
    """It is refused, whether the first remaining window is whole, empty or partial, and none of its records are handed back."""
    manager, _ = managed(storage)
    for window in range(4):
        for _ in range(count if window == 2 else 1):
            manager.append(bytes(60))
        manager.end_window(window)
        manager.setup()  # so that the next window is in a segment of its own
    assert manager.committed(2)
    manager.close()
    for checkpointed in (0, 1) if count > 1 else (0,):
        with pytest.raises(DamagedState, match="committed and purged"):
            managed(storage, checkpointed)
    again, found = managed(storage, 2)
    assert [window for window, _ in found] == [3]
    again.close()


def test_the_worked_example_is_what_is_written(root: str) -> None:
    """The bytes on the page about the format are the bytes that this code writes, with the same positions."""
    page = (Path(__file__).resolve().parents[2] / "docs/formats/wal.md").read_text(encoding="utf-8")
    lines = re.findall(r"^[0-9a-f]{4}  ((?:[0-9a-f]{2} )*[0-9a-f]{2}) ", page, re.MULTILINE)
    with unique.use(lambda: "000102030405060708090a0b0c0d0e0f"), Writer(root) as writer:
        given = [writer.append(b"hello"), writer.append(b"log")]
        writer.flush()
        given.append(writer.append(b""))
        writer.flush()
        said = f"The records are at {given[0]}, {given[1]} and {given[2]}; the end is {writer.position}."
    assert (Path(root) / "000000000001.wal").read_bytes() == bytes.fromhex("".join(lines))
    assert said in page
