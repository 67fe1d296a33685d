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

TEMPORARY = ".penstock-"  # prefix of the names of temporary files, which a crash may leave


class Entry(NamedTuple):
    """One file or directory as a listing or a stat shows it. A tuple, because one listing may make 100,000 of them.

    `modified_ns` is the file system's modification time in nanoseconds since the epoch. `identity` changes when another file
    takes the name (the inode on local disks), and no two directories have the same identity; it is `""` if the back end has none.
    Before `arrived_ns` the file was not there under this name in its present state (the inode change time of a local disk, which
    nobody can set back); `None` if the back end does not know. `is_file` is false for directories and special files: pipes,
    sockets, devices.
    """

    name: str
    is_directory: bool
    size: int
    modified_ns: int
    identity: str
    arrived_ns: int | None = None
    is_file: bool = True


class Link(int):
    """The identity of a symbolic link in the result of `names`; `resolve` returns its target."""


class WriteHandle(Protocol):
    """A file being written, made by `create`. Not shared between threads."""

    def write(self, data: Data) -> int:
        """Append all of `data`; return its length. Nothing is durable yet."""

    def tell(self) -> int:
        """Return the bytes written so far."""

    def sync(self) -> None:
        """Make all bytes written so far, and the file's name, durable. After a failure the file can never become durable."""

    def close(self) -> None:
        """Close without syncing. `StorageError` if the name is gone or belongs to another file by now. Idempotent."""

    def __enter__(self) -> WriteHandle:
        """Return itself."""

    def __exit__(self, *exc: object) -> None:
        """Close; after an exception also try to remove the file."""


class ReadHandle(Protocol):
    """An open file. It keeps reading the same file, even if the name is removed. May be shared between threads."""

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
    """A lock that is held: the result of `lock`."""

    def close(self) -> None:
        """Release the lock. Idempotent; the end of the process releases it, too."""


class DirectoryWatch(Protocol):
    """A watch on a directory: the result of `watch`. It ends with its last reference."""

    def changes(self) -> dict[str, Any] | None:
        """Return the names that have changed since the last call, each with the value that `names` would have for it now.

        The value `None`: the name is not there. `None` instead of a mapping: the changes are unknown. Changed names may be
        missing.
        """


PATH_BYTES_MAX = 4095  # the longest path on Linux
Opener: TypeAlias = "Callable[[str], ReadHandle]"  # as `Storage.open`


class Storage(Protocol):
    """A file system. Instances are picklable and hold no open files."""

    goes_on: bool
    """Whether a file can be written further after a `sync`; if not, a sync puts the whole file."""

    reads_open: bool
    """Whether synced bytes of a file can be read while its writer has it open; if not, they can be read once it is closed."""

    tags_contents: bool
    """Whether `Entry.identity` follows from a file's contents, as an object's tag does; if not, a copy has another identity."""

    of_this_host: bool
    """Whether programs of this host open its files by `open`; if not, a server serves them, which may be away for a while."""

    has_directories: bool
    """Whether directories exist by themselves. If not, a directory is there as long as anything is below it: making or
    removing one does nothing, and an empty one is `NotThere`, except in a listing, which is empty."""

    takes_colons: bool
    """Whether a name may have a `:`; if not, a file or directory with one is refused."""

    moves: bool
    """Whether a moved file stays the same file; if not, it is copied, and has another time and identity."""

    reads_ahead: bool
    """Whether the next bytes are on their way before a reader asks for them; if not, each read is a request to wait for."""

    lists_in_order: bool
    """Whether `listed_after` is supported: all files below a directory, in the order of paths, from any path on."""

    is_paid: bool
    """Whether every request costs money, so that requests that nobody waits for are made seldom."""

    needs_contest: bool
    """Whether some servers of this kind are known to break promises in a way that only several processes can see (`contest`)."""

    def bytes_below(self, root: str) -> int:
        """Return how many bytes the path of a file, relative to the directory, may have."""

    def checkpoint_at(self, path: str, given: str | None) -> str | None:
        """Return the path in the form for Spark's JVM, so that a checkpoint can be there; `None` if the JVM cannot write there.

        `given` is the path as the user has written it, `None` if it follows from another path.
        """

    def create(self, path: str, *, unique: bool = False) -> WriteHandle:
        """Create the file exclusively (`AlreadyThere` if the name is taken), readable only by its owner.

        The parent directory must exist. Others may see the name at once; it is durable after `sync`. `unique`: the name is
        unique, so there is no need to check whether it is taken.
        """

    def extend(self, path: str, length: int) -> WriteHandle:
        """Open the file to write from byte `length` on; make it if it is not there.

        Bytes that are there already are overwritten but never cut, because another writer may have extended the file. If files
        can only be appended to, the bytes must be the same (`StorageError`). This is the only verb that changes a file that
        others can see; it is only for growing files. Leaving the block after an exception does not remove the file.
        """

    def lock(self, path: str, *, shared: bool = False) -> Hold:
        """Hold the file or directory, alone or with other `shared` holders, until closed; the file need not be writable.

        `Locked` if another holder has it, in this process or another; never waits. The lock is advisory. `NotSupported` if the
        storage has no locks.
        """

    def open(self, path: str) -> ReadHandle:
        """Open the file for reading; `NotThere` if there is none."""

    def read(self, path: str) -> bytes:
        """Return the whole file; `NotThere` if there is none."""

    def whole(self, path: str, size: int, modified_ns: int, identity: str) -> bytes | None:
        """Return a whole small file if it has this size, time and `identity` before its first byte and after its last byte is read.

        `None`: it has not, or it cannot be read in these few steps; open the file to learn more. Never raises. A task calls this
        for thousands of files, one after the other.
        """

    def list(self, path: str) -> Iterable[Entry]:
        """Yield the entries of the directory in no order; `NotThere` if there is none.

        Entries that vanish meanwhile may be left out; an error part of the way is raised, never swallowed.
        """

    def names(self, path: str) -> dict[str, Any]:
        """Return the names of the entries, each with a hashable value that changes when another file takes the name.

        The mapping belongs to the caller. The value is a `Link` for a symbolic link, which all other verbs follow. It is an
        `Entry` if the listing shows what `stat` would, so that no `stat` is needed. It cannot be compared with the `identity` of
        `list`, and may be much cheaper. `NotThere` if there is no directory.
        """

    def listed_after(self, path: str, after: str) -> Iterable[tuple[str, Entry]]:
        """Yield the files below the directory, at any depth, whose relative paths are greater than `after`, in the order of paths.

        The cost follows the number of files that are yielded, not of all files. `NotSupported` unless `lists_in_order`.
        """

    def watch(self, path: str) -> DirectoryWatch | None:
        """Return a watch that reports changes in a directory from now on, `None` if the back end has none. Its reports are only hints."""

    def stat(self, path: str) -> Entry:
        """Return the entry at the path; `NotThere` if there is none."""

    def resolve(self, path: str) -> str:
        """Return the path without symbolic links; parts of it that do not exist stay unchanged."""

    def owns(self, path: str) -> bool:
        """Tell whether a path, as `locate` returns it, belongs to this storage. Calls no server."""

    def addressed_as(self, other: Storage, path: str) -> str:
        """Return the path with the address of `other` if both are one file system with two addresses; otherwise unchanged."""

    def take(self, source: str, target: str) -> None:
        """Move whatever is at `source`, unchanged, to a unique new name in a directory that the caller owns.

        `NotThere` if nothing is at `source`. The move is one step: a file that takes the name `source` meanwhile stays. Not
        durable by itself: after a power cut the file has either name. If files cannot be moved, the file is copied, and what was
        copied is deleted.
        """

    def publish(self, source: str, target: str, *, as_it_is: bool = False) -> None:
        """Move a synced file to a free name; never replaces a file (`AlreadyThere`).

        The file is durable under the new name before the old name goes: a crash leaves the old name, both, or the new name. A
        second call after such a crash completes the move: both names of one file count as not yet moved; the new name alone
        raises `NotThere`. The file gets the default permissions of new files. With `as_it_is` it keeps its permissions: for
        another user's file, whose owner has decided who may read it.
        """

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Write a small file, all or nothing, durable on return; `AlreadyThere` if the name is taken.

        If two callers put the same name at the same time, exactly one succeeds. No reader ever sees a part of the file.
        """

    def persist(self, directory: str, names: Iterable[str]) -> None:
        """Make files of one directory that another program wrote durable, with their names; skips missing files."""

    def delete(self, path: str) -> None:
        """Remove the file, or the directory if it is empty; no error if nothing is there. Not durable by itself.

        A directory that is not empty stays; that is an error if the storage `has_directories`.
        """

    def move_directory(self, source: str, target: str) -> None:
        """Move a directory with its contents to a free name, whole or not at all; durable on return.

        `AlreadyThere` if the name is taken. `NotThere` if there is no such directory, which after a crash may mean that a first
        call has moved it. `NotSupported` if the storage cannot do it. If two callers move to one name at the same time, either
        may find it taken.
        """

    def make_directory(self, path: str, *, private: bool = False) -> None:
        """Make the directory and its missing parents, durably; no error if it exists.

        `private`: a new directory is accessible only to its owner; its parents are made as usual.
        """

    def abandoned(self, path: str, before_ns: int) -> Iterable[tuple[str, str]]:
        """Yield path and number of each upload below a path that was begun before `before_ns` and never ended; no listing shows these."""

    def drop(self, path: str, number: str) -> None:
        """Remove an upload that `abandoned` has yielded; no error if it is gone."""

    def workers(self, count: int) -> Executor:
        """Return an executor, a context manager, that runs up to `count` calls side by side if this storage gains by that."""

    def persist_all(self) -> None:
        """Make everything durable that any program of this host has written to the host's disks so far."""

    def now_ns(self) -> int:
        """Return the time of the clock that stamps modification times, in nanoseconds since the epoch."""


class OpenedOneByOne:
    """The verb `whole` for a storage that has no faster way to read a small file than to open it."""

    def whole(self, path: str, size: int, modified_ns: int, identity: str) -> bytes | None:  # noqa: ARG002 - whatever it is
        """Return nothing."""
        return None


class ShownInListings:
    """The verbs `abandoned` and `drop` for a storage whose listings show unfinished files, too, so that no upload is abandoned there."""

    def abandoned(self, path: str, before_ns: int) -> tuple[tuple[str, str], ...]:  # noqa: ARG002 - listings show everything
        """Return nothing."""
        return ()

    def drop(self, path: str, number: str) -> None:
        """Do nothing."""


def entry_at(storage: Storage, path: str) -> Entry | None:
    """Return the entry at the path, `None` if there is none; otherwise like `Storage.stat`."""
    try:
        return storage.stat(path)
    except NotThere:
        return None


def names_at(storage: Storage, directory: str) -> list[str]:
    """Return the names in a directory, none if it is not there; otherwise like `Storage.names`."""
    try:
        return list(storage.names(directory))
    except NotThere:
        return []
