"""An HDFS that can lose power: the calls that `HdfsStorage` makes on an HDFS, in memory.

`CrashHdfs` has the calls of `penstock.storage._hdfs_calls.Hdfs`, so the same code that runs on a real HDFS runs on this one. A power
cut of all machines leaves this:

- Every change of names is in the NameNode's log when the call returns. A crash lies between two calls.
- The contents of a file are durable up to its last `hsync`. Data written since, also to a file that was closed without an `hsync`, is
  there in part, or not at all.
- A file that was open stays open: a dead process has its lease. Its length is what was synced, or more. Readers see nothing of it until
  its lease is recovered: hdfs-native does not ask DataNodes for the block that is being written.

Nothing expires by itself: a lease ends when it is recovered. `images()` yields what may be left; everything is deterministic.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock import clock
from penstock.storage import HdfsStorage
from penstock.storage._hdfs_calls import Status
from penstock.testing.choices import IMAGES_MAX, combinations_of
from penstock.testing.disk import call_site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.storage._base import Data

_BLOCK_BYTES = 128 << 20
_REPLICAS = 3
_MS = 1_000_000


@dataclass(frozen=True)
class Inode:
    """A file (`data`) or a directory (None). `synced` bytes are durable; `open` while a process, perhaps a dead one, has its lease."""

    data: bytes | None = field(repr=False)
    modified_ms: int
    synced: int = 0
    open: bool = False


@dataclass(frozen=True)
class HdfsImage:
    """What is on an HDFS after a crash."""

    names: tuple[tuple[str, Inode], ...] = ()

    def key(self) -> frozenset[tuple[str, bytes | None, bool]]:
        """Return a value that two images share if no program can tell them apart (except by times)."""
        return frozenset((name, inode.data, inode.open) for name, inode in self.names)


class CrashHdfs:
    """See the module.

    `watch`, if given, is called with the HDFS and the name of a call before the call changes anything. `omit` is called for every
    `hsync`, with the place of the call (`call_site`): True leaves it out.
    """

    def __init__(
        self,
        image: HdfsImage | None = None,
        *,
        watch: Callable[[CrashHdfs, str], None] | None = None,
        omit: Callable[[str], bool] | None = None,
    ) -> None:
        self.watch = watch
        self.omit = omit
        self.calls = 0
        self._names = dict(image.names) if image else {"/": Inode(None, 0)}
        self._leases: dict[str, _BlockWriter] = {}

    def storage(self) -> HdfsStorage:
        """Return a storage on this HDFS, of the class for real ones."""
        return HdfsStorage(system=self)

    # -- calls of an HDFS --------------------------------------------------------------------------------------------

    def create(self, path: str, mode: int, replicas: int = 0) -> _BlockWriter:  # noqa: ARG002 - permissions and replicas are not simulated
        """Create the file, open."""
        self._changes("create")
        _check_name(path)
        if path in self._names:
            raise _error(errno.EEXIST, path)
        self._touch(_parent(path))
        self._names[path] = Inode(b"", self._now(), open=True)
        return self._lend(path)

    def append(self, path: str) -> _BlockWriter:
        """Open a closed file to append to it."""
        self._changes("append")
        inode = self._file(path)
        if inode.open:
            raise _error(errno.EEXIST, path)
        self._names[path] = replace(inode, open=True)
        return self._lend(path)

    def recover_lease(self, path: str) -> bool:
        """Close the file as it is; the holder of its lease loses it."""
        self._changes("recover")
        self._names[path] = replace(self._file(path), open=False)
        self._leases.pop(path, None)
        return True

    def open(self, path: str) -> _BlockReader:
        """Open the file for reading; a file that is being written appears empty, because it has no complete block yet."""
        inode = self._file(path)
        return _BlockReader(b"" if inode.open else inode.data or b"")

    def stat(self, path: str) -> Status:
        """Return the status of the path."""
        if path not in self._names:
            raise _error(errno.ENOENT, path)
        return self._status(path, being_written=self._names[path].open)

    def list(self, path: str) -> Iterable[Status]:
        """Return the entries of the directory; an open file does not show that it is open."""
        self._directory(path)
        return [self._status(name, being_written=False) for name in self._below(path)]

    def rename(self, source: str, target: str) -> None:
        """Move a file."""
        self._changes("rename")
        _check_name(target)
        inode = self._file(source)
        self._directory(_parent(target))
        if target in self._names:
            raise _error(errno.EEXIST, target)
        del self._names[source]
        self._names[target] = inode
        self._touch(_parent(source))
        self._touch(_parent(target))
        if source in self._leases:
            self._leases[target] = self._leases.pop(source)
            self._leases[target].path = target

    def delete(self, path: str) -> None:
        """Remove the file or the empty directory."""
        if path not in self._names:
            return
        if self._below(path):
            raise _error(errno.ENOTEMPTY, path)
        self._changes("delete")
        del self._names[path]
        self._leases.pop(path, None)
        self._touch(_parent(path))

    def mkdir(self, path: str, mode: int) -> None:  # noqa: ARG002 - permissions are not simulated
        """Make the directory and its parents."""
        _check_name(path)
        if path in self._names:
            if self._names[path].data is not None:
                raise _error(errno.EEXIST, path)
            return
        self.mkdir(_parent(path), 0)
        self._changes("mkdir")
        self._touch(_parent(path))
        self._names[path] = Inode(None, self._now())

    def set_replicas(self, path: str, replicas: int) -> None:  # noqa: ARG002 - replicas are not simulated
        """Check whether the file exists."""
        self._changes("set_replicas")
        self._file(path)

    def chmod(self, path: str, mode: int) -> None:  # noqa: ARG002 - permissions are not simulated
        """Set the permissions, which nothing in this HDFS checks."""
        self.stat(path)

    # -- calls of its writers ----------------------------------------------------------------------------------------

    def append_to(self, writer: _BlockWriter, data: bytes) -> int:
        """Append to the writer's file."""
        self._changes("write")
        inode = self._held(writer)
        self._names[writer.path] = replace(inode, data=(inode.data or b"") + data)
        return len(data)

    def sync_of(self, writer: _BlockWriter) -> None:
        """Make the writer's file durable, unless `omit` leaves that out."""
        self._changes("hsync")
        inode = self._held(writer)
        if self.omit is None or not self.omit(f"hsync in {call_site()}"):
            self._names[writer.path] = replace(inode, synced=len(inode.data or b""))

    def complete_of(self, writer: _BlockWriter) -> None:
        """Close the writer's file."""
        self._changes("close")
        self._names[writer.path] = replace(self._held(writer), open=False, modified_ms=self._now())
        del self._leases[writer.path]

    # -- crashes -----------------------------------------------------------------------------------------------------

    def images(self, seed: int | str = 0, *, limit: int = IMAGES_MAX) -> Iterator[HdfsImage]:
        """Yield what a crash now may leave: all possibilities if they are few, otherwise `limit` drawn by `seed`; the extremes first."""
        dirty = {path: inode for path, inode in self._names.items() if inode.synced < len(inode.data or b"")}
        for chosen in combinations_of([_versions(inode) for inode in dirty.values()], seed, limit=limit):
            left = {
                path: replace(inode, data=data, synced=len(data))
                for (path, inode), data in zip(dirty.items(), chosen, strict=True)
            }
            yield HdfsImage(tuple((self._names | left).items()))

    def state(self) -> tuple[object, ...]:
        """Return a value that two of these share if no program can tell them apart, now or after a crash."""
        synced = frozenset((path, inode.synced, path in self._leases) for path, inode in self._names.items())
        return HdfsImage(tuple(self._names.items())).key(), synced

    # -- inside ------------------------------------------------------------------------------------------------------

    def _changes(self, call: str) -> None:
        self.calls += 1
        if self.watch is not None:
            self.watch(self, call)

    def _lend(self, path: str) -> _BlockWriter:
        writer = self._leases[path] = _BlockWriter(self, path)
        return writer

    def _status(self, path: str, *, being_written: bool) -> Status:
        inode = self._names[path]
        size = inode.synced if inode.open else len(inode.data or b"")
        name = path.rpartition("/")[2]
        return Status(
            name, inode.data is None, size, inode.modified_ms, _BLOCK_BYTES, _REPLICAS, being_written=being_written
        )

    def _file(self, path: str) -> Inode:
        inode = self._names.get(path)
        if inode is None or inode.data is None:
            raise _error(errno.ENOENT, path)
        return inode

    def _directory(self, path: str) -> None:
        if path not in self._names:
            raise _error(errno.ENOENT, path)
        if self._names[path].data is not None:
            raise _error(errno.ENOTDIR, path)

    def _touch(self, path: str) -> None:
        """Give the directory the time of a change in it."""
        self._directory(path)
        self._names[path] = Inode(None, self._now())

    def _below(self, path: str) -> tuple[str, ...]:
        prefix = f"{path.rstrip('/')}/"
        below = (name for name in self._names if name.startswith(prefix) and name != "/")
        return tuple(name for name in below if "/" not in name[len(prefix) :])

    def _now(self) -> int:
        """Return the NameNode's time."""
        return clock.now_ns() // _MS

    def _held(self, writer: _BlockWriter) -> Inode:
        """Return the writer's file; ESTALE if the writer has lost its lease."""
        if self._leases.get(writer.path) is not writer:
            raise _error(errno.ESTALE, writer.path)
        return self._names[writer.path]


class _BlockWriter:
    """An open file and its lease."""

    def __init__(self, hdfs: CrashHdfs, path: str) -> None:
        self.path = path
        self._hdfs = hdfs

    def write(self, data: Data) -> int:
        """Append all of `data`."""
        return self._hdfs.append_to(self, bytes(memoryview(data).cast("B")))

    def hsync(self, seconds: float) -> None:  # noqa: ARG002 - it takes no time
        """Make what was written durable, and its length known."""
        self._hdfs.sync_of(self)

    def close(self) -> None:
        """Complete the file."""
        self._hdfs.complete_of(self)


class _BlockReader:
    """The contents of a file when it was opened."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = data

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly these bytes."""
        return self._data[offset : offset + length]


def _versions(inode: Inode) -> list[bytes]:
    """Return what a crash may leave of a file: its synced bytes, half of the rest, all of it."""
    data = inode.data or b""
    return sorted({data[: inode.synced], data[: (inode.synced + len(data) + 1) // 2], data}, key=len)


def _check_name(path: str) -> None:
    """Raise the error of HDFS for a name with a colon."""
    if ":" in path:
        raise _error(errno.EINVAL, path)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
