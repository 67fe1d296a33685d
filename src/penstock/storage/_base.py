"""What Penstock needs of a file system, each verb with its promise.

Words: *durable* means it is there after a power cut. A path is an absolute path of the back end, `/`
between names; names may hold any byte but `/` and NUL (surrogate escapes carry bytes that are not UTF-8).
All verbs raise `StorageError` or one of its kinds; `__cause__` is the back end's own error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from penstock.errors import NotThere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor

    import pyarrow as pa

    Data: TypeAlias = bytes | bytearray | memoryview | pa.Buffer

TEMPORARY = ".penstock-"  # begins the name of a temporary, which a crash may leave behind


@dataclass(frozen=True)
class Entry:
    """One file or directory as a listing or a stat shows it.

    `modified_ns` is the file system's modification time in nanoseconds since the epoch. `identity` changes
    when another file takes the name (the inode on local disks), and no two directories have the same; it is `""`
    where the back end has none. `arrived_ns` is a time before which the file was not there under this name, as it
    is now (a local disk's inode change time, which nobody can set back); `None` where the back end does not know.
    `is_file` is false for directories, and for what is neither: a pipe, a socket, a device.
    """

    name: str
    is_directory: bool
    size: int
    modified_ns: int
    identity: str
    arrived_ns: int | None = None
    is_file: bool = True


class Link(int):
    """The identity of a symbolic link, in what `names` returns; what it leads to says `resolve`."""


class WriteHandle(Protocol):
    """A file being written, made by `create`. Not shared between threads."""

    def write(self, data: Data) -> int:
        """Append all of `data`; return its length. Nothing is durable yet."""

    def tell(self) -> int:
        """Return the bytes written so far."""

    def sync(self) -> None:
        """Make all bytes written so far, and the file's name, durable. After a failure the file is never durable."""

    def close(self) -> None:
        """Close without syncing. `StorageError` if the name is gone or is another file by now. Idempotent."""

    def __enter__(self) -> WriteHandle:
        """Return itself."""

    def __exit__(self, *exc: object) -> None:
        """Close; after an exception remove the file, as far as that is possible."""


class ReadHandle(Protocol):
    """An open file; what it reads stays the same file though its name may go. May be shared between threads."""

    def info(self) -> Entry:
        """Return size, modification time and identity of the *open* file as they are now."""

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes at `offset`; fewer only at the end of the file."""

    def close(self) -> None:
        """Release the file. Idempotent."""

    def __enter__(self) -> ReadHandle:
        """Return itself."""

    def __exit__(self, *exc: object) -> None:
        """Close."""


class Hold(Protocol):
    """What `lock` returns."""

    def close(self) -> None:
        """Let go. Idempotent; the end of the process does it, too."""


class DirectoryWatch(Protocol):
    """What `watch` returns; it ends with its last reference."""

    def changes(self) -> dict[str, Any] | None:
        """Return the names that something happened to since the last call, each with what `names` has of it now.

        `None` of a name: it is not there. `None` of all: nobody can tell. Not guaranteed: that no name is missing.
        """


Opener: TypeAlias = "Callable[[str], ReadHandle]"  # as `Storage.open`


class Storage(Protocol):
    """A file system. Instances are picklable and hold no open files."""

    goes_on: bool
    """Whether a file that was created may be written on after a `sync`; where not, a sync puts it whole."""

    reads_open: bool
    """Whether what was synced of a file can be read while its writer has it open; where not, it can when that has closed it."""

    tags_contents: bool
    """Whether `Entry.identity` follows from a file's contents, as an object's tag does; where not, a copy has another one."""

    of_this_host: bool
    """Whether it is what `open` of this host's programs opens; where not, a server is asked, which may pass by and come again."""

    has_directories: bool
    """Whether directories are there by themselves; where not, one is there as long as anything lies below it: to make one, or to
    remove one, does nothing, and one that holds nothing is `NotThere`, but for a listing, which then has nothing."""

    moves: bool
    """Whether a file that is moved stays the file that it was; where not it is copied, and has another time and identity."""

    def create(self, path: str, *, unique: bool = False) -> WriteHandle:
        """Create the file exclusively (`AlreadyThere` if the name is taken), readable by its owner alone.

        The parent directory must exist. The name may be seen by others at once; it is durable after `sync`. `unique`: nobody
        else can have the name, so it need not be asked whether it is taken.
        """

    def extend(self, path: str, length: int) -> WriteHandle:
        """Open the file, made if it is not there, to write it on behind its first `length` bytes.

        What is there already is written over, and never cut: somebody else may have written the file further. Where files
        can only be appended to, it must be the same bytes (`StorageError`). The one verb that changes a file that others
        can see; for growing files alone. Leaving the block after an exception does not remove the file.
        """

    def lock(self, path: str, *, shared: bool = False) -> Hold:
        """Hold the file or directory, alone or with other `shared` holders, until closed; the file need not be writable.

        `Locked` if somebody else holds it, in this process or another; never waits. It binds only those that ask.
        `NotSupported` where the storage has no locks.
        """

    def open(self, path: str) -> ReadHandle:
        """Open the file for reading; `NotThere` if there is none."""

    def read(self, path: str) -> bytes:
        """Return the whole file; `NotThere` if there is none."""

    def list(self, path: str) -> Iterable[Entry]:
        """Yield the entries of the directory in no order; `NotThere` if there is none.

        Entries that vanish meanwhile may be left out; an error part of the way is raised, never swallowed.
        """

    def names(self, path: str) -> dict[str, Any]:
        """Return the names of the entries, each with what changes when another file takes the name: hashable, the caller's own.

        A `Link` for a symbolic link, which all other verbs follow. An `Entry` where the listing shows what `stat` would, which
        need not be asked then. May be much cheaper than `list`, of whose `identity` it is no other form. `NotThere` if there
        is no directory.
        """

    def behind(self, path: str, after: str) -> Iterable[tuple[str, Entry]]:
        """Yield the files below the directory, however deep, whose paths below it are greater than `after`, in the order of paths.

        It costs what it yields, not what there is. `NotSupported` where directories are there by themselves.
        """

    def watch(self, path: str) -> DirectoryWatch | None:
        """Return what tells of changes in a directory from now on, `None` where the back end has none. A hint, never the truth."""

    def stat(self, path: str) -> Entry:
        """Return the entry at the path; `NotThere` if there is none."""

    def resolve(self, path: str) -> str:
        """Return the path without symbolic links; what is not there is taken as it stands."""

    def addressed_as(self, other: Storage, path: str) -> str:
        """Return the path as `other` writes it, where both are one file system that has two addresses; else as it stands."""

    def take(self, source: str, target: str) -> None:
        """Move whatever is at `source`, as it is, to a name that nobody else can have: a new one in a directory of the caller's own.

        `NotThere` if nothing is there. It is one step: what takes the name `source` meanwhile stays. Not durable by itself: a power
        cut leaves it under the one name or the other. Where files cannot be moved it is a copy and a delete of what was copied.
        """

    def publish(self, source: str, target: str, *, as_it_is: bool = False) -> None:
        """Move a synced file to a name nobody has; never replaces (`AlreadyThere`).

        Durable under the new name before the old name goes: a crash leaves the old name, both, or the new name.
        Called again after a crash in between it completes: both names of one file count as not yet moved; the
        new name alone raises `NotThere`. The file becomes readable as its directory's defaults say, or stays `as_it_is`: a file
        of somebody else, whose owner has said who may read it.
        """

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Write a small file, all or nothing, durable on return; `AlreadyThere` if the name is taken.

        Of two that put the same name at the same time exactly one succeeds. No reader ever sees a part of it.
        """

    def persist(self, directory: str, names: Iterable[str]) -> None:
        """Make files of one directory that another program wrote durable, and their names; those not there are left out."""

    def delete(self, path: str) -> None:
        """Remove the file, or the directory if it is empty; nothing there is no error. Not durable by itself.

        A directory that is not empty stays, which is an error where it `has_directories`.
        """

    def move_directory(self, source: str, target: str) -> None:
        """Move a directory with all that is in it to a name nobody has, whole or not at all; durable on return.

        `AlreadyThere` if the name is taken, `NotThere` if there is no such directory: called again after a crash, it may have
        been moved. `NotSupported` where the storage cannot. Of two that move to one name at one time, either may find it taken.
        """

    def make_directory(self, path: str, *, private: bool = False) -> None:
        """Make the directory and its missing parents, durably; there already is no error.

        `private` gives the directory, if it makes it, to the owner alone; its parents are made as usual.
        """

    def abandoned(self, path: str, before_ns: int) -> Iterable[tuple[str, str]]:
        """Yield what was sent below a path in part, before that time, by somebody who died, where no listing shows that: path, number."""

    def drop(self, path: str, number: str) -> None:
        """Remove what was `abandoned`; nothing there is no error."""

    def workers(self, count: int) -> Executor:
        """Return what runs up to `count` calls side by side, where this storage gains by that; a context manager."""

    def persist_all(self) -> None:
        """Make durable what any program of this host has written to its disks by now: what is not undone after that may rely on it."""

    def now_ns(self) -> int:
        """Return the time by the clock that stamps modification times, in nanoseconds since the epoch."""


def entry_at(storage: Storage, path: str) -> Entry | None:
    """Return the entry at the path, `None` if there is none; else as `Storage.stat`."""
    try:
        return storage.stat(path)
    except NotThere:
        return None


def names_at(storage: Storage, directory: str) -> list[str]:
    """Return the names of what is in a directory, none if it is not there; else as `Storage.names`."""
    try:
        return list(storage.names(directory))
    except NotThere:
        return []
