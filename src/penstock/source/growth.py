"""A file that grows, and whether a file that lies in a directory now has its bytes.

A file has the bytes of another one if it begins with what was seen of that (`follow.seen`). Four kinds of files may do so: the file
itself under another name, which the pattern may leave out; a copy of it beside it, complete or still being made; a file that took its
place at once, as when `rsync` and editors put a longer version over a file; and the file itself, back in its place after it was away.

A copy may be shorter than what has been read by now, because the original went on growing after the copier had read it. Such a copy was
seen before the original was cut: what is read was seen at a look, and a copy that was not there then has all of that. So it is enough to
remember (`earlier`) where the copies end that were seen beside the file, and what it has up to there. That a file begins like another one
up to some place before its own end is no evidence: files that are begun with the same header do.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import NotThere, StorageError
from penstock.source.cursor import FileVersion
from penstock.source.follow import SEEN_BYTES, folders, seen
from penstock.source.scan import hidden
from penstock.storage import Entry, Link, entry_at

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator

    from penstock.formats.families import Tail
    from penstock.storage import ReadHandle, Storage

_log = logging.getLogger("penstock.source")
COPY_NS = 10_000_000_000  # a new file that has stood still for this long is not a copy that is still being made
COMPARED_BYTES = 4096
_COPIES = 4
_AWAY_NS = 600_000_000_000
_AWAY_FILES = 1000


@dataclass(frozen=True)
class SearchedTail:
    """The end of a file in which no record has ended yet, and the digest of the file up to where that was searched."""

    tail: Tail
    digest: str | None


@dataclass
class Growing:
    """A followed file: its path, how far it is planned, and the digest of the bytes before that. `size` and time are as last seen.

    `earlier` has the latest few of `[size, digest, time]` of copies that were seen and have fewer bytes. `place` is its full path if the
    listing does not show it. `turn` is greater than that of all files that were planned before it in this process. `tail` saves reading
    an unfinished record again at each look; without it the same is found.
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
    tail: SearchedTail | None = field(default=None, compare=False, repr=False)

    @property
    def version(self) -> FileVersion:
        """Return the file as it was last seen."""
        return FileVersion(self.path, self.size, self.modified_ns, self.identity)

    @property
    def unread(self) -> int:
        """Return how many of its bytes were seen and are not planned yet."""
        return max(self.size - self.at, 0)

    @staticmethod
    def new(file: FileVersion) -> Growing:
        """Return a file of which nothing is planned yet."""
        return Growing(file.path, file.identity, 0, "", file.size, file.modified_ns)

    @staticmethod
    def of(entry: list[Any], *, closed: bool = False) -> Growing:
        """Return the file of an entry of the offset; entries of older versions have no `earlier`."""
        path, identity, at, digest, size, modified_ns, *marks = entry
        earlier = tuple((before, seen_then, left_ns) for before, seen_then, left_ns in (marks[0] if marks else ()))
        return Growing(path, identity, at, digest, size, modified_ns, earlier, closed=closed)

    def to_json(self) -> list[Any]:
        """Return the entry of the offset."""
        entry = [self.path, self.identity, self.at, self.digest, self.size, self.modified_ns]
        return [*entry, list(map(list, self.earlier))] if self.earlier and not self.closed else entry


class Beside:
    """Looks at the files beside followed files, and compares bytes. Not shared between threads."""

    def __init__(self, storage: Storage, root: str) -> None:
        self._storage = storage
        self._root = root
        self._heads: dict[str, tuple[bytes, bool]] = {}
        self._folders: dict[str, dict[str, list[str]]] = {}

    def again(self) -> None:
        """Forget what the last look has read."""
        self._heads.clear()
        self._folders.clear()

    def full(self, path: str) -> str:
        """Return the full path for a path below the source's path."""
        return f"{self._root}/{path}" if path else self._root

    def open(self, file: Growing | FileVersion) -> ReadHandle:
        """Open a file at its current place."""
        place = file.place if isinstance(file, Growing) else None
        return self._storage.open(place or self.full(file.path))

    def seen(self, file: Growing | FileVersion, end: int) -> str | None:
        """Return the digest of a file up to `end`; `None` if it is shorter, or not there."""
        try:
            with self.open(file) as handle:
                return seen(handle, end)
        except NotThere:
            return None

    def goes_on(self, file: Growing, now: FileVersion) -> bool | None:
        """Tell whether a file's present version begins with what was seen; `None` if it has moved while it was looked at."""
        try:
            with self.open(file if file.place else now) as handle:
                if handle.info().identity != now.identity:
                    return None
                return _has_kept(handle, file)
        except NotThere:
            return None

    def has_all_of(self, other: FileVersion, file: Growing) -> bool:
        """Tell whether a file begins with all that was read of another one."""
        return file.at > 0 and other.size >= file.at and self.seen(other, file.at) == file.digest

    def replaces(self, other: FileVersion, file: Growing) -> bool:
        """Tell whether a new file replaced another one in its place and begins with all that was read of it, as after `rsync`."""
        return other.path == file.path and self.has_all_of(other, file)

    def is_copy(self, other: FileVersion, file: Growing) -> bool:
        """Tell whether a new file has what was read of a file that is cut or gone; if it is shorter, whether it is a copy that was seen."""
        if not (file.identity and other.identity == file.identity) and not is_named_like(other.path, file.path):
            return False
        if other.size >= file.at:
            return not file.at or self.has_all_of(other, file)
        digests = [digest for size, digest, _ in file.earlier if size == other.size]
        return bool(digests) and self.seen(other, other.size) in digests

    def may_be_copy(self, file: FileVersion, known: Growing) -> bool:
        """Tell whether a new file may be a copy of a followed file that is still being made: whether all its bytes are in that file, too.

        It also may be one if the followed file was cut a moment ago, which the next look notices. So that they differ counts only if the
        followed file still had its bytes afterwards.
        """
        if not known.size or not is_named_like(file.path, known.path):
            return False
        try:
            size = min(file.size, known.size, COMPARED_BYTES)
            head, kept = self._head(known)
            if self._head(file)[0][:size] != head[:size]:
                return not kept
            with self.open(file) as handle, self.open(known) as original:
                if known.at and file.size >= known.at and seen(handle, known.at) != known.digest:
                    return False
                start = max(file.size - COMPARED_BYTES, 0)
                alike = handle.read(start, file.size - start) == original.read(start, file.size - start)
                return alike or not _has_kept(original, known)
        except StorageError:
            return False

    def is_of_one(self, other: FileVersion, files: Iterable[Growing], at: int) -> bool:
        """Tell whether a file may be a copy of one of `files`, which it shows by more than its first `at` bytes."""
        return any(
            known.path != other.path and min(known.size, other.size) > at and self.may_be_copy(other, known)
            for known in files
        )

    def rest_in(self, copy: FileVersion, file: Growing) -> Growing:
        """Return a copy, to be followed from where the file was; of a shorter one all was read, and the file grew after it was copied."""
        at, digest = file.at, file.digest
        if copy.size < at:
            at, digest = copy.size, self.seen(copy, copy.size) or ""
        _log.info("what was %r continues as %r at byte %d", file.path or self._root, copy.path or self._root, at)
        return Growing(copy.path, copy.identity, at, digest, copy.size, copy.modified_ns)

    def mark(self, known: Growing, copy: FileVersion) -> None:
        """Remember a copy with fewer bytes than its original, so that it is recognised when that is read further and cut."""
        if 0 < copy.size < known.size and all(size != copy.size for size, _, _ in known.earlier):
            digest = self.seen(copy, copy.size)
            if digest is not None and digest == self.seen(known, copy.size):
                known.earlier = (*known.earlier[1 - _COPIES :], (copy.size, digest, self._storage.now_ns()))

    def _head(self, file: Growing | FileVersion) -> tuple[bytes, bool]:
        """Return the first bytes of a file as of this look, and whether it had all that was read of it after that."""
        path = (file.place if isinstance(file, Growing) else None) or file.path
        if path not in self._heads:
            with self.open(file) as handle:
                head = handle.read(0, COMPARED_BYTES)
                self._heads[path] = head, not isinstance(file, Growing) or _has_kept(handle, file)
        return self._heads[path]

    def unlisted(
        self, file: Growing, listed: Container[str], copies: Collection[str] | None = None
    ) -> tuple[str, Entry] | None:
        """Return path and entry of an unlisted file beside `file`: that file itself, or the newest copy of it.

        A copy is looked for if `copies` are given, which are the identities of files that are no new copies. An older one may begin
        alike, if that is a header; so if the newest has no more than was read, the result is `None`.
        """
        if not file.identity:
            return None
        paths = self._likely(file, copies)
        for path in paths if copies is None else self._newest_first(paths):
            below = path[len(self._root) + 1 :] if path.startswith(f"{self._root}/") else None
            entry = None if below in listed else self._having(path, file)
            if entry is not None:
                return (path, entry) if copies is None or entry.size > file.at else None
        return None

    def _newest_first(self, paths: Iterator[str]) -> list[str]:
        there = ((path, entry_at(self._storage, path)) for path in paths)
        since = {path: entry.arrived_ns or entry.modified_ns for path, entry in there if entry is not None}
        return sorted(since, key=lambda path: -since[path])

    def _likely(self, file: Growing, copies: Collection[str] | None) -> Iterator[str]:
        """Yield the full paths beside a file that have its inode number, or that are named like it and have a number not among `copies`.

        If nothing was read of a file, only names like its own count: otherwise a file of another name that reuses its number would be
        read.
        """
        own = self.full(file.path).rpartition("/")[2]
        for folder in folders(self._storage, self.full(file.path))[
            : 2 if file.at else 1
        ]:  # a file known by its number alone is looked for nowhere else
            names = self._names_in(folder)
            numbers = [file.identity] if copies is None else sorted(names.keys() - {file.identity, *copies})
            for name in (name for number in numbers for name in names.get(number, ())):
                if (file.at and copies is None) or _is_like(name, own):
                    yield f"{folder}/{name}"

    def stands_still(self, file: Growing) -> bool:
        """Tell whether a file is unchanged at the place where it was found last: then nothing of it needs to be read."""
        entry = entry_at(self._storage, file.place) if file.place is not None else None
        now = entry and (entry.identity, entry.size, entry.modified_ns)
        return now == (file.identity, file.size, file.modified_ns)

    def _names_in(self, folder: str) -> dict[str, list[str]]:
        """Return the names in a directory that are neither hidden nor links, by identity, as of the first call during this look."""
        if folder not in self._folders:
            names: dict[str, list[str]] = {}
            with suppress(NotThere):
                for name, known in self._storage.names(folder).items():
                    if not hidden(name) and not isinstance(known, Link):
                        names.setdefault(known.identity if isinstance(known, Entry) else str(known), []).append(name)
            self._folders[folder] = names
        return self._folders[folder]

    def _having(self, path: str, file: Growing) -> Entry | None:
        """Return the entry of a file if it has what was read of `file`."""
        with suppress(StorageError):
            entry = entry_at(self._storage, path)
            if entry is None or not entry.is_file or entry.size < (file.at or file.size):
                return None
            with self._storage.open(path) as handle:
                if handle.info().identity == entry.identity and (not file.at or seen(handle, file.at) == file.digest):
                    return entry
        return None


def _has_kept(handle: ReadHandle, file: Growing) -> bool:
    """Tell whether an open file still begins with what was read of it."""
    return not file.at or seen(handle, file.at) == file.digest


def is_named_like(path: str, original: str) -> bool:
    """Tell whether a file lies beside another one and has a name as its copies have."""
    folder, _, name = path.rpartition("/")
    beside, _, own = original.rpartition("/")
    return folder == beside and _is_like(name, own)


def _is_like(name: str, own: str) -> bool:
    """Tell whether a name contains the beginning of another: `app.log.1` and `old-app.log` of `app.log`, but not the other way round.

    A rotation makes the longer name; the file that took the name of a renamed file is not a copy of it.
    """
    return own.partition(".")[0] in name and not own.startswith(name)


class Away:
    """Followed files that disappeared lately: a file that comes back is continued. Not shared between threads."""

    def __init__(self, entries: list[list[Any]] | None = None) -> None:
        self._files = [(Growing.of(entry), gone_ns) for entry, gone_ns in entries or ()]

    def note(self, file: Growing, now_ns: int) -> None:
        """Remember a file that is gone now; forget files that went long ago, and all but the latest `_AWAY_FILES`."""
        if file.at:
            self._files.append((file, now_ns))
        self._files = [(old, gone_ns) for old, gone_ns in self._files if gone_ns > now_ns - _AWAY_NS][-_AWAY_FILES:]

    def back(self, other: FileVersion, beside: Beside) -> Growing | None:
        """Return, once, the remembered file that a new file is, by its number or path and by its beginning; `None` if there is none.

        A disk gives the number of a file that was removed to the next one, and two short files may well begin alike. So under another
        name the number counts only with more evidence than that.
        """
        for place, (file, _) in enumerate(self._files):
            by_number = bool(file.identity and file.identity == other.identity) and (
                file.at >= SEEN_BYTES
                or (other.size, other.modified_ns) == (file.size, file.modified_ns)
                or is_named_like(other.path, file.path)
            )
            if (file.path == other.path or by_number) and beside.has_all_of(other, file):
                del self._files[place]
                return file
        return None

    def to_json(self) -> list[list[Any]]:
        """Return what an offset keeps of these files."""
        return [[file.to_json(), gone_ns] for file, gone_ns in self._files]
