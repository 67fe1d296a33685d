"""The local disk keeps the contract, and has some behaviour of its own."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from penstock import failpoints
from penstock.errors import NoSpace, OptionError, StorageError
from penstock.storage import LocalStorage, Storage, locate
from penstock.storage._local import FullSync
from penstock.storage._refusal import doing
from tests.support.stage import run_python
from tests.support.storage_contract import StorageContract, put


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """Return a directory on a disk, not in memory: this storage is made for disks."""
    return on_disk


@pytest.fixture
def storage() -> Storage:
    return LocalStorage()


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path)


class TestLocalStorage(StorageContract):
    pass


UMASK = """
import os, sys, threading
from penstock.storage import _local
_local._STATUS = sys.argv[1]
os.umask(0o027)
sys.setswitchinterval(1e-6)
seen = set()
def ask():
    for _ in range(5_000):
        seen.add(_local.default_mode())
threads = [threading.Thread(target=ask) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
children = [os.fork()]
if not children[0]:
    os._exit(_local.default_mode() != 0o640)
print(seen == {0o640}, os.umask(0) == 0o027, os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
"""


@pytest.mark.parametrize("status", ["/proc/self/status", "/nowhere"], ids=["told", "set to be read"])
def test_threads_read_the_umask_of_the_process(status: str) -> None:
    """Threads that publish at the same moment must not take the mask that another one has set to read it, nor leave it to the process."""
    for _ in range(3):
        assert run_python(UMASK, status).stdout.split() == ["True", "True", "0"]


def test_publish_completes_after_a_crash_between_the_two_names(storage: Storage, root: str) -> None:
    """S45: if both names lead to one file, publishing again removes the old name."""
    put(storage, f"{root}/a", b"part")
    os.link(f"{root}/a", f"{root}/b")
    storage.publish(f"{root}/a", f"{root}/b")
    assert sorted(os.listdir(root)) == ["b"]


def test_staged_files_are_private_and_published_ones_are_not(storage: Storage, root: str) -> None:
    """A created file is 0600 in a 0700 directory; after publishing it has the permissions that the umask leaves."""
    storage.make_directory(f"{root}/private", private=True)
    put(storage, f"{root}/private/a", b"x")
    assert stat.S_IMODE(os.stat(f"{root}/private").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(f"{root}/private/a").st_mode) == 0o600
    storage.publish(f"{root}/private/a", f"{root}/b")
    Path(f"{root}/plain").touch()
    assert os.stat(f"{root}/b").st_mode == os.stat(f"{root}/plain").st_mode


def test_a_failed_sync_poisons_the_file(storage: Storage, root: str) -> None:
    """After a failed sync the same file never counts as durable, although the next fsync would report success."""
    file = storage.create(f"{root}/a")
    file.write(b"x")
    failpoints.arm("storage.sync=error")
    try:
        with pytest.raises(StorageError):
            file.sync()
    finally:
        failpoints.arm("")
    with pytest.raises(StorageError, match="earlier sync"):
        file.sync()


def test_a_sync_reaches_through_the_cache_of_the_disk(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-W18: if `fcntl` syncs better than `os` it is used; if the file system lacks the command, fsync is; other errors are raised.

    Only macOS has the command: the test uses one that succeeds, and one that does not exist.
    """
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    descriptor = os.open(root, os.O_RDONLY)
    for command, asked in ((fcntl.F_GETFD, []), (0x7FFF, [descriptor])):
        system = FullSync(command)
        for sync in (system.fsync, system.fdatasync):
            sync(descriptor)
            assert synced == asked
            synced.clear()
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        FullSync(0x7FFF).fsync(descriptor)
    with LocalStorage(FullSync(fcntl.F_GETFD)).create(f"{root}/a") as file:
        file.write(b"x")
        file.sync()
    assert (Path(root, "a").read_bytes(), synced) == (b"x", [])


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_is_told_as_one(
    root: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """FAT and others call a link "not permitted", even to root: the advice once was to give this user the right to it."""

    def refused(source: str, target: str) -> NoReturn:
        raise OSError(number, os.strerror(number), source, None, target)

    storage = LocalStorage()
    put(storage, f"{root}/a", b"a")
    monkeypatch.setattr(os, "link", refused)
    ways: list[Callable[[], object]] = [
        lambda: storage.put_if_absent(f"{root}/b", b"b"),
        lambda: storage.publish(f"{root}/a", f"{root}/b"),
    ]
    for publishes in ways:
        with pytest.raises(StorageError, match="b.: .*; name a place on another file system, or") as raised:
            publishes()
        assert ("no hard links" in raised.value.message) == (number == errno.EPERM)
    assert list(storage.names(root)) == ["a"]
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    if number == errno.EPERM:
        with pytest.raises(StorageError, match="give this user the right"):
            storage.publish(f"{root}/a", f"{root}/b")


def test_a_file_system_without_locks_is_told_as_one(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lustre without `-o flock`, or NFS with its lock service down: the message once had no advice."""

    def refused(descriptor: int, operation: int) -> NoReturn:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(
        StorageError, match="cannot lock .*: No locks available; name a place on another file system, or"
    ):
        LocalStorage().lock(root)


def test_extend_writes_over_what_is_there(storage: Storage, root: str) -> None:
    """A power cut may have left zeros after the valid length: they are overwritten; bytes further on are not cut."""
    put(storage, f"{root}/g", b"one\n\0\0\0\0")
    with storage.extend(f"{root}/g", 4) as file:
        file.write(b"2\n")
        file.sync()
    assert storage.read(f"{root}/g") == b"one\n2\n\0\0"


def test_a_full_disk_is_named(storage: Storage, root: str) -> None:
    """ENOSPC becomes `NoSpace`, with the path and what to do."""
    failpoints.arm("storage.write=nospace")
    try:
        with pytest.raises(NoSpace, match="free some space") as raised, storage.create(f"{root}/a") as file:
            file.write(b"x")
    finally:
        failpoints.arm("")
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.ENOSPC
    assert os.listdir(root) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="who may not become another user has no permission to lose")
def test_a_permission_that_is_missing_is_told_with_what_to_do(storage: Storage, root: str) -> None:
    """A user without write permission is advised to get it, and with it the same call succeeds."""
    for folder in (Path(root), *Path(root).parents[:4]):
        folder.chmod(folder.stat().st_mode | 0o055)
    os.seteuid(65534)
    try:
        with pytest.raises(
            StorageError, match=f"cannot .*'{root}/a.*Permission denied; give this user the right to it"
        ):
            put(storage, f"{root}/a", b"x")
        os.seteuid(0)
        os.chown(root, 65534, -1)
        os.seteuid(65534)
        put(storage, f"{root}/a", b"x")
    finally:
        os.seteuid(0)
    assert storage.read(f"{root}/a") == b"x"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EROFS, "mounted to be read"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "end what else"),
        (errno.EIO, "kernel's log"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EXDEV, "no mount point"),
    ],
)
def test_what_a_machine_refuses_is_told_with_what_to_do(number: int, remedy: str) -> None:
    """F35: errors that no permission can solve: a mount point in between, a read-only file system, too many open files, a broken disk."""
    with pytest.raises(StorageError, match=f"cannot put '/a': .*; .*{remedy}"), doing("put", "/a"):
        raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a/b/../c", "/a/c"),
        ("file:/a/b", "/a/b"),
        ("file:///a%20b", "/a b"),
        (Path(os.fsdecode(b"/a\xffb")).as_uri(), os.fsdecode(b"/a\xffb")),
        ("/a%20b", "/a%20b"),
        ("file:///a?b#c", "/a?b#c"),
        ("file://localhost/a", "/a"),
        ("FILE:///a", "/a"),
    ],
)
def test_locations_are_plain_paths_or_file_urls(location: str, path: str) -> None:
    """A plain path is taken literally, a file: URL is decoded."""
    assert locate(location)[1] == path


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is below the working directory; one that looks like a URL but exists is a path."""
    monkeypatch.chdir(tmp_path)
    assert locate("in")[1] == f"{tmp_path}/in"
    Path("s3:x").mkdir()
    assert locate("s3:x")[1] == f"{tmp_path}/s3:x"


def test_files_of_another_host_are_refused() -> None:
    """`file://host/x` is not `/x` on this host; the error names the likely slip, a missing slash."""
    with pytest.raises(
        OptionError, match=r"^\[PST-101\] DST: file://data/in is on the host 'data'.*file:///data/in or file:///in"
    ):
        locate("file://data/in", name="DST")
    with pytest.raises(OptionError) as raised:
        locate("file://user:secret@host/in")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("location", ["", "ftp://host/a", "hdfs:relative", "file://", "file:"])
def test_unknown_file_systems_are_refused(location: str) -> None:
    """An empty location and an unknown scheme are refused with the name of the option."""
    with pytest.raises(OptionError, match="^\\[PST-101\\] checkpoint"):
        locate(location, name="checkpoint")


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("a\0b", "is no path"),
        ("\ud800", "is no path"),
        ("file:/a%00b", "is no path"),
        ("/data/out\n", r"begins or ends with a blank or a line break; expected none there, as in '/data/out'"),
        ("s3://bucket/out ", "begins or ends with a blank"),
        ("~/out", "~ is for a shell, and none reads this path; expected the whole path, such as /home/of/me/out"),
        ("~nobody-at-all/out", "such as /data/out"),
        ("$PENSTOCK_DATA/out", "such as /data/out"),
        ("${HOME}/out", r"\$\{HOME\} is for a shell.*such as /data/out"),  # the variable's value may be a secret
    ],
)
def test_paths_that_nobody_meant_are_refused(location: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such paths made directories called `~` and `out` with a line break; an impossible name was Python's own error."""
    monkeypatch.setenv("HOME", "/home/of/me")
    with pytest.raises(OptionError, match=f"DST=.*{says}"):
        locate(location, name="DST")


@pytest.mark.parametrize("ending", [" ", "\n", "\0"])
def test_paths_that_nobody_meant_show_no_keys(ending: str) -> None:
    """An address that is refused for its form is shown without the part before its `@`."""
    with pytest.raises(OptionError, match="DST=") as refused:
        locate(f"s3://key:hushhush@bucket/out{ending}", name="DST")
    assert "hushhush" not in str(refused.value)


@pytest.mark.parametrize("name", ["~", "$HOME", " a", "a ", "~x/y"])
def test_odd_paths_that_are_there_are_taken(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a directory with such a name exists, it is meant; a path that comes from data is always taken literally."""
    monkeypatch.chdir(tmp_path)
    assert locate(name, literal=True)[1] == f"{tmp_path}/{name}"
    (tmp_path / name).mkdir(parents=True)
    assert locate(name)[1] == f"{tmp_path}/{name}"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="this system has no /proc")
def test_where_no_directory_can_be_made(storage: Storage) -> None:
    """A place that refuses every name, as /proc does, a file on the way, and an empty path: an error names it, at once."""
    for path in ("/proc/penstock", "/proc/penstock/below/it", "", "/dev/null/below"):
        with pytest.raises(StorageError, match="cannot make directory"):
            storage.make_directory(path)
