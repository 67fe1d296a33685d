"""Checks that every file that the ledgers name is there, whole and once, and that nothing else is.

What can be wrong with a file that readers see, and its name here:

| problem | found |
|---|---|
| missing | a ledger names it, it is not there, and it does not wait to be published either |
| cut, altered | it is there with other bytes than the ledger says: shorter, or with another length or digest |
| doubled | two ledger entries name it, or it is a copy of a file that a ledger names |
| foreign | no ledger names it |
| shadowed | there is a log of Spark's own sink: Spark's readers see only the files that it lists |
| locked | a key was given, and does not open the file |
| unwritable | open rows have a column that their files cannot hold; versions before 0.2 accepted such columns |

Names that begin with `.` or `_` are hidden from readers (Spark, Hive, Trino skip them), so such files are counted but not called
foreign. Files that are decided and not yet visible (a crash between commit and publishing; the next start publishes them) are
*owed*: that is information, not a problem, and so are staged files that no record names. Staged files that a ledger needs,
including those of open parts, are compared like finished files.

A live query may commit at any moment. So the directory is listed first, and the ledger is read after that: then every file of the
listing is in the ledger.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from shlex import quote
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import BadFile, DamagedState, NotThere, PenstockError, StorageError, UsageError, WrongKey
from penstock.formats.encryption import is_encrypted
from penstock.sink.buckets import DEFAULT_PARTITION
from penstock.sink.existing import sink_ids
from penstock.sink.publish import is_ours
from penstock.sink.segments import digest
from penstock.sink.sink import STATE_DIRECTORY, Sink
from penstock.sink.sparklog import LOG, no_output
from penstock.storage import entry_at
from penstock.verify.opened import check_opens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.formats.encryption import Keys
    from penstock.sink.ledger import FinishedFile, Growth, Segment, State
    from penstock.storage import Entry, Storage

    Progress = Callable[[int, int], None]

_TRIES = 5


@dataclass(frozen=True)
class Problem:
    """A difference from the ledgers; `kind` is a word of the table above, `path` is below DST."""

    kind: str
    path: str
    detail: str


@dataclass(frozen=True)
class SinkView:
    """One sink as its ledger shows it at one moment: its head, and every file that it ever finished; `keys` open encrypted files."""

    sink: Sink
    head: State
    files: tuple[FinishedFile, ...]
    published: bool
    keys: Keys | None = None

    @staticmethod
    def of(sink: Sink, keys: Keys | None = None) -> SinkView:
        """Read the ledger. Raises `DamagedState` if a record is damaged, or the history lacks one."""
        # A live query folds and adds records meanwhile, so one look may not be enough.
        for left in reversed(range(_TRIES)):
            look = sink.ledger.look()
            head = sink.ledger.head(look)
            try:
                files = tuple(sink.ledger.history())
            except NotThere:
                continue
            if len(files) == head.total_files:
                return SinkView(sink, head, files, look.is_published(head), keys)
            if not left and sink.ledger.head() == head:
                _refuse_gap(sink, head, len(files))
        msg = f"the ledger of {sink.state!r} changes faster than it can be read; run the same command again"
        raise PenstockError(msg)

    @cached_property
    def lengths(self) -> dict[str, int]:
        """Return the lengths of all growing files, by path."""
        return dict(self.sink.lengths.all_of(self.head))

    @property
    def owed(self) -> tuple[FinishedFile, ...]:
        """Return the files of the head that may not be visible yet."""
        return () if self.published else self.head.finished

    @property
    def growing(self) -> dict[str, Growth]:
        """Return what the head adds to growing files and may not be visible yet, by path."""
        return {} if self.published else {growth.path: growth for growth in self.head.grown}

    @property
    def output(self) -> tuple[FinishedFile, ...]:
        """Return the finished files that hold rows; all other files are about what was set aside."""
        return tuple(file for file in self.files if not file.is_aside)

    @property
    def encrypted(self) -> int:
        """Return how many of the finished files are encrypted."""
        return sum(is_encrypted(file.path) for file in self.files)

    @property
    def bytes(self) -> int:
        """Return the size of the files that hold rows, finished and growing, once everything is visible."""
        return sum(file.bytes for file in self.output) + sum(self.lengths.values())

    @property
    def open_rows(self) -> int:
        """Return how many committed rows are in open parts."""
        return sum(part.rows for part in self.head.open if not part.is_aside)

    @property
    def open_segments(self) -> Iterator[Segment]:
        """Yield the segments of the open parts."""
        return (segment for part in self.head.open for segment in part.segments)


@dataclass(frozen=True)
class SinkFiles:
    """What was found about one sink. `owed_files` are decided and not visible yet; `unnamed_files` are left over in staging.

    `encrypted_files` counts all encrypted files; `locked_files` counts those that could not be opened, because no key was given
    or it is another one. In addition to files with rows there are `aside_files`, with `aside_lines` about what was set aside,
    including those that are not visible yet.
    """

    sink: str
    files: int
    rows: int
    bytes: int
    open_rows: int
    owed_files: int
    unnamed_files: int
    aside_files: int = 0
    aside_lines: int = 0
    encrypted_files: int = 0
    locked_files: int = 0


@dataclass(frozen=True)
class OutputFiles:
    """What was found about an output."""

    sinks: tuple[SinkFiles, ...]
    problems: tuple[Problem, ...]
    hidden_files: int


def existing_sinks(storage: Storage, root: str) -> list[Sink]:
    """Return the sinks that have written to `root`, by name; none if no sink has written yet.

    Raises `UsageError` if the directory is not an output of Penstock, `DamagedState` if the note of a sink is damaged.
    """
    try:
        names = sink_ids(storage, f"{root}/{STATE_DIRECTORY}")
    except NotThere as error:
        raise no_output(storage, root) from error
    return [Sink.existing(storage, root, name) for name in names]


def check_files(
    storage: Storage, root: str, progress: Progress, keys: Keys | None = None
) -> tuple[OutputFiles, list[SinkView]]:
    """Compare all files with the ledgers; `progress` is called with bytes compared and bytes in all.

    With `keys`, encrypted files are also decrypted to their ends.

    Returns what was found, and the views of the ledgers. Raises `DamagedState` for a damaged ledger.
    """
    sinks = existing_sinks(storage, root)
    visible = dict(walk(storage, root))
    views = [SinkView.of(sink, keys) for sink in sinks]
    check = _Check(storage, root, visible, progress, sum(view.head.total_bytes for view in views))
    compared = tuple(check.sink(view) for view in views)
    check.once(views)
    hidden = check.others(views)
    return OutputFiles(compared, tuple(check.problems), hidden), views


def check_aside(view: SinkView) -> None:
    """Raise `DamagedState` unless the finished files about what was set aside are there and unchanged."""
    check = _Check(view.sink.storage, view.sink.root, {}, _quietly, 0)
    check.aside(view)
    if check.problems:
        first = check.problems[0]
        msg = (
            f"{first.path!r} of {view.sink.root!r} is {first.kind}: {first.detail}; what was set aside is taken in from there: "
            "restore it from a copy, and mend records in a copy of its lines, for --mended"
        )
        raise DamagedState(msg)


class _Check:
    """One comparison of an output with its ledgers."""

    def __init__(self, storage: Storage, root: str, visible: dict[str, Entry], progress: Progress, total: int) -> None:
        self._storage = storage
        self._root = root
        self._visible = visible
        self._progress = progress
        self._total = total
        self._done = 0
        self._locked = 0
        self.problems: list[Problem] = []

    def sink(self, view: SinkView) -> SinkFiles:
        """Check every file of one sink."""
        self._locked = 0
        owed_files = self._all_finished(view) + self._all_grown(view)
        self._unwritable(view)
        for segment in view.open_segments:
            self._staged(view, segment)
        return SinkFiles(
            sink=view.sink.sink_id,
            files=len(view.output) + len(view.lengths),
            rows=view.head.total_rows - view.open_rows,
            bytes=view.bytes,
            open_rows=view.open_rows,
            owed_files=owed_files,
            unnamed_files=sum(1 for _ in view.sink.committer.unnamed(view.head, published=view.published)),
            aside_files=len(view.files) - len(view.output),
            aside_lines=view.head.aside.total,
            encrypted_files=view.encrypted,
            locked_files=self._locked,
        )

    def aside(self, view: SinkView) -> None:
        """Compare the finished files about what was set aside."""
        owed = {file.path for file in view.owed}
        for file in view.files:
            if file.is_aside:
                self._finished(view, file, owed=file.path in owed)

    def _all_finished(self, view: SinkView) -> int:
        """Compare the finished files of a sink; return how many are owed."""
        owed = {file.path for file in view.owed}
        return sum(self._finished(view, file, owed=file.path in owed) for file in view.files)

    def _all_grown(self, view: SinkView) -> int:
        """Compare the growing files of a sink; return how many of them are still owed some bytes."""
        growing = view.growing
        return sum(self._grown(view, path, length, growing.get(path)) for path, length in view.lengths.items())

    def _finished(self, view: SinkView, file: FinishedFile, *, owed: bool) -> bool:
        """Compare one file; tell whether it is still owed."""
        if not file.digest:
            self._adopted(file)
            return False
        shown = file.at(self._root) if file.place else file.path
        try:
            self._compare(file.at(self._root), shown, file, view.keys)
        except StorageError as error:
            if not isinstance(error, NotThere):
                self._not_a_file(error, file.at(self._root), shown)
                return False
            if not owed:
                rows = f"{file.rows} rows of batches {file.first_batch} to {file.last_batch}"
                self._report("missing", shown, rows)
                return False
            staged = f"{view.sink.staging}/{file.staged}"
            try:
                self._compare(staged, shown, file, view.keys)
            except NotThere:
                self._report("missing", shown, f"{file.rows} rows; not published, and its staged file is gone")
            except StorageError as staged_error:
                self._not_a_file(staged_error, staged, staged.removeprefix(f"{self._root}/"))
        return owed

    def _not_a_file(self, error: StorageError, place: str, shown: str) -> None:
        """Report a directory in the place of a file; raise `error` again if it had another cause."""
        entry = entry_at(self._storage, place)
        if entry is None or not entry.is_directory:
            raise error
        self._report("missing", shown, "there is a directory of its name")

    def _adopted(self, file: FinishedFile) -> None:
        """Compare the length of a file that Spark's sink wrote; its digest was not noted when it was taken over."""
        size = size_if_there(self._storage, f"{self._root}/{file.path}")
        if size is None:
            self._report("missing", file.path, f"{file.bytes} bytes, taken over from Spark's sink")
        else:
            self._judge(file.path, (size, ""), (file.bytes, ""))

    def _compare(self, place: str, shown: str, file: FinishedFile, keys: Keys | None) -> None:
        actual = digest(self._storage, place)
        self._done += file.bytes
        self._progress(self._done, self._total)
        self._judge(shown, actual, (file.bytes, file.digest))
        if is_encrypted(file.path):
            self._look_into(place, shown, file, keys if actual == (file.bytes, file.digest) else None)

    def _look_into(self, place: str, shown: str, file: FinishedFile, keys: Keys | None) -> None:
        """Decrypt a file whose bytes are right, and report an error; without keys count the file as locked."""
        if keys is None:
            self._locked += 1
            return
        try:
            check_opens(self._storage, place, file.bytes, keys)
        except (WrongKey, BadFile) as error:
            self._locked += 1
            self._report("locked", shown, error.message)

    def _judge(self, path: str, actual: tuple[int, str], expected: tuple[int, str]) -> None:
        """Report a file whose (length, digest) is not the decided one."""
        if actual[0] != expected[0]:
            kind = _kind_by_length(actual[0], expected[0])
            self._report(kind, path, f"{actual[0]} bytes, the ledger says {expected[0]}")
        elif actual != expected:
            self._report("altered", path, f"digest {actual[1]}, the ledger says {expected[1]}")

    def _staged(self, view: SinkView, segment: Segment) -> None:
        """Compare a committed segment in the staging directory; a live query may have finished with it by now."""
        place = f"{view.sink.staging}/{segment.file}"
        path = place.removeprefix(f"{self._root}/")
        try:
            actual = digest(self._storage, place, segment.start, segment.end)
        except NotThere:
            if is_newest(view):
                self._report("missing", path, f"{segment.rows} rows, committed and not visible yet")
        except StorageError as error:
            self._not_a_file(error, place, path)
        else:
            self._judge(path, actual, (segment.end - segment.start, segment.digest))

    def _unwritable(self, view: SinkView) -> None:
        """Report open parts that can never become files; `_staged` reports segments that are gone or damaged.

        Segments under a staging key that is not available here cannot be examined; their bytes are compared all the same.
        """
        with suppress(NotThere, DamagedState, UsageError):
            for part, columns in view.sink.unwritable(view.head):
                column = ", ".join(columns)
                detail = f"{part.rows} rows, column {column}: {part.kind.format} cannot hold it; penstock finish DST --as-text"
                self._report(
                    "unwritable", f"{STATE_DIRECTORY}/{view.sink.sink_id}/staging/{part.segments[0].file}", detail
                )

    def _grown(self, view: SinkView, path: str, length: int, growth: Growth | None) -> bool:
        """Compare the length of a growing file; tell whether some of `growth` is still owed.

        The part of `growth` that is visible is compared with the staged bytes, because bytes of somebody else could have the
        right length, too.
        """
        size = size_if_there(self._storage, f"{self._root}/{path}")
        visible = size or 0
        if growth is not None and growth.before < visible <= length and not self._goes_on(view, growth):
            more = f"{length - growth.before} bytes belong that are committed and not visible yet"
            self._report("altered", path, f"bytes of somebody else after byte {growth.before}, where {more} (it grows)")
            return True
        if visible == length:
            return False
        if growth is not None and growth.before <= visible < length:
            for segment in growth.segments:
                self._staged(view, segment)
            return True
        if size is None:
            self._report("missing", path, f"a growing file of {length} bytes")
        elif is_newest(view):
            self._report(_kind_by_length(size, length), path, f"{size} bytes, the ledger says {length} (it grows)")
        return False

    def _goes_on(self, view: SinkView, growth: Growth) -> bool:
        """Tell whether the new bytes of a growing file are ours; True if segments are gone or damaged, which `_staged` reports."""
        with suppress(NotThere, DamagedState):
            return is_ours(self._storage, f"{self._root}/{growth.path}", view.sink.staging, growth)
        return True

    def once(self, views: list[SinkView]) -> None:
        """Report paths that are named more than once."""
        paths = Counter(path for view in views for path in _paths(view))
        for path, count in paths.items():
            if count > 1:
                self._report("doubled", path, f"{count} entries of the ledgers name it")

    def others(self, views: list[SinkView]) -> int:
        """Report files that no ledger names; return how many hidden files there are."""
        named = {path for view in views for path in _paths(view)}
        unnamed_paths = self._visible.keys() - named
        hidden = set(filter(_is_hidden, unnamed_paths))
        by_size = _by_size(views)
        if any(path.startswith(f"{LOG}/") for path in hidden):
            self._report(
                "shadowed",
                LOG,
                f"Spark's readers see what it lists and no other file; penstock adopt {quote(self._root)}",
            )
        for path in sorted(unnamed_paths - hidden):
            self._foreign(path, by_size.get(self._visible[path].size, []))
        return len(hidden)

    def _foreign(self, path: str, alike: list[FinishedFile]) -> None:
        """Report a file that no ledger names; it may be a copy of a file in `alike`, the finished files of its size."""
        actual = digest(self._storage, f"{self._root}/{path}")[1] if alike else ""
        twin = next((file for file in alike if file.digest == actual), None)
        if twin is not None:
            self._report("doubled", path, f"no ledger names it; it is a copy of {twin.path!r}, {twin.rows} rows")
        else:
            self._report("foreign", path, "no ledger names it; move it out of the output")

    def _report(self, kind: str, path: str, detail: str) -> None:
        self.problems.append(Problem(kind, path, detail))


def _quietly(done: int, total: int) -> None:
    """Report no progress."""


def size_if_there(storage: Storage, path: str) -> int | None:
    """Return the size of a file, `None` if it is not there: a live query may have swept it meanwhile."""
    entry = entry_at(storage, path)
    return None if entry is None else entry.size


def _refuse_gap(sink: Sink, head: State, listed: int) -> NoReturn:
    msg = (
        f"the ledger {sink.state + '/ledger'!r} lists {listed} finished files, its record {head.n} says "
        f"{head.total_files}: a record is missing; restore the directory from a copy, nothing was changed"
    )
    raise DamagedState(msg)


def is_newest(view: SinkView) -> bool:
    """Tell whether the ledger still has the view's head; if not, a live query has put more records."""
    return view.sink.ledger.head().n == view.head.n


def _kind_by_length(actual: int, expected: int) -> str:
    return "cut" if actual < expected else "altered"


def _by_size(views: list[SinkView]) -> dict[int, list[FinishedFile]]:
    """Return all finished files by their size in bytes."""
    by_size: dict[int, list[FinishedFile]] = {}
    for view in views:
        for file in view.files:
            by_size.setdefault(file.bytes, []).append(file)
    return by_size


def _paths(view: SinkView) -> Iterator[str]:
    yield from (file.path for file in view.files)
    yield from view.lengths


def walk(storage: Storage, root: str) -> Iterator[tuple[str, Entry]]:
    """Yield (path below root, entry) of every file outside the state directory; enters each directory only once."""
    waiting = [""]
    entered: set[str] = set()
    while waiting:
        for path, entry in entries_of(storage, root, waiting.pop()):
            if not entry.is_directory:
                yield path, entry
            elif path != STATE_DIRECTORY and entry.identity not in entered:
                waiting.append(path)
                # A storage without identities of directories never has two names for one directory.
                entered |= {entry.identity} if entry.identity else set()


def entries_of(storage: Storage, root: str, folder: str) -> Iterator[tuple[str, Entry]]:
    """Yield (path below root, entry) of everything in a folder below root; `""` is root itself."""
    for entry in storage.list(f"{root}/{folder}" if folder else root):
        yield f"{folder}/{entry.name}" if folder else entry.name, entry


def _is_hidden(path: str) -> bool:
    return any(name[0] in "._" and name != DEFAULT_PARTITION for name in path.split("/"))
