"""HDFS: leases to create, one rename to publish, hsync to make durable. What is called of it is in `_hdfs_calls`.

How each promise of `_base` is kept:

- *create* is the NameNode's create without overwrite, mode 0600; a name whose file is still open is taken, too.
- *sync* is hsync: every DataNode of the block has it on disk. It covers the block that is being written and no other, so
  a handle also syncs each block that it fills. The name is in the NameNode's log since `create`.
- *close* completes the file; a file that was renamed, replaced or taken over meanwhile is noticed by name and length.
- *publish* and *put_if_absent* are one rename without overwrite: done whole or not at all, and durable on return. A
  temporary is synced and closed before it is renamed: a file that is open has a length that readers disagree about, so
  renaming first and closing behind the back of the caller would show a part of it.
- *extend* is append, to a file that is taken from whoever has it open. Nothing there can be written over, and need not be:
  what a crash left behind the valid length is the beginning of what is written now, so it is compared and passed over.

*A lost reply.* A call may be done and still fail; hdfs-native even repeats it by itself when a connection breaks. Creating
under a unique name, deleting and making directories may be repeated. A rename is decided by what is there: the source is
there: it was not done. The source is gone, and the target has its length and modification time (put: its bytes): it
was done. Nobody else moves a staged file or a temporary but another driver that publishes the same record.

*A DataNode that is dead and not missed yet.* The NameNode hands it out for ten minutes, and hdfs-native asks for no other: the
write fails, or the sync waits in vain. So as long as a file has less than `_AGAIN_BYTES`, and was never synced, its handle has all
of it in memory, and a call that fails is made again on a new file of the same name, which gets other DataNodes. Where there are
no others, as with three DataNodes and three replicas, Hadoop's own client goes on with those that answer. So the new file has one
replica less (but two, if it had two), and that is repeated until it has met none that is dead; when it is closed, the NameNode is
told how many it should have. Nobody but the handle knows that name, and the NameNode tells the files apart by their numbers, so
what is left of the first is in nobody's way. Nothing can be doubled: there is one file of the name, and until the handle returns
no record that names it. An error that is not of a DataNode (space, permissions, a lost lease, a name that is gone) is never
answered so. Beyond that length, and in a file that is extended, the error is raised, and Spark tries the task again; so, too,
behind a sync: to make the file again takes it away first, and what was called durable would be lost if this process died then.

*Identity.* hdfs-native does not tell the number of a file, so `Entry.identity` is `""`. A file in HDFS cannot be
overwritten in place; another one under the same name has another modification time, to the millisecond.

*Open files.* A file that somebody is writing has the modification time of its creation, however long that takes. `stat`
shows one that it knows to be open as modified now, so that it does not settle. One whose writer publishes a length (hflush
with it) is not known to be open; to open it shows another size than `stat`, and a planned size that differs is an error.

*Time.* `now_ns` is this machine's clock, put right by the NameNode's: the modification time of a directory made for that in
`/tmp`, once a minute. Where that may not be written, this machine's clock is taken for the NameNode's.
"""

from __future__ import annotations

import errno
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from penstock import clock, failpoints, unique
from penstock.errors import AlreadyThere, NotSupported, NotThere, StorageError
from penstock.storage import _hdfs_native
from penstock.storage._base import PATH_BYTES_MAX, TEMPORARY, Entry, OpenedOneByOne, ShownInListings
from penstock.storage._far_clock import FarClock
from penstock.storage._in_turn import InTurn
from penstock.storage._local import default_mode
from penstock.storage._refusal import doing
from penstock.tally import synced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor

    from penstock.storage._base import Data, Storage
    from penstock.storage._hdfs_calls import Hdfs, HdfsReader, HdfsWriter, Status

_log = logging.getLogger("penstock.storage")
_BLOCK_BYTES_MIN = 1 << 20  # no block is smaller, unless a NameNode is told to allow it
_RECOVERY_SECONDS = 60.0
_AGAIN_BYTES = 4 << 20  # what a task stages of a small part
# Of a sync, at each try. Those in the middle meet a dead one of three DataNodes twice in three times, and every other of these waits
# for it. The last has time for what is only slow: hdfs-native gives a DataNode 60 s to answer.
_PATIENCE_SECONDS = (5.0, *(2.0,) * 30, 90.0)
_OF_DATA_NODES = {errno.EIO, errno.ETIMEDOUT}
_MS = 1_000_000
_PRIVATE = 0o600
_clocks: dict[str, FarClock] = {}  # by authority


class HdfsWriteHandle:
    """A file being written on HDFS."""

    def __init__(
        self,
        hdfs: Hdfs,
        path: str,
        at: str,
        file: HdfsWriter,
        *,
        kept: int | None = None,
        before: HdfsReader | None = None,
    ) -> None:
        self._hdfs = hdfs
        self._path = path
        self._at = at
        self._file: HdfsWriter | None = file
        self._keep = kept is not None
        self._written = kept or 0
        self._before = before  # what the file had: behind `kept` it is compared, not written
        self._block: int | None = None
        # All that was written, while that is little and was not called durable.
        self._again: bytearray | None = None if self._keep else bytearray()
        self._replicas = 0  # that a file which was made again should have
        self._poisoned = False

    def write(self, data: Data) -> int:
        """Append all of `data`; a block that is full is synced, because a later sync does not cover it."""
        view = memoryview(data).cast("B")
        length = len(view)
        with self._poisoning("write"):
            failpoints.hit("storage.write")
            view = self._beyond_what_is_there(view)
            while view:
                room = self._room(len(view))
                self._append(view[:room])
                view = view[room:]
        return length

    def _append(self, piece: memoryview) -> None:
        """Append what lies within a block."""
        self._call(lambda file, _: file.write(piece))
        self._written += len(piece)
        if self._again is not None:
            self._again += piece
        if self._block and self._written % self._block == 0:
            self._call(_hsync)
            self._again = None
        elif self._written >= _AGAIN_BYTES:
            self._again = None

    def _call(self, call: Callable[[HdfsWriter, float], object]) -> None:
        """Call the file, with the seconds that a sync may take; see the module for files that are made again."""
        tries = _PATIENCE_SECONDS if self._again is not None else _PATIENCE_SECONDS[-1:]
        for number, seconds in enumerate(tries, 1):
            try:
                if number > 1:
                    self._make_again()
                call(self._open, seconds)
            except OSError as error:  # noqa: PERF203 - each try is a call over the network
                if number == len(tries) or error.errno not in _OF_DATA_NODES:
                    raise
                _log.info("%r is made again: %s", self._path, error)
            else:
                return

    def _make_again(self) -> None:
        """Put a new file, with all that was written so far, in the place of one that cannot be written."""
        self._replicas = self._replicas or self._hdfs.stat(self._at).replicas
        self._hdfs.delete(self._at)
        file = self._file = self._hdfs.create(self._at, _PRIVATE, max(self._replicas - 1, min(self._replicas, 2)))
        if self._again:
            file.write(self._again)

    def _beyond_what_is_there(self, view: memoryview) -> memoryview:
        """Return what is to be written of `view`: what lies behind the bytes that the file has already."""
        if self._before is None or self._written >= self._before.size:
            return view
        same = min(self._before.size - self._written, len(view))
        if same and self._before.read(self._written, same) != view[:same]:
            msg = f"{self._path!r} has other bytes from {self._written} on than it should: somebody else wrote to it"
            raise StorageError(msg)
        self._written += same
        return view[same:]

    @contextmanager
    def _poisoning(self, call: str) -> Iterator[None]:
        """Raise what fails as it should be, and never again call anything of this file durable."""
        if self._poisoned:
            msg = f"an earlier write or sync of {self._path!r} failed; what it holds cannot be made durable any more"
            raise StorageError(msg)
        try:
            with doing(call, self._path):
                yield
        except StorageError:
            self._poisoned = True
            raise

    def _room(self, wanted: int) -> int:
        """Return how many of the `wanted` bytes still go into the current block."""
        if self._block is None:
            if self._written + wanted < _BLOCK_BYTES_MIN:
                return wanted
            self._block = self._hdfs.stat(self._at).block_size
        return self._block - self._written % self._block if self._block else wanted

    @property
    def _open(self) -> HdfsWriter:
        if self._file is None:
            msg = f"{self._path!r} is closed"
            raise StorageError(msg)
        return self._file

    def tell(self) -> int:
        """Return the bytes written so far."""
        return self._written

    def sync(self) -> None:
        """Make the bytes durable; the name is."""
        with self._poisoning("sync"):
            failpoints.hit("storage.sync")
            synced(self._call, _hsync)
            self._again = None  # made again, it would be gone for a moment, though somebody was told that it is durable

    def close(self) -> None:
        """Complete the file; the name must still be this file's."""
        if self._file is None:
            return
        try:
            with self._poisoning("close"):  # not after a failure, when it would wait for blocks that never come
                self._call(lambda file, _: file.close())
        finally:
            self._file = None  # never twice: a second completion does not know the last block any more
            self._again = None  # a task keeps its handles
        with doing("close", self._path):
            if self._replicas:
                self._hdfs.set_replicas(self._at, self._replicas)
            status = self._hdfs.stat(self._at)
            if status.size != max(self._written, self._before.size if self._before else 0):
                msg = f"{self._path!r} is another file than the one that was written"
                raise StorageError(msg)

    def __enter__(self) -> HdfsWriteHandle:
        """Return itself."""
        return self

    def __exit__(self, kind: object = None, *exc: object) -> None:
        """Close; after an exception remove the file, which needs no close."""
        if kind is None:
            self.close()
        elif self._before is not None and self._written <= self._before.size:
            with suppress(StorageError, OSError):  # nothing was appended: there is no block that it would wait for
                self._open.close()
            self._file = None
        elif self._keep:
            with suppress(StorageError):
                self.close()
        else:
            self._file = None
            with suppress(OSError):
                self._hdfs.delete(self._at)


def _hsync(file: HdfsWriter, seconds: float) -> None:
    file.hsync(seconds)


class HdfsReadHandle:
    """An open file on HDFS: the blocks it had when it was opened."""

    def __init__(self, hdfs: Hdfs, path: str, at: str) -> None:
        self._hdfs = hdfs
        self._path = path
        self._at = at
        self._found: Status | None = None
        with doing("open", path):
            self._file = hdfs.open(at)

    def info(self) -> Entry:
        """Return the size that was opened, and the time of the name; that of the last look if the name has gone since."""
        with doing("look at", self._path):
            try:
                self._found = self._hdfs.stat(self._at)
            except FileNotFoundError:
                if self._found is None:
                    raise
        return Entry(
            self._found.name,
            is_directory=False,
            size=self._file.size,
            modified_ns=self._found.modified_ms * _MS,
            identity="",
        )

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes at `offset`."""
        length = min(length, self._file.size - offset)
        if length <= 0:
            return b""
        with doing("read", self._path):
            return self._file.read(offset, length)

    def close(self) -> None:
        """Do nothing: HDFS keeps nothing for a reader."""

    def __enter__(self) -> HdfsReadHandle:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""


class HdfsStorage(OpenedOneByOne, ShownInListings):
    """One HDFS: `host:port`, a name service, or `""` for the default one. See the module for how the promises are kept.

    Paths are `hdfs://<authority>/a/b`, or `/a/b` for short. `system` is for tests: see `_hdfs_calls`.
    """

    goes_on = True
    tags_contents = False
    has_directories = True
    takes_colons = False
    moves = True
    of_this_host = False
    reads_ahead = True
    lists_in_order = False
    is_paid = False
    needs_contest = False
    reads_open = False  # hdfs-native does not ask DataNodes how long the block is that is being written

    def __init__(self, authority: str = "", system: Hdfs | None = None) -> None:
        self.authority = authority
        self._system = system  # None for the real one, whose client cannot be pickled
        self._clocks = {} if system else _clocks

    @property
    def _hdfs(self) -> Hdfs:
        return _hdfs_native.connect(self.authority) if self._system is None else self._system

    def checkpoint_at(self, path: str, given: str | None) -> str:  # noqa: ARG002 - only Hadoop's names of stores differ from ours
        """Return the path as it is."""
        return path

    def bytes_below(self, root: str) -> int:
        """Return what Linux would leave of a path, so that files can be copied to a disk; HDFS takes twice as many."""
        return PATH_BYTES_MAX - len(os.fsencode(root)) - len("/")

    def _at(self, path: str) -> str:
        """Return the path as HDFS takes it."""
        own = f"hdfs://{self.authority}"
        at = path.removeprefix(own)
        if at and not at.startswith("/"):
            msg = f"{path!r} is not on {own}"
            raise StorageError(msg)
        return at or "/"

    def create(self, path: str, *, unique: bool = False) -> HdfsWriteHandle:  # noqa: ARG002 - it costs nothing to be sure
        """Create the file exclusively, mode 0600."""
        at = self._at(path)
        with doing("create", path):
            failpoints.hit("storage.create")
            return HdfsWriteHandle(self._hdfs, path, at, self._hdfs.create(at, _PRIVATE))

    def extend(self, path: str, length: int) -> HdfsWriteHandle:
        """Open the file to write behind its first `length` bytes, away from whoever else has it open."""
        at = self._at(path)
        with doing("extend", path):
            failpoints.hit("storage.create")
            try:
                return HdfsWriteHandle(self._hdfs, path, at, self._hdfs.create(at, default_mode()), kept=0)
            except FileExistsError:
                self._recover(path, at)
            reader = self._hdfs.open(at)
            return HdfsWriteHandle(self._hdfs, path, at, self._hdfs.append(at), kept=length, before=reader)

    def _recover(self, path: str, at: str) -> None:
        """Have the file closed: its writer is dead, or has been replaced by this one."""
        until = clock.monotonic() + _RECOVERY_SECONDS
        while not self._hdfs.recover_lease(at):
            if clock.monotonic() > until:
                msg = f"{path!r} is open, and could not be taken from its writer within {_RECOVERY_SECONDS:.0f} s; try again"
                raise StorageError(msg)
            clock.sleep(0.2)

    def lock(self, path: str, *, shared: bool = False) -> NoReturn:  # noqa: ARG002 - there is none of either kind
        """Refuse: HDFS has leases, of files that are written, and no locks."""
        msg = f"cannot lock {path!r}: HDFS has no locks"
        raise NotSupported(msg)

    def open(self, path: str) -> HdfsReadHandle:
        """Open the file for reading."""
        return HdfsReadHandle(self._hdfs, path, self._at(path))

    def read(self, path: str) -> bytes:
        """Return the whole file."""
        with doing("read", path):
            file = self._hdfs.open(self._at(path))
            return file.read(0, file.size) if file.size else b""

    def list(self, path: str) -> Iterator[Entry]:
        """Yield the entries."""
        with doing("list", path):
            for status in self._hdfs.list(self._at(path)):
                yield _entry(status)

    def names(self, path: str) -> dict[str, Entry | tuple[int, int]]:
        """Return names, each with its entry; with modification time and size where only `stat` knows if the file is open."""
        with doing("list", path):
            return {
                status.name: (status.modified_ms, status.size) if status.may_be_open else _entry(status)
                for status in self._hdfs.list(self._at(path))
            }

    def behind(self, path: str, after: str) -> NoReturn:
        """Refuse: directories are listed, each by itself."""
        msg = f"cannot list what is behind {after!r} below {path!r}: HDFS lists directories, each by itself"
        raise NotSupported(msg)

    def stat(self, path: str) -> Entry:
        """Return the entry at the path; a file that is being written is as young as can be."""
        with doing("look at", path):
            status = self._hdfs.stat(self._at(path))
        return _entry(status, self.now_ns() if status.being_written else None)

    def watch(self, path: str) -> None:
        """Return nothing: nobody tells."""

    def resolve(self, path: str) -> str:
        """Return the path: links are not for users of HDFS."""
        return path

    def owns(self, path: str) -> bool:
        """Tell whether it has the address of this one."""
        return f"{path}/".startswith(f"hdfs://{self.authority}/")

    def addressed_as(self, other: Storage, path: str) -> str:
        """Return the path by the address that the other one has, if that is this HDFS; see `Storage.addressed_as`.

        An HDFS has many addresses, and one root: when that was last changed, to the millisecond, is the same by all of them.
        """
        if not isinstance(other, HdfsStorage) or other.authority == self.authority:
            return path
        same = other.stat("/").modified_ns == self.stat("/").modified_ns
        return f"hdfs://{other.authority}{path.removeprefix(f'hdfs://{self.authority}')}" if same else path

    def take(self, source: str, target: str) -> None:
        """Rename without overwrite; see the module for lost replies."""
        with doing("move", source):
            failpoints.hit("storage.take")
            self._rename(self._at(source), self._at(target))

    def publish(self, source: str, target: str, *, as_it_is: bool = False) -> None:
        """Rename without overwrite; see the module for lost replies."""
        start = self._at(source)
        with doing("publish", target):
            failpoints.hit("storage.publish")
            if not as_it_is:
                self._hdfs.chmod(start, default_mode())
            self._rename(start, self._at(target))

    def _rename(self, start: str, end: str) -> None:
        mine = self._hdfs.stat(start)
        try:
            self._hdfs.rename(start, end)
        except OSError:
            moved = self._stat_or_none(end) if self._stat_or_none(start) is None else None
            if moved is None or (moved.size, moved.modified_ms) != (mine.size, mine.modified_ms):
                raise

    def _stat_or_none(self, at: str) -> Status | None:
        try:
            return self._hdfs.stat(at)
        except FileNotFoundError:
            return None

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Write, sync and close a temporary beside it, then rename without overwrite; see the module for lost replies."""
        directory, _, _ = path.rpartition("/")
        temporary = f"{directory}/{TEMPORARY}{unique.token()}"
        with self.create(temporary) as file:
            file.write(data)
            failpoints.hit("storage.put.sync")
            file.sync()
            file.close()  # here, so that one that cannot be closed is removed
        start = self._at(temporary)
        with doing("put", path):
            try:
                failpoints.hit("storage.put.link")
                self._hdfs.rename(start, self._at(path))
            except OSError:
                if self._stat_or_none(start) is None and self._holds(path, data):
                    return
                with suppress(OSError):
                    self._hdfs.delete(start)
                raise

    def _holds(self, path: str, data: bytes) -> bool:
        try:
            return self.read(path) == data
        except NotThere:
            return False

    def persist(self, directory: str, names: Iterable[str]) -> None:  # noqa: ARG002 - nothing can be done about them
        """Make sure of the directory alone: what others wrote and closed, nobody can sync from outside.

        It is on every DataNode that has it, in memory or on disk; `dfs.datanode.synconclose` makes that disk.
        """
        for _ in self.list(directory):
            return

    def delete(self, path: str) -> None:
        """Remove the file, open or not, or the empty directory."""
        with doing("delete", path):
            failpoints.hit("storage.delete")
            self._hdfs.delete(self._at(path))

    def move_directory(self, source: str, target: str) -> None:
        """Rename it without overwrite; a lost reply is told by what is there."""
        start, end = self._at(source), self._at(target)
        if self._stat_or_none(end) is not None:  # a rename onto a directory would go into it
            msg = f"cannot move {source!r} to {target!r}: that is there"
            raise AlreadyThere(msg)
        with doing("move", source):
            failpoints.hit("storage.move")
            try:
                self._hdfs.rename(start, end)
            except OSError:
                if self._stat_or_none(start) is not None or self._stat_or_none(end) is None:
                    raise

    def make_directory(self, path: str, *, private: bool = False) -> None:
        """Make the directory and its parents, which HDFS would give the mode of the directory itself."""
        at = self._at(path)
        try:
            with doing("make directory", path):
                if private:
                    self._hdfs.mkdir(at.rpartition("/")[0] or "/", default_mode(directory=True))
                self._hdfs.mkdir(at, 0o700 if private else default_mode(directory=True))
        except (AlreadyThere, NotThere) as error:
            msg = f"cannot make directory {path!r}: it, or a name on its way, is a file"
            raise StorageError(msg) from error

    def workers(self, count: int) -> Executor:
        """Return threads: a call waits for other machines, and leaves Python's lock to others meanwhile."""
        return ThreadPoolExecutor(count, "penstock-storage") if self._system is None else InTurn()

    def persist_all(self) -> None:
        """Write out the disks of this host, where a checkpoint may be."""
        os.sync()

    def now_ns(self) -> int:
        """Return the NameNode's time, as far as it can be known; rather a millisecond early than late."""
        return self._clocks.setdefault(self.authority, FarClock()).now_ns(self._offset)

    def _offset(self) -> int:
        """Return what to add to this machine's clock for the NameNode's."""
        probe = f"/tmp/{TEMPORARY}{unique.token()}"  # noqa: S108 - of HDFS, where it is as it is everywhere
        try:
            self._hdfs.mkdir(probe, 0o700)
            after = clock.now_ns()
            stamp = self._hdfs.stat(probe).modified_ms * _MS
            self._hdfs.delete(probe)
        except OSError as error:
            _log.info("the NameNode's clock cannot be read (%s): this machine's is taken for it", error)
            return 0
        return stamp - after


def _entry(status: Status, modified_ns: int | None = None) -> Entry:
    modified_ns = status.modified_ms * _MS if modified_ns is None else modified_ns
    return Entry(status.name, status.is_directory, status.size, modified_ns, "", is_file=not status.is_directory)
