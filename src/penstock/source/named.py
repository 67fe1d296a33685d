"""Files that rows name: a stream of names becomes the records of these files.

Two stages, both of Arrow batches. The first looks at what rows name, and makes of each the splits that it stands for: a version of a
file, cut into ranges where it is large, or the reason why there is nothing to read. The second reads splits, wherever they
have been sent in between; small files are parsed together. Neither holds more than a few batches.

A range that a row names owns the records that begin in it, as any split does: ranges that lie edge to edge give each record once.

Which version is read. What a row says of it (size, modification time, a tag) is compared with what is there. What is there is then
the version that each range of it has: it is compared before the first byte and after the last, as with a plan. A batch that is
replayed looks again, and must find the same: by what the row says, or by a note (see `source.pinned`).

Where names may come from anybody, `basePath` is the directory that they must lead to: no `..`, no other storage and no link leads out.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from penstock.errors import BadFile, BadRecord, FileChanged, NotThere, OptionError
from penstock.formats.account import Account
from penstock.formats.aside import CHANGE, FILE, Aside, about_file, path_bytes, path_of
from penstock.options import SOURCE, Option, Options, parse
from penstock.source import advice, configured, partitions
from penstock.source.cursor import FileVersion, Split, is_version
from penstock.source.dividing import Dividing
from penstock.source.read import NUMBER, NamedRows, Reading
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeAlias

    from penstock.source.pinned import Pins, Sight

    Failure: TypeAlias = BadFile | BadRecord | FileChanged

SPLIT = "split"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|(?:file|hdfs):", re.IGNORECASE)
_ROOT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*|/")
# Of the options of a source those that say how a file is read; the others say which.
_READING = {
    *(
        "format",
        "followSymlinks",
        "splitSize",
        "changedFiles",
        "badRecords",
        "badFiles",
        "badRecordColumn",
        "metadataColumn",
    ),
    *("basePath", "partitionColumns", "timeZone", "sessionTimeZone", "stateLocation", "tasks"),
}
OPTIONS: tuple[Option, ...] = tuple(option for option in SOURCE if option.special or option.name in _READING)


class Columns(NamedTuple):
    """Which columns of the rows say what, by their places."""

    path: int
    start: int | None = None
    end: int | None = None
    size: int | None = None
    modified: int | None = None
    identity: int | None = None


class _Row(NamedTuple):
    """What one row says: `modified` in microseconds, or in nanoseconds if the column is of whole numbers."""

    path: str | None
    start: int | None
    end: int | None
    size: int | None
    modified: int | None
    identity: str | None


class _Seen(NamedTuple):
    """What is at a path: on the storage of `root`, which is `basePath` where there is one, a version of a file below it."""

    root: str
    file: FileVersion


@dataclass(frozen=True)
class NamedFiles:
    """How the files that rows name are read. Picklable, travels to tasks. `reading` is that of any storage; see `of`."""

    options: Options
    reading: Reading
    base: str | None
    columns: Columns
    nanoseconds: bool = False

    @staticmethod
    def of(given: Mapping[str, Any], schema: str, columns: Columns, *, nanoseconds: bool = False) -> NamedFiles:
        """Return it for options as the user gave them, and the schema of the files, Spark's JSON. Raises `OptionError`; touches nothing.

        `nanoseconds`: the column of modification times has those, since 1970, and not timestamps.
        """
        options, base = NamedFiles.checked(given)
        reading = replace(configured.reading(options, schema), again=advice.AGAIN_NAMED)
        configured.check_plain(options)
        root = None if base is None else locate(base, name="basePath")[1]
        return NamedFiles(options, replace(reading, follow=reading.follow or base is None), root, columns, nanoseconds)

    @staticmethod
    def checked(given: Mapping[str, Any]) -> tuple[Options, str | None]:
        """Return the options of a source that the user's stand for, and `basePath`. Raises `OptionError`."""
        texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
        written = dict(parse(OPTIONS, texts, what="read_files").given)
        base = written.pop("basePath", None)
        if base is None and written.setdefault("partitionColumns", "none") != "none":
            msg = "partitionColumns=auto needs basePath, the directory below which directories k=v are columns"
            raise OptionError(msg)
        return parse(SOURCE, written | {"path": "/"}, what="read_files"), base

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of what is read."""
        return configured.expected_schema(self.options, self.reading)

    @property
    def says_version(self) -> bool:
        """Tell whether rows have columns that tell one version of a file from another."""
        by_tag = self.base is not None and locate(self.base)[0].tags_contents and self.columns.identity is not None
        return by_tag or (self.columns.size is not None and self.columns.modified is not None)

    @property
    def needs_notes(self) -> bool:
        """Tell whether a replay can find other files than a first try did, and not see it by what rows say."""
        return not self.says_version or self.reading.policy.files or self.reading.policy.changes

    # -- from rows to splits -----------------------------------------------------------------------------------------

    def splits(
        self, batches: Iterable[pa.RecordBatch], pins: Pins | None, *, keep: bool, replays: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the splits of what rows name: a column `SPLIT`, and the columns of the row if they are to be kept.

        `replays`: the rows may come again, and then have to give the same. Raises `BadFile` and `FileChanged` unless such a file is
        set aside, `OptionError` for a row that cannot be replayed, and `StorageError`.
        """
        for batch in batches:
            rows = self._rows(batch)
            if replays and pins is None:
                self._check_versions(rows)
            seen = self._seen(rows, pins)
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
            yield pa.RecordBatch.from_arrays(columns, names=names)

    def _rows(self, batch: pa.RecordBatch) -> list[_Row]:
        """Return what the rows say."""
        lists: list[list[Any]] = []
        for place in self.columns:
            column = None if place is None else batch.column(place)
            if column is not None and pa.types.is_timestamp(column.type):
                column = column.cast(pa.int64())
            lists.append([None] * batch.num_rows if column is None else column.to_pylist())
        return list(map(_Row, *lists))

    def _check_versions(self, rows: list[_Row]) -> None:
        """Raise `OptionError` for a row that does not say which version it means, where nothing else tells."""
        for row in rows:
            if row.identity is None and (row.size is None or row.modified is None):
                msg = (
                    f"a row names {row.path!r} and does not say of which size and modification time, so that a replay could read "
                    "another version: set stateLocation, a directory for notes of what was read"
                )
                raise OptionError(msg)

    def _seen(self, rows: list[_Row], pins: Pins | None) -> dict[str, _Seen | Failure]:
        """Return what is at each path; what this batch first found there, if that is noted."""
        seen: dict[str, _Seen | Failure] = {
            path: self._look(path) for path in dict.fromkeys(row.path for row in rows) if path is not None
        }
        for row in rows:  # what fails the batch is not noted, so that who mends it can go on
            if isinstance(error := self._outcome(row, seen), Exception):
                self._check_set_aside(error)
        if pins is None:
            return seen
        agreed = pins.agreed({path: _sight(there) for path, there in seen.items()}, reasons=self.reading.policy.files)
        return {path: self._as_noted(path, seen[path], sights, pins.directory) for path, sights in agreed.items()}

    def _entries(self, row: _Row, seen: Mapping[str, _Seen | Failure]) -> Iterator[dict[str, Any]]:
        """Yield what stands for a row: its splits, or why there are none."""
        there = self._outcome(row, seen)
        try:
            if isinstance(there, Exception):
                raise there
            begin, pieces = self._pieces(row, there)
            splits = [Split(there.file, at, end).to_json() for at, end in pieces]
        except (BadFile, BadRecord, FileChanged) as error:
            self._check_set_aside(error)
            code = CHANGE if isinstance(error, FileChanged) else FILE
            size, modified = (there.file.size, there.file.modified_ns) if isinstance(there, _Seen) else (0, 0)
            bad = [row.path or "", size, modified, error.message, code]
            yield {"bad": bad}
        else:
            yield from ({"root": there.root, "begin": begin, "split": split} for split in splits)

    def _check_set_aside(self, error: Failure) -> None:
        """Raise an error unless what it is about is set aside."""
        if not (self.reading.policy.changes if isinstance(error, FileChanged) else self.reading.policy.files):
            raise error

    def _outcome(self, row: _Row, seen: Mapping[str, _Seen | Failure]) -> _Seen | Failure:
        """Return what a row names, if that is what it says."""
        if row.path is None:
            return BadFile("a row names no file: its path is null; leave such rows out, or set badFiles=quarantine")
        there = seen[row.path]
        if isinstance(there, Exception):
            return there
        modified = there.file.modified_ns if self.nanoseconds else there.file.modified_ns // 1000
        facts: list[tuple[str, Any, Any]] = [
            ("size", row.size, there.file.size),
            ("modification time", row.modified, modified),
        ]
        if locate(there.root)[0].tags_contents:
            facts.append(("identity", row.identity, there.file.identity))
        changes = "; ".join(f"{name} {now}, {said} in its row" for name, said, now in facts if said not in {None, now})
        if not changes:
            return there
        return FileChanged(
            f"{row.path!r} is another version than its row names: {changes}; put that one back, or leave such rows out, "
            f"{self.reading.again}"
        )

    # -- what is there -------------------------------------------------------------------------------------------------

    def _look(self, path: str) -> _Seen | BadFile:
        """Return what is at a path that a row names, or why there is no file to read. Raises `StorageError`."""
        try:
            root, below = self._placed(path)
            reading = self._reading(root)
            full = f"{root.rstrip('/')}/{below}"
            entry = reading.storage.stat(full)
        except NotThere:
            return self._no_file(path, "does not exist", "expected a file to read; have it come before its name")
        except BadFile as error:
            return error
        if not entry.is_file:
            kind = "a directory" if entry.is_directory else "a pipe, a socket or a device"
            return self._no_file(path, f"is {kind}", "expected a file to read")
        if self.base is not None and not reading.follow and not reading.is_inside(full, entry):
            return self._no_file(
                path, f"leads out of {self.base!r}", "expected a file below basePath (or set followSymlinks=true)"
            )
        return _Seen(root, FileVersion(below, entry.size, entry.modified_ns, entry.identity))

    def _no_file(self, path: str, reason: str, expected: str) -> BadFile:
        return BadFile(f"{path!r} {reason}: {expected}; mend what names it, {self.reading.again}")

    def _placed(self, path: str) -> tuple[str, str]:
        """Return where a path that a row has leads: a root, and the path below. Raises `BadFile` for one that leads nowhere, or out."""
        written = path
        if not path or "\0" in path:
            raise self._no_file(path, "is no path", "expected the name of a file")
        if not _URL.match(path) and not path.startswith("/"):
            if self.base is None:
                raise self._no_file(
                    path, "is relative", "expected an absolute path, or basePath, which it is relative to"
                )
            path = f"{self.base.rstrip('/')}/{path}"
        try:
            _, located = locate(path)
        except OptionError as error:
            raise self._no_file(written, "cannot be read", error.message) from error
        root = _ROOT.match(located)[0] if self.base is None else self.base  # type: ignore[index]  # - it is absolute
        if not located.startswith(f"{root.rstrip('/')}/"):
            raise self._no_file(written, f"leads out of {root!r}", "expected a file below basePath")
        return root, located[len(root.rstrip("/")) + 1 :]

    def _reading(self, root: str) -> Reading:
        return replace(self.reading, storage=locate(root)[0], root=root)

    def _as_noted(self, path: str, now: _Seen | Failure, sights: list[Sight], notes: str) -> _Seen | Failure:
        """Return what is at a path if it is what this batch first found there."""
        sight = sights[0]
        if len(sights) == 1 and isinstance(sight, str):
            return BadFile(sight)
        if len(sights) == 1 and isinstance(now, _Seen):
            first = FileVersion(now.file.path, *sight)
            if is_version(locate(now.root)[0], now.file, first):
                return now
        versions = [FileVersion("", *sight) for sight in sights if not isinstance(sight, str)]
        back = advice.put_back(versions[0]) if len(sights) == 1 else "it changed while the batch was first read"
        return FileChanged(
            f"{path!r} is not what this batch first found there: {back}; or, if the batch was never committed, delete its notes, "
            f"{notes!r}, and start again, and it is read as it is"
        )

    # -- where it is cut -----------------------------------------------------------------------------------------------

    def _pieces(self, row: _Row, there: _Seen) -> tuple[int, list[tuple[int, int]]]:
        """Return where the range of a row begins, and the ranges that it is cut into. Raises `BadFile`, `BadRecord`, `FileChanged`."""
        reading, file = self._reading(there.root), there.file
        start, end = self._span(row, there, reading)
        dividing = Dividing(reading.divisible, reading.boundary if reading.form.anchored else None)
        if start == end and file.size:
            return start, []
        pieces: list[tuple[int, int]] = []
        at = start
        while not pieces or at < end:
            try:
                stop = min(dividing.end(file, at, self.options["splitSize"]), end)
            except (BadFile, BadRecord):  # whoever reads it tells
                stop = end
            pieces.append((at, stop))
            at = stop
        return start, pieces

    def _span(self, row: _Row, there: _Seen, reading: Reading) -> tuple[int, int]:
        """Return the range of a row, from where a record begins to where one does."""
        file = there.file
        span = row.start or 0, file.size if row.end is None else row.end
        if not 0 <= span[0] <= span[1] <= file.size:
            msg = (
                f"{row.path!r}: a row names the bytes {span[0]} to {span[1]}, and the file has {file.size}; expected a range of it, "
                f"or null for where it begins and ends; mend the row {self.reading.again}"
            )
            raise BadFile(msg)
        if span == (0, file.size):
            return span
        if not reading.form.divisible(reading.format, file.path):
            msg = (
                f"{row.path!r}: a row names the bytes {span[0]} to {span[1]} of {file.size}, and such a file can only be read whole; "
                f"leave start and end null; mend the row {self.reading.again}"
            )
            raise BadFile(msg)
        if reading.form.anchored:
            start = reading.boundary(file, 0, span[0]) if span[0] else 0
            return start, max(reading.boundary(file, start, span[1]), start) if span[1] < file.size else file.size
        return span

    # -- from splits to records --------------------------------------------------------------------------------------

    def records(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of splits: behind the columns of the rows that named them, if `splits` kept these.

        Raises what `Reading.batches` does.
        """
        account = Account()
        for batch in batches:
            entries = [json.loads(text) for text in batch.column(0).to_pylist()]
            for run in _runs(entries, by_row=batch.num_columns > 1):
                yield from self._read(run, batch.columns[1:], account)
        configured.tell(account, "files that rows name" if self.base is None else self.base)

    def _read(self, run: list[_Entry], kept: list[pa.Array], account: Account) -> Iterator[pa.RecordBatch]:
        """Yield the records of some splits of one storage, whose files have one row each."""
        aside = Aside()
        numbers = {entry.split.file.path: entry.number for entry in run if entry.split}
        begins = {entry.split.file.path: entry.begin for entry in run if entry.split}
        reading = replace(
            self._reading(run[0].root) if run[0].root else self.reading,
            named=NamedRows(begins, numbers if kept else None),
            aside=aside if self.reading.policy.any else None,
        )
        for entry in run:
            if entry.bad:
                path, size, modified_ns, reason, code = entry.bad
                aside.take(about_file(path, offset=0, size=size, modified_ns=modified_ns, reason=reason, code=code))
                yield from self._bad_rows(aside, {path_bytes(path): entry.number}, kept)
        if not numbers:
            return
        owners = {path_bytes(f"{reading.root.rstrip('/')}/{path}"): number for path, number in numbers.items()}
        read = partitions.batches if self.options["partitionColumns"] == "auto" else Reading.batches
        for rows in read(reading, [entry.split for entry in run if entry.split], account):
            yield from self._bad_rows(aside, owners, kept)
            if rows.num_rows:
                yield self._rows_with(rows, kept)
        yield from self._bad_rows(aside, owners, kept)

    def _rows_with(self, rows: pa.RecordBatch, kept: list[pa.Array]) -> pa.RecordBatch:
        """Return records behind the columns of their rows."""
        numbers = rows.column(NUMBER) if kept else None
        columns = [column.take(numbers) for column in kept]
        for field in self.schema:
            is_read = field.name in rows.schema.names
            columns.append(rows.column(field.name) if is_read else pa.nulls(rows.num_rows, field.type))
        return pa.RecordBatch.from_arrays(columns, names=self._names(len(kept)))

    def _bad_rows(self, aside: Aside, owners: Mapping[bytes, int], kept: list[pa.Array]) -> Iterator[pa.RecordBatch]:
        """Yield a row for all that is set aside: the columns of the row that named its file, and `badRecordColumn`."""
        for lines in aside.handed_on():  # those of one batch are about one file
            number = owners[path_of(lines.slice(0, 1).to_pylist()[0])]
            bad = configured.bad_column(lines)
            columns = [column.take(pa.array([number] * lines.num_rows, pa.int64())) for column in kept]
            name = self.options["badRecordColumn"]
            columns += [bad if field.name == name else pa.nulls(lines.num_rows, field.type) for field in self.schema]
            yield pa.RecordBatch.from_arrays(columns, names=self._names(len(kept)))

    def _names(self, kept: int) -> list[str]:
        return [*(f"c{place}" for place in range(kept)), *self.schema.names]


class _Entry(NamedTuple):
    """What the row `number` of a batch of splits has: the root of a storage and a split, or what is set aside."""

    number: int
    root: str | None
    begin: int
    split: Split | None
    bad: list[Any] | None


def _runs(entries: list[dict[str, Any]], *, by_row: bool) -> Iterator[list[_Entry]]:
    """Yield neighbours that can be read together: on one storage, and each file named by one row, or by ranges that begin alike."""
    run: list[_Entry] = []
    keys: dict[str, int] = {}
    for number, form in enumerate(entries):
        split = Split.from_json(form["split"]) if "split" in form else None
        entry = _Entry(number, form.get("root"), form.get("begin", 0), split, form.get("bad"))
        key = entry.number if by_row else entry.begin
        known = keys.get(split.file.path, key) if split else key
        if run and (entry.root != run[0].root or known != key):
            yield run
            run, keys = [], {}
        run.append(entry)
        if split:
            keys[split.file.path] = key
    if run:
        yield run


def _sight(there: _Seen | Failure) -> Sight:
    """Return what is noted of what is at a path."""
    if isinstance(there, Exception):
        return there.message
    return [there.file.size, there.file.modified_ns, there.file.identity]
