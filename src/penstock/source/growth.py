"""A file that grows, and whether what lies in a directory by now has its bytes.

A file has the bytes of another one if it begins with what was seen of that (`follow.seen`). Four things may be such a file: the file
itself under another name, which the pattern may leave out; a copy of it, beside it, in the making or done; the one that took its
place at once, as `rsync` and editors put a longer version over a file; and itself, back where it was after it was away.

A copy may be shorter than what was read by now, since the file went on growing behind the copier's back. So `earlier` has how far the
file was planned before, back to a time at which no copy that is still in question can have been made.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import NotThere, StorageError
from penstock.source.cursor import FileVersion
from penstock.source.follow import folders, seen
from penstock.source.scan import hidden
from penstock.storage import Entry, Link, entry_at

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from penstock.storage import ReadHandle, Storage

COPY_NS = 10_000_000_000  # a new file that has stood still for so long is no copy in the making
_COMPARED_BYTES = 4096
_AWAY_NS = 600_000_000_000
_AWAY_FILES = 1000


@dataclass
class Growing:
    """A followed file: where it is, how far it is planned, and what was seen in front of that. `size` and time are as last seen.

    `earlier` is up to two of `[at, digest, time when it was planned further]`. `place` is its full path where the listing lacks it.
    `turn` is greater than that of all files that were planned before it in this process.
    """

    path: str
    identity: str
    at: int
    digest: str
    size: int
    modified_ns: int
    earlier: tuple[tuple[int, str, int], ...] = ()
    closed: bool = False
    place: str | None = None
    turn: int = 0

    @property
    def version(self) -> FileVersion:
        """Return the file as it was last seen."""
        return FileVersion(self.path, self.size, self.modified_ns, self.identity)

    @property
    def unread(self) -> int:
        """Return how many of its bytes were seen and are not planned."""
        return max(self.size - self.at, 0)

    @staticmethod
    def of(entry: list[Any], *, closed: bool = False) -> Growing:
        """Return what an entry of the offset has; older ones have no `earlier`."""
        path, identity, at, digest, size, modified_ns, *marks = entry
        earlier = tuple((before, seen_then, left_ns) for before, seen_then, left_ns in (marks[0] if marks else ()))
        return Growing(path, identity, at, digest, size, modified_ns, earlier, closed=closed)

    def to_json(self) -> list[Any]:
        """Return the entry of the offset."""
        entry = [self.path, self.identity, self.at, self.digest, self.size, self.modified_ns]
        return [*entry, list(map(list, self.earlier))] if self.earlier and not self.closed else entry

    def is_planned_to(self, end: int, digest: str, now_ns: int) -> None:
        """Note that the file is planned to `end`, and keep where it was planned to before: once at least `COPY_NS` ago, and once later."""
        if self.at and (not self.earlier or len(self.earlier) == 1 or self.earlier[1][2] <= now_ns - COPY_NS):
            self.earlier = (*self.earlier[-1:], (self.at, self.digest, now_ns))
        self.at, self.digest = end, digest


class Beside:
    """Looks at what lies where followed files are, and compares bytes. Not shared between threads."""

    def __init__(self, storage: Storage, root: str) -> None:
        self._storage = storage
        self._root = root
        self._heads: dict[str, bytes] = {}
        self._folders: dict[str, dict[str, list[str]]] = {}

    def again(self) -> None:
        """Forget what was read for one look."""
        self._heads.clear()
        self._folders.clear()

    def full(self, path: str) -> str:
        """Return the full path of what has this path below the source's."""
        return f"{self._root}/{path}" if path else self._root

    def open(self, file: Growing | FileVersion) -> ReadHandle:
        """Open a file where it is."""
        place = file.place if isinstance(file, Growing) else None
        return self._storage.open(place or self.full(file.path))

    def seen(self, file: Growing | FileVersion, end: int) -> str | None:
        """Return the digest of what a file has in front of `end`; `None` if it is shorter, or not there."""
        try:
            with self.open(file) as handle:
                return seen(handle, end)
        except NotThere:
            return None

    def has_all_of(self, other: FileVersion, file: Growing) -> bool:
        """Tell whether a file begins with all that was read of another one."""
        return file.at > 0 and other.size >= file.at and self.seen(other, file.at) == file.digest

    def replaces(self, other: FileVersion, file: Growing) -> bool:
        """Tell whether a new file has the place of another one, all of which it begins with: `rsync` put a longer version there."""
        return other.path == file.path and self.has_all_of(other, file)

    def is_copy(self, other: FileVersion, file: Growing) -> bool:
        """Tell whether a new file has what was read of one that is cut or gone, or a part of that which is no longer than the copy."""
        if not (file.identity and other.identity == file.identity) and not is_named_like(other.path, file.path):
            return False
        if other.size >= file.at:
            return not file.at or self.has_all_of(other, file)
        marks = [(at, digest) for at, digest, _ in file.earlier if at <= other.size]
        return bool(marks) and self.seen(other, marks[-1][0]) == marks[-1][1]

    def may_be_copy(self, file: FileVersion, known: Growing) -> bool:
        """Tell whether a new file may be a copy in the making of one that is followed: whatever it has, that has, too.

        If that was cut a moment ago, which the next look finds, it may be.
        """
        if not known.size or not is_named_like(file.path, known.path):
            return False
        try:
            size = min(file.size, known.size, _COMPARED_BYTES)
            if self._head(file)[:size] != self._head(known)[:size]:
                return False
            with self.open(file) as handle, self.open(known) as original:
                if known.at and seen(original, known.at) != known.digest:
                    return True
                if known.at and file.size >= known.at and seen(handle, known.at) != known.digest:
                    return False
                start = max(file.size - _COMPARED_BYTES, 0)
                return handle.read(start, file.size - start) == original.read(start, file.size - start)
        except StorageError:
            return False

    def mark(self, known: Growing, size: int) -> None:
        """Let a followed file know a copy of so many bytes, fewer than are planned of it, when it is cut."""
        if 0 < size < known.at and all(at > size for at, _, _ in known.earlier):
            digest = self.seen(known, size)
            if digest is not None:
                known.earlier = ((size, digest, self._storage.now_ns()), *known.earlier[-1:])

    def _head(self, file: Growing | FileVersion) -> bytes:
        path = (file.place if isinstance(file, Growing) else None) or file.path
        if path not in self._heads:
            with self.open(file) as handle:
                self._heads[path] = handle.read(0, _COMPARED_BYTES)
        return self._heads[path]

    def unlisted(self, file: Growing, listed: Container[str], *, copies: bool) -> tuple[str, Entry] | None:
        """Return the full path and entry of a file, or of a copy with more than was read of it, that lies beside it and is not listed."""
        if not file.identity:
            return None
        for path in self._likely(file, copies=copies):
            below = path[len(self._root) + 1 :] if path.startswith(f"{self._root}/") else None
            entry = None if below in listed else self._having(path, file, copies=copies)
            if entry is not None:
                return path, entry
        return None

    def _likely(self, file: Growing, *, copies: bool) -> Iterator[str]:
        """Yield the full paths beside a file that have its number, or that are named like it and have another one.

        Nothing was read of some: a number that is used again by a file of another name would have that read.
        """
        own = self.full(file.path).rpartition("/")[2]
        for folder in folders(self._storage, self.full(file.path))[
            : 2 if file.at else 1
        ]:  # by a number alone nowhere else
            names = self._names_in(folder)
            numbers = sorted(names.keys() - {file.identity}) if copies else [file.identity]
            for name in (name for number in numbers for name in names.get(number, ())):
                if (file.at and not copies) or _is_like(name, own):
                    yield f"{folder}/{name}"

    def stands_still(self, file: Growing) -> bool:
        """Tell whether a file is where it was found last, as it was: nothing of it need be read then."""
        entry = entry_at(self._storage, file.place) if file.place is not None else None
        now = entry and (entry.identity, entry.size, entry.modified_ns)
        return now == (file.identity, file.size, file.modified_ns)

    def _names_in(self, folder: str) -> dict[str, list[str]]:
        """Return the names in a directory that are neither hidden nor links, by identity, as they were when this look first asked."""
        if folder not in self._folders:
            names: dict[str, list[str]] = {}
            with suppress(NotThere):
                for name, known in self._storage.names(folder).items():
                    if not hidden(name) and not isinstance(known, Link):
                        names.setdefault(known.identity if isinstance(known, Entry) else str(known), []).append(name)
            self._folders[folder] = names
        return self._folders[folder]

    def _having(self, path: str, file: Growing, *, copies: bool) -> Entry | None:
        """Return the entry of a file if it has what was read of another one, as a copy something more than that."""
        with suppress(StorageError):
            entry = entry_at(self._storage, path)
            if entry is None or not entry.is_file or entry.size < (file.at + copies if file.at else file.size):
                return None
            with self._storage.open(path) as handle:
                if handle.info().identity == entry.identity and (not file.at or seen(handle, file.at) == file.digest):
                    return entry
        return None


def is_named_like(path: str, original: str) -> bool:
    """Tell whether a file lies beside another one and has a name as copies of that have."""
    folder, _, name = path.rpartition("/")
    beside, _, own = original.rpartition("/")
    return folder == beside and _is_like(name, own)


def _is_like(name: str, own: str) -> bool:
    """Tell whether a name has what another one begins with: `app.log.1` and `old-app.log` of `app.log`, but not the other way round.

    What a rotation makes has the longer name; the file that took the name of one that was renamed is no copy of that.
    """
    return own.partition(".")[0] in name and not own.startswith(name)


class Away:
    """Followed files that are not there any more, for a while: one that comes back is gone on with. Not shared between threads."""

    def __init__(self, entries: list[list[Any]] | None = None) -> None:
        self._files = [(Growing.of(entry), gone_ns) for entry, gone_ns in entries or ()]

    def note(self, file: Growing, now_ns: int) -> None:
        """Remember a file that has gone now; forget those that went long ago, and the oldest of more than `_AWAY_FILES`."""
        if file.at:
            self._files.append((file, now_ns))
        self._files = [(old, gone_ns) for old, gone_ns in self._files if gone_ns > now_ns - _AWAY_NS][-_AWAY_FILES:]

    def back(self, other: FileVersion, beside: Beside) -> Growing | None:
        """Return, once, the file that a new one is, by its number or path and by what it begins with; `None` if it is none of them."""
        for place, (file, _) in enumerate(self._files):
            same = file.path == other.path or bool(file.identity and file.identity == other.identity)
            if same and beside.has_all_of(other, file):
                del self._files[place]
                return file
        return None

    def to_json(self) -> list[list[Any]]:
        """Return what an offset has of it."""
        return [[file.to_json(), gone_ns] for file, gone_ns in self._files]
