"""The simulated disk that loses power: until then it is a storage like any other, and afterwards it keeps what POSIX promises."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from penstock import clock
from penstock.storage import LocalStorage, Storage
from penstock.testing import CrashDisk, Image
from tests.support.storage_contract import InTurnContract, StorageContract, put

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def disk() -> CrashDisk:
    made = CrashDisk()
    LocalStorage(made).make_directory("/root")
    return made


@pytest.fixture
def storage(disk: CrashDisk) -> Storage:
    return LocalStorage(disk)


@pytest.fixture
def root() -> str:
    return "/root"


class TestCrashDisk(InTurnContract, StorageContract):
    """What the product relies on is true of the simulated disk as of a real one."""


def left(disk: CrashDisk) -> list[dict[str, bytes]]:
    """Return the possible contents of /root after a crash, each once."""
    found: list[dict[str, bytes]] = []
    for image in disk.images():
        files = files_of(image)
        if files not in found:
            found.append(files)
    return found


def files_of(image: Image) -> dict[str, bytes]:
    """Return the files in /root."""
    return {name: image.contents[inode] for name, inode in image.tree.get("/root", {}).items()}


def test_nothing_that_is_not_synced_is_sure(disk: CrashDisk) -> None:
    """A file that was written and not synced may be gone, empty, full of zeros, or complete."""
    handle = LocalStorage(disk).create("/root/a")
    handle.write(b"xyz")
    assert sorted(left(disk), key=repr) == sorted([{}, {"a": b""}, {"a": b"\0\0\0"}, {"a": b"xyz"}], key=repr)


def test_what_is_synced_stays(disk: CrashDisk) -> None:
    """A synced file and its name are in every image."""
    put(LocalStorage(disk), "/root/a", b"xyz")
    assert left(disk) == [{"a": b"xyz"}]


def test_what_others_wrote_stays_when_it_is_persisted(disk: CrashDisk) -> None:
    """Files that were written without a sync are in every image once they were made durable by name."""
    LocalStorage(disk).create("/root/a").write(b"xyz")
    LocalStorage(disk).persist("/root", ["a"])
    assert left(disk) == [{"a": b"xyz"}]


def test_a_file_can_be_durable_without_its_name(disk: CrashDisk) -> None:
    """An fsync of the file says nothing about its directory."""
    descriptor = disk.open("/root/a", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    disk.write(descriptor, b"xyz")
    disk.fdatasync(descriptor)
    assert left(disk) == [{}, {"a": b"xyz"}]


def test_a_removed_name_may_come_back(disk: CrashDisk) -> None:
    """An unlink is only certain after the directory is synced."""
    put(LocalStorage(disk), "/root/a", b"xyz")
    disk.unlink("/root/a")
    assert left(disk) == [{"a": b"xyz"}, {}]


def test_names_of_one_directory_are_kept_one_by_one(disk: CrashDisk) -> None:
    """A later name may survive without an earlier one: link and unlink are two steps."""
    put(LocalStorage(disk), "/root/a", b"xyz")
    disk.link("/root/a", "/root/b")
    disk.unlink("/root/a")
    assert {} in left(disk)
    assert {"a": b"xyz", "b": b"xyz"} in left(disk)


def test_blocks_are_kept_one_by_one(disk: CrashDisk) -> None:
    """The first or the last part of a long file may survive, and the rest be cut off or zeros."""
    with LocalStorage(disk).create("/root/a") as file:
        file.sync()
        file.write(b"x" * 10_000)
    found = [files["a"] for files in left(disk)]
    assert sorted(map(len, found)) == [0, 4096, 10_000, 10_000, 10_000]
    assert b"\0" * 4096 + b"x" * 5904 in found


def test_a_directory_that_is_not_synced_takes_its_files_along(disk: CrashDisk) -> None:
    """If a directory's own name is lost, its contents are lost."""
    disk.mkdir("/root/d")
    put(LocalStorage(disk), "/root/d/a", b"xyz")
    assert {"/root/d" in image.tree for image in disk.images()} == {False, True}


def test_images_are_drawn_by_the_seed(disk: CrashDisk) -> None:
    """If there are too many images, the seed selects some, and always includes the extremes."""
    for number in range(10):
        disk.open(f"/root/{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    first, second = ([image.key() for image in disk.images(3, limit=8)] for _ in range(2))
    assert first == second
    assert len(first) == 8
    assert first[:2] == [next(disk.images()).key(), disk.image().key()]


@pytest.mark.parametrize(
    ("call", "number"),
    [
        (lambda disk: disk.open("/none/a", os.O_WRONLY | os.O_CREAT), errno.ENOENT),
        (lambda disk: disk.open("/root", os.O_WRONLY | os.O_CREAT | os.O_EXCL), errno.EEXIST),
        (lambda disk: disk.link("/root/none", "/root/a"), errno.ENOENT),
        (lambda disk: disk.rmdir("/"), errno.ENOTEMPTY),
        (lambda disk: disk.unlink("/root"), errno.EISDIR),
        (lambda disk: disk.stat("/root/none"), errno.ENOENT),
        (lambda disk: disk.mkdir("/root"), errno.EEXIST),
    ],
)
def test_errors_are_those_of_the_system(disk: CrashDisk, call: Callable[[CrashDisk], object], number: int) -> None:
    """An impossible call fails as it does on Linux."""
    with pytest.raises(OSError) as raised:  # noqa: PT011 - the number says which
        call(disk)
    assert raised.value.errno == number


def test_times_are_those_of_the_clock(disk: CrashDisk) -> None:
    """A file's time is that of its last write."""
    before = clock.now_ns()
    put(LocalStorage(disk), "/root/a", b"x")
    assert before <= LocalStorage(disk).stat("/root/a").modified_ns <= clock.now_ns()


def test_the_place_of_a_sync_is_of_the_package_whatever_directories_are_called() -> None:
    """In a clone of the project in a directory `penstock`, the tests were taken for code of the package."""
    places: list[str] = []

    def note(place: str) -> bool:
        places.append(place)
        return False

    storage = LocalStorage(CrashDisk(omit=note))
    program = compile(
        "def prepare(storage):\n    put(storage, '/a', b'x')", "/home/somebody/penstock/program.py", "exec"
    )
    names: dict[str, Callable[[Storage], None]] = {"put": put}  # type: ignore[dict-item]
    exec(program, names)  # noqa: S102 - the program is written above
    names["prepare"](storage)
    assert places
    assert all(place.partition(" in ")[2].startswith("storage/") and "program" not in place for place in places)
