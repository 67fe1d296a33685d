"""From listings to files that came and files that went.

What is listed, when, and what is remembered:

1. A directory is not listed again if its modification time and, if it has one, its change time are unchanged and clearly before its
   last listing. (Nobody can set the change time back; `touch -d`, `tar`, `cp -a` and `rsync` set the modification time.) All
   directories are listed in any case every `_ALL_SECONDS`, or after `_ALL_SHARE` times as long as that took: network file systems show
   old times, and FUSE and HDFS have only the time that can be set. An object store does not say when a prefix changed, so each prefix
   is listed each time. Listings are paid for, so a query for which nothing comes looks less and less often, in the end every
   `_REST_SECONDS`. If names in a store rise with time (`namesRise`), only names after the greatest one are requested: one request,
   however many there are. Names may not rise quite in order. So that nothing is silently missed, a file that is younger than
   `_RISING_NS` does not count as the greatest, and everything is listed once in `_RISING_SECONDS`.
2. A listing takes only names and inodes, and other facts that the storage's listing shows at no cost. A file is looked at (size, time)
   when its name or inode is new and the listing has not shown size and time, and while the file is held back. All other files are
   looked at in turn: `_LOOK_AGAIN` files a scan, and for one percent of the time in the long run, of which `_LOOKED_AHEAD_SECONDS` may
   be taken in advance. So a trigger costs O(new), not O(files), and a file that is rewritten in place is noticed some scans later. (A
   hundred triggers a second that looked at 200 files each took a sixth of a core.)
3. A file whose time stamp moved past the cursor is a new version, and all of it is read again, as in IBM Streams' directory scan: path,
   time and size are a file's identity here. Append to files only with `follow`.
4. A directory of very many names is not listed for each new one, if the storage gives hints and the caller accepts them: see `hints`.

What is remembered is only an optimisation: a new `Scan` finds the same files.

A symbolic link that leads out of the source's directory is not followed, unless that is allowed: a user who may put files there may not
be allowed to read all that the query's user can read. A link that stays inside is another name of its file; a directory is entered
once, by its own name if that is read, so that a file keeps its path. This takes no further stat: a listing tells links from files.
If files are cleaned after they were read, a file is read by its own name only: a link to it could lead nowhere when its turn comes.

Never read: pipes, sockets, devices; names that begin with `.` or `_`, and names that writers give to unfinished files (`._COPYING_`,
`.tmp`, `.inprogress` at their end). Directories with such names are not entered, except `_k=v` if directories are columns, as in Spark.
If a directory cannot be listed, that is an error, and the scan returns nothing at all: a partial listing must never move the cursor.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from heapq import heappop, heappush, nlargest
from itertools import chain, compress, filterfalse, islice
from operator import ne
from typing import TYPE_CHECKING, NamedTuple, cast

from penstock import clock
from penstock.clock import SECOND_NS
from penstock.errors import NotThere, StorageError
from penstock.processes import no_collection
from penstock.source.cursor import FileVersion
from penstock.source.globs import check_names, expression
from penstock.source.hints import Hints
from penstock.source.where import ALWAYS, PlaceBelow, Selection, changed_between, where
from penstock.storage import Entry, Link, entry_at

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from penstock.options import Options
    from penstock.source.hints import Stamp
    from penstock.source.where import Rest
    from penstock.storage import Storage

_HIDDEN_ENDS = tuple(f"{end}{more}" for end in ("._COPYING_", ".tmp", ".inprogress") for more in ("", "\n"))
_TRUST_NS = 2 * SECOND_NS  # coarsest time stamps of file systems in use: 2 s on FAT
_LOOK_AGAIN = 500
_LIKELY = 500  # the greatest names of a directory: names often rise with time
_ALL_SECONDS = 30.0
_ALL_SHARE = 100  # so that listing what shows no change takes one percent of the time
_LOOKED_AHEAD_SECONDS = 0.1
_REST_SHARE = 10  # the next look waits for this part of the time in which nothing has come: Spark asks every 10 ms
_REST_SECONDS = 20.0
_RISING_NS = 60 * SECOND_NS
_RISING_SECONDS = 3600.0
_NEVER = -(1 << 63)
_ALL = PlaceBelow()


def hidden(name: str) -> bool:
    """Tell whether a file or directory of this name is never read."""
    return name.startswith((".", "_")) or name.endswith(_HIDDEN_ENDS)


def is_partition(name: str) -> bool:
    """Tell whether the name of a directory has the form of a column and its value: `k=v`."""
    return name.find("=") > 0


def name_filter(glob: str | None, pattern: str | None) -> Callable[[str], bool]:
    """Return the test that file names must pass: both `pathGlobFilter` and `pattern`, if given.

    Raises `OptionError` for a glob that does not match names. A `.` of the pattern is any character: names may hold line breaks.
    """
    if glob:
        check_names(glob)
    tests = [re.compile(text, re.DOTALL) for text in (pattern, glob and expression(glob)) if text]
    return (lambda name: all(test.fullmatch(name) for test in tests)) if tests else (lambda _: True)


class _MetError(Exception):
    """The file that is sought was found: the rest of the listing is not needed."""


class Arrival(NamedTuple):
    """A file that came, and a time since when it has certainly been there under this name; `None` if nobody knows."""

    file: FileVersion
    since_ns: int | None

    def was_there(self, at_ns: int) -> bool:
        """Tell whether the file had certainly come before this time."""
        return self.since_ns is not None and self.since_ns < at_ns


@dataclass(frozen=True)
class Changes:
    """What a scan saw that the one before did not; a file with a new version counts as gone and as come."""

    came: list[Arrival] = field(default_factory=list)
    gone: list[FileVersion] = field(default_factory=list)


@dataclass
class _Directory:
    """What was seen of one directory: `names` as they were listed, `files` the ones that count.

    `stamp` is what changes when a name in it does. `arrived_ns` is a time since when the directory has certainly been there under its
    path, `None` if that is not known: a file is no older in its place than the directories above it.
    """

    listed_ns: int = -1
    stamp: Stamp | None = None
    arrived_ns: int | None = None
    names: Mapping[str, Hashable] = field(default_factory=dict)
    files: dict[str, Entry] = field(default_factory=dict)
    children: set[str] = field(default_factory=set)
    place: PlaceBelow = _ALL
    hints: Hints = field(default_factory=Hints)


class Scan:
    """The files below one path, as of the last `refresh`. Not shared between threads.

    The files that are read are those to which `rests` lead (see `source.where`). Below these, directories are entered with `recursive`,
    and directories with names `k=v` with `partitions`; `passed_over` has the others that the last `refresh` met. `changed` is when
    files must have been modified: after the first time and before the second. `follow` allows links that lead out of `root`; otherwise
    `outside` has those that the scan met. With `cleaned`, files are taken away once they are read, and links to those inside are left
    out; `second` has these. `identity` is the identity of `root`. `selected` says which paths and times are read, if not
    all are. With `rising`, paths come in their order, if the storage has no directories.
    """

    def __init__(  # noqa: PLR0913 - what users may say of it
        self,
        storage: Storage,
        root: str,
        *,
        recursive: bool,
        follow: bool,
        accept: Callable[[str], bool],
        partitions: bool = False,
        rests: tuple[Rest, ...] = ((),),
        changed: tuple[int, int] = ALWAYS,
        rising: bool = False,
        cleaned: bool = False,
    ) -> None:
        self._storage = storage
        self._root = root
        self._base = root.rstrip("/")  # the beginning of full paths, also if the root is /
        self._partitions = partitions
        self._selection = Selection(rests, lambda name: recursive or (partitions and is_partition(name)))
        self._always = changed == ALWAYS
        self._changed_after_ns, self._changed_before_ns = changed
        paths = [] if rests == ((),) else sorted("/".join(name.text for name in rest) for rest in rests)
        self.selected = [*paths, *(() if changed == ALWAYS else changed)]
        self._follow = follow
        self._cleaned = cleaned
        self._accept = accept
        self._rising = rising and storage.lists_in_order
        self._risen: str | None = (
            None  # the path after which new ones are looked for; None before everything was listed
        )
        self._directories: dict[str, _Directory] = {}
        self._again: Iterator[tuple[str, str]] = iter(())
        self._inside: str | None = None
        self._all_at: float | None = None
        self._changed_at: float | None = None
        self._again_at = self._owed_at = self._owed_seconds = 0.0
        self._hints = self._hinted = False
        self._changes = Changes()
        self._sought: Callable[[FileVersion], bool] | None = None
        self.listed_ns = 0
        self._began_ns = 0
        self.identity = ""
        self.outside: set[str] = set()
        self.second: set[str] = set()
        self.passed_over: set[str] = set()

    @staticmethod
    def of(storage: Storage, root: str, options: Options) -> Scan:
        """Return the scan of a path for a source with these options."""
        return Scan(
            storage,
            root,
            recursive=options["recursiveFileLookup"],
            follow=options["followSymlinks"],
            accept=name_filter(options["pathGlobFilter"], options["pattern"]),
            partitions=options["partitionColumns"] == "auto",
            rests=where(options).rests,
            changed=changed_between(options),
            rising=options["namesRise"],
            cleaned=options["cleanSource"] != "off",
        )

    def refresh(self, look_at: Iterable[str] = (), *, hints: bool = False) -> Changes:
        """List what may have changed; return the files that came and went since the last call.

        With `hints`, a file in a directory of many names may be missed for up to `hints.HINT_NS`. `look_at` are paths that must be
        looked at in any case (held back last time). Sets `listed_ns`, the storage's time when this scan began. Raises `StorageError` if
        anything cannot be listed; the next refresh then returns all files there are, as a new `Scan` would.
        """
        began = clock.monotonic()
        if began < self._again_at:
            return Changes()
        self._changes, self.outside, self.second, self.passed_over = Changes(), set(), set(), set()
        listed_ns = self._storage.now_ns()
        self._began_ns, self._hints, self._hinted = listed_ns, hints, False
        everything = self._all_at is None or began >= self._all_at
        rises = self._risen is not None and not everything
        root = self._prefix("") if rises else self._look_at_root()
        self._inside = None  # resolved again, because the path may be a link that leads elsewhere by now
        try:
            with no_collection():
                if rises:
                    self._rise(look_at)
                else:
                    self._list(root, look_at, everything=everything)
        except (StorageError, _MetError):
            self._directories.clear()  # so that updates made so far are found again
            self._all_at = self._risen = None
            raise
        self.listed_ns, self.identity = self.listed_ns if self._hinted else listed_ns, root.identity
        if everything:
            now = clock.monotonic()
            self._all_at = now + max(_RISING_SECONDS if self._rising else _ALL_SECONDS, _ALL_SHARE * (now - began))
        if self._storage.is_paid:
            self._rest(began)
        return self._changes

    def refresh_unless(self, sought: Callable[[FileVersion], bool]) -> Changes | None:
        """Refresh; `None` as soon as a file comes for which `sought` is true: the next refresh then returns all files there are."""
        self._sought = sought
        try:
            return self.refresh()
        except _MetError:
            return None
        finally:
            self._sought = None

    def _list(self, root: Entry, look_at: Iterable[str], *, everything: bool) -> None:
        """List what may have changed, and look at some of the files that are there."""
        if not root.is_directory:
            self._single(root)
            return
        self._tree(root, everything=everything)
        self._look(look_at)
        if self._rising:
            self._risen = ""
            for folder, known in self._directories.items():
                self._rise_to((_joined(folder, name), entry) for name, entry in known.names.items())

    def _rest(self, began: float) -> None:
        """Delay the next look at a paid store, by a share of the time in which nothing has come."""
        if self._changes.came or self._changes.gone or self._changed_at is None:
            self._changed_at = began
        self._again_at = began + min((began - self._changed_at) / _REST_SHARE, _REST_SECONDS)

    def _look_at_root(self) -> Entry:
        """Return the entry of the path; if directories disappear with their last file, an empty one counts as the same directory."""
        try:
            return self._storage.stat(self._root)
        except NotThere:
            if self._storage.has_directories or "" not in self._directories:
                raise
            return self._prefix("")

    def _prefix(self, name: str) -> Entry:
        """Return the entry of a directory of which nothing is known except that it is there."""
        return Entry(name, is_directory=True, size=0, modified_ns=self._began_ns, identity="", is_file=False)

    def _rise(self, look_at: Iterable[str]) -> None:
        """Take in the files after the path up to which all are known; look at held files that are not among them."""
        listed = list(self._storage.listed_after(self._root, self._risen or ""))
        for path, entry in listed:
            folder, name = _split(path)
            if self._entered(folder):
                self._add(folder, name, entry)
        self._rise_to(listed)
        after = {path for path, _ in listed}
        self._look_each(_split(path) for path in look_at if path not in after)

    def _rise_to(self, listed: Iterable[tuple[str, Hashable]]) -> None:
        """Note the greatest path of a listing that has been there for a while: beside a young file, a smaller name may still appear."""
        until_ns = self._began_ns - _RISING_NS
        old = (
            path
            for path, entry in listed
            if isinstance(entry, Entry) and entry.is_file and entry.modified_ns < until_ns
        )
        self._risen = max([self._risen or "", *old])

    def _entered(self, folder: str) -> bool:
        """Tell whether a directory would be entered by a listing from above; note it if it is new."""
        if folder in self._directories:
            return True
        above, name = _split(folder)
        if not self._entered(above):
            return False
        if name not in self._directories[above].names:
            self._add(above, name, self._prefix(name))
        if name not in self._directories[above].children:
            return False
        place = self._selection.below(folder)
        if place is None:
            if self._directories[above].place.inside:
                self.passed_over.add(folder)
            return False
        self._directories[folder] = _Directory(listed_ns=self._began_ns, place=place)
        return True

    def _add(self, folder: str, name: str, entry: Entry) -> None:
        """Note one name of a directory, which was found by a listing from elsewhere."""
        known = self._directories[folder]
        self._changed(folder, known, known.names, {name: entry})
        known.names = known.names if isinstance(known.names, dict) else dict(known.names)
        known.names[name] = entry
        known.listed_ns = self._began_ns

    def files(self) -> Iterator[FileVersion]:
        """Yield the files that there were at the last refresh, in no order."""
        for folder, known in self._directories.items():
            of_time = (item for item in known.files.items() if self._always or self._is_of_time(item[1]))
            yield from (_version(folder, name, entry) for name, entry in of_time)

    def left_out(self) -> Iterator[tuple[str, str]]:
        """Yield the path of everything that the last refresh has met and left out, and the reason, in a word.

        `hidden` by its name; `name`: refused by a filter, or by a glob in the path; `time`: modified outside of the times asked for;
        `directory` that is not entered; `link` that leads out; `second`: a link to a file that is cleaned; `no file`.
        """
        yield from ((path, "link") for path in self.outside)
        yield from ((path, "second") for path in self.second)
        for folder, known in self._directories.items():
            others = (name for name, entry in known.files.items() if not self._always and not self._is_of_time(entry))
            yield from ((_joined(folder, name), "time") for name in others)
            reasons = ((name, self._no_file(folder, known, name)) for name in known.names.keys() - known.files.keys())
            yield from ((_joined(folder, name), reason) for name, reason in reasons if reason)

    def _no_file(self, folder: str, known: _Directory, name: str) -> str:
        """Return why an entry is not a file that is read; "" for a directory that is entered."""
        if name in known.children:
            if self._selection.below(_joined(folder, name)) is not None:
                return ""
            return "directory" if known.place.inside else "name"
        if hidden(name):
            return "hidden"
        asked = self._accept(name) and (known.place.inside or known.place.takes_file(name))
        return name and ("no file" if asked else "name")

    def has_name(self, name: str) -> bool:
        """Tell whether the path had an entry of this name at the last refresh, hidden or not."""
        return "" in self._directories and name in self._directories[""].names

    @property
    def is_one(self) -> bool:
        """Whether the path was a file, and not a directory, at the last refresh."""
        return "" in self._directories and "" in self._directories[""].files

    def has_files(self) -> bool:
        """Tell whether there was any file at the last refresh."""
        return any(directory.files for directory in self._directories.values())

    def version(self, path: str) -> FileVersion | None:
        """Return the version of the file that was there at the last refresh, if there was one."""
        folder, name = _split(path)
        directory = self._directories.get(folder)
        entry = directory.files.get(name) if directory else None
        return _version(folder, name, entry) if entry else None

    def _single(self, entry: Entry) -> None:
        if not self.is_one:
            for folder in list(self._directories):
                self._leave(folder)
        known = self._directories.setdefault("", _Directory(arrived_ns=_NEVER))
        self._note("", known, "", entry if entry.is_file else None)  # what a pipe gives cannot be read again

    def _tree(self, root: Entry, *, everything: bool) -> None:
        if self.is_one:
            self._leave("")
        waiting: list[tuple[bool, str, Entry, int | None]] = [(False, "", root, _NEVER)]
        entered: set[str] = set()
        seen: set[str] = set()
        while waiting:
            linked, folder, entry, arrived_ns = heappop(waiting)
            if entry.identity and entry.identity in entered:
                continue  # a loop or a second path by a symbolic link: it is entered once
            seen.add(folder)
            entered.add(entry.identity)
            directory = self._directories.setdefault(folder, _Directory(place=self._selection.below(folder) or _ALL))
            directory.arrived_ns = arrived_ns
            self._directory(folder, directory, entry, everything=everything)
            for child in self._children(folder, directory, linked=linked):
                heappush(waiting, child)
        for folder in list(self._directories.keys() - seen):
            self._leave(folder)

    def _children(
        self, folder: str, directory: _Directory, *, linked: bool
    ) -> Iterator[tuple[bool, str, Entry, int | None]]:
        """Yield (reached by a link, path, entry, arrival), which sorts directories reached by links after all others."""
        for name in list(directory.children):
            if self._selection.below(_joined(folder, name)) is None:
                if directory.place.inside:
                    self.passed_over.add(_joined(folder, name))
                continue
            is_link = isinstance(directory.names[name], Link)
            full = self._followed(folder, name) if is_link else self._full(folder, name)
            if full is not None:
                shown = directory.names[name] if self._is_shown(directory, name) else None
                entry = shown if isinstance(shown, Entry) else self._storage.stat(full)
                if not entry.is_directory:
                    self._is_another(folder, directory, name)
                    continue
                arrived_ns = None if is_link else _later(directory.arrived_ns, entry.arrived_ns)
                yield linked or is_link, _joined(folder, name), entry, arrived_ns

    def _leave(self, folder: str) -> None:
        directory = self._directories.pop(folder)
        for name in list(directory.files):
            self._note(folder, directory, name, None)

    def _directory(self, folder: str, known: _Directory, entry: Entry, *, everything: bool) -> None:
        stamp = (entry.modified_ns, entry.arrived_ns, entry.identity)
        newest = max(entry.modified_ns, entry.arrived_ns or entry.modified_ns)
        if not everything and stamp == known.stamp and newest < known.listed_ns - _TRUST_NS:
            return
        names = known.hints.names(stamp) if self._hints and not everything else None
        if names is None:
            self._listed(folder, known, stamp)
        else:
            self._told(folder, known, names)

    def _listed(self, folder: str, known: _Directory, stamp: Stamp) -> None:
        """Take in the result of listing a directory."""
        listed_ns = self._storage.now_ns()
        known.hints.listing(stamp)
        full = f"{self._base}/{folder}" if folder else self._root
        before, now = known.names, self._names(folder, full, known.place)
        known.names, listed = now, len(now)
        self._changed(folder, known, before, now)
        self._went(folder, known, before.keys() - now.keys())
        known.listed_ns = listed_ns
        known.stamp = stamp if len(now) == listed else None  # a link that leads nowhere may lead somewhere later
        known.hints.listed(self._storage, full, listed, wanted=self._hints)

    def _told(self, folder: str, known: _Directory, names: Mapping[str, Hashable | None]) -> None:
        """Take in what a hint says about a directory: `None` stands for a name that is not there."""
        self._hinted = True
        before = {name: known.names[name] for name in names if name in known.names}
        now = {name: value for name, value in names.items() if value is not None}
        listed = cast("dict[str, Hashable]", known.names)  # not copied, because there are many
        listed.update(now)
        self._changed(folder, known, before, now)
        gone = names.keys() - now.keys()  # includes names whose links lead nowhere
        for name in gone:
            listed.pop(name, None)
        self._went(folder, known, gone)

    def _went(self, folder: str, known: _Directory, names: Iterable[str]) -> None:
        for name in names:
            self._note(folder, known, name, None)
            known.children.discard(name)

    def _names(self, folder: str, full: str, place: PlaceBelow) -> dict[str, Hashable]:
        """Return the entries of a directory. If all paths name the next directory exactly, it is not listed: only these are looked up."""
        only = place.only()
        if only is None:
            return self._storage.names(full)
        entries = ((name, entry_at(self._storage, self._full(folder, name))) for name in only)
        return {name: entry for name, entry in entries if entry is not None}

    def _changed(
        self, folder: str, known: _Directory, before: Mapping[str, Hashable], now: dict[str, Hashable]
    ) -> None:
        """Look at names that are new, or that belong to another file now; remove from `now` those that lead nowhere."""
        hollow, inside = [], known.place.inside
        # The part that all names share is computed once: a first scan looks at each file.
        before_name = self._full(folder, "")
        # Comparing 100,000 names to find a new one takes 20 ms, because no Python statement runs for each name.
        differs = map(ne, map(before.get, now), now.values())
        for name in self._likely_first(compress(now, differs)):
            known.children.discard(name)
            concealed = hidden(name) and not known.place.names(name)
            if concealed and not self._is_hidden_partition(name):
                continue
            listed = now[name]
            entry = listed if isinstance(listed, Entry) else self._entry_of(folder, name, listed, before_name + name)
            if entry is None:
                hollow.append(name)
            elif entry.is_directory:
                known.children.add(name)
            counts = not concealed and (inside or known.place.takes_file(name))
            self._note(folder, known, name, self._counted(name, entry) if counts else None)
        for name in hollow:
            del now[name]

    def _likely_first(self, names: Iterator[str]) -> Iterable[str]:
        """Return the names; if a newer file is sought, the names that are likely to be new come first."""
        if self._sought is None:
            return names
        known = list(names)
        likely = dict.fromkeys(nlargest(_LIKELY, known))
        return chain(likely, filterfalse(likely.__contains__, known))

    def _is_hidden_partition(self, name: str) -> bool:
        """Tell whether the name belongs to a directory `_k=v`, which is entered although it begins with `_`."""
        return self._partitions and name.startswith("_") and is_partition(name)

    def _counted(self, name: str, entry: Entry | None) -> Entry | None:
        """Return the entry if it is a file whose name is read."""
        return entry if entry is not None and entry.is_file and self._accept(name) else None

    def _is_of_time(self, entry: Entry) -> bool:
        """Tell whether the file is read, by its time. Other files are still looked at, because they may be written again."""
        return self._changed_after_ns < entry.modified_ns < self._changed_before_ns

    def _note(self, folder: str, directory: _Directory, name: str, entry: Entry | None) -> None:
        """Note the present entry of the file, `None` if it is not there, and whether it is another version than before."""
        before = directory.files.pop(name, None)
        if before is not None:
            if entry is not None and _version(folder, name, before) == _version(folder, name, entry):
                directory.files[name] = entry
                return
            if self._always or self._is_of_time(before):
                self._changes.gone.append(_version(folder, name, before))
        if entry is None:
            return
        directory.files[name] = entry
        if self._always or self._is_of_time(entry):
            is_link = isinstance(directory.names.get(name), Link)
            arrived_ns = None if is_link else _later(directory.arrived_ns, entry.arrived_ns)
            version = _version(folder, name, entry)
            if self._sought is not None and self._sought(version):
                raise _MetError
            self._changes.came.append(Arrival(version, arrived_ns))

    def _look(self, paths: Iterable[str]) -> None:
        """Look at `paths` and at some of the rest, in turn."""
        self._look_each(map(_split, paths))
        began = clock.monotonic()
        self._owed_seconds = max(self._owed_seconds - (began - self._owed_at) / _ALL_SHARE, 0.0)
        self._owed_at = began
        if self._owed_seconds < _LOOKED_AHEAD_SECONDS:
            self._look_each(islice(self._turn(), _LOOK_AGAIN))
            self._owed_seconds += clock.monotonic() - began

    def _look_each(self, names: Iterable[tuple[str, str]]) -> None:
        for folder, name in names:
            directory = self._directories.get(folder)
            if directory is None or name not in directory.files or self._is_shown(directory, name):
                continue
            entry = self._entry_of(folder, name, directory.names[name], self._full(folder, name))
            if entry is not None:
                if entry.is_file:
                    self._note(folder, directory, name, entry)
                else:
                    self._is_another(folder, directory, name)

    def _is_another(self, folder: str, directory: _Directory, name: str) -> None:
        """Look again at a name that was a file and is a directory now, or the other way round, with the same inode number."""
        self._changed(folder, directory, {}, {name: directory.names[name]})

    def _is_shown(self, directory: _Directory, name: str) -> bool:
        """Tell whether the listing of this refresh has shown all that a look at the file or directory would."""
        return directory.listed_ns >= self._began_ns and isinstance(directory.names.get(name), Entry)

    def _turn(self) -> Iterator[tuple[str, str]]:
        yield from self._again
        everything = [(folder, name) for folder, known in self._directories.items() for name in known.files]
        self._again = iter(everything)

    def _entry_of(self, folder: str, name: str, listed: Hashable, full: str) -> Entry | None:
        """Return the entry of a name that a listing has shown as `listed`; `None` if it is gone, or not to be read."""
        is_link = isinstance(listed, Link)
        followed = self._followed(folder, name) if is_link else full
        try:
            entry = None if followed is None else self._storage.stat(followed)
        except NotThere:  # gone since it was listed; the next listing of its directory will show that
            self._check_reached(_joined(folder, name))
            return None
        if is_link and self._cleaned and entry is not None and entry.is_file and self._is_inside(full):
            self.second.add(_joined(folder, name))
            return None
        return entry

    def _check_reached(self, path: str) -> None:
        """Raise `StorageError` if a listing has shown a file that no call can reach, because its path is too long."""
        room = self._storage.bytes_below(self._root)
        if (size := len(os.fsencode(path))) > room:
            msg = (
                f"{path[:80] + '...'!r} in {self._root!r} cannot be read: its path has {size} bytes there, and at most {room} are "
                "possible; give the directories on the way shorter names, or move it up"
            )
            raise StorageError(msg)

    def _full(self, folder: str, name: str) -> str:
        return f"{self._base}/{folder}/{name}" if folder else f"{self._base}/{name}"

    def _followed(self, folder: str, name: str) -> str | None:
        """Return where a link leads, `None` if its target is not to be read."""
        full = self._full(folder, name)
        if self._follow:
            return full
        if self._is_inside(full):
            return self._storage.resolve(full)
        self.outside.add(_joined(folder, name))
        return None

    def _is_inside(self, full: str) -> bool:
        """Tell whether a link leads to something inside of the source's directory."""
        if self._inside is None:
            self._inside = self._storage.resolve(self._root)
        target = self._storage.resolve(full)
        return target == self._inside or target.startswith(f"{self._inside.rstrip('/')}/")


def _later(first_ns: int | None, second_ns: int | None) -> int | None:
    return None if first_ns is None or second_ns is None else max(first_ns, second_ns)


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name


def _version(folder: str, name: str, entry: Entry) -> FileVersion:
    return FileVersion(f"{folder}/{name}" if folder else name, entry.size, entry.modified_ns, entry.identity)
