"""From rows that name files to the splits of these files, or the reason why there is nothing to read.

Which version is read: what a row says of the file (size, modification time, a tag) is compared with the file that is there. The version
that is found then applies to each range of the file: it is compared before the first byte and after the last, as with a plan. A batch
that is replayed looks again, and must find the same version: by what the row says, or by a note (see `source.pinned`).

If names may come from anybody, `basePath` is the directory that they must lead into: no `..`, no other storage and no link leads out of
it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from penstock import failpoints
from penstock.errors import BadFile, BadRecord, FileChanged, NotThere, OptionError, without_credentials
from penstock.formats.aside import CHANGE, FILE
from penstock.source import advice
from penstock.source.cursor import FileVersion, Split, is_version
from penstock.source.dividing import Dividing
from penstock.source.splitruns import SPLIT
from penstock.storage import entry_at, locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeAlias

    from penstock.source.named import NamedFiles
    from penstock.source.pinned import Pins, Sight
    from penstock.source.read import Reading
    from penstock.storage import Storage

    Failure: TypeAlias = BadFile | BadRecord | FileChanged

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|(?:file|hdfs):/", re.IGNORECASE)
_LOOKS = 32  # looks in parallel, if a server is asked
_SHOWN = 1024  # characters of a name that are shown
_ROOT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*|/")


def splits(
    files: NamedFiles, batches: Iterable[pa.RecordBatch], pins: Pins | None, *, keep: bool, replays: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the splits of the files that rows name: a column `SPLIT`, and the columns of the row if `keep`.

    `replays`: the rows may come again, and then have to give the same splits. Raises `BadFile` and `FileChanged` unless such a file is
    set aside, `OptionError` for a row that cannot be replayed, and `StorageError`.
    """
    looking = _Looking(files, pins)
    for batch in batches:
        yield looking.splits(batch, keep=keep, replays=replays)


class _Row(NamedTuple):
    """The values of one row: `modified` in microseconds, or in nanoseconds if the column has whole numbers."""

    path: str | None
    start: int | None
    end: int | None
    size: int | None
    modified: int | None
    identity: str | None


class _Seen(NamedTuple):
    """The file at a path: a version of a file below `root`, which is `basePath` if that is set, otherwise the root of a storage."""

    root: str
    file: FileVersion


class _Looking:
    """Looks at the files that rows name, in one task."""

    def __init__(self, files: NamedFiles, pins: Pins | None) -> None:
        self._files = files
        self._reading = files.reading
        self._base = files.base
        self._pins = pins
        self._readings: dict[str, Reading] = {}
        self._starts: dict[_Seen, dict[int, int] | Failure] = {}

    def splits(self, batch: pa.RecordBatch, *, keep: bool, replays: bool) -> pa.RecordBatch:
        """Return the splits for the rows of a batch; see `splits`."""
        rows = self._rows(batch)
        if replays and self._pins is None:
            _check_versions(rows, tags_tell=self._files.tags_tell)
        seen = self._seen(rows)
        failpoints.hit("source.named")
        self._find_starts(rows, seen)
        entries: list[str] = []
        numbers: list[int] = []
        for number, row in enumerate(rows):
            texts = [json.dumps(entry) for entry in self._entries(row, seen)]
            entries += texts
            numbers += [number] * len(texts)
        columns, names = [pa.array(entries, pa.string())], [SPLIT]
        if keep:
            kept = batch.take(pa.array(numbers, pa.int64()))
            columns, names = [*columns, *kept.columns], [SPLIT, *kept.schema.names]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _on(self, root: str) -> Reading:
        return self._readings.get(root) or self._readings.setdefault(root, self._files.on(root))

    def _rows(self, batch: pa.RecordBatch) -> list[_Row]:
        """Return the values of the rows."""
        lists: list[list[Any]] = []
        for place in self._files.columns:
            column = None if place is None else batch.column(place)
            if column is not None and pa.types.is_timestamp(column.type):
                column = column.cast(pa.int64())
            lists.append([None] * batch.num_rows if column is None else column.to_pylist())
        return list(map(_Row, *lists))

    def _seen(self, rows: list[_Row]) -> dict[str, _Seen | Failure]:
        """Return the file at each path, or what this batch first found there, if that is noted."""
        seen = self._looked(dict.fromkeys(row.path for row in rows if row.path is not None))
        # An error that fails the batch is not noted, so that the query can go on once the file is mended.
        for row in rows:
            if isinstance(error := self._outcome(row, seen), Exception):
                self._check_set_aside(error)
        if self._pins is None:
            return seen
        agreed = self._pins.agreed(
            {path: _sight(seen_file) for path, seen_file in seen.items()}, reasons=self._reading.policy.files
        )
        return {path: self._as_noted(path, seen[path], sights, self._pins.directory) for path, sights in agreed.items()}

    def _entries(self, row: _Row, seen: Mapping[str, _Seen | Failure]) -> Iterator[dict[str, Any]]:
        """Yield the entries for a row: its splits, or why there are none."""
        seen_file = self._outcome(row, seen)
        try:
            if isinstance(seen_file, Exception):
                raise seen_file
            begin, pieces = self._pieces(row, seen_file)
            splits = [Split(seen_file.file, at, end).to_json() for at, end in pieces]
        except (BadFile, BadRecord, FileChanged) as error:
            self._check_set_aside(error)
            code = CHANGE if isinstance(error, FileChanged) else FILE
            size, modified = (
                (seen_file.file.size, seen_file.file.modified_ns) if isinstance(seen_file, _Seen) else (0, 0)
            )
            bad = [row.path or "", size, modified, error.message, code]
            yield {"bad": bad}
        else:
            yield from ({"root": seen_file.root, "begin": begin, "split": split} for split in splits)

    def _check_set_aside(self, error: Failure) -> None:
        """Raise an error unless the policy sets aside what it is about."""
        if not (self._reading.policy.changes if isinstance(error, FileChanged) else self._reading.policy.files):
            raise error

    def _outcome(self, row: _Row, seen: Mapping[str, _Seen | Failure]) -> _Seen | Failure:
        """Return the file that a row names, if it is the version that the row says."""
        if row.path is None:
            return BadFile("a row names no file: its path is null; leave such rows out, or set badFiles=quarantine")
        seen_file = seen[row.path]
        if isinstance(seen_file, Exception):
            return seen_file
        modified = seen_file.file.modified_ns if self._files.nanoseconds else seen_file.file.modified_ns // 1000
        facts: list[tuple[str, Any, Any]] = [
            ("size", row.size, seen_file.file.size),
            ("modification time", row.modified, modified),
        ]
        if self._on(seen_file.root).storage.tags_contents:
            facts.append(("identity", row.identity, seen_file.file.identity))
        changes = "; ".join(f"{name} {now}, {said} in its row" for name, said, now in facts if said not in {None, now})
        if not changes:
            return seen_file
        return FileChanged(
            f"{row.path!r} is another version than its row names: {changes}; put that one back, or leave such rows out, "
            f"{self._reading.again}"
        )

    # -- what is there -------------------------------------------------------------------------------------------------

    def _looked(self, paths: Iterable[str]) -> dict[str, _Seen | Failure]:
        """Return the file at each of these paths; a server is asked for many of them in parallel. Raises `StorageError`."""
        seen: dict[str, _Seen | Failure] = {}
        by_root: dict[str, dict[str, str]] = {}
        for path in paths:
            place = self._place(path)
            if isinstance(place, BadFile):
                seen[path] = place
            else:
                by_root.setdefault(place[0], {})[path] = place[1]
        for root, places in by_root.items():
            reading = self._on(root)
            looks = partial(self._look, reading, root)
            if reading.storage.of_this_host:
                seen |= {path: looks(path, below) for path, below in places.items()}
                continue
            with reading.storage.workers(_LOOKS) as workers:
                seen |= zip(places, workers.map(looks, places, places.values()), strict=True)
        return seen

    def _look(self, reading: Reading, root: str, path: str, below: str) -> _Seen | BadFile:
        """Return the file at a path that a row names, or why there is no file to read. Raises `StorageError`."""
        full = f"{root.rstrip('/')}/{below}"
        try:
            entry = reading.storage.stat(full)
        except NotThere:
            return self._no_file(path, "does not exist", _expected_in_place_of(reading.storage, root, below))
        except OptionError as error:  # the path relies on settings for its cluster, and there are none
            return self._no_file(path, "cannot be read", error.message)
        if not entry.is_file:
            kind = "a directory" if entry.is_directory else "a pipe, a socket or a device"
            return self._no_file(path, f"is {kind}", "expected a file to read")
        if self._base is not None and not reading.follow and not reading.files.is_inside(full, entry):
            return self._no_file(
                path, f"leads out of {self._base!r}", "expected a file below basePath (or set followSymlinks=true)"
            )
        return _Seen(root, FileVersion(below, entry.size, entry.modified_ns, entry.identity))

    def _no_file(self, path: str, reason: str, expected: str) -> BadFile:
        return BadFile(
            f"{_shown(without_credentials(path))} {reason}: {expected}; mend what names it, {self._reading.again}"
        )

    def _place(self, path: str) -> tuple[str, str] | BadFile:
        """Return where a path leads, as `_placed` does, or why it leads nowhere."""
        try:
            return self._placed(path)
        except BadFile as error:
            return error

    def _placed(self, path: str) -> tuple[str, str]:
        """Return where a row's path leads: a root, and the path below it. Raises `BadFile` if it leads nowhere, or out of `basePath`."""
        written = path
        if not path or "\0" in path:
            raise self._no_file(path, "is not a path", "expected the name of a file")
        if not _URL.match(path) and not path.startswith("/"):
            if self._base is None:
                raise self._no_file(
                    path, "is relative", "expected an absolute path, or basePath, which it is relative to"
                )
            path = f"{self._base.rstrip('/')}/{path}"
        try:
            _, located = locate(path, literal=True)
        except OptionError as error:
            raise self._no_file(written, "cannot be read", error.message) from error
        root = _ROOT.match(located)[0] if self._base is None else self._base  # type: ignore[index]  # - it is absolute
        if not located.startswith(f"{root.rstrip('/')}/"):
            raise self._no_file(written, f"leads out of {root!r}", "expected a file below basePath")
        return root, located[len(root.rstrip("/")) + 1 :]

    def _as_noted(self, path: str, now: _Seen | Failure, sights: list[Sight], notes: str) -> _Seen | Failure:
        """Return the file at a path if it is what this batch first found there."""
        sight = sights[0]
        if len(sights) == 1 and isinstance(sight, str):
            return BadFile(sight)
        if len(sights) == 1 and isinstance(now, _Seen):
            first = FileVersion(now.file.path, *sight)
            if is_version(self._on(now.root).storage, now.file, first):
                return now
        versions = [FileVersion("", *sight) for sight in sights if not isinstance(sight, str)]
        back = advice.put_back(versions[0]) if len(sights) == 1 else "it changed while the batch was first read"
        return FileChanged(
            f"{path!r} is not what this batch first found there: {back}; or, if the batch was never committed, delete its notes, "
            f"{notes!r}, and start again, and it is read as it is"
        )

    # -- where it is cut -----------------------------------------------------------------------------------------------

    def _pieces(self, row: _Row, seen_file: _Seen) -> tuple[int, list[tuple[int, int]]]:
        """Return where the range of a row begins, and the ranges that it is cut into. Raises `BadFile`, `BadRecord`, `FileChanged`."""
        reading, file = self._on(seen_file.root), seen_file.file
        start, end = self._span(row, seen_file, reading)
        dividing = Dividing(reading.divisible, reading.boundary if reading.form.anchored else None)
        if start == end and file.size:
            return start, []
        size = self._files.options["splitSize"]
        if end - start <= size:  # to find out where it may be cut, it must be read
            return start, [(start, end)]
        pieces: list[tuple[int, int]] = []
        at = start
        while not pieces or at < end:
            try:
                stop = min(dividing.end(file, at, size), end)
            except (BadFile, BadRecord):  # the task that reads it reports this
                stop = end
            pieces.append((at, stop))
            at = stop
        return start, pieces

    def _span(self, row: _Row, seen_file: _Seen, reading: Reading) -> tuple[int, int]:
        """Return the range of a row; both ends are at the beginning of a record."""
        file = seen_file.file
        span = row.start or 0, file.size if row.end is None else row.end
        if not 0 <= span[0] <= span[1] <= file.size:
            msg = (
                f"{row.path!r}: a row names the bytes {span[0]} to {span[1]}, and the file has {file.size}; expected a range of it, "
                f"or null for where it begins and ends; mend the row {self._reading.again}"
            )
            raise BadFile(msg)
        if span == (0, file.size):
            return span
        if reading.files.decrypts(file.path) or not reading.form.divisible(reading.format, file.path):
            msg = (
                f"{row.path!r}: a row names the bytes {span[0]} to {span[1]} of {file.size}, and such a file can only be read whole; "
                f"leave start and end null; mend the row {self._reading.again}"
            )
            raise BadFile(msg)
        if reading.form.anchored:
            starts = self._starts[seen_file]
            if isinstance(starts, Exception):
                raise starts
            return starts[span[0]], starts[span[1]]
        return span

    def _find_starts(self, rows: Iterable[_Row], seen: Mapping[str, _Seen | Failure]) -> None:
        """Find the first record at or after each end of a range, if that depends on the whole file before it.

        A file is read once for the rows of a batch, from the last record beginning that earlier batches have shown.
        """
        places: dict[_Seen, set[int]] = {}
        for row in rows:
            seen_file = seen.get(row.path or "")
            if isinstance(seen_file, _Seen) and (row.start or row.end is not None) and self._is_cut(seen_file):
                inside = (at for at in (row.start, row.end) if at is not None and 0 < at < seen_file.file.size)
                places.setdefault(seen_file, set()).update(inside)
        self._starts = {seen_file: self._starts_at(seen_file, sorted(targets)) for seen_file, targets in places.items()}

    def _is_cut(self, seen_file: _Seen) -> bool:
        """Tell whether the file can be read in ranges, and a record's beginning can be found only by reading from the start."""
        reading, path = self._on(seen_file.root), seen_file.file.path
        return (
            reading.form.anchored and reading.form.divisible(reading.format, path) and not reading.files.decrypts(path)
        )

    def _starts_at(self, seen_file: _Seen, targets: list[int]) -> dict[int, int] | Failure:
        """Return the first record at or after each of these targets, and both ends of the file; or why nobody can tell."""
        before = self._starts.get(seen_file)
        anchors = before.values() if targets and isinstance(before, dict) else []
        anchor = max((start for start in anchors if start <= targets[0]), default=0)
        try:
            starts = self._on(seen_file.root).boundaries(seen_file.file, anchor, targets)
        except (BadFile, BadRecord, FileChanged) as error:
            return error
        return {0: 0, seen_file.file.size: seen_file.file.size, **dict(zip(targets, starts, strict=True))}


def _shown(path: str) -> str:
    """Return a name for a message: quoted, and cut if it is longer than any real name."""
    return repr(path) if len(path) <= _SHOWN else f"{path[:_SHOWN]!r}... ({len(path):,} characters)"


def _expected_in_place_of(storage: Storage, root: str, below: str) -> str:
    """Say what to do about a name without a file: a file may exist whose name looks the same and has other characters."""
    others = sorted({unicodedata.normalize(form, below) for form in ("NFC", "NFD")} - {below})
    alike = next((name for name in others if entry_at(storage, f"{root.rstrip('/')}/{name}") is not None), None)
    if alike is None:
        return "expected a file to read; have it come before its name"
    return f"expected the name of the file that looks the same, {alike!a}; the row has {below!a}"


def _sight(seen_file: _Seen | Failure) -> Sight:
    """Return what is noted about the file at a path."""
    if isinstance(seen_file, Exception):
        return seen_file.message
    return [seen_file.file.size, seen_file.file.modified_ns, seen_file.file.identity]


def _check_versions(rows: list[_Row], *, tags_tell: bool) -> None:
    """Raise `OptionError` for a row that does not say which version it means, if nothing else does."""
    for row in rows:
        by_tag = tags_tell and row.identity is not None
        if not by_tag and (row.size is None or row.modified is None):
            msg = (
                f"a row names {row.path!r} and does not say of which size and modification time, so that a replay could read "
                "another version: set stateLocation, a directory for notes of what was read"
            )
            raise OptionError(msg)
