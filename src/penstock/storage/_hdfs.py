"""The back end for HDFS: leases to create, one rename to publish, hsync to make durable. `_hdfs_calls` has the calls that it uses.

How each promise of `_base` is kept:

- *create* is the NameNode's create without overwrite, mode 0600; a name whose file is still open is taken, too.
- *sync* is hsync: every DataNode of the block has it on disk. It covers only the block that is being written, so a handle also
  syncs each block that it fills. The name has been in the NameNode's log since `create`.
- *close* completes the file; if the file was renamed, replaced or taken over meanwhile, its name and length show it.
- *publish* and *put_if_absent* are one rename without overwrite: done whole or not at all, and durable on return. A temporary
  file is synced and closed before it is renamed: readers disagree about the length of an open file, so renaming first and closing
  later would show a part of it.
- *extend* is append, to a file whose lease is taken from any other writer. Nothing there can be overwritten, and need not be:
  what a crash left after the valid length is the beginning of what is written now, so it is compared and skipped.

*A lost reply.* A call may be done and still fail; hdfs-native even repeats it by itself when a connection breaks. Creating
under a unique name, deleting and making directories may be repeated. After a failed rename, the files decide: if the source is
there, it was not done. If the source is gone, and the target has its length and modification time (for a put: its bytes), it
was done. Only another driver that publishes the same record could move the same staged or temporary file.

*A DataNode that is dead but not noticed yet.* The NameNode assigns it for ten minutes, and hdfs-native asks for no other: the
write fails, or the sync waits in vain. So while a file has less than `_AGAIN_BYTES`, and was never synced, its handle keeps all
of it in memory. If a call fails, it is repeated on a new file with the same name, which gets other DataNodes. If there are
no others, as with three DataNodes and three replicas, Hadoop's own client continues with those that answer. So the new file has one
replica less (but two, if it had two), and the trial is repeated until no dead DataNode is met. When the file is closed, the NameNode is
told how many replicas it should have. Only the handle knows the name, and the NameNode distinguishes the files by their numbers, so
the rest of the first file disturbs nobody. Nothing can be doubled: there is one file with the name, and no record names it until the
handle returns. An error that does not come from a DataNode (space, permissions, a lost lease, a name that is gone) is never
handled in this way. For a longer file, and for a file that is extended, the error is raised, and Spark tries the task again. The same holds
after a sync: making the file again first deletes it, and durable bytes would be lost if this process died at that moment.

*Identity.* hdfs-native does not give the number of a file, so `Entry.identity` is `""`. A file in HDFS cannot be
overwritten in place; another file under the same name has another modification time, to the millisecond.

*Open files.* A file keeps the modification time of its creation while it is written, however long that takes. `stat`
shows a file that it knows to be open as modified now, so that it does not settle. If the writer publishes a length (by hflush),
`stat` does not know that the file is open. Opening such a file shows another size than `stat`, and a difference from the planned size is an
error.

*Time.* `now_ns` is this machine's clock, corrected by the NameNode's: once a minute, by the modification time of a directory that is made
in `/tmp` for this purpose. If that cannot be written, this machine's clock is used instead.
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
_BLOCK_BYTES_MIN = 1 << 20  # no block is smaller, unless the NameNode is configured to allow it
_RECOVERY_SECONDS = 60.0
_AGAIN_BYTES = 4 << 20  # as much as a task stages of a small part
# The time for a sync, at each try. With one dead DataNode of three, two of three tries in the middle meet it, and every
# second of these waits for it. The last try has time for a DataNode that is only slow: hdfs-native gives it 60 s to
# answer.
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
        self._before = before  # the earlier file: its bytes after `kept` are compared, not written
        self._block: int | None = None
        # Everything that was written, while it is short and was not synced.
        self._again: bytearray | None = None if self._keep else bytearray()
        self._replicas = 0  # how many replicas a file that was made again should have
        self._poisoned = False

    def write(self, data: Data) -> int:
        """Append all of `data`; syncs each full block, because a later sync does not cover it."""
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
        """Append a piece that lies within one block."""
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
        """Run a call on the file, with the seconds that a sync may take; the module says how a file is made again."""
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
        """Replace a file that cannot be written by a new one with everything that was written so far."""
        self._replicas = self._replicas or self._hdfs.stat(self._at).replicas
        self._hdfs.delete(self._at)
        file = self._file = self._hdfs.create(self._at, _PRIVATE, max(self._replicas - 1, min(self._replicas, 2)))
        if self._again:
            file.write(self._again)

    def _beyond_what_is_there(self, view: memoryview) -> memoryview:
        """Return the bytes of `view` that must be written, because the file does not have them already."""
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
        """Raise errors as `StorageError`, and after one refuse every further write or sync of this file."""
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
        """Make the bytes durable; the name is durable already."""
        with self._poisoning("sync"):
            failpoints.hit("storage.sync")
            synced(self._call, _hsync)
            self._again = None  # making the file again would remove it for a moment, although it counts as durable

    def close(self) -> None:
        """Complete the file; the name must still be this file's."""
        if self._file is None:
            return
        try:
            with self._poisoning("close"):  # not after a failure: close would wait for blocks that never come
                self._call(lambda file, _: file.close())
        finally:
            self._file = None  # never twice: a second completion no longer knows the last block
            self._again = None  # free the memory, because a task keeps its handles
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
        """Close; after an exception remove the file without closing it."""
        if kind is None:
            self.close()
        elif self._before is not None and self._written <= self._before.size:
            with suppress(StorageError, OSError):  # nothing was appended, so there is no block to wait for
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
    """An open file on HDFS, with the blocks that it had when it was opened."""

    def __init__(self, hdfs: Hdfs, path: str, at: str) -> None:
        self._hdfs = hdfs
        self._path = path
        self._at = at
        self._found: Status | None = None
        with doing("open", path):
            self._file = hdfs.open(at)

    def info(self) -> Entry:
        """Return the size of the open file and the time of its name, or the time of the last look if the name is gone."""
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
    reads_open = False  # hdfs-native does not ask DataNodes for the length of a block that is being written

    def __init__(self, authority: str = "", system: Hdfs | None = None) -> None:
        self.authority = authority
        self._system = system  # None for the real one, whose client cannot be pickled
        self._clocks = {} if system else _clocks

    @property
    def _hdfs(self) -> Hdfs:
        return _hdfs_native.connect(self.authority) if self._system is None else self._system

    def checkpoint_at(self, path: str, given: str | None) -> str:  # noqa: ARG002 - only Hadoop's names of stores differ from ours
        """Return the path unchanged."""
        return path

    def bytes_below(self, root: str) -> int:
        """Return what remains of the longest path on Linux, so that files can be copied to a disk; HDFS allows twice as much."""
        return PATH_BYTES_MAX - len(os.fsencode(root)) - len("/")

    def _at(self, path: str) -> str:
        """Return the path in the form for HDFS."""
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
        """Open the file to write after its first `length` bytes, and take it from any other writer."""
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
        """Have the NameNode close the file, whose writer is dead or has been replaced by this one."""
        until = clock.monotonic() + _RECOVERY_SECONDS
        while not self._hdfs.recover_lease(at):
            if clock.monotonic() > until:
                msg = f"{path!r} is open, and could not be taken from its writer within {_RECOVERY_SECONDS:.0f} s; try again"
                raise StorageError(msg)
            clock.sleep(0.2)

    def lock(self, path: str, *, shared: bool = False) -> NoReturn:  # noqa: ARG002 - there is none of either kind
        """Refuse: HDFS has leases for files that are written, but no locks."""
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
        """Return names, each with its entry, or with modification time and size if only `stat` can tell whether the file is open."""
        with doing("list", path):
            return {
                status.name: (status.modified_ms, status.size) if status.may_be_open else _entry(status)
                for status in self._hdfs.list(self._at(path))
            }

    def listed_after(self, path: str, after: str) -> NoReturn:
        """Refuse: HDFS lists each directory separately."""
        msg = f"cannot list the files after {after!r} below {path!r}: HDFS lists directories, each by itself"
        raise NotSupported(msg)

    def stat(self, path: str) -> Entry:
        """Return the entry at the path; a file that is being written counts as modified now."""
        with doing("look at", path):
            status = self._hdfs.stat(self._at(path))
        return _entry(status, self.now_ns() if status.being_written else None)

    def watch(self, path: str) -> None:
        """Return nothing: HDFS reports no changes."""

    def resolve(self, path: str) -> str:
        """Return the path: HDFS has no symbolic links for users."""
        return path

    def owns(self, path: str) -> bool:
        """Tell whether the path has the address of this HDFS."""
        return f"{path}/".startswith(f"hdfs://{self.authority}/")

    def addressed_as(self, other: Storage, path: str) -> str:
        """Return the path with the address of `other`, if that is this HDFS; see `Storage.addressed_as`.

        An HDFS has many addresses but one root: the root's modification time, to the millisecond, is the same under all of them.
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
            file.close()  # close here, so that a file that cannot be closed is removed
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
        """Check only that the directory is there: files that others wrote and closed cannot be synced from outside.

        Their bytes are on every DataNode that has a replica, in memory or on disk; `dfs.datanode.synconclose` puts them on disk.
        """
        for _ in self.list(directory):
            return

    def delete(self, path: str) -> None:
        """Remove the file, open or not, or the empty directory."""
        with doing("delete", path):
            failpoints.hit("storage.delete")
            self._hdfs.delete(self._at(path))

    def move_directory(self, source: str, target: str) -> None:
        """Rename the directory without overwrite; after an error, the names that are there show whether it was done."""
        start, end = self._at(source), self._at(target)
        if self._stat_or_none(end) is not None:  # a rename to an existing directory would move into it
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
        """Make the directory, and its parents separately, because HDFS would give them the mode of the directory."""
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
        """Return threads: a call waits for other machines, and releases Python's lock meanwhile."""
        return ThreadPoolExecutor(count, "penstock-storage") if self._system is None else InTurn()

    def persist_all(self) -> None:
        """Write out the disks of this host, where a checkpoint may be."""
        os.sync()

    def now_ns(self) -> int:
        """Return the NameNode's time as well as it can be known, if anything a millisecond early."""
        return self._clocks.setdefault(self.authority, FarClock()).now_ns(self._offset)

    def _offset(self) -> int:
        """Return the difference between the NameNode's clock and this machine's."""
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
