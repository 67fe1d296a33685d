"""What Penstock needs of a file system, each verb with its promise.

Words: *durable* means it is there after a power cut. A path is an absolute path of the back end, `/`
between names; names may hold any byte but `/` and NUL (surrogate escapes carry bytes that are not UTF-8).
All verbs raise `StorageError` or one of its kinds; `__cause__` is the back end's own error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from penstock.errors import NotThere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor

    import pyarrow as pa

    Data: TypeAlias = bytes | bytearray | memoryview | pa.Buffer

TEMPORARY = ".penstock-"  # begins the name of a temporary, which a crash may leave behind


class Entry(NamedTuple):
    """One file or directory as a listing or a stat shows it. A tuple, since a look at a directory may make 100,000.

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
    """The identity of a symbolic link, in what `names` returns; `resolve` says where it leads."""


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


PATH_BYTES_MAX = 4095  # of a path on Linux
Opener: TypeAlias = "Callable[[str], ReadHandle]"  # as `Storage.open`


class Storage(Protocol):
    """A file system. Instances are picklable and hold no open files."""

    goes_on: bool
    """Whether a file may be written further after a `sync`; where not, a sync puts the whole file."""

    reads_open: bool
    """Whether synced bytes of a file can be read while its writer has it open; where not, they can be once it is closed."""

    tags_contents: bool
    """Whether `Entry.identity` follows from a file's contents, as an object's tag does; where not, a copy has another one."""

    of_this_host: bool
    """Whether programs of this host open its files by `open`; where not, a server is asked, which may be away for a while."""

    has_directories: bool
    """Whether directories exist by themselves. Where not, a directory is there as long as anything lies below it: making or
    removing one does nothing, and an empty one is `NotThere`, except to a listing, which is empty."""

    takes_colons: bool
    """Whether a name may have a `:`; where not, a file or directory with one is refused."""

    moves: bool
    """Whether a moved file stays the same file; where not, it is copied, and has another time and identity."""

    reads_ahead: bool
    """Whether what a reader reads next is on its way before it asks; where not, each read is a request to wait for."""

    lists_in_order: bool
    """Whether it has `behind`: all that lies below a directory, in the order of paths, from any of them on."""

    is_paid: bool
    """Whether every request is paid for, so that what nobody waits for is asked seldom."""

    needs_contest: bool
    """Whether servers of this kind are known that break its promises where only several processes see it (`contest`)."""

    def bytes_below(self, root: str) -> int:
        """Return how many bytes the path of a file below the directory may have, from there."""

    def checkpoint_at(self, path: str, given: str | None) -> str | None:
        """Return how Spark's JVM names the path, so that a checkpoint may be there; `None` if it cannot write it.

        `given` is what a user has written for the path, `None` if it follows from another one.
        """

    def create(self, path: str, *, unique: bool = False) -> WriteHandle:
        """Create the file exclusively (`AlreadyThere` if the name is taken), readable by its owner alone.

        The parent directory must exist. Others may see the name at once; it is durable after `sync`. `unique`: nobody
        else can have the name, so there is no need to ask whether it is taken.
        """

    def extend(self, path: str, length: int) -> WriteHandle:
        """Open the file to write from byte `length` on; it is made if it is not there.

        Bytes that are there already are written over, and never cut: somebody else may have written the file further. Where
        files can only be appended to, they must be the same bytes (`StorageError`). This is the one verb that changes a file that
        others can see; it is for growing files alone. Leaving the block after an exception does not remove the file.
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

    def whole(self, path: str, size: int, modified_ns: int, identity: str) -> bytes | None:
        """Return all of a small file if it is, before its first byte is read and behind its last one, of that size, time and `identity`.

        `None`: it is not, or is not to be had in these few steps; whoever wants to know more opens it. Raises nothing: a task asks this of
        thousands of files, one behind the other.
        """

    def list(self, path: str) -> Iterable[Entry]:
        """Yield the entries of the directory in no order; `NotThere` if there is none.

        Entries that vanish meanwhile may be left out; an error part of the way is raised, never swallowed.
        """

    def names(self, path: str) -> dict[str, Any]:
        """Return the names of the entries, each with what changes when another file takes the name: hashable, the caller's own.

        It is a `Link` for a symbolic link, which all other verbs follow; and an `Entry` where the listing shows what `stat` would,
        so that there is no need to ask. It cannot be compared with the `identity` of `list`, and may be much cheaper. `NotThere` if
        there is no directory.
        """

    def behind(self, path: str, after: str) -> Iterable[tuple[str, Entry]]:
        """Yield the files below the directory, however deep, whose paths below it are greater than `after`, in the order of paths.

        It costs what it yields, not what there is. `NotSupported` unless it `lists_in_order`.
        """

    def watch(self, path: str) -> DirectoryWatch | None:
        """Return what tells of changes in a directory from now on, `None` where the back end has none. A hint, never the truth."""

    def stat(self, path: str) -> Entry:
        """Return the entry at the path; `NotThere` if there is none."""

    def resolve(self, path: str) -> str:
        """Return the path without symbolic links; what is not there is taken as it stands."""

    def owns(self, path: str) -> bool:
        """Tell whether a path, as `locate` returns it, is one of this storage. Asks no server."""

    def addressed_as(self, other: Storage, path: str) -> str:
        """Return the path as `other` writes it, where both are one file system that has two addresses; else as it stands."""

    def take(self, source: str, target: str) -> None:
        """Move whatever is at `source`, as it is, to a name that nobody else can have: a new one in a directory of the caller's own.

        `NotThere` if nothing is there. It is one step: a file that takes the name `source` meanwhile stays. Not durable by itself:
        after a power cut the file has the one name or the other. Where files cannot be moved, it is copied, and what was copied deleted.
        """

    def publish(self, source: str, target: str, *, as_it_is: bool = False) -> None:
        """Move a synced file to a name nobody has; never replaces (`AlreadyThere`).

        Durable under the new name before the old name goes: a crash leaves the old name, both, or the new name.
        Called again after a crash in between it completes: both names of one file count as not yet moved; the
        new name alone raises `NotThere`. The file becomes readable as its directory's defaults say. With `as_it_is` its permissions
        stay: for a file of somebody else, who has said who may read it.
        """

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Write a small file, all or nothing, durable on return; `AlreadyThere` if the name is taken.

        Of two that put the same name at the same time exactly one succeeds. No reader ever sees a part of it.
        """

    def persist(self, directory: str, names: Iterable[str]) -> None:
        """Make files of one directory, and their names, durable that another program wrote; missing ones are left out."""

    def delete(self, path: str) -> None:
        """Remove the file, or the directory if it is empty; nothing there is no error. Not durable by itself.

        A directory that is not empty stays, which is an error where it `has_directories`.
        """

    def move_directory(self, source: str, target: str) -> None:
        """Move a directory with all that is in it to a name nobody has, whole or not at all; durable on return.

        `AlreadyThere` if the name is taken. `NotThere` if there is no such directory; after a crash, a second call may find that it
        was moved. `NotSupported` where the storage cannot. If two move to one name at one time, either may find it taken.
        """

    def make_directory(self, path: str, *, private: bool = False) -> None:
        """Make the directory and its missing parents, durably; there already is no error.

        `private` gives the directory, if it makes it, to the owner alone; its parents are made as usual.
        """

    def abandoned(self, path: str, before_ns: int) -> Iterable[tuple[str, str]]:
        """Yield path and number of each upload below a path that was begun before that time and never ended, and that no listing shows."""

    def drop(self, path: str, number: str) -> None:
        """Remove what was `abandoned`; nothing there is no error."""

    def workers(self, count: int) -> Executor:
        """Return what runs up to `count` calls side by side, where this storage gains by that; a context manager."""

    def persist_all(self) -> None:
        """Make everything durable that any program of this host has written to its disks by now."""

    def now_ns(self) -> int:
        """Return the time by the clock that stamps modification times, in nanoseconds since the epoch."""


class OpenedOneByOne:
    """A verb of a storage that has no shorter way to a small file than to open it."""

    def whole(self, path: str, size: int, modified_ns: int, identity: str) -> bytes | None:  # noqa: ARG002 - whatever it is
        """Return nothing."""
        return None


class ShownInListings:
    """Two verbs of a storage whose listings show all that was begun, also what never ended: nothing is abandoned there."""

    def abandoned(self, path: str, before_ns: int) -> tuple[tuple[str, str], ...]:  # noqa: ARG002 - listings show everything
        """Return nothing."""
        return ()

    def drop(self, path: str, number: str) -> None:
        """Do nothing."""


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
