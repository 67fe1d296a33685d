"""The window store: saved windows come back, for every owner, until they are forgotten; on every storage."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import DamagedState, Fenced, Locked, OptionError, StorageError, UsageError
from penstock.storage import Storage
from penstock.testing import CrashDisk, CrashHdfs, Fault, FaultySystem, ObjectStore
from penstock.wal import RECORD_BYTES_MAX, Log, Writer
from penstock.windows import NO_WINDOW, WindowStore
from penstock.windows.store import artifact_at
from tests.support.storages import STORAGES
from tests.testing.windows_program import WindowProgram

ROOT = "/windows"


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest) -> Storage:
    return STORAGES[request.param]()


def test_what_is_saved_comes_back(storage: Storage) -> None:
    """W1, W2, W3: a new store has nothing; later it has what each owner saved of each window, also in another process.

    APX-47, APX-48, APX-49, APX-50, too.
    """
    artifacts = {(window, owner): os.urandom(window * owner * 99) for window in range(7) for owner in range(3)}
    with WindowStore(ROOT, storage=storage) as store:
        assert store.largest_completed() == store.largest_completed([0]) == NO_WINDOW
        assert (store.load(0), store.load_all(0), store.position(0)) == (None, {}, None)
        for (window, owner), artifact in artifacts.items():
            store.save(window, artifact, owner)
    with WindowStore(ROOT, storage=storage) as store:
        assert {key: store.load(*key) for key in artifacts} == artifacts
        assert store.load_all(5) == {owner: artifacts[5, owner] for owner in range(3)}
        for key, artifact in artifacts.items():
            at = store.position(*key)
            assert at is not None
            assert artifact_at(ROOT, at, storage=storage) == artifact


def test_a_window_that_one_owner_lacks_is_not_completed(storage: Storage) -> None:
    """W4, F-W17, APX-51: the smallest of the owners' last windows counts, also after the number of owners grew or shrank."""
    with WindowStore(ROOT, storage=storage) as store:
        store.save(0, b"a", owner=1)
        store.save(0, b"b", owner=2)
        store.save(1, b"c", owner=1)
        store.save(4, b"d", owner=2)  # windows may be skipped
    with WindowStore(ROOT, storage=storage) as store:
        assert [store.largest_completed([owner]) for owner in (1, 2, 3)] == [1, 4, NO_WINDOW]
        assert store.largest_completed() == store.largest_completed({1, 2}) == 1
        assert store.largest_completed([1, 2, 3]) == NO_WINDOW  # owner 3 should have saved, and has not
        store.save(5, b"e", owner=3)  # more owners: a new owner does not count for the past
        assert store.largest_completed() == 1
        store.committed(4)  # fewer owners: owner 1 is gone, and counts until its windows are forgotten
        assert store.largest_completed() == 4
        store.committed(5)
        assert store.largest_completed() == 5


def test_a_window_is_saved_once(storage: Storage) -> None:
    """F-W17: saving the same again does nothing; another artifact, an older or a forgotten window is refused, and changes nothing."""
    with WindowStore(ROOT, storage=storage) as store:
        store.save(3, b"three")
        store.save(3, b"three")
        for window, artifact in ((3, b"other"), (2, b"two"), (NO_WINDOW, b"")):
            with pytest.raises(UsageError, match=f"window {window} of owner 0 cannot be saved.* after 3"):
                store.save(window, artifact)
        store.committed(8)
        with pytest.raises(UsageError, match="after 7"):
            store.save(7, b"seven", owner=1)
        store.save(8, b"eight", owner=1)
    assert Log(ROOT, storage=storage).verify().next == 3  # including the note of what was forgotten


def test_what_is_committed_is_forgotten(storage: Storage) -> None:
    """M9, F-W9, APX-52: windows before a committed one are removed by whole segments; they do not come back, and the others stay."""
    with WindowStore(ROOT, segment_size=300, storage=storage) as store:
        for window in range(30):
            store.save(window, b"%d" % window * 20)
        before = set(Log(ROOT, storage=storage).info().segments)
        gone = store.committed(20)
        assert len(gone) > 5
        assert before & set(Log(ROOT, storage=storage).info().segments) == before.difference(gone)
        assert store.committed(20) == store.committed(3) == []
        store.save(30, b"")
    with WindowStore(ROOT, segment_size=300, storage=storage) as store:
        assert [window for window in range(31) if store.load(window) is not None] == list(range(20, 31))
        store.committed(99)
        assert store.largest_completed() == NO_WINDOW
        store.save(99, b"again")
    assert len(Log(ROOT, storage=storage).info().segments) <= 2


def test_owners_that_came_to_different_windows(storage: Storage) -> None:
    """APX-53: of owners with 9, 6 and 3 windows the third counts; once 3 is done, a start of all of them has nothing to repeat."""
    with WindowStore(ROOT, storage=storage) as store:
        for owner, last in ((1, 9), (2, 6), (3, 3)):
            for window in range(1, last + 1):
                store.save(window, b"%d of %d" % (window, owner), owner)
        assert store.largest_completed() == 3
        assert list(store.load_all(1)) == [1, 2, 3]
        store.committed(4)
    with WindowStore(ROOT, storage=storage) as store:
        assert store.largest_completed([1, 2, 3]) == NO_WINDOW
        assert not store.load_all(3)
        assert store.load_all(5) == {1: b"5 of 1", 2: b"5 of 2"}  # saved, though no start of all owners repeats it


def test_a_part_of_a_segment_is_forgotten(storage: Storage) -> None:
    """Failure 5: windows whose segment stays, because it has other windows too, do not come back either."""
    with WindowStore(ROOT, storage=storage) as store:
        for window in range(6):
            store.save(window, b"%d" % window, owner=window % 2)
        store.committed(5)
        store.save(6, b"6")
    assert Log(ROOT, storage=storage).verify().records >= 2
    with WindowStore(ROOT, storage=storage) as store:
        assert [window for window in range(7) if store.load_all(window)] == [5, 6]
        with pytest.raises(UsageError, match="after 4"):
            store.save(4, b"", owner=2)


@pytest.mark.parametrize("segment_size", [300, "64m"])
def test_what_was_forgotten_stays_so(storage: Storage, segment_size: int | str) -> None:
    """Failure 6: no window before `committed` can be saved; after reopening, forgotten windows are not there and cannot be saved."""
    with WindowStore(ROOT, segment_size=segment_size, storage=storage) as store:
        for window in range(6):
            store.save(window, b"%d" % window * 60, owner=window % 2)
        store.committed(4)
    for _ in range(2):
        with WindowStore(ROOT, segment_size=segment_size, storage=storage) as store:
            assert [window for window in range(6) if store.load_all(window)] == [4, 5]
            assert (store.largest_completed(), store.largest_completed([0]), store.largest_completed([1])) == (4, 4, 5)
            with pytest.raises(UsageError, match="after 3"):
                store.save(3, b"", owner=2)
            assert store.committed(2) == []
    with WindowStore(ROOT, segment_size=segment_size, storage=storage) as store:
        store.committed(50)  # all of them: no remaining window shows what was forgotten
    with WindowStore(ROOT, segment_size=segment_size, storage=storage) as store:
        assert store.largest_completed() == NO_WINDOW
        with pytest.raises(UsageError, match="after 49"):
            store.save(49, b"")
        store.save(50, b"on")
    with WindowStore(ROOT, segment_size=segment_size, storage=storage) as store:
        assert [window for window in range(60) if store.load(window) is not None] == [50]
        with pytest.raises(UsageError, match="below 2"):
            store.committed(1 << 63)
        with pytest.raises(OptionError, match="lazily='yes'"):
            store.committed(51, lazily="yes")  # type: ignore[arg-type]  # - that is what is tested


def test_what_is_forgotten_lazily_is_so_after_the_next_save(storage: Storage) -> None:
    """A lazy commit needs no flush, and so no segment where each flush makes one; the next saved window makes it permanent."""
    with WindowStore(ROOT, storage=storage) as store:
        for window in range(3):
            store.save(window, b"%d" % window)
        before = Log(ROOT, storage=storage).info().segments
        store.committed(2, lazily=True)
        assert store.load(1) is None
        assert set(Log(ROOT, storage=storage).info().segments) <= set(before)
    with WindowStore(ROOT, storage=storage) as store:
        store.committed(2, lazily=True)
        store.save(3, b"3")
    with WindowStore(ROOT, storage=storage) as store:
        assert [window for window in range(5) if store.load(window) is not None] == [2, 3]


@pytest.mark.parametrize("committed", [1, 2])
def test_what_was_forgotten_lazily_is_forgotten_for_good(storage: Storage, committed: int) -> None:
    """A commit that is not lazy found nothing to do after a lazy one, wrote nothing, and the windows came back with a restart."""
    with WindowStore(ROOT, storage=storage) as store:
        for window in range(3):
            store.save(window, b"%d" % window)
        store.committed(2, lazily=True)
        store.committed(committed)
        segments = Log(ROOT, storage=storage).info().segments
        store.committed(committed)
        assert Log(ROOT, storage=storage).info().segments == segments, "what is durable is not written again"
    with WindowStore(ROOT, storage=storage) as store:
        assert [window for window in range(5) if store.load(window) is not None] == [2]


def test_a_log_of_something_else_is_refused(storage: Storage) -> None:
    """Records that are no windows, or too short, are refused; the log is closed afterwards."""
    for record in (b"", b"a line", b"\0" + bytes(30)):
        with Writer(ROOT, storage=storage) as writer:
            writer.append(record)
        with pytest.raises(DamagedState, match="is not a window"):
            WindowStore(ROOT, storage=storage)


def test_an_artifact_that_is_too_long_is_refused(storage: Storage) -> None:
    """An artifact too large for a record is refused, and the store continues."""
    with WindowStore(ROOT, storage=storage) as store:
        with pytest.raises(OptionError, match="too long"):
            store.save(0, bytes(RECORD_BYTES_MAX))
        store.save(0, b"short")
    with WindowStore(ROOT, storage=storage) as store:
        assert store.load(0) == b"short"


@pytest.mark.parametrize(("window", "owner"), [(1 << 63, 0), (0, 1 << 63), (0, -(1 << 63))])
def test_numbers_a_frame_has_no_room_for(storage: Storage, window: int, owner: int) -> None:
    """A number of more than 63 bits is refused, and nothing is saved."""
    with WindowStore(ROOT, storage=storage) as store:
        with pytest.raises(UsageError, match="below 2"):
            store.save(window, b"", owner)
        assert store.largest_completed() == NO_WINDOW


def test_one_process_has_it_open(tmp_path: Path) -> None:
    """F-W14: a second store on the directory is `Locked` until the first one is closed; an open that fails leaves no lock."""
    directory = str(tmp_path / "windows")
    with WindowStore(directory) as store:
        store.save(0, b"a")
        with pytest.raises(Locked):
            WindowStore(directory)
    with Writer(directory) as writer:
        writer.append(b"rubbish")
    for _ in range(2):
        with pytest.raises(DamagedState):
            WindowStore(directory)


@pytest.mark.parametrize("make", [CrashHdfs, ObjectStore])
def test_a_stalled_store_is_fenced(make: Callable[[], CrashHdfs | ObjectStore]) -> None:
    """F-W14: without locks, a store that stood still while another one was opened can save nothing any more."""
    storage = make().storage()
    stalled = WindowStore(ROOT, storage=storage)
    stalled.save(0, b"first")
    with WindowStore(ROOT, storage=storage) as store:
        store.save(1, b"second")
        with pytest.raises((Fenced, StorageError)):
            stalled.save(1, b"lost")
    with suppress(StorageError):
        stalled.close()
    with WindowStore(ROOT, storage=storage) as store:
        assert (store.load(0), store.load(1)) == (b"first", b"second")


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault(errno.ENOSPC), Fault(errno.EIO), Fault(errno.EIO, applied=True)], ids=str)
def test_every_call_fails_once(fault: Fault) -> None:
    """Whichever call fails, the error is typed, nothing stays open, and the next start continues with everything that was acknowledged."""
    from tests.testing.test_sink_faults import run  # noqa: PLC0415 - what runs a program up to a typed error

    failed = set()
    for at in range(1, 10_000):
        program, disk = WindowProgram([2, 1, 2, 1]), CrashDisk()
        faulty = FaultySystem(disk, fault, at)
        error = run(program, faulty, 1)
        where = f"{fault} at call {at}, {faulty.failed}: {error}"
        assert not disk.descriptors, where
        assert run(program, disk, 2) is None, where
        assert program.check(CrashDisk(next(disk.images())), final=True) == [], where
        if faulty.failed is None:
            break
        failed.add(faulty.failed)
    assert {"open", "write", "fdatasync", "fsync", "unlink", "scandir", "pread"} <= failed
