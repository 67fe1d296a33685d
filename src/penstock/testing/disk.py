"""A POSIX disk that can lose power: data that is not synced is kept or lost, piece by piece.

`CrashDisk` has the functions of `os` that `LocalStorage` calls, over a tree in memory, so that the same code that runs on a real disk
runs on this one: `LocalStorage(CrashDisk())`. It distinguishes two things, as a file system does:

- *The contents of a file* are durable as of its last fsync or fdatasync. After a crash each 4 KiB block written since is there, or is
  zeros, or the file still has its old length.
- *A name in a directory* is durable after an fsync of that directory. After a crash each name made or removed since is there or not,
  independently of the others and of the contents. A rename alone is one change, which is there or not.

That is less than some file systems give (ext4 syncs the name of a new file with the file) and what POSIX promises.

`images()` yields what the disk may look like after a crash now; another disk may begin with an `Image`. Everything is deterministic:
the images follow from the calls and the seed alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat as stat_bits
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from penstock import clock
from penstock.storage import LocalStorage
from penstock.testing.choices import IMAGES_MAX, combinations_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

BLOCK_BYTES = 4096
# Not recognised by its name, because a clone of the project may have the same name.
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_FRAMES = 2  # number of stack frames that name a place
_DIRECTORY_MODE = stat_bits.S_IFDIR | 0o755
_FILE_MODE = stat_bits.S_IFREG

Tree = dict[str, dict[str, int]]  # directory -> name -> inode


class SimulatedCrash(BaseException):
    """A run ends here, in the middle. It is not an `Exception`, so that no handler of the code under test takes it for an error."""


@dataclass(frozen=True)
class Image:
    """What is on a disk after a crash; everything in it is durable."""

    tree: Tree = field(repr=False)
    contents: dict[int, bytes] = field(repr=False)
    next_inode: int
    times: dict[int, int] = field(default_factory=dict, repr=False)

    def key(self) -> frozenset[tuple[str, str, bytes, tuple[str, str] | None]]:
        """Return a value that two images share if no program can tell them apart (except by inode numbers and times)."""
        first: dict[int, tuple[str, str]] = {}
        entries = []
        for directory in sorted(self.tree):
            names = self.tree[directory]
            for name in sorted(names):
                inode = names[name]
                entries.append((directory, name, self.contents.get(inode, b"/"), first.get(inode)))
                first.setdefault(inode, (directory, name))
        return frozenset(entries)


EMPTY = Image({"/": {}}, {}, 3)


class CrashDisk:
    """See the module.

    `watch`, if given, is called with the disk and the name of a call before the call changes anything. `omit` is called for every sync,
    with the place of the call (`call_site`): True leaves the sync out, and nothing becomes durable.
    """

    O_RDONLY, O_WRONLY, O_RDWR = os.O_RDONLY, os.O_WRONLY, os.O_RDWR

    def __init__(
        self,
        image: Image | None = None,
        *,
        watch: Callable[[CrashDisk, str], None] | None = None,
        omit: Callable[[str], bool] | None = None,
    ) -> None:
        self.watch = watch
        self.omit = omit
        image = image or EMPTY
        self._durable: Tree = {directory: dict(names) for directory, names in image.tree.items()}
        self._tree: Tree = {directory: dict(names) for directory, names in image.tree.items()}
        self._pending: dict[str, list[tuple[str, int | None]]] = {}
        self._contents = dict(image.contents)
        self._synced = dict(image.contents)
        self._dirty: set[int] = set()
        self._lost: set[int] = set()
        # For files that were renamed, and not removed since: from where to where.
        self._renamed: dict[int, tuple[str, str]] = {}
        self._times = dict(image.times)
        self._modes: dict[int, int] = {}
        self._next_inode = image.next_inode
        self._open: dict[int, list[Any]] = {}
        self._locks: dict[int, tuple[int, bool]] = {}  # descriptor -> (inode, shared)
        self._next_descriptor = 3
        self.calls = 0

    # -- functions of os -------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """Open or create."""
        folder, name = _split(path)
        inode = self._find(path)
        if inode is None:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT, path)
            self._changes("create")
            names = self._names(folder)
            inode = self._new_inode(_FILE_MODE | mode)
            self._contents[inode] = self._synced[inode] = b""
            names[name] = inode
            self._changed(folder, name, inode)
        elif flags & os.O_EXCL:
            raise _error(errno.EEXIST, path)
        self._next_descriptor += 1
        self._open[self._next_descriptor] = [inode, 0, path]
        return self._next_descriptor

    def close(self, descriptor: int) -> None:
        """Forget the descriptor, and its lock."""
        del self._open[descriptor]
        self._locks.pop(descriptor, None)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write at the descriptor's position."""
        self._changes("write")
        opened = self._open[descriptor]
        inode, at, _ = opened
        before = self._contents[inode]
        if at <= len(self._synced[inode]):
            self._lost.discard(inode)  # data that is written from here on is new
        data = bytes(data)
        self._contents[inode] = before[:at].ljust(at, b"\0") + data + before[at + len(data) :]
        opened[1] = at + len(data)
        self._dirty.add(inode)
        self._times[inode] = clock.now_ns()
        return len(data)

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        """Read at an offset."""
        return self._contents[self._open[descriptor][0]][offset : offset + length]

    def lseek(self, descriptor: int, position: int, _how: int) -> int:
        """Set the descriptor's position, from the beginning."""
        self._open[descriptor][1] = position
        return position

    def flock(self, descriptor: int, operation: int) -> None:
        """Lock the open file, for this descriptor; a crash forgets the lock."""
        inode = self._open[descriptor][0]
        shared = bool(operation & fcntl.LOCK_SH)
        for fd, (held, theirs) in self._locks.items():
            if fd != descriptor and held == inode and not (shared and theirs):
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._locks[descriptor] = inode, shared

    def fdatasync(self, descriptor: int) -> None:
        """Make the contents durable."""
        self._changes("fdatasync")
        self._sync(descriptor, "fdatasync")

    def fsync(self, descriptor: int) -> None:
        """Make a file's contents, or a directory's names, durable."""
        self._changes("fsync")
        self._sync(descriptor, "fsync")

    def sync(self) -> None:
        """Make everything durable, as `os.sync` does."""
        self._changes("sync")
        if self.omit is not None and self.omit(f"sync in {call_site()}"):
            return
        for inode in self._contents.keys() - self._lost:
            self._synced[inode] = self._contents[inode]
        self._durable = {directory: dict(names) for directory, names in self._tree.items()}
        self._pending.clear()
        self._dirty &= self._lost

    def fstat(self, descriptor: int) -> os.stat_result:
        """Describe an open file."""
        return self._stat(self._open[descriptor][0])

    def stat(self, path: str, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002 - signature of os; there are no links
        """Describe the file or directory at the path."""
        inode = self._find(path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        return self._stat(inode)

    def chmod(self, path: str, mode: int) -> None:
        """Set the permissions, which nothing in this disk checks."""
        inode = self._find(path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        self._modes[inode] = _FILE_MODE | mode

    def link(self, source: str, target: str) -> None:
        """Give a file one more name."""
        self._changes("link")
        inode = self._find(source)
        if inode is None:
            raise _error(errno.ENOENT, source)
        if self._find(target) is not None:
            raise _error(errno.EEXIST, target)
        folder, name = _split(target)
        self._names(folder)[name] = inode
        self._changed(folder, name, inode)

    def rename(self, source: str, target: str) -> None:
        """Give a file or an empty directory another name, in place of a file that has the name.

        Refused for other directories: what a power cut leaves of them is not simulated.
        """
        inode = self._find(source)
        if inode is None:
            raise _error(errno.ENOENT, source)
        if self._tree.get(source):
            raise _error(errno.EOPNOTSUPP, source)
        folder, name = _split(target)
        names = self._names(folder)
        self._changes("rename")
        self._remove(source)
        names[name] = inode
        self._changed(folder, name, inode)
        self._renamed[inode] = source, target

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        inode = self._find(path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        if stat_bits.S_ISDIR(self._modes.get(inode, _DIRECTORY_MODE if inode not in self._contents else _FILE_MODE)):
            raise _error(errno.EISDIR, path)
        self._changes("unlink")
        self._renamed.pop(self._tree[_split(path)[0]][_split(path)[1]], None)
        self._remove(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        if self._tree.get(path):
            raise _error(errno.ENOTEMPTY, path)
        self._changes("rmdir")
        self._remove(path)
        self._tree.pop(path, None)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        """Make a directory."""
        folder, name = _split(path)
        if self._find(path) is not None:
            raise _error(errno.EEXIST, path)
        names = self._names(folder)
        self._changes("mkdir")
        inode = names[name] = self._new_inode(stat_bits.S_IFDIR | mode)
        self._tree[path] = {}
        self._changed(folder, name, inode)

    def scandir(self, path: str) -> _Listing:
        """List a directory."""
        return _Listing(self, path, list(self._names(path).items()))

    def umask(self, mask: int) -> int:  # noqa: ARG002 - signature of os
        """Return the usual mask."""
        return 0o022

    @property
    def descriptors(self) -> list[str]:
        """Return the paths of open files."""
        return [path for _, _, path in self._open.values()]

    def forget_unsynced(self, descriptor: int) -> None:
        """Treat unsynced data of a file as clean, as Linux may after a failed sync: no later sync will write it.

        Only data that is written anew, after what was synced, can become durable.
        """
        inode = self._open[descriptor][0]
        if inode in self._contents:
            self._lost.add(inode)

    def storage(self) -> LocalStorage:
        """Return a storage on this disk, of the class for real disks."""
        return LocalStorage(self)

    # -- crashes ---------------------------------------------------------------------------------------------------

    def image(self) -> Image:
        """Return the disk as it is now, with everything in it: what a power cut would leave if everything had been synced."""
        return Image(
            {d: dict(n) for d, n in self._tree.items()}, dict(self._contents), self._next_inode, dict(self._times)
        )

    def state(self) -> tuple[object, ...]:
        """Return a value that two disks share if no program can tell them apart, now or after a crash."""
        durable = Image(self._durable, self._synced, 0).key()
        pending = tuple((folder, name, made is None) for folder, all_ in self._pending.items() for name, made in all_)
        # Files that no later sync will write.
        lost = frozenset(
            f"{folder}/{name}" for folder, names in self._tree.items() for name, n in names.items() if n in self._lost
        )
        return self.image().key(), durable, pending, lost

    def images(self, seed: int | str = 0, *, limit: int = IMAGES_MAX) -> Iterator[Image]:
        """Yield what the disk may look like after a crash now: all possibilities if they are few, otherwise `limit` drawn by `seed`.

        The first two are always the extremes: nothing is kept of unsynced data, and everything is.
        """
        names = [(folder, *change) for folder, changes in self._pending.items() for change in changes]
        dirty = sorted(self._dirty & (set(self._inodes(self._tree)) | set(self._inodes(self._durable))))
        choices = [(False, True)] * len(names) + [range(len(self._versions(inode))) for inode in dirty]
        self._times = dict(self._times)  # the images share the times up to now
        for chosen in combinations_of(choices, seed, limit=limit):
            yield self._crashed(names, dirty, chosen)

    def _crashed(self, names: list[tuple[str, str, int | None]], dirty: list[int], chosen: tuple[Any, ...]) -> Image:
        tree = {directory: dict(entries) for directory, entries in self._durable.items()}
        for (folder, name, inode), kept in zip(names, chosen, strict=False):
            if not kept:
                continue
            entries = tree.setdefault(folder, {})
            if inode is None:
                entries.pop(name, None)
            else:
                entries[name] = inode
        for inode, (source, target) in self._renamed.items():
            (before, old), (after, new) = _split(source), _split(target)
            at_source, at_target = tree.get(before, {}).get(old) == inode, tree.get(after, {}).get(new) == inode
            if not at_source and not at_target:
                tree.setdefault(before, {}).setdefault(old, inode)
            elif at_source and at_target:
                del tree[before][old]
        contents = dict(self._synced)
        for inode, version in zip(dirty, chosen[len(names) :], strict=True):
            contents[inode] = self._versions(inode)[version]
        return _reachable(tree, contents, self._next_inode, self._times)

    def _versions(self, inode: int) -> list[bytes]:
        """Return what a crash may leave of a file: its synced contents, contents with holes, its present contents."""
        old, new = self._synced[inode], self._contents[inode]
        versions = [old]
        if len(new) > len(old) and new.startswith(old):
            versions.append(old.ljust(len(new), b"\0"))
            middle = (len(old) + len(new)) // 2 // BLOCK_BYTES * BLOCK_BYTES
            if len(old) < middle:
                versions += [new[:middle], old.ljust(middle, b"\0") + new[middle:]]
        return [*versions, new]

    # -- inside ----------------------------------------------------------------------------------------------------

    def _changes(self, call: str) -> None:
        self.calls += 1
        if self.watch is not None:
            self.watch(self, call)

    def _sync(self, descriptor: int, call: str) -> None:
        if self.omit is not None and self.omit(f"{call} in {call_site()}"):
            return
        inode, _, path = self._open[descriptor]
        if inode in self._lost:
            return
        if inode in self._contents:
            self._synced[inode] = self._contents[inode]
            self._dirty.discard(inode)
            return
        entries = self._durable.setdefault(path, {})
        for name, entry in self._pending.pop(path, []):
            if entry is None:
                entries.pop(name, None)
            else:
                entries[name] = entry

    def _find(self, path: str) -> int | None:
        if path == "/":
            return 2
        folder, name = _split(path)
        return self._tree.get(folder, {}).get(name)

    def _names(self, folder: str) -> dict[str, int]:
        names = self._tree.get(folder)
        if names is None:
            raise _error(errno.ENOENT if self._find(folder) is None else errno.ENOTDIR, folder)
        return names

    def _remove(self, path: str) -> None:
        folder, name = _split(path)
        del self._tree[folder][name]
        self._changed(folder, name, None)

    def _changed(self, folder: str, name: str, inode: int | None) -> None:
        """Note a change of a directory, which is not durable yet, and set its time."""
        self._pending.setdefault(folder, []).append((name, inode))
        self._times[self._find(folder) or 0] = clock.now_ns()

    def _new_inode(self, mode: int) -> int:
        self._next_inode += 1
        self._modes[self._next_inode] = mode
        self._times[self._next_inode] = clock.now_ns()
        return self._next_inode

    def _stat(self, inode: int) -> os.stat_result:
        contents = self._contents.get(inode)
        mode = self._modes.get(inode, _DIRECTORY_MODE if contents is None else _FILE_MODE | 0o600)
        time = self._times.get(inode, 0)
        fields = (mode, inode, 1, 1, 0, 0, len(contents or b""), *(time // 1_000_000_000,) * 3)
        return os.stat_result((*fields, *(time / 1e9,) * 3, time, time, time))

    @staticmethod
    def _inodes(tree: Tree) -> Iterator[int]:
        for names in tree.values():
            yield from names.values()


# Code that makes calls on behalf of others: it does not count as a place.
_OF_OTHERS = ("testing/", "tally.py")


def call_site() -> str:
    """Return the place in Penstock that makes the call, innermost first: `storage/_local.py sync < sink/parts.py seal`."""
    places: list[str] = []
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - a traceback without an exception
    while frame is not None and len(places) < _FRAMES:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        file = path[len(_PACKAGE) :].replace(os.sep, "/") if path.startswith(_PACKAGE) else ""
        if file and not file.startswith(_OF_OTHERS) and not name.startswith("_"):
            places.append(f"{file} {name}")
        frame = frame.f_back
    return " < ".join(places)


class _Listing:
    """What `scandir` returns: a context manager over entries."""

    def __init__(self, disk: CrashDisk, path: str, entries: list[tuple[str, int]]) -> None:
        self._entries = [_Listed(disk, f"{path}/{name}", name, inode) for name, inode in entries]

    def __enter__(self) -> Iterator[_Listed]:
        """Return the entries."""
        return iter(self._entries)

    def __exit__(self, *exc: object) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class _Listed:
    _disk: CrashDisk
    path: str
    name: str
    _inode: int

    def inode(self) -> int:
        """Return the inode's number."""
        return self._inode

    def is_symlink(self) -> bool:
        """Return False: there are no links."""
        return False

    def stat(self) -> os.stat_result:
        """Describe the entry."""
        return self._disk.stat(self.path)


def _reachable(tree: Tree, contents: dict[int, bytes], next_inode: int, times: dict[int, int]) -> Image:
    """Return the image without files and directories that have no name any more."""
    reached: Tree = {}
    waiting = ["/"]
    inodes = set()
    while waiting:
        folder = waiting.pop()
        names = reached[folder] = tree.get(folder, {})
        for name, inode in names.items():
            inodes.add(inode)
            if inode not in contents:
                waiting.append(f"{folder.rstrip('/')}/{name}")
    return Image(reached, {inode: contents[inode] for inode in inodes if inode in contents}, next_inode, times)


@lru_cache(maxsize=4096)  # a simulated disk gets the same paths hundreds of thousands of times
def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder or "/", name


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
