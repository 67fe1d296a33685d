"""Removes files that were read from the source's directory: `cleanSource=archive` moves them, `cleanSource=delete` deletes them.

A file is cleaned when the batch that has its last range is committed wherever that batch is written to. This is certain when Spark asks
for another batch after it, or replays one. So an idle query cleans its last batch when it looks for new files, and an AvailableNow run
does so when it finds that there are none. The failures that this prevents:

1. *A file is changed between the batch that read it and its cleaning, or at the very moment of cleaning.* A stat followed by a rename
   or an unlink takes whatever has the name by then: records that nobody has read. Rule: the file is first taken out under its name, in
   one step (`Storage.take`), into a directory that belongs to the reader, and is looked at there. If it is not the version that was
   planned it goes back, without replacing any file that has taken its place meanwhile.
2. *The driver dies while it cleans*, between any two steps. Rule: Spark asks again with the same plan (the batch is the last one, or
   the start of the one that is replayed), and each step may be repeated: a file that is gone was cleaned, and a file that lies in a
   directory of this reader goes back first, so that a replay finds it. A power cut could bring a file back to a directory that was not
   synced, when later batches have long been cleaned; so the directories are synced before a batch counts as cleaned.
3. *A batch whose files are archived is replayed*: Spark's commit log lost an entry to a power cut, or a stale driver continues. Rule: a
   task that misses a file of its plan reads it in the archive, if exactly that version is there (`archive`).
4. *Another query reads the same directory.* It was slower, and files that it has not read are removed. Rule: each source that cleans
   says so in `<path>/_penstock-readers/<reader>/`, with the options that select its files. While there is more than one such source,
   each notes what it has read, then looks at the notes of the others. Only what all have read is cleaned, by whichever source sees that
   first. Each notes before it looks, so of two that finish a file at the same time at least one sees both notes.
5. *A name is taken in the archive*: a producer writes `today.json` every day. Rule: nothing in the archive is replaced; see `archive`.
6. *A file cannot be moved*: no permission, no space. Rule: this is logged, the file is noted, and cleaning it is tried again; if it
   cannot even be noted the query fails.
7. *Two inputs share an archive*, and have files of equal names. Rule: the archive says which input it belongs to, and refuses another
   one.
8. *The record that a batch is done is not durable, and the removal of its files is.* Spark writes batch 7 to its commit log and does
   not sync it; the files of batch 7 are removed, and their directory is synced; the power fails. The commit log has lost 7, so Spark
   replays it, and there is nothing to read; what one of Spark's own sinks had written of it may be gone as well, and then these rows
   are nowhere. Rule: before anything is deleted for good, everything that this host has written is made durable
   (`Storage.persist_all`). A checkpoint on HDFS or in a store is not on this host; there it takes a power cut of the servers that hold
   it.

9. *A checkpoint is put back from a copy that is older than what was cleaned.* Rule: how far a reader is cleaned is marked before
   anything is taken out, and each start compares it: see `cleaned`.

A file that was reported (too late, not decidable) was never planned, so it is never cleaned.

With `retention`, files that were read are noted, with the time, and cleaned when `retention` has passed. Notes are in
`<path>/_penstock-readers/<reader>/read-<digest>.json`; a source that is alone and does not wait writes none. Names that begin with `_`
are never read. The directory does not have a name that outputs of Penstock use, because an output may be the input of another query.

Rejected: to derive what to clean from the cursor (files that were reported lie before it, too), a list in the offset (grows with
`retention`), a place beside the checkpoint (nobody else can see it).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from penstock import failpoints, unique
from penstock.errors import AlreadyThere, NotThere, OptionError, StorageError
from penstock.query.records import canonical, checked_at, signed
from penstock.source.archive import names_of
from penstock.source.cleaned import READERS, Marks, Reached, home_of
from penstock.source.cursor import FileVersion, is_version
from penstock.source.notices import LOG_OF_SPARK
from penstock.source.scan import hidden, is_partition, name_filter
from penstock.storage import TEMPORARY, entry_at, locate, names_at, try_move

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from penstock.options import Options
    from penstock.storage import Storage

_log = logging.getLogger("penstock.source")
_OWNER = "_penstock-archive.json"
_WORKERS = 8
_SELECTING = ("pathGlobFilter", "pattern", "recursiveFileLookup", "partitionColumns")


def check_options(options: Options, storage: Storage, root: str) -> None:
    """Raise `OptionError` for options of cleaning that contradict each other, or do not suit the place of the files."""
    if options["cleanSource"] != "off" and not storage.moves:
        msg = (
            f"cleanSource: {root!r} is in an object store, which moves nothing: a file that is copied back would be a new "
            "one, and be read again; leave it off, and let a lifecycle rule of the store remove what is older than lateness"
        )
        raise OptionError(msg)
    mode, directory = options["cleanSource"], options["sourceArchiveDir"]
    if mode == "archive" and not directory:
        msg = (
            "cleanSource=archive needs a sourceArchiveDir: expected a directory outside of path, such as /data/archive"
        )
        raise OptionError(msg)
    _check_needed(options)


def _check_needed(options: Options) -> None:
    """Raise `OptionError` if files would be cleaned that are still needed: no row of theirs was taken, or their names are emitted."""
    mode = options["cleanSource"]
    if mode == "delete" and options["badFiles"] == "quarantine":
        msg = (
            "cleanSource=delete would remove files of which badFiles=quarantine takes no row, so that nobody could mend them; set "
            "cleanSource=archive, or badFiles=fail"
        )
        raise OptionError(msg)
    if mode != "off" and options["emit"] == "files":
        msg = (
            "cleanSource with emit=files would take files away whose names were emitted and which are read later; leave it out, "
            "and clean where they are read"
        )
        raise OptionError(msg)


def archive_of(storage: Storage, options: Options) -> str | None:
    """Return the path of the archive on the source's storage, `None` if there is none. `OptionError` if it is on another one."""
    if not options["sourceArchiveDir"]:
        return None
    other, path = locate(options["sourceArchiveDir"], name="sourceArchiveDir")
    if type(other) is not type(storage):
        msg = f"sourceArchiveDir={path!r} is on another file system than path={options['path']!r}; expected a directory on the same one"
        raise OptionError(msg)
    return other.addressed_as(storage, path)


def cleaning_noted(storage: Storage, root: str) -> dict[str, str]:
    """Return the options by which sources clean the directory, as the first one has noted them; empty if none cleans. `DamagedState`."""
    with suppress(NotThere):
        for name in sorted(storage.names(f"{root}/{READERS}")):
            path = f"{root}/{READERS}/{name}/reader.json"
            if entry_at(storage, path) is not None:
                archive = checked_at(storage, path)["archive"]
                return {"cleanSource": "archive", "sourceArchiveDir": archive} if archive else {"cleanSource": "delete"}
    return {}


class Note(NamedTuple):
    """What a reader has noted as read: the name of the note's file, the time, the versions of files, and how far it had got.

    `at` is `None` in notes of earlier versions.
    """

    name: str
    time_ns: int
    files: tuple[FileVersion, ...]
    at: Reached | None


@dataclass
class CleaningReader:
    """One of the sources that clean a directory, as its notes show it."""

    name: str
    form: Mapping[str, Any]
    notes: dict[str, Note] = field(default_factory=dict)

    def reads(self, path: str) -> bool:
        """Tell whether the source reads files of this path."""
        folder, _, name = path.rpartition("/")
        selecting = self.form["selects"]
        if not name_filter(selecting["pathGlobFilter"], selecting["pattern"])(name):
            return False
        if not folder or selecting["recursiveFileLookup"]:
            return True
        return selecting["partitionColumns"] == "auto" and all(map(is_partition, folder.split("/")))

    def has_read(self) -> dict[bytes, Reached | None]:
        """Return the keys of the versions that are noted as read, and how far the source had got with them."""
        return {file.key: note.at for note in self.notes.values() for file in note.files}


class Cleaner:
    """Cleans the directory `root` for one source; lives in its driver. `archive` is `None` to delete.

    `selects` are the options that say which files the source reads.
    """

    def __init__(
        self, storage: Storage, root: str, *, archive: str | None, retention_ns: int, selects: Mapping[str, Any]
    ) -> None:
        self._storage = storage
        self._root = root
        self._archive = archive
        self._retention_ns = retention_ns
        self._form: dict[str, Any] = {"archive": archive, "selects": dict(selects)}
        self._marks = Marks(storage, root)
        self._readers: dict[str, CleaningReader] = {}
        self._registered: set[str] = set()
        self._cleaned: str | None = None
        self._tried: object = None
        self._told: set[str] = set()

    @staticmethod
    def of(storage: Storage, root: str, options: Options) -> Cleaner | None:
        """Return the cleaner of a source with these options, `None` for one that leaves files where they are."""
        if options["cleanSource"] == "off":
            return None
        selects = {name: options[name] for name in _SELECTING if options[name] is not None}
        selects = {name: selects.get(name) for name in _SELECTING}
        selects["pattern"] = getattr(selects["pattern"], "pattern", selects["pattern"])
        archive = archive_of(storage, options)
        return Cleaner(storage, root, archive=archive, retention_ns=options["retention"], selects=selects)

    # -- before a query begins -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `OptionError` or `StorageError` unless files can be moved out of the directory and into the archive."""
        if not self._storage.stat(self._root).is_directory:
            msg = f"cleanSource is for a directory, found path={self._root!r}, which is a file; name the directory that it is in"
            raise OptionError(msg)
        if entry_at(self._storage, f"{self._root}/{LOG_OF_SPARK}") is not None:
            msg = (
                f"cleanSource would take files away that {self._root}/{LOG_OF_SPARK}, the log of Spark's own file sink, still lists, and "
                f"Spark could not read the rest: leave it off, or take the output over first, with `penstock adopt {quote(self._root)}`"
            )
            raise OptionError(msg)
        self._storage.make_directory(f"{self._root}/{READERS}")
        probe = f"{self._root}/{READERS}/{TEMPORARY}{unique.token()}"
        if self._archive is None:
            self._storage.put_if_absent(probe, b"")
            self._storage.delete(probe)
            return
        self._check_apart(self._archive)
        self._storage.make_directory(f"{self._archive}")
        self._storage.put_if_absent(probe, b"")
        try:
            try_move(self._storage, probe, self._archive)
        except StorageError as error:
            msg = (
                f"a file of path={self._root!r} cannot be moved to sourceArchiveDir={self._archive!r}: {error.message}; expected a "
                "directory on the same file system that may be written"
            )
            raise OptionError(msg) from error
        self._own(self._archive)

    def _check_apart(self, archive: str) -> None:
        """Raise `OptionError` if archived files would be read again."""
        root, place = self._storage.resolve(self._root), self._storage.resolve(archive)
        if f"{root}/".startswith(f"{place}/"):
            msg = f"path={self._root!r} lies in sourceArchiveDir={archive!r}: archived files could be read again; choose another directory"
            raise OptionError(msg)
        inside = place.removeprefix(f"{root}/")
        if inside != place and not any(hidden(name) for name in inside.split("/")):
            msg = (
                f"sourceArchiveDir={archive!r} lies in path={self._root!r}: archived files would be read again; choose a directory "
                f"outside of it, or one whose name begins with '.' or '_', such as {self._root}/_archive"
            )
            raise OptionError(msg)

    def _own(self, archive: str) -> None:
        """Note which directory the archive belongs to; `OptionError` if it belongs to another one."""
        path = f"{archive}/{_OWNER}"
        root = self._storage.resolve(self._root)
        with suppress(AlreadyThere):
            self._storage.put_if_absent(path, signed({"path": root}))
        owner = checked_at(self._storage, path)["path"]
        if owner != root:
            msg = (
                f"sourceArchiveDir={archive!r} is the archive of {owner!r}, found path={root!r}: files of equal names would be mixed "
                f"up; choose another directory, or remove {path!r} if it is the same directory under a new name"
            )
            raise OptionError(msg)

    # -- after a batch -------------------------------------------------------------------------------------------

    def clean(self, reader: str, files: Sequence[FileVersion], batch: str, at: Reached) -> None:
        """Clean the files that `reader` has read, and those that it noted earlier; `files` are those of `batch`, which is committed.

        `at` is how far the batch has got. A second call with the same batch does not repeat what is done. Raises `StorageError` if files
        that are left cannot be noted.
        """
        if batch != self._cleaned and files:
            self.register(reader)
            now_ns = self._storage.now_ns()
            if self._retention_ns or self._others(reader):
                self._note(reader, files, now_ns, at)
            elif left := self._take_away(reader, files, {reader: at}):
                self._note(reader, left, now_ns, at)
        self._cleaned = batch
        self._sweep(reader)

    def forget(self, reader: str) -> None:
        """Delete the notes of what `reader` has read, so that nobody removes it before `reader` has read it again. May be repeated."""
        home = f"{self._root}/{READERS}/{reader}"
        for name in names_at(self._storage, home):
            if name.startswith("read-"):
                self._storage.delete(f"{home}/{name}")

    def drop_undone(self, reader: str, newest: Reached) -> None:
        """Delete the notes of what `reader` has read after its newest plan: its checkpoint was put back, and it reads that again."""
        for note in list(self._noted(reader).notes.values()):
            if note.at is not None and not newest.covers(note.at):
                self._storage.delete(f"{home_of(self._root, reader)}/{note.name}")

    def taken(self, reader: str) -> Iterator[FileVersion]:
        """Yield the files that a driver of `reader` had taken when it died; the next driver puts them back."""
        home = f"{self._root}/{READERS}/{reader}"
        for name in names_at(self._storage, home):
            for path in self._files_below(f"{home}/{name}") if name.startswith("taken-") else ():
                entry = entry_at(self._storage, f"{home}/{name}/{path}")
                if entry is not None and entry_at(self._storage, f"{self._root}/{path}") is None:
                    yield FileVersion(path, entry.size, entry.modified_ns, entry.identity)

    def register(self, reader: str) -> None:
        """Note in the directory that this source cleans it. `OptionError` if another one cleans it in another way."""
        if reader in self._registered:
            return
        home = f"{self._root}/{READERS}/{reader}"
        self._storage.make_directory(home)
        with suppress(AlreadyThere):
            self._storage.put_if_absent(f"{home}/reader.json", signed(self._form))
        self._recover(home)
        for other in self._others(reader):
            if other.form["archive"] != self._form["archive"]:
                self._storage.delete(f"{home}/reader.json")
                self._remove_directory(home)
                own, others_mode = (_mode(form["archive"]) for form in (self._form, other.form))
                msg = (
                    f"{self._root!r} is cleaned by another source, with {others_mode}, found {own}: the source that came last would "
                    f"decide; set them alike, or remove {self._root + '/' + READERS + '/' + other.name!r} if that query will not come back"
                )
                raise OptionError(msg)
        self._registered.add(reader)

    def _note(self, reader: str, files: Sequence[FileVersion], time_ns: int, at: Reached) -> None:
        """Note the files of a batch that are still there, durably. A batch that is noted twice keeps the time of the first note."""
        entries = [[file.path, file.size, file.modified_ns, file.identity] for file in files if self._is_there(file)]
        if entries:
            name = f"read-{xxhash.xxh3_128_hexdigest(canonical({'files': entries}))}.json"
            with suppress(AlreadyThere):
                self._storage.put_if_absent(
                    f"{self._root}/{READERS}/{reader}/{name}", signed({"time": time_ns, "files": entries, "at": at})
                )

    def _sweep(self, reader: str) -> None:
        """Clean what was noted earlier, is old enough, and was read by all sources."""
        others = self._others(reader)
        mine = self._noted(reader)
        until_ns = self._storage.now_ns() - self._retention_ns
        due = [note for name, note in sorted(mine.notes.items()) if note.time_ns <= until_ns]
        seen = [note.name for note in due], [(other.name, sorted(other.notes)) for other in others]
        if not due or seen == self._tried:
            return
        self._tried = seen
        done = {other.name: other.has_read() for other in others}
        for note in due:
            waits = {other.name: self._awaited(other, done[other.name], note.files) for other in others}
            self._clean_noted(mine, note, {file for files in waits.values() for file in files}, done)
            self._tell_waiting(waits)

    def _clean_noted(
        self,
        mine: CleaningReader,
        note: Note,
        awaited: Collection[FileVersion],
        done: Mapping[str, Mapping[bytes, Reached | None]],
    ) -> None:
        """Clean the files of a note that no source awaits; delete the note when none is left, and try again later where cleaning failed.

        `done` is what the others have read.
        """
        files = [file for file in note.files if file not in awaited]
        marks = {mine.name: note.at}
        for name, read in done.items():
            marks[name] = max((at for file in files if (at := read.get(file.key)) is not None), default=None)
        left = self._take_away(mine.name, files, marks)
        if left:
            self._tried = None
        elif not awaited:
            self._storage.delete(f"{self._root}/{READERS}/{mine.name}/{note.name}")
            mine.notes.pop(note.name)

    def _awaited(
        self, other: CleaningReader, done: Collection[bytes], files: Iterable[FileVersion]
    ) -> list[FileVersion]:
        """Return the files that another source still has to read; files that are not there any more do not count."""
        return [file for file in files if file.key not in done and other.reads(file.path) and self._is_there(file)]

    def _is_there(self, file: FileVersion) -> bool:
        entry = entry_at(self._storage, f"{self._root}/{file.path}")
        return entry is not None and is_version(self._storage, entry, file)

    def _tell_waiting(self, waits: Mapping[str, Sequence[FileVersion]]) -> None:
        for name, files in waits.items():
            if files and name not in self._told:
                self._told.add(name)
                _log.warning(
                    "%d files of %r that were read stay, since another source that cleans this directory has not read them yet; if "
                    "that query will not come back, remove %r",
                    len(files),
                    self._root,
                    f"{self._root}/{READERS}/{name}",
                )

    # -- the notes -----------------------------------------------------------------------------------------------

    def _others(self, reader: str) -> list[CleaningReader]:
        """Return the other sources that clean this directory, as they are now."""
        try:
            names = sorted(self._storage.names(f"{self._root}/{READERS}"))
        except NotThere:
            return []
        readers = [self._noted(name) for name in names if name != reader and not hidden(name)]
        return [other for other in readers if other.form]

    def _noted(self, reader: str) -> CleaningReader:
        """Return what a source has noted by now; each note is read only once by this cleaner."""
        home = f"{self._root}/{READERS}/{reader}"
        known = self._readers.get(reader) or CleaningReader(reader, {})
        try:
            names = set(self._storage.names(home))
        except NotThere:
            self._readers.pop(reader, None)
            return CleaningReader(reader, {})
        if not known.form and "reader.json" in names:
            known.form = checked_at(self._storage, f"{home}/reader.json")
            self._readers[reader] = known
        listed = {name for name in names if name.startswith("read-")}
        for name in known.notes.keys() - listed:
            del known.notes[name]
        for name in listed - known.notes.keys():
            with suppress(NotThere):  # its owner has deleted it meanwhile
                form = checked_at(self._storage, f"{home}/{name}")
                known.notes[name] = _read_note(name, form)
        return known

    # -- the files -----------------------------------------------------------------------------------------------

    def _take_away(
        self, reader: str, files: Sequence[FileVersion], marks: Mapping[str, Reached | None]
    ) -> list[FileVersion]:
        """Clean these files; return those that could not be cleaned, after logging why.

        `marks` is how far each reader had got that has read some of them.
        """
        if not files:
            return []
        if self._archive is None:
            self._storage.persist_all()  # the commit log too, whichever process has written it (failure 8)
        if any(map(self._is_to_go, files)):
            for name, at in marks.items():
                if at is not None:
                    self._marks.mark(name, at)
            failpoints.hit("source.clean.marked")
        mine = f"{self._root}/{READERS}/{reader}/taken-{unique.token()}"
        with self._storage.workers(_WORKERS) as workers:
            answers = list(workers.map(partial(self._clean_one, mine), files))
        for folder in {file.path.rpartition("/")[0] for file in files}:
            with suppress(NotThere):
                self._storage.persist(f"{self._root}/{folder}" if folder else self._root, ())
        self._remove_directory(mine)
        return [file for file, cleaned in zip(files, answers, strict=True) if not cleaned]

    def _clean_one(self, mine: str, file: FileVersion) -> bool:
        """Clean one file; return whether nothing is left to do, otherwise log why."""
        try:
            place = self._taken(mine, file)
            if place is not None:
                failpoints.hit("source.clean.taken")
                self._finish(place, file)
        except NotThere:
            return True  # another driver, which cleans for the same source, was faster
        except StorageError as error:
            if file.path not in self._told:
                self._told.add(file.path)
                _log.warning(
                    "%r was read and cannot be cleaned, which is tried again: %s",
                    f"{self._root}/{file.path}",
                    error.message,
                )
            return False
        return True

    def _taken(self, mine: str, file: FileVersion) -> str | None:
        """Move the file out of the directory, if it is still the version that was read; return its new path."""
        source = f"{self._root}/{file.path}"
        if not self._is_to_go(file):
            return None
        folder = file.path.rpartition("/")[0]
        self._storage.make_directory(f"{mine}/{folder}" if folder else mine, private=True)
        failpoints.hit("source.clean")
        self._storage.take(source, f"{mine}/{file.path}")
        return f"{mine}/{file.path}"

    def _is_to_go(self, file: FileVersion) -> bool:
        return self._is_there(file) and not self._is_linked(file)

    def _is_linked(self, file: FileVersion) -> bool:
        """Tell whether a symbolic link leads to the file: its target lies somewhere else, and is not ours to move."""
        return self._storage.resolve(f"{self._root}/{file.path}") != f"{self._storage.resolve(self._root)}/{file.path}"

    def _finish(self, place: str, file: FileVersion) -> None:
        """Archive or delete the taken file if it is the version that was read; otherwise, or if that fails, put it back.

        `NotThere` says that another driver has put it back. If the archive has no room for it, or cannot have its name, that is
        another error.
        """
        try:
            if not is_version(self._storage, self._storage.stat(place), file):
                self._put_back(file.path, place)
            elif self._archive is None:
                self._storage.delete(place)
            else:
                self._move_to_archive(self._archive, place, file)
        except StorageError as error:
            if entry_at(self._storage, place) is None:
                raise
            self._put_back(file.path, place)
            raise StorageError(error.message) from error

    def _move_to_archive(self, archive: str, place: str, file: FileVersion) -> None:
        folder = file.path.rpartition("/")[0]
        self._storage.make_directory(f"{archive}/{folder}" if folder else archive)
        for name in names_of(file):
            with suppress(AlreadyThere):
                self._storage.publish(place, f"{archive}/{name}", as_it_is=True)
                failpoints.hit("source.clean.archived")
                return
        msg = f"all names that it could have in {archive!r} are taken, the last one being {name!r}; move these files elsewhere"
        raise StorageError(msg)

    def _put_back(self, path: str, place: str) -> None:
        """Put back a file that was taken and is not to be cleaned, or not now."""
        try:
            self._storage.publish(place, f"{self._root}/{path}", as_it_is=True)
        except NotThere:
            return  # another driver has done it
        except AlreadyThere:
            _log.warning(
                "%r was replaced while it was cleaned; the version before, which was not read, is %r",
                f"{self._root}/{path}",
                place,
            )

    def _recover(self, home: str) -> None:
        """Put back what a driver of this source had taken when it died, so that a replay finds it; it will be cleaned again."""
        for name in self._storage.names(home):
            if name.startswith("taken-"):
                for path in list(self._files_below(f"{home}/{name}")):
                    self._put_back(path, f"{home}/{name}/{path}")
                self._remove_directory(f"{home}/{name}")

    def _files_below(self, directory: str, folder: str = "") -> Iterator[str]:
        with suppress(NotThere):
            for entry in list(self._storage.list(directory)):
                if entry.is_directory:
                    yield from self._files_below(f"{directory}/{entry.name}", f"{folder}{entry.name}/")
                else:
                    yield folder + entry.name

    def _remove_directory(self, directory: str) -> None:
        """Remove the directory and those in it if no files are left in them."""
        with suppress(StorageError):
            for entry in list(self._storage.list(directory)):
                if entry.is_directory:
                    self._remove_directory(f"{directory}/{entry.name}")
            self._storage.delete(directory)


def _read_note(name: str, form: Mapping[str, Any]) -> Note:
    at = Reached(*form["at"]) if "at" in form else None
    return Note(name, form["time"], tuple(FileVersion(*entry) for entry in form["files"]), at)


def _mode(archive: str | None) -> str:
    return "cleanSource=delete" if archive is None else f"cleanSource=archive into {archive!r}"
