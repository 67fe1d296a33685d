"""The back end for local disks and mounts like one: O_EXCL to create, link to publish, fsync of file and directory.

How each promise of `_base` is kept:

- *create* opens with O_CREAT|O_EXCL, mode 0600.
- *sync* is fdatasync of the file, and the first time also fsync of its directory: a synced file without its name would be lost.
  On macOS, which has no fdatasync and whose fsync leaves the bytes in the disk's own cache, both are F_FULLFSYNC.
- *lock* is flock on a separate descriptor: it works between processes and between threads, and ends with its holder.
- *publish* and *put_if_absent* use link(2), which never replaces, and fails if the name is taken, on every POSIX file system.
  rename(2) would replace; renameat2(RENAME_NOREPLACE) exists on few systems. The directory is synced between link and unlink.
- *take* is rename(2), which replaces. Its caller has made the directory of the new name, under a unique name.
- *put_if_absent* links a synced temporary file, so a name in the ledger never belongs to half a record.

A failed fsync poisons the handle: Linux may drop the dirty pages and report success the next time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat as stat_bits
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from penstock import clock, failpoints, unique
from penstock.errors import AlreadyThere, Locked, NotSupported, NotThere, StorageError
from penstock.storage._base import PATH_BYTES_MAX, TEMPORARY, Entry, Link, ShownInListings, entry_at
from penstock.storage._in_turn import InTurn
from penstock.storage._refusal import doing, refuse
from penstock.storage._watch import LocalWatch, watch
from penstock.tally import synced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor

    from penstock.storage._base import Data, Storage


_KIND = stat_bits.S_IFMT(0xFFFF)  # a function call would cost more than the operation, and this runs 100,000 times


def _entry(name: str, info: os.stat_result) -> Entry:
    kind = info.st_mode & _KIND
    # Inodes are numbered for each disk, and disks in the order in which they are found. A file's identity goes into
    # plans, so it must not depend on that order.
    identity = f"{info.st_dev}-{info.st_ino}" if kind == stat_bits.S_IFDIR else f"{info.st_ino}"
    times = info.st_mtime_ns, info.st_ctime_ns
    return Entry(name, kind == stat_bits.S_IFDIR, info.st_size, times[0], identity, times[1], kind == stat_bits.S_IFREG)


def _in_the_way(path: str) -> str:
    """Return the message that there is a file at the path, or on the way to it, where a directory is needed."""
    blocking = path
    while not os.path.lexists(blocking) and len(blocking) > 1:
        blocking = os.path.dirname(blocking)
    words = f"{blocking!r} is a file, expected a directory; move it away, or name another place"
    return words if blocking == path else f"cannot make directory {path!r}: {words}"


def _sync_directory(system: _System, path: str) -> None:
    fd = system.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        synced(system.fsync, fd)
    finally:
        system.close(fd)


def _link(system: _System, source: str, target: str) -> None:
    """Give a file a second name. File systems without hard links refuse that as not permitted, even for our own files."""
    try:
        system.link(source, target)
    except PermissionError as error:
        if error.errno != errno.EPERM or system.stat(source).st_uid != os.geteuid():
            raise
        without = "its file system has no hard links, as FAT, exFAT and some that are reached by a network or by FUSE"
        raise OSError(errno.EOPNOTSUPP, without) from error


class _System(Protocol):
    """The functions of `os` that are called here. `os` itself has them; `penstock.testing.CrashDisk` is another implementation."""

    def open(self, path: str, flags: int, mode: int = ..., /) -> int: ...
    def close(self, fd: int, /) -> None: ...
    def write(self, fd: int, data: memoryview, /) -> int: ...
    def pread(self, fd: int, length: int, offset: int, /) -> bytes: ...
    def lseek(self, fd: int, position: int, how: int, /) -> int: ...
    def fsync(self, fd: int, /) -> None: ...
    def fdatasync(self, fd: int, /) -> None: ...
    def fstat(self, fd: int, /) -> os.stat_result: ...
    def stat(self, path: str, /, *, follow_symlinks: bool = ...) -> os.stat_result: ...
    def scandir(self, path: str, /) -> Any: ...  # noqa: ANN401 - os has a private type for it
    def chmod(self, path: str, mode: int, /) -> None: ...
    def link(self, source: str, target: str, /) -> None: ...
    def rename(self, source: str, target: str, /) -> None: ...
    def unlink(self, path: str, /) -> None: ...
    def rmdir(self, path: str, /) -> None: ...
    def mkdir(self, path: str, mode: int = ..., /) -> None: ...
    def umask(self, mask: int, /) -> int: ...
    def sync(self) -> None: ...


class FullSync:
    """`os` with a sync that also makes the disk write its cache, which a power cut would lose, by a command of `fcntl`. See the module."""

    def __init__(self, command: int) -> None:
        self._command = command

    def fsync(self, fd: int) -> None:
        """Sync the file; on file systems that do not know the command, such as network file systems, as `os` does."""
        try:
            fcntl.fcntl(fd, self._command)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOTTY, errno.ENOTSUP}:
                raise
            os.fsync(fd)

    fdatasync = fsync

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any function of `os`
        return getattr(os, name)


_OS = cast("_System", FullSync(fcntl.F_FULLFSYNC) if hasattr(fcntl, "F_FULLFSYNC") else os)
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # do not wait for the writer of a pipe
_durable: set[str] = set()
# Only for systems that do not tell the umask. It is held for two calls that never wait: whoever makes a file or forks waits for nobody.
_umask_is_set = threading.Lock()
os.register_at_fork(
    before=_umask_is_set.acquire, after_in_parent=_umask_is_set.release, after_in_child=_umask_is_set.release
)
_STATUS = "/proc/self/status"
_TOLD_UMASK = re.compile(rb"^Umask:\s*([0-7]+)$", re.MULTILINE)
_DURABLE_MAX = 10_000  # how many names are remembered; a process may make buckets for years


class LocalWriteHandle:
    """A file being written on a local disk."""

    def __init__(self, path: str, *, keep: int | None = None, system: _System = _OS) -> None:
        self._os = system
        self._path = path
        self._keep = keep is not None
        self._written = keep or 0
        self._poisoned = False
        self._named = False
        with doing("create", path):
            failpoints.hit("storage.create")
            if keep is None:
                self._fd = self._os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                return
            self._fd = self._os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            try:
                self._os.lseek(self._fd, keep, os.SEEK_SET)
            except OSError:
                self._os.close(self._fd)
                raise

    def write(self, data: Data) -> int:
        """Append all of `data`."""
        view = memoryview(data).cast("B")
        length = len(view)
        try:  # not `doing`, here or below: a log calls this for every few records
            failpoints.hit("storage.write")
            while view:
                view = view[self._os.write(self._fd, view) :]
        except OSError as error:
            refuse(error, "write", self._path)
        self._written += length
        return length

    def tell(self) -> int:
        """Return the bytes written so far."""
        return self._written

    def sync(self) -> None:
        """Make bytes and name durable; the name must still belong to this file."""
        if self._poisoned:
            msg = f"an earlier sync of {self._path!r} failed; what it holds cannot be made durable any more"
            raise StorageError(msg)
        try:
            failpoints.hit("storage.sync")
            synced(self._os.fdatasync, self._fd)
            if self._named:  # somebody may have taken it away since, and nobody will find what is written
                self._check_name(self._os.fstat(self._fd))
            else:
                _sync_directory(self._os, os.path.dirname(self._path))
                self._named = True
        except OSError as error:
            self._poisoned = True
            refuse(error, "sync", self._path)

    def close(self) -> None:
        """Close; the name must still belong to this file."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        with doing("close", self._path):
            try:
                mine = self._os.fstat(fd)
            finally:
                self._os.close(fd)
            self._check_name(mine)

    def _check_name(self, mine: os.stat_result) -> None:
        if self._os.stat(self._path, follow_symlinks=False).st_ino != mine.st_ino:
            msg = f"{self._path!r} is another file than the one that was written"
            raise StorageError(msg)

    def __enter__(self) -> LocalWriteHandle:
        """Return itself."""
        return self

    def __exit__(self, kind: object = None, *exc: object) -> None:
        """Close; after an exception remove the file."""
        if kind is None:
            self.close()
            return
        with contextlib.suppress(OSError):
            if self._fd >= 0:
                fd, self._fd = self._fd, -1
                self._os.close(fd)
        with contextlib.suppress(OSError):
            if not self._keep:
                self._os.unlink(self._path)


class LocalReadHandle:
    """An open file on a local disk."""

    def __init__(self, path: str, system: _System = _OS) -> None:
        self._os = system
        self._path = path
        try:  # not `doing`: a batch may open 100,000 files, and it would take half of the time
            self._fd = self._os.open(path, _READ_FLAGS)
        except OSError as error:
            refuse(error, "open", path)

    def info(self) -> Entry:
        """Return the present state of the open file."""
        try:
            return _entry(self._path.rpartition("/")[2], self._os.fstat(self._fd))
        except OSError as error:
            refuse(error, "look at", self._path)

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes at `offset`."""
        try:
            data = self._os.pread(self._fd, length, offset)
            if len(data) in (0, length):
                return data
            parts = [data]
            while (got := sum(map(len, parts))) < length and parts[-1]:
                parts.append(self._os.pread(self._fd, length - got, offset + got))
        except OSError as error:
            refuse(error, "read", self._path)
        return b"".join(parts)

    def close(self) -> None:
        """Release the file."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with doing("close", self._path):
                self._os.close(fd)

    def __enter__(self) -> LocalReadHandle:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()


class LocalHold:
    """A lock on a local disk."""

    def __init__(self, path: str, operation: int, system: _System = _OS) -> None:
        self._os = system
        self._path = path
        with doing("lock", path):
            self._fd = system.open(path, _READ_FLAGS)
            try:
                # A simulated disk has its own.
                flock: Callable[[int, int], None] = getattr(system, "flock", fcntl.flock)
                flock(self._fd, operation | fcntl.LOCK_NB)
            except OSError as error:
                self.close()
                if error.errno not in {errno.EAGAIN, errno.EACCES}:
                    raise
                msg = f"{path!r} is held by another process, or by another holder in this one; wait until it has ended"
                raise Locked(msg) from error

    def close(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with doing("unlock", self._path):
                self._os.close(fd)


class LocalStorage(ShownInListings):
    """A local disk; see the module for how the promises are kept. `system` is for tests: see `_System`."""

    goes_on = True
    reads_open = True
    tags_contents = False
    has_directories = True
    takes_colons = True
    moves = True
    of_this_host = True
    reads_ahead = True
    lists_in_order = False
    is_paid = False
    needs_contest = False

    def __init__(self, system: _System | None = None) -> None:
        self._system = system  # None for `os`, which cannot be pickled
        self._own_durable: set[str] = set()

    @property
    def _os(self) -> _System:
        return _OS if self._system is None else self._system

    def checkpoint_at(self, path: str, given: str | None) -> str:  # noqa: ARG002 - only Hadoop's names of stores differ from ours
        """Return the path unchanged."""
        return path

    def bytes_below(self, root: str) -> int:
        """Return what remains of the longest path on Linux."""
        return PATH_BYTES_MAX - len(os.fsencode(root)) - len("/")

    @property
    def _durable(self) -> set[str]:
        """Return the directories whose names this process has synced."""
        return _durable if self._system is None else self._own_durable

    def create(self, path: str, *, unique: bool = False) -> LocalWriteHandle:  # noqa: ARG002 - it costs nothing to be sure
        """Create the file exclusively, mode 0600."""
        return LocalWriteHandle(path, system=self._os)

    def extend(self, path: str, length: int) -> LocalWriteHandle:
        """Open the file to write after its first `length` bytes."""
        return LocalWriteHandle(path, keep=length, system=self._os)

    def lock(self, path: str, *, shared: bool = False) -> LocalHold:
        """Hold the file or directory by flock."""
        return LocalHold(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, self._os)

    def open(self, path: str) -> LocalReadHandle:
        """Open the file for reading."""
        return LocalReadHandle(path, self._os)

    def read(self, path: str) -> bytes:
        """Return the whole file."""
        with self.open(path) as file:
            return file.read(0, file.info().size)

    def whole(self, path: str, size: int, modified_ns: int, identity: str) -> bytes | None:
        """Return the whole file by one read, with an fstat before and after it."""
        system = self._os
        try:
            fd = system.open(path, _READ_FLAGS)
            try:
                before = system.fstat(fd)
                if before.st_size != size or before.st_mtime_ns != modified_ns or f"{before.st_ino}" != identity:
                    return None
                data = system.pread(fd, size, 0)
                after = system.fstat(fd)
            finally:
                system.close(fd)
        except OSError:
            return None
        alike = len(data) == size == after.st_size and after.st_mtime_ns == modified_ns
        return data if alike else None

    def list(self, path: str) -> Iterator[Entry]:
        """Yield the entries; follows symbolic links, and skips dangling ones."""
        with doing("list", path), self._os.scandir(path) as entries:
            for entry in entries:
                try:
                    info = entry.stat()
                except FileNotFoundError:
                    continue
                yield _entry(entry.name, info)

    def names(self, path: str) -> dict[str, int]:
        """Return names and inodes straight from the directory, without a stat for each entry."""
        with doing("list", path), self._os.scandir(path) as entries:
            return {e.name: Link(e.inode()) if e.is_symlink() else e.inode() for e in entries}

    def listed_after(self, path: str, after: str) -> NoReturn:
        """Refuse: a disk lists each directory separately."""
        msg = f"cannot list the files after {after!r} below {path!r}: a disk lists directories, each by itself"
        raise NotSupported(msg)

    def watch(self, path: str) -> LocalWatch | None:
        """Return a watch of the kernel on the directory; `None` for a simulated disk."""
        return watch(path) if self._system is None else None

    def stat(self, path: str) -> Entry:
        """Return the entry at the path, following symbolic links."""
        system = self._system
        try:
            info = os.stat(path) if system is None else system.stat(path)
        except OSError as error:
            refuse(error, "look at", path)
        return _entry(path.rpartition("/")[2], info)

    def resolve(self, path: str) -> str:
        """Return the path without symbolic links; a simulated disk has none."""
        return os.path.realpath(path) if self._system is None else path

    def owns(self, path: str) -> bool:
        """Tell whether the path is absolute."""
        return path.startswith("/")

    def addressed_as(self, other: Storage, path: str) -> str:  # noqa: ARG002 - it has one address
        """Return the path."""
        return path

    def take(self, source: str, target: str) -> None:
        """Rename; see `Storage.take`."""
        with doing("move", source):
            failpoints.hit("storage.take")
            self._os.rename(source, target)

    def publish(self, source: str, target: str, *, as_it_is: bool = False) -> None:
        """Link, sync the directory, unlink; see `Storage.publish`."""
        with doing("publish", target):
            failpoints.hit("storage.publish")
            mine = self._os.stat(source)
            try:
                if not as_it_is:
                    self._os.chmod(source, default_mode(self._os))
                _link(self._os, source, target)
            except FileExistsError:
                if self._os.stat(target, follow_symlinks=False).st_ino != mine.st_ino:
                    raise
            _sync_directory(self._os, os.path.dirname(target))
            failpoints.hit("storage.publish.linked")
            self._os.unlink(source)

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Write and sync a temporary file in the same directory, then link it."""
        directory = os.path.dirname(path)
        temporary = f"{directory}/{TEMPORARY}{unique.token()}"
        with self.create(temporary) as file:
            file.write(data)
            with doing("sync", temporary):
                failpoints.hit("storage.put.sync")
                synced(self._os.fdatasync, file._fd)  # noqa: SLF001 - the directory is synced once, after the link
        try:
            with doing("put", path):
                failpoints.hit("storage.put.link")
                _link(self._os, temporary, path)
                _sync_directory(self._os, directory)
        finally:
            with contextlib.suppress(OSError):
                self._os.unlink(temporary)

    def persist(self, directory: str, names: Iterable[str]) -> None:
        """Sync each file, then the directory."""
        with doing("sync", directory):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    fd = self._os.open(f"{directory}/{name}", os.O_RDONLY)
                    try:
                        synced(self._os.fsync, fd)
                    finally:
                        self._os.close(fd)
            _sync_directory(self._os, directory)

    def delete(self, path: str) -> None:
        """Remove the file or the empty directory."""
        with doing("delete", path), contextlib.suppress(FileNotFoundError):
            failpoints.hit("storage.delete")
            try:
                self._os.unlink(path)
            except (IsADirectoryError, PermissionError):
                self._os.rmdir(path)

    def move_directory(self, source: str, target: str) -> None:
        """Rename the directory, and sync the parent directories of both names."""
        if entry_at(self, target) is not None:
            msg = f"cannot move {source!r} to {target!r}: that is there"
            raise AlreadyThere(msg)
        with doing("move", source):
            failpoints.hit("storage.move")
            self._os.rename(source, target)
            _sync_directory(self._os, os.path.dirname(target))
            _sync_directory(self._os, os.path.dirname(source))

    def make_directory(self, path: str, *, private: bool = False) -> None:
        """Make the directory and its parents, each synced into the one above it.

        If a directory exists, another process may have just made it without syncing it. So its name and the names above it are
        synced, too, once in each process.
        """
        mode = 0o700 if private else 0o777
        try:
            is_new = self._make_one(path, mode)
        except FileNotFoundError:
            above = os.path.dirname(path)
            if above not in {"", path}:
                self.make_directory(above)
            try:
                is_new = self._make_one(path, mode)
            except FileNotFoundError as error:  # /proc, for one, says so of every name
                msg = (
                    f"cannot make directory {path!r}: no directory can be made in {above or '.'!r}; name another place"
                )
                raise StorageError(msg) from error
        if is_new or path not in self._durable:
            self._sync_name(path, is_new=is_new)

    def _make_one(self, path: str, mode: int) -> bool:
        """Make one directory; tell whether it is new. `FileNotFoundError` if the directory above it is not there."""
        try:
            self._os.mkdir(path, mode)
        except FileExistsError:
            if not self._is_directory(path):
                raise StorageError(_in_the_way(path)) from None
            return False
        except NotADirectoryError as error:
            raise StorageError(_in_the_way(path)) from error
        except FileNotFoundError:
            raise
        except OSError as error:
            refuse(error, "make directory", path)
        return True

    def _is_directory(self, path: str) -> bool:
        """Tell whether the path is a directory; `StorageError` for a dangling link, which takes the name all the same."""
        try:
            return self.stat(path).is_directory
        except NotThere as error:
            msg = f"{path!r} is a symbolic link that leads nowhere, expected a directory; remove it, or make what it leads to"
            raise StorageError(msg) from error

    def _sync_name(self, path: str, *, is_new: bool) -> None:
        """Make the names of the directory and of those above it durable.

        If the directory was there before, we may lack permission for the one above it; that is ignored.
        """
        with doing("sync", path), contextlib.nullcontext() if is_new else contextlib.suppress(PermissionError):
            _sync_directory(self._os, os.path.dirname(path) or "/")
        if len(self._durable) >= _DURABLE_MAX:
            self._durable.clear()
        self._durable.add(path)
        above = os.path.dirname(path)
        if above not in {"", "/"} and above not in self._durable:
            self._sync_name(above, is_new=False)

    def workers(self, count: int) -> Executor:
        """Return threads: writing, syncing and hashing release Python's lock."""
        return ThreadPoolExecutor(count, "penstock-storage") if self._system is None else InTurn()

    def persist_all(self) -> None:
        """Write out all disks, and to network file systems what this host has written."""
        with doing("write out all that is in", "/"):
            self._os.sync()

    def now_ns(self) -> int:
        """Return the machine's time: it stamps the files of its own disks."""
        return clock.now_ns()


def default_mode(system: _System = _OS, *, directory: bool = False) -> int:
    """Return the permissions that this process's umask leaves to a new file or directory."""
    mask = _told_mask() if system is _OS else None
    if mask is None:
        with _umask_is_set:  # what another thread makes meanwhile is closed to others, never open to them
            mask = system.umask(0o077)
            system.umask(mask)
    return (0o777 if directory else 0o666) & ~mask


def _told_mask() -> int | None:
    """Return the umask as Linux tells it; `None` on another system, where it can only be read by setting it."""
    try:
        with open(_STATUS, "rb", buffering=0) as file:
            line = _TOLD_UMASK.search(file.read())
    except OSError:
        return None
    return int(line[1], 8) if line else None
