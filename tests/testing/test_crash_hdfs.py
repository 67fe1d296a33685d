"""The simulated HDFS that loses power: its storage keeps the contract of a real one, and a crash leaves what HDFS promises."""

from __future__ import annotations

import errno
from itertools import count

import pytest

from penstock import clock
from penstock.errors import AlreadyThere, StorageError
from penstock.storage import Storage, WriteHandle
from penstock.testing import CrashHdfs, FakeClock, Fault, FaultySystem
from tests.support.storage_contract import InTurnContract, StorageContract


@pytest.fixture
def hdfs_in_memory() -> CrashHdfs:
    made = CrashHdfs()
    made.storage().make_directory("/root")
    return made


@pytest.fixture
def storage(hdfs_in_memory: CrashHdfs) -> Storage:
    return hdfs_in_memory.storage()


@pytest.fixture
def root() -> str:
    return "/root"


class TestCrashHdfs(InTurnContract, StorageContract):
    """What the product relies on is true of the simulated HDFS as of a real one."""


def left(hdfs: CrashHdfs, path: str) -> list[tuple[bytes, bool]]:
    """Return the possible states of a file after a crash: its bytes, and whether it is open."""
    found = [dict(image.names)[path] for image in hdfs.images()]
    return [(inode.data or b"", inode.open) for inode in found]


def test_names_are_durable_and_bytes_are_not(hdfs_in_memory: CrashHdfs) -> None:
    """A file that was written and not synced is there, open, with none, half or all of its bytes."""
    handle = hdfs_in_memory.storage().create("/root/a")
    handle.write(b"xyzw")
    assert left(hdfs_in_memory, "/root/a") == [(b"", True), (b"xy", True), (b"xyzw", True)]
    handle.close()
    assert left(hdfs_in_memory, "/root/a") == [(b"", False), (b"xy", False), (b"xyzw", False)]


def test_what_is_synced_stays(hdfs_in_memory: CrashHdfs) -> None:
    """Synced bytes are in every image, whatever is written after them."""
    handle = hdfs_in_memory.storage().create("/root/a")
    handle.write(b"xyz")
    handle.sync()
    assert left(hdfs_in_memory, "/root/a") == [(b"xyz", True)]
    handle.write(b"more")
    assert {data[:3] for data, _ in left(hdfs_in_memory, "/root/a")} == {b"xyz"}


def test_a_put_that_fails_leaves_nothing(hdfs_in_memory: CrashHdfs) -> None:
    """If any call fails, the close of the temporary included, neither the name nor the temporary is there, open or not."""
    failed = set()
    for at in count(1):
        faulty = FaultySystem(hdfs_in_memory, Fault(errno.EACCES), at)
        try:
            faulty.storage().put_if_absent("/root/record", b"x")
        except StorageError:
            assert not hdfs_in_memory.storage().names("/root"), faulty.failed
            failed.add(faulty.failed)
        else:
            break
    assert failed == {"create", "writer.write", "writer.hsync", "writer.close", "stat", "rename"}


def test_a_growing_file_that_others_wrote_to_is_left_closed(hdfs_in_memory: CrashHdfs) -> None:
    """If a growing file holds unexpected bytes, nothing is appended, and the file is closed again: readers see it unchanged."""
    storage = hdfs_in_memory.storage()
    with storage.extend("/root/g", 0) as file:
        file.write(b"one\ntwo\n")
        file.sync()
    with pytest.raises(StorageError, match="other bytes from 4 on"), storage.extend("/root/g", 4) as file:
        file.write(b"2\n")
    assert storage.read("/root/g") == b"one\ntwo\n"


def test_what_is_synced_is_never_made_again(hdfs_in_memory: CrashHdfs) -> None:
    """A write that fails after a sync is an error: making the file again would remove durable data for a moment."""

    def synced(system: FaultySystem) -> WriteHandle:
        handle = system.storage().create("/root/a")
        handle.write(b"acknowledged")
        handle.sync()
        return handle

    before = FaultySystem(CrashHdfs(next(hdfs_in_memory.images())), Fault(errno.EIO), at=0)
    synced(before)
    handle = synced(faulty := FaultySystem(hdfs_in_memory, Fault(errno.EIO), at=before.calls + 1))
    with pytest.raises(StorageError):
        handle.write(b"more")
    assert faulty.failed == "writer.write"
    assert {data for data, _ in left(hdfs_in_memory, "/root/a")} == {b"acknowledged"}
    assert faulty.calls == before.calls + 1, "nothing was removed, not even to be put back"


def test_a_dead_writers_file_stays_open(hdfs_in_memory: CrashHdfs) -> None:
    """After a crash the file's name is taken and its lease held; a writer that recovers the lease may go on, the old writer may not."""
    storage = hdfs_in_memory.storage()
    handle = storage.create("/root/a")
    handle.write(b"xyz")
    handle.sync()
    after = CrashHdfs(next(hdfs_in_memory.images()))
    with pytest.raises(AlreadyThere):
        after.storage().create("/root/a")
    with after.storage().extend("/root/a", 3) as file:
        file.write(b"w")
    assert after.storage().read("/root/a") == b"xyzw"
    hdfs_in_memory.recover_lease("/root/a")
    with pytest.raises(StorageError):
        handle.close()


class Slow(CrashHdfs):
    """An HDFS that needs some seconds to end a lease."""

    takes = 0.0
    asked: list[float]

    def recover_lease(self, path: str) -> bool:
        """Begin the recovery, or tell whether it is done."""
        self.asked.append(clock.monotonic())
        return clock.monotonic() - self.asked[0] >= self.takes and super().recover_lease(path)


@pytest.mark.parametrize("takes", [5.0, 3600.0])
def test_a_lease_that_ends_late(hdfs_in_memory: CrashHdfs, takes: float) -> None:
    """F17: the recovery is requested again with pauses, but not for ever; until it succeeds, not a byte is appended."""
    handle = hdfs_in_memory.storage().create("/root/a")
    handle.write(b"xyz")
    handle.sync()
    slow = Slow(next(hdfs_in_memory.images()))
    slow.takes, slow.asked = takes, []
    with clock.use(FakeClock(0)):
        if takes > 60:
            with pytest.raises(
                StorageError, match="'/root/a' is open, and could not be taken from its writer within 60 s"
            ):
                slow.storage().extend("/root/a", 3)
            assert 60 <= slow.asked[-1] - slow.asked[0] < 61
        else:
            with slow.storage().extend("/root/a", 3) as file:
                file.write(b"w")
            assert slow.storage().read("/root/a") == b"xyzw"
    assert len(slow.asked) <= 10 * min(takes, 61)
