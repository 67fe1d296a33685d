"""From listings to files that are new.

What is listed, when, and what is remembered:

1. A directory is listed again unless its modification time is unchanged and lies well before its last listing.
2. Listing a directory means its names and inodes only, and what else a storage's listing shows for nothing; a file is
   looked at (size, time) when its name or inode is new and the listing has not shown that, while it is held back, and
   otherwise once every so many scans (`_LOOK_AGAIN` files a scan), so that a trigger costs O(new), not O(files), and a file
   rewritten in place is noticed some scans later.
3. A file whose time stamp moved past the cursor is a new version and is read again, whole, as in IBM Streams'
   directory scan: time and path are a file's identity here. Append to files only with `follow`.

What is remembered is an optimisation: a new `Scan` finds the same files.

A symbolic link that leads out of the source's directory is not followed, unless that is allowed: who may put files there
need not be allowed to read all that the query's user can read. A link that stays inside is another name of its file; a
directory is entered once, by its own name if it has one that is read, so that a file keeps its path. No other stat is made
for that: a listing tells links from files.

Never read: pipes, sockets, devices; names that begin with `.` or `_`, and names that writers give to unfinished files
(`._COPYING_`, `.tmp`, `.inprogress` at their end); directories with such names are not entered. A directory that cannot be
listed is an error, and the scan then returns nothing at all: a partial listing must never move the cursor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import compress, islice
from operator import ne
from typing import TYPE_CHECKING

from penstock.clock import SECOND_NS
from penstock.errors import NotThere, OptionError, StorageError
from penstock.source.cursor import FileVersion
from penstock.storage import Entry, Link

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from penstock.storage import Storage

_HIDDEN = re.compile(r"[._]|.*(\._COPYING_|\.tmp|\.inprogress)$", re.DOTALL)
_GLOB = re.compile(r"\\(.)|\[([!^]?)(\]?[^\]]*)\]|.", re.DOTALL)
_NESTED = re.compile(r"[\\\[&~|]")  # means something in Python's sets of characters
_ALTERNATIVES = {"{": "(?:", ",": "|", "}": ")"}
_TRUST_NS = 2 * SECOND_NS  # coarsest time stamps of file systems in use: 2 s on FAT
_LOOK_AGAIN = 500


def hidden(name: str) -> bool:
    """Tell whether a file or directory of this name is never read."""
    return _HIDDEN.match(name) is not None


def name_filter(glob: str | None, pattern: str | None) -> Callable[[str], bool]:
    """Return the test that file names must pass: both `pathGlobFilter` and `pattern`, where given.

    Raises `OptionError` for a glob that is not one. A `.` of the pattern is any character: names may hold line breaks.
    """
    tests = [re.compile(text, re.DOTALL) for text in (pattern, glob and _expression(glob)) if text]
    return lambda name: all(test.fullmatch(name) for test in tests)


def _expression(glob: str) -> str:
    """Return the regular expression of a glob as Spark has them: `*`, `?`, `[a-z]`, `[^a]`, `{json,csv}`, quoted by a backslash."""
    found, depth = "", 0
    for match in _GLOB.finditer(glob):
        sign, quoted, negated, characters = match.group(0, 1, 2, 3)
        if quoted:
            found += re.escape(quoted)
        elif characters:
            found += "[" + "^" * bool(negated) + _NESTED.sub(r"\\\g<0>", characters) + "]"
        elif sign in _ALTERNATIVES and (depth or sign == "{"):
            found += _ALTERNATIVES[sign]
            depth += (sign == "{") - (sign == "}")
        elif sign == "[":
            found += sign  # of a set that does not end: no regular expression either
        else:
            found += {"*": ".*", "?": "."}.get(sign) or re.escape(sign)
    try:
        re.compile(found)
    except re.error as error:
        msg = f"pathGlobFilter={glob!r} is not a glob: {error}; expected one such as *.json or *.{{json,csv}}"
        raise OptionError(msg) from error
    return found


@dataclass
class _Directory:
    """What was seen of one directory: `names` as they were listed, `files` those that count."""

    listed_ns: int = -1
    modified_ns: int = -1
    names: Mapping[str, Hashable] = field(default_factory=dict)
    files: dict[str, Entry] = field(default_factory=dict)
    children: set[str] = field(default_factory=set)


class Scan:
    """The files below one path, as of the last `refresh`. Not shared between threads.

    `follow` allows links that lead out of `root`; else `outside` has those that the last `refresh` met.
    """

    def __init__(
        self, storage: Storage, root: str, *, recursive: bool, follow: bool, accept: Callable[[str], bool]
    ) -> None:
        self._storage = storage
        self._root = root
        self._recursive = recursive
        self._follow = follow
        self._accept = accept
        self._directories: dict[str, _Directory] = {}
        self._again: Iterator[tuple[str, str]] = iter(())
        self._inside: str | None = None
        self.listed_ns = 0
        self.outside: set[str] = set()

    def refresh(self, look_at: Iterable[str] = ()) -> list[tuple[FileVersion, Entry]]:
        """List what may have changed; return the files that are new or another version than before.

        `look_at` are paths that must be looked at in any case (held back last time). Sets `listed_ns`, the storage's
        time when this scan began. Raises `StorageError` if anything cannot be listed; the next refresh then returns all
        files there are, as a new `Scan` would.
        """
        listed_ns = self._storage.now_ns()
        root = self._storage.stat(self._root)
        self.outside = set()
        self._inside = None  # the path itself may be a link, and lead elsewhere by now
        try:
            found = self._tree(root, look_at) if root.is_directory else self._single(root)
        except StorageError:
            self._directories.clear()  # what was updated so far must be found again
            raise
        self.listed_ns = listed_ns
        return found

    def has(self, path: str) -> bool:
        """Tell whether the file was there at the last refresh."""
        folder, name = _split(path)
        return folder in self._directories and name in self._directories[folder].files

    def files(self) -> Iterator[tuple[FileVersion, Entry]]:
        """Yield every file as it was last seen."""
        for folder, directory in self._directories.items():
            for name, entry in directory.files.items():
                yield _version(folder, name, entry), entry

    def _single(self, entry: Entry) -> list[tuple[FileVersion, Entry]]:
        directory = self._directories.setdefault("", _Directory())
        before, directory.files = directory.files, {"": entry}
        return [] if before.get("") == entry else [(_version("", "", entry), entry)]

    def _tree(self, root: Entry, look_at: Iterable[str]) -> list[tuple[FileVersion, Entry]]:
        found: list[tuple[FileVersion, Entry]] = []
        waiting = [(False, "", root)]
        entered: set[str] = set()
        seen: set[str] = set()
        while waiting:
            linked, folder, entry = heappop(waiting)
            seen.add(folder)
            if entry.identity and entry.identity in entered:
                continue  # a loop or a second way by a symbolic link: once is enough
            entered.add(entry.identity)
            found += self._directory(folder, entry)
            for child in self._children(folder, linked=linked):
                heappush(waiting, child)
        for folder in self._directories.keys() - seen:
            del self._directories[folder]
        return found + self._look(look_at)

    def _children(self, folder: str, *, linked: bool) -> Iterator[tuple[bool, str, Entry]]:
        """Yield (reached by a link, path, entry), which sorts directories reached by links behind all others."""
        directory = self._directories[folder]
        for name in directory.children if self._recursive else ():
            is_link = isinstance(directory.names[name], Link)
            full = self._followed(folder, name) if is_link else self._full(folder, name)
            if full is not None:
                yield linked or is_link, f"{folder}/{name}" if folder else name, self._storage.stat(full)

    def _directory(self, folder: str, entry: Entry) -> list[tuple[FileVersion, Entry]]:
        known = self._directories.setdefault(folder, _Directory())
        if entry.modified_ns == known.modified_ns and entry.modified_ns < known.listed_ns - _TRUST_NS:
            return []
        listed_ns = self._storage.now_ns()
        full = f"{self._root}/{folder}" if folder else self._root
        before, now = known.names, self._storage.names(full)
        known.names, listed = now, len(now)
        found = self._changed(folder, known, before, now)
        for name in before.keys() - now.keys():
            known.files.pop(name, None)
            known.children.discard(name)
        known.listed_ns = listed_ns
        known.modified_ns = entry.modified_ns if len(now) == listed else -1  # a link that leads nowhere may come to
        return found

    def _changed(
        self, folder: str, known: _Directory, before: Mapping[str, Hashable], now: dict[str, Hashable]
    ) -> list[tuple[FileVersion, Entry]]:
        """Look at names that are new, or another file's; take out of `now` those with nothing behind them."""
        found, hollow = [], []
        # Comparing 100,000 names to find a new one takes 20 ms: no step of Python is taken for each.
        differs = map(ne, map(before.get, now), now.values())
        for name in compress(now, differs):
            known.files.pop(name, None)
            known.children.discard(name)
            if hidden(name):
                continue
            listed = now[name]
            entry = listed if isinstance(listed, Entry) else self._stat(folder, name)
            if entry is None:
                hollow.append(name)
            elif entry.is_directory:
                known.children.add(name)
            elif entry.is_file and self._accept(name):
                known.files[name] = entry
                found.append((_version(folder, name, entry), entry))
        for name in hollow:
            del now[name]
        return found

    def _look(self, paths: Iterable[str]) -> list[tuple[FileVersion, Entry]]:
        """Look at `paths` and at some of the rest, in turn."""
        found = []
        for folder, name in [_split(path) for path in paths] + list(islice(self._turn(), _LOOK_AGAIN)):
            directory = self._directories.get(folder)
            entry = self._stat(folder, name) if directory and name in directory.files else None
            if directory and entry and entry != directory.files[name]:
                before, directory.files[name] = directory.files[name], entry
                if (before.size, before.modified_ns, before.identity) != (
                    entry.size,
                    entry.modified_ns,
                    entry.identity,
                ):
                    found.append((_version(folder, name, entry), entry))
        return found

    def _turn(self) -> Iterator[tuple[str, str]]:
        yield from self._again
        everything = [(folder, name) for folder, d in self._directories.items() for name in d.files]
        self._again = iter(everything)

    def _stat(self, folder: str, name: str) -> Entry | None:
        is_link = isinstance(self._directories[folder].names[name], Link)
        full = self._followed(folder, name) if is_link else self._full(folder, name)
        try:
            return None if full is None else self._storage.stat(full)
        except NotThere:
            return None  # it went away since it was listed, its directory will say so; or it is no file

    def _full(self, folder: str, name: str) -> str:
        return f"{self._root}/{folder}/{name}" if folder else f"{self._root}/{name}"

    def _followed(self, folder: str, name: str) -> str | None:
        """Return what a link leads to, None if that is not to be read."""
        full = self._full(folder, name)
        if self._follow:
            return full
        if self._inside is None:
            self._inside = self._storage.resolve(self._root)
        target = self._storage.resolve(full)
        if target == self._inside or target.startswith(f"{self._inside.rstrip('/')}/"):
            return target
        self.outside.add(f"{folder}/{name}" if folder else name)
        return None


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name


def _version(folder: str, name: str, entry: Entry) -> FileVersion:
    path = f"{folder}/{name}" if folder else name
    return FileVersion(path, entry.size, entry.modified_ns, entry.identity)
