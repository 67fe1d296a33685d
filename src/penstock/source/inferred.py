"""Infers the schema of files that have none: from all of the files, or from a sample that is spread over them.

Text-like files are read in blocks, whatever the number of records; for tables the footers are read; directories `k=v` are columns,
whatever is in the files. The result is what Spark infers (`formats.seen`), as DDL that this source reads.

A sample is taken of up to `FILES_MAX` files, evenly spread from the oldest to the newest, and of the beginning of each: keys that came
and went over time are found, an odd value in the middle of a file may not be. So the result also says from how much it was inferred. A
record or file that cannot be read says nothing about types; it is left out, and reported.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock import clock
from penstock.errors import BadFile, BadRecord, FileChanged, InputError, NotThere, OptionError
from penstock.formats import ddl, format_named
from penstock.formats.codecs import codec_of
from penstock.formats.csv.kinds import partition_kinds, several
from penstock.formats.encryption import inner_name, is_encrypted
from penstock.formats.families import RecordFormat, TableFormat
from penstock.formats.format import TIME_OPTIONS
from penstock.formats.registry import record_format
from penstock.formats.schema import to_spark
from penstock.formats.seen import Conflict, Room, Seen, Types, ValueExample, entered
from penstock.options.formats import READ, VALUES
from penstock.source import advice, configured, partitions
from penstock.source.cursor import FileVersion, Followed, Split
from penstock.source.follow import seen as seen_bytes
from penstock.source.noted import SchemaNotes
from penstock.source.scan import Scan
from penstock.source.schemas import BAD, METADATA
from penstock.source.where import where
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.formats.families import Kinds
    from penstock.options import Options
    from penstock.source.read import Reading

_log = logging.getLogger("penstock.source")
FILES_MAX = 256
SAMPLE_BYTES = 64 << 20
_SMALL_BYTES = 4 << 20  # up to this size, files are read together
_PIECE_BYTES = 256 << 10
_BAD_MAX = 100
_SHOWN = 10


@dataclass(frozen=True)
class Inferred:
    """A schema, as fields of Spark's JSON, and from how many of all the files and bytes it was inferred."""

    fields: list[dict[str, Any]]
    files: int
    size: int
    all_files: int
    all_size: int
    rows: int | None
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ddl(self) -> str:
        """The schema as DDL."""
        return ddl.written(self.fields)

    @property
    def json(self) -> str:
        """The schema as Spark's JSON."""
        return json.dumps({"fields": self.fields, "type": "struct"}, separators=(",", ":"), sort_keys=True)

    @property
    def is_sample(self) -> bool:
        """Whether some of the data was not looked at."""
        return (self.files, self.size) != (self.all_files, self.all_size)

    def told(self) -> list[str]:
        """Return notices about the schema, one sentence each."""
        shown = [conflict.told() for conflict in self.conflicts[:_SHOWN]]
        more = (
            [f"and {len(self.conflicts) - _SHOWN} more columns of several kinds"]
            if len(self.conflicts) > _SHOWN
            else []
        )
        return [*shown, *more, *self.notes]


def infer(
    options: Options,
    sample: int | None = SAMPLE_BYTES,
    files: list[FileVersion] | None = None,
    kept: frozenset[str] = frozenset(),
) -> Inferred:
    """Return the schema of the files that a source with these options reads, from about `sample` bytes; `None`: all of them.

    `files` are the files that are read, the oldest first, if that is known; otherwise they are listed. `kept` are columns, in lower
    case, that both directories and files have, and that are read from the files. Raises `OptionError` if there is nothing to infer
    from, `InputError` if nothing could be read as the format.
    """
    reading = replace(configured.unread(options), again=advice.AGAIN_INFERRED)
    if files is None:
        configured.check_there(options)
        files = _files(options, reading)
    look = _Look(reading, sample, options["follow"], [name for name in TIME_OPTIONS if options[name]])
    look.types.mixes_dates = reading.format.date is None and reading.format.timestamp is None
    fields = look.fields(files)
    look.check()
    if options["partitionColumns"] == "auto":
        fields = _with_partitions(fields, files, look.types, kept)
    notes = [*look.notes, *_of_case(fields)]
    added = {"rescuedDataColumn": "string", "metadataColumn": METADATA, "badRecordColumn": BAD}
    fields += [_field(options[name], kind) for name, kind in added.items() if options[name]]
    if not fields and (look.rows == 0 or look.several):
        raise look.nothing(len(files), notes)
    return Inferred(
        fields,
        look.files,
        look.size,
        len(files),
        sum(file.size for file in files),
        look.rows,
        tuple(look.types.conflicts),
        tuple(notes),
    )


def _files(options: Options, reading: Reading) -> list[FileVersion]:
    """Return the files that can have columns, the oldest first; `OptionError` if there are none."""
    scan = Scan.of(reading.storage, reading.root, options)
    came = sorted((arrival.file for arrival in scan.refresh().came), key=lambda file: file.order)
    files = [file for file in came if file.size or not isinstance(reading.form, TableFormat)]
    if not files:
        passed = (
            f"; not entered: {', '.join(sorted(scan.passed_over)[:_SHOWN])} (recursiveFileLookup)"
            if scan.passed_over
            else ""
        )
        msg = f"path={reading.root!r} has no file to infer a schema from{passed}; give the schema, or try again when there is one"
        raise OptionError(msg)
    return files


def noted_schema(options: Options) -> str:
    """Return the schema that is noted in `stateLocation`, as DDL; if none is noted, infer one and note it first.

    For a query, because Spark tells a source nothing about its checkpoint. Raises what `infer` does.
    """
    if not options["stateLocation"]:
        msg = (
            "schema=infer notes what it has inferred, so that a restart reads the same: give stateLocation, a directory beside the "
            "checkpoint, of this source alone; or .schema(...) with what penstock schema prints"
        )
        raise OptionError(msg)
    notes = SchemaNotes(*locate(options["stateLocation"], name="stateLocation"))
    note, root = notes.counting(), where(options).root
    if note is None:
        inferred = infer(options)
        _log.warning("%r: the schema was inferred: %s", root, "; ".join([inferred.ddl, *inferred.told()]))
        note = notes.first(inferred.json, -1, clock.now_ns(), root)
    if note.path not in {"", root}:
        _log.warning(
            "%r is read with the schema that was inferred from %r, since stateLocation=%r has noted it: columns that only %r has are not "
            "read. If these are two sources, give each a stateLocation of its own; if the files were moved, all is well",
            root,
            note.path,
            options["stateLocation"],
            root,
        )
    return ddl.written(note.fields)


@dataclass
class _Look:
    """One look at files, which may grow meanwhile if `grows`: how much was looked at, and what is to be reported.

    `patterns` are the names of the options that say how times are written.
    """

    how: Reading
    sample: int | None
    grows: bool
    patterns: Sequence[str]
    files: int = 0
    size: int = 0
    rows: int | None = None
    bad: int = 0
    cut: int = 0
    first_error: InputError | None = None
    left_out: list[str] = field(default_factory=list)
    several: set[str] = field(default_factory=set)
    types: Types = field(default_factory=Types)

    def fields(self, files: Sequence[FileVersion]) -> list[dict[str, Any]]:
        """Return the columns that the files have, without those of directories."""
        form = self.how.form
        if form.name in VALUES:
            self.files, self.size = len(files), sum(file.size for file in files)
            return [_field("value", VALUES[form.name])]
        seen, room = Seen(), Room()
        if isinstance(form, TableFormat):
            self._tables(form, files, seen, room)
            return self.types.fields(seen, ordered=False)
        assert isinstance(form, RecordFormat)  # noqa: S101 - there are only two families
        kinds = form.kinds(self.how.format, seen, room)
        self.rows = 0
        if kinds.tells_times:
            self.patterns = ()
        for splits in _gathered(self._spans(files)):
            self._records(kinds, splits)
        return self.types.fields(seen, ordered=kinds.sorts)

    @property
    def notes(self) -> list[str]:
        """Notices about what was left out."""
        notes = []
        if self.bad:
            first = self.first_error.message if self.first_error else ""
            notes.append(
                f"left out what cannot be read, {self.bad} times; the first: {first}; look at the options of the format, such as header "
                "and sep of CSV: a run stops there, unless badRecords=quarantine or badFiles=quarantine sets it aside"
            )
        if self.cut:
            notes.append("of compressed files the beginning was looked at")
        if self.patterns:
            notes.append(
                f"{', '.join(self.patterns)}: strings of {self.how.form.name} are strings, as to Spark; give the schema, with the types of "
                "columns that are times"
            )
        if self.several:
            notes.append(
                f"left out {', '.join(map(repr, sorted(self.several)[:_SHOWN]))}: a header has several columns of that name, and none is "
                "taken by it; rename them, or give a schema and leave header out, by which the header is a record"
            )
        if names := [*self.left_out, *self.types.left_out]:
            shown = ", ".join(map(repr, names[:_SHOWN]))
            notes.append(f"left out {shown}{' and others' if len(names) > _SHOWN else ''}: no type can be said of it")
        return notes

    def nothing(self, files: int, notes: list[str]) -> OptionError:
        """Return the error for a look that found no column in `files` files."""
        why = "; ".join(notes) if self.several else "hold no record"
        held = f"{self.files} of {files} files, {self.size} bytes, {why}"
        return OptionError(
            f"path={self.how.root!r} has nothing to infer a schema from: {held}; give the schema, or try again when there is one"
        )

    def check(self) -> None:
        """Raise the first error if nothing could be read."""
        if self.first_error is not None and not self.rows and self.files <= self.bad:
            raise self.first_error

    def _spans(self, files: Sequence[FileVersion]) -> Iterator[Split]:
        total = sum(file.size for file in files)
        if self.sample is None or total <= self.sample:
            yield from (self._beginning(file, file.size) for file in files if file.size)
            return
        chosen = _spread(files)
        share = max(self.sample // len(chosen), 1)
        for file in chosen:
            whole = not self.how.divisible(file.path)
            if file.size:
                yield self._beginning(file, file.size if whole else min(share, file.size))

    def _beginning(self, file: FileVersion, end: int) -> Split:
        """Return a split from the beginning of a file; of a file that grows, only the bytes that were there when it was listed are read."""
        split = Split(file, 0, end)
        if self.grows and codec_of(file.path) is None and not is_encrypted(file.path):
            with suppress(NotThere), self.how.storage.open(self.how.files.full_path(file)) as handle:
                digest = seen_bytes(handle, file.size)
                return split if digest is None else split._replace(followed=Followed(0, digest))
        return split

    def _records(self, kinds: Kinds, splits: list[Split]) -> None:
        """Look at the records of some splits; of a compressed file, up to as many decompressed bytes as its share of the sample."""
        limit = max(sum(split.end - split.start for split in splits), (self.sample or 0) // FILES_MAX)
        if self.sample is None:
            limit = -1
        try:
            taken = 0
            for data, columns, where in self.how.blocks(splits):
                self.several |= several(columns or ())
                self._block(kinds, data, columns, where)
                taken += len(data)
                if 0 <= limit <= taken:
                    self.cut += any(not self.how.divisible(split.file.path) for split in splits)
                    break
        except (BadFile, BadRecord, FileChanged, NotThere) as error:
            if len(splits) > 1:
                for split in splits:
                    self._records(kinds, [split])
                return
            self._note(error)
        self.files += len(splits)
        self.size += sum(split.end - split.start for split in splits)

    def _block(self, kinds: Kinds, data: bytes, columns: tuple[str, ...] | None, where: Callable[[int], str]) -> None:
        """Look at a block; if it has a bad record, look at pieces of it, and then around the record."""
        rest: list[tuple[int, bytes, bool]] = [(0, data, False)]
        while rest:
            at, piece, is_small = rest.pop()
            try:
                self.rows = (self.rows or 0) + kinds.take(piece, lambda byte, at=at: where(at + byte), columns)  # type: ignore[misc]  # - mypy does not infer it
            except BadRecord as error:
                starts = [*kinds.starts(piece).tolist(), len(piece)]
                if not is_small:
                    rest += [(at + begin, part, True) for begin, part in _cut(piece, starts)]
                    continue
                begin = error.offset or 0
                end = next(start for start in starts if start > begin)
                path = where(at + begin)
                hint = record_format(self.how.format.name).advice(self.how.format, piece[begin:].partition(b"\n")[0])
                self._note(BadRecord(f"{path!r}: {error.message}{hint}", path=path))
                rest += [(at + end, piece[end:], True), (at, piece[:begin], True)]

    def _note(self, error: Exception) -> None:
        self.bad += 1
        if self.first_error is None:
            self.first_error = error if isinstance(error, InputError) else BadFile(str(error))
        if self.bad >= _BAD_MAX:
            raise self.first_error

    def _tables(self, form: TableFormat, files: Sequence[FileVersion], seen: Seen, room: Room) -> None:
        for file in files if self.sample is None else _spread(files):
            try:
                stored = self.how.stored_schema(form, file)
            except (BadFile, FileChanged, NotThere) as error:
                self._note(error)
                stored = None
            self.files += 1
            self.size += file.size
            if stored is not None:
                entered(seen, self._spark_fields(stored), self.how.files.full_path(file), room)

    def _spark_fields(self, stored: pa.Schema) -> list[dict[str, Any]]:
        fields = []
        for column in stored:
            fields += self._spark_field(column)
        return fields

    def _spark_field(self, column: pa.Field) -> list[dict[str, Any]]:
        """Return the column as Spark's JSON, in a list; an empty list if Spark has no such type."""
        try:
            fields: list[dict[str, Any]] = json.loads(to_spark(pa.schema([column])))["fields"]
        except OptionError:
            self.left_out.append(column.name)
            return []
        return fields


def _spread(files: Sequence[FileVersion]) -> list[FileVersion]:
    """Return some of the files, including the first and the last, evenly spread."""
    count = min(len(files), FILES_MAX)
    if count == 1:
        return list(files)
    return [files[place * (len(files) - 1) // (count - 1)] for place in range(count)]


def _gathered(splits: Iterable[Split]) -> Iterator[list[Split]]:
    """Yield small splits together, and others by themselves."""
    held: list[Split] = []
    size = 0
    for split in splits:
        length = split.end - split.start
        if length >= _SMALL_BYTES:
            yield [split]
            continue
        held.append(split)
        size += length
        if size >= _SMALL_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _cut(data: bytes, starts: list[int]) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of whole records, each with its position; `starts` ends with the length of the data."""
    begin = 0
    for start in starts[1:]:
        if start - begin >= _PIECE_BYTES or start == len(data):
            yield begin, data[begin:start]
            begin = start


def _with_partitions(
    fields: list[dict[str, Any]], files: Sequence[FileVersion], types: Types, kept: frozenset[str]
) -> list[dict[str, Any]]:
    """Return the columns with those of directories, each in the place of a column of its name that is not `kept`, or after the others."""
    values: dict[str, dict[str, None]] = {}
    for folder in dict.fromkeys(file.path.rpartition("/")[0] for file in files):
        for key, text in partitions.written(folder):
            if key.lower() in kept:
                continue
            known = values.setdefault(key, {})
            if text != partitions.NULL:
                known[text] = None
    by_rules = Types(partition=True)
    for key, texts in values.items():
        seen = Seen()
        written = list(texts)
        for kind, at in partition_kinds(written, list(map(partitions.unescaped, written))):
            text = written[at]
            seen.add(kind, lambda text=text, key=key: ValueExample(f"{key}={text}", text))  # type: ignore[misc]  # - mypy does not infer it
        kind = by_rules.type(seen, key, ordered=False)
        places = [place for place, form in enumerate(fields) if form["name"].lower() == key.lower()]
        if places:
            fields[places[0]] = {**fields[places[0]], "type": kind}
        else:
            fields.append({"metadata": {}, "name": key, "nullable": True, "type": kind})
    types.conflicts += by_rules.conflicts
    return fields


def _field(name: str, kind: str) -> dict[str, Any]:
    parsed = ddl.parsed(f"x {kind}")
    assert parsed is not None  # noqa: S101 - a type that this package writes
    form: dict[str, Any] = json.loads(parsed)["fields"][0]
    return {**form, "name": name}


def _of_case(fields: list[dict[str, Any]]) -> Iterator[str]:
    """Yield notices about columns whose names differ only in case, which Spark does not distinguish."""
    names: dict[str, list[str]] = {}
    for form in fields:
        names.setdefault(form["name"].lower(), []).append(form["name"])
    for alike in names.values():
        if len(alike) > 1:
            yield f"{', '.join(map(repr, alike))} differ in case only, and Spark takes them for one: leave all but one out"


def format_by_names(options: Options) -> str:
    """Return the format in which the names of all files end, or the format of the options if there is no such format.

    Raises `OptionError` if a path does not exist.
    """
    configured.check_there(options)
    place = where(options)
    came = Scan.of(place.storage, place.root, options).refresh().came
    by_name = {format_by_name(arrival.file.path or place.root) for arrival in came}
    (name,) = by_name if len(by_name) == 1 else (None,)
    return name or str(options["format"])


def has_no_file(options: Options) -> bool:
    """Tell whether a source with these options has nothing to read yet."""
    place = where(options)
    return not Scan.of(place.storage, place.root, options).refresh().came


def format_by_name(path: str) -> str | None:
    """Return the format in which a file's name ends, `None` for a format without columns of its own."""
    return _by_ending().get(_ending(path))


@cache
def _by_ending() -> dict[str, str]:
    forms = [format_named(name) for name in READ if name not in VALUES]
    return {ending: form.name for form in forms for ending in (form.extension, *form.other_extensions)}


def _ending(path: str) -> str:
    """Return the last part of a file's name, from its dot on, after removing the extension of a compression."""
    path = inner_name(path)
    codec = codec_of(path)
    stem = path.rpartition(".")[0] if codec else path
    return f".{stem.rpartition('.')[2].lower()}"
