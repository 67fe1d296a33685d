"""A fourth storage, to show what a storage needs: the files of this process, in one dictionary by path.

It is a storage of keys, like object stores: a directory exists as long as something lies below it.
"""

from __future__ import annotations

import itertools
import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from penstock import clock
from penstock.errors import AlreadyThere, NotSupported, NotThere, StorageError
from penstock.storage import Entry, InTurn, OpenedOneByOne, ShownInListings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.storage import Storage
    from penstock.storage._base import Data

FILES: dict[str, ToyFile] = {}
_numbers = itertools.count()


@dataclass(eq=False)
class ToyFile:
    """A file."""

    data: bytearray = field(default_factory=bytearray)
    modified_ns: int = field(default_factory=clock.now_ns)
    number: str = field(default_factory=lambda: str(next(_numbers)))


class ToyWriter:
    """See `WriteHandle`."""

    def __init__(self, path: str, file: ToyFile, at: int = 0, *, begun: bool) -> None:
        self.path, self.file, self.at, self.begun = path, file, at, begun

    def write(self, data: Data) -> int:
        """Overwrite what is there, and continue after it."""
        piece = bytes(data)
        self.file.data[self.at : self.at + len(piece)] = piece
        self.at += len(piece)
        self.file.modified_ns = clock.now_ns()
        return len(piece)

    def tell(self) -> int:
        """Return the position."""
        return self.at

    def sync(self) -> None:
        """Do nothing: nothing outlives this process."""

    def close(self) -> None:
        """Fail if the name belongs to another file now."""
        if FILES.get(self.path) is not self.file:
            msg = f"{self.path!r} was removed while it was written; write it again"
            raise StorageError(msg)

    def __enter__(self) -> ToyWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        if exc[0] is None:
            self.close()
        elif self.begun:
            FILES.pop(self.path, None)


class ToyReader:
    """See `ReadHandle`."""

    def __init__(self, path: str, file: ToyFile) -> None:
        self.path, self.file = path, file

    def info(self) -> Entry:
        """Return what a listing would show."""
        return Entry(posixpath.basename(self.path), False, len(self.file.data), self.file.modified_ns, self.file.number)

    def read(self, offset: int, length: int) -> bytes:
        """Return a range."""
        return bytes(self.file.data[offset : offset + length])

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> ToyReader:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


class ToyStorage(OpenedOneByOne, ShownInListings):
    """See `Storage`."""

    goes_on = reads_open = takes_colons = moves = lists_in_order = True
    tags_contents = of_this_host = has_directories = False
    reads_ahead = is_paid = needs_contest = False

    def checkpoint_at(self, path: str, given: str | None) -> None:
        """Refuse: Spark's JVM does not know this storage."""

    def bytes_below(self, root: str) -> int:
        """Return a large number: a dictionary takes keys of any length."""
        return 1 << 20

    def create(self, path: str, *, unique: bool = False) -> ToyWriter:
        """Take the name, or raise an error if it is taken."""
        return ToyWriter(path, self._put(path, ToyFile()), begun=True)

    def _put(self, path: str, file: ToyFile) -> ToyFile:
        if FILES.setdefault(path, file) is not file:
            msg = f"{path!r} is taken; nothing was replaced"
            raise AlreadyThere(msg)
        return file

    def extend(self, path: str, length: int) -> ToyWriter:
        """Continue the file at this length."""
        return ToyWriter(path, FILES.setdefault(path, ToyFile()), length, begun=False)

    def lock(self, path: str, *, shared: bool = False) -> NoReturn:
        """Refuse."""
        msg = f"cannot lock {path!r}: there are no locks"
        raise NotSupported(msg)

    def open(self, path: str) -> ToyReader:
        """Open the current file."""
        if path not in FILES:
            msg = f"{path!r} is not there"
            raise NotThere(msg)
        return ToyReader(path, FILES[path])

    def read(self, path: str) -> bytes:
        """Return all of it."""
        return bytes(self.open(path).file.data)

    def list(self, path: str) -> Iterable[Entry]:
        """Return the entries of `names`."""
        return self.names(path).values()

    def names(self, path: str) -> dict[str, Entry]:
        """Return the first name of every path below this one."""
        below = {name.removeprefix(f"{path}/") for name in list(FILES) if name.startswith(f"{path}/")}
        return {name.partition("/")[0]: self.stat(f"{path}/{name.partition('/')[0]}") for name in below}

    def listed_after(self, path: str, after: str) -> Iterator[tuple[str, Entry]]:
        """Yield the files after a path, in the order of their paths."""
        for name in sorted(FILES):
            below = name.removeprefix(f"{path}/")
            if below != name and below > after:
                yield below, self.stat(name)

    def watch(self, path: str) -> None:
        """Return None: changes are not reported."""

    def stat(self, path: str) -> Entry:
        """Return the file, or a directory if something lies below the path."""
        if path not in FILES and any(name.startswith(f"{path}/") for name in list(FILES)):
            return Entry(posixpath.basename(path), True, 0, clock.now_ns(), "", is_file=False)
        return self.open(path).info()

    def resolve(self, path: str) -> str:
        """Return the path: there are no links."""
        return path

    def owns(self, path: str) -> bool:
        """Tell whether the path has this storage's scheme."""
        return path.startswith("toy:")

    def addressed_as(self, other: Storage, path: str) -> str:
        """Return the path."""
        return path

    def take(self, source: str, target: str) -> None:
        """Move the name."""
        FILES[target] = self.open(source).file
        del FILES[source]

    def publish(self, source: str, target: str, *, as_it_is: bool = False) -> None:
        """Give the file its new name, then remove the old one."""
        file = self.open(source).file
        if FILES.get(target) is not file:
            self._put(target, file)
        del FILES[source]

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Put the whole file."""
        self._put(path, ToyFile(bytearray(data)))

    def persist(self, directory: str, names: Iterable[str]) -> None:
        """Do nothing: nothing outlives this process."""

    def delete(self, path: str) -> None:
        """Remove the file; what lies below its path stays."""
        FILES.pop(path, None)

    def move_directory(self, source: str, target: str) -> NoReturn:
        """Refuse."""
        msg = f"cannot move {source!r} to {target!r}: there are no directories"
        raise NotSupported(msg)

    def make_directory(self, path: str, *, private: bool = False) -> None:
        """Do nothing: a directory exists once something lies below it."""

    def workers(self, count: int) -> InTurn:
        """Return an executor that runs one call after another."""
        return InTurn()

    def persist_all(self) -> None:
        """Do nothing."""

    def now_ns(self) -> int:
        """Return this machine's time."""
        return clock.now_ns()


def located(location: str, name: str) -> tuple[Storage, str]:
    """Return the storage and path of `toy:/a/b`; the line of a storage in `_locate` names such a function."""
    return ToyStorage(), "toy:" + posixpath.normpath(location.removeprefix("toy:"))
