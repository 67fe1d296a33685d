"""Parts of the output, open and finished, and the collection of all open parts.

A record says which parts are open, and a batch touches few of them or many. So the collection (`OpenParts`) knows what has
changed since it was last written to tables (`changes`). A record puts these changes, so the cost of a batch follows from what it
touched. If there are few parts, a record has them all. If there are many, it names *tables* (`parttables`), which have the
others.

A *change* is a part as it is now, without its first segments if the tables have them already: a part that gains a row puts one
segment and not sixteen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

from penstock.formats.codecs import compress
from penstock.formats.encryption import room
from penstock.sink.names import check_filled

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterable, Iterator, Mapping

STATE_DIRECTORY = "_penstock"
_ASIDE = "quarantine"
OPEN_FIELDS = ("open", "ended", "open_tables")  # of a record
_LATER_KIND = frozenset({"level", "recipients"})
_NOTHING: tuple[Any, ...] = (None, "", ())


def aside_bucket(sink: str) -> str:
    """Return the bucket of what is set aside. No template can name this directory, because `bucketBy` refuses the state directory."""
    return f"{STATE_DIRECTORY}/{sink}/{_ASIDE}"


def is_aside(bucket: str) -> bool:
    """Tell whether a bucket holds what is set aside; all other buckets hold rows."""
    return bucket.startswith(f"{STATE_DIRECTORY}/")


@dataclass(frozen=True)
class Segment:
    """Rows of one part, as the bytes [start, end) of a staged file. Immutable.

    `form` is `bytes` (final form of text-like formats), `arrow` (see `formats.staged`) or `parquet` (a whole file). `size` is the
    number of bytes of these rows in the finished file: exact for `bytes`, an estimate otherwise. `digest` is the digest of the
    staged bytes. `key` is the recipient that they are encrypted to, as an age file of their own; empty if they are clear.
    """

    file: str
    start: int
    end: int
    rows: int
    form: str
    size: int
    digest: str
    key: str = ""


@dataclass(frozen=True)
class Kind:
    """What the files of a part are: format, compression, extension, and a digest of the schema. A part never mixes kinds.

    The file begins with `header`, before the rows; no segment contains it. `level` is the level of the compression, `None` for
    its default. The file is encrypted to `recipients`, or clear if there are none. They are fixed when the part is opened,
    whichever process completes it later.
    """

    format: str
    compression: str
    extension: str
    schema: str
    header: str = ""
    level: int | None = None
    recipients: tuple[str, ...] = ()

    @property
    def header_bytes(self) -> bytes:
        """The bytes of the header in the file: a separate member if the file is compressed."""
        header = self.header.encode()
        return compress(header, self.compression, self.level) if header and self.compression != "none" else header

    def room(self, size: int) -> int:
        """Return how many bytes the part may have so that its file, which encryption may make longer, has at most `size`."""
        return room(size, self.recipients) if self.recipients else size


class Destination(NamedTuple):
    """Where rows go: a bucket, and the name template of one part there, `""` if `fileName` has no columns."""

    bucket: str
    name: str = ""


@dataclass(frozen=True)
class OpenPart:
    """A part in progress. There is at most one for each (bucket, name, writer). Times are those of the committing driver.

    `name` is the part's name template, `fileName` with its columns filled in; empty if `fileName` has no columns.
    """

    bucket: str
    writer: int
    kind: Kind
    opened_ns: int
    written_ns: int
    first_batch: int
    last_batch: int
    segments: tuple[Segment, ...]
    host: str = ""
    pid: int = 0
    attempt: int = 0
    name: str = ""

    @property
    def is_aside(self) -> bool:
        """Whether it holds lines about what was set aside, and no rows of the output."""
        return is_aside(self.bucket)

    @property
    def place(self) -> Destination:
        """Where its rows go."""
        return Destination(self.bucket, self.name)

    @property
    def key(self) -> tuple[str, str, int]:
        """Return what identifies the part among the open ones."""
        return self.bucket, self.name, self.writer

    @property
    def rows(self) -> int:
        """Return the rows committed so far."""
        return sum(segment.rows for segment in self.segments)

    @property
    def size(self) -> int:
        """Return the bytes the rows would have in the finished file now (an estimate for Parquet)."""
        return sum(segment.size for segment in self.segments)


@dataclass(frozen=True)
class FinishedFile:
    """A decided file: visible under `path` (relative to the output) once it is published from `staged`.

    `place`: the file holds what was set aside, and goes into this directory instead (see `sink.quarantine`). `name` is the name
    template with its columns filled in, as in an open part.
    """

    path: str
    bucket: str
    rows: int
    bytes: int
    digest: str
    first_batch: int
    last_batch: int
    staged: str
    place: str = ""
    name: str = ""

    def at(self, root: str) -> str:
        """Return the path that the file has, or will have, if the output is `root`."""
        return f"{self.place}/{self.path.rpartition('/')[2]}" if self.place else f"{root}/{self.path}"

    @property
    def is_aside(self) -> bool:
        """Whether it holds lines about what was set aside, and no rows of the output."""
        return is_aside(self.bucket)


Key: TypeAlias = tuple[str, str, int]  # bucket, name and writer of a part


class Change(NamedTuple):
    """How a part changed: it keeps its first `kept` segments, and the segments of `part` come after them."""

    part: OpenPart
    kept: int = 0

    def applied(self, before: OpenPart | None) -> OpenPart:
        """Return the part after the change; `ValueError` if `before` has fewer than `kept` segments."""
        if not self.kept:
            return self.part
        if before is None or len(before.segments) < self.kept:
            msg = f"a part in {self.part.bucket!r} keeps {self.kept} segments, but has fewer"
            raise ValueError(msg)
        return replace(self.part, segments=before.segments[: self.kept] + self.part.segments)

    def after(self, earlier: Change) -> Change:
        """Return one change for `earlier` followed by this one."""
        own = self.kept - earlier.kept
        if own <= 0:
            return self
        return Change(replace(self.part, segments=earlier.part.segments[:own] + self.part.segments), earlier.kept)


def change(before: OpenPart | None, after: OpenPart) -> Change:
    """Return how a part changed. Segments count as kept only if they are the same objects; new objects are put again."""
    if before is None or not before.segments:
        return Change(after)
    pairs = zip(before.segments, after.segments, strict=False)
    kept = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
    return Change(replace(after, segments=after.segments[kept:]), kept) if kept else Change(after)


@dataclass(frozen=True)
class PartTable:
    """A staged file of changes (see `parttables`): it has `size` bytes and this `digest`, and its index begins at byte `index`.

    `weight` is the number of its changes and segments together.
    """

    file: str
    digest: str
    size: int
    index: int
    weight: int


class OpenParts(Sequence[OpenPart]):
    """The open parts, at most one for each key. Immutable: a change makes a new collection.

    `tables` have the parts of an earlier moment; `changes` are the parts that have changed since then. `rows` counts the rows of
    all parts, and `files` are the staged files that hold these rows.

    If there are tables, a collection that has travelled, or that belongs to a record other than the head, is *unread*: it knows
    only its changes until `PartTables.read` makes a whole one of it.
    """

    def __init__(self, parts: Iterable[OpenPart] = ()) -> None:
        self.tables: tuple[PartTable, ...] = ()
        self._base: Mapping[Key, OpenPart] = {}
        self._parts: dict[Key, OpenPart] | None = {part.key: part for part in parts}
        self._since: dict[Key, Change | None] = dict.fromkeys(self._parts)
        self.rows = sum(part.rows for part in self._parts.values())
        self._files: dict[str, int] = {}
        for part in self._parts.values():
            _count(self._files, part, 1)

    @staticmethod
    def unread(changes: Mapping[Key, Change | None], tables: tuple[PartTable, ...]) -> OpenParts:
        """Return the parts of a record that names tables, without reading them; the change `None` stands for a part that has ended."""
        parts = OpenParts()
        parts.tables, parts._parts, parts._since = tables, None, dict(changes)
        return parts

    def upon(self, base: OpenParts) -> OpenParts:
        """Return the whole collection for an unread one; `base` are the parts in its tables. `ValueError` if they do not fit together."""
        known = base.by_key
        ended = [key for key, changed in self._since.items() if changed is None]
        changes = [(key, changed) for key, changed in self._since.items() if changed is not None]
        return base.changed(ended, [changed.applied(known.get(key)) for key, changed in changes])

    def laid_down(self, tables: tuple[PartTable, ...]) -> OpenParts:
        """Return the same parts, now that `tables` have them all."""
        laid = self.changed((), ())
        laid.tables, laid._base, laid._since = tables, self.by_key, {}  # noqa: SLF001 - one of its own
        return laid

    def changed(self, ended: Iterable[Key], parts: Iterable[OpenPart]) -> OpenParts:
        """Return the parts that are open when some have ended and `parts` are new or changed; these come after all others."""
        after = object.__new__(OpenParts)
        after.tables, after._base, after.rows = self.tables, self._base, self.rows
        after._parts, after._since, after._files = dict(self.by_key), dict(self._since), dict(self._files)
        for key in ended:
            after._drop(key)
            after._since.pop(key, None)
            if key in self._base:
                after._since[key] = None
        for part in parts:
            key = part.key
            after._drop(key)
            after._parts[key] = part
            after._since[key] = None  # `changes` compares the part with the base
            after.rows += part.rows
            _count(after._files, part, 1)
        return after

    def _drop(self, key: Key) -> None:
        part = self.by_key.pop(key, None)
        if part is not None:
            self.rows -= part.rows
            _count(self._files, part, -1)

    @property
    def by_key(self) -> dict[Key, OpenPart]:
        """The parts by their keys. Callers must not change the mapping."""
        if self._parts is None:
            msg = "the parts that are open were asked for, and the tables that have them are not read"
            raise RuntimeError(msg)
        return self._parts

    @property
    def files(self) -> Iterable[str]:
        """The staged files that hold rows of these parts, and the files of the tables."""
        yield from self._files
        yield from (table.file for table in self.tables)

    @property
    def changes(self) -> dict[Key, Change | None]:
        """What has changed since the tables were written, all parts if there are none; `None` stands for a part that has ended."""
        if self._parts is None:
            return self._since
        parts, base = self._parts, self._base
        return {key: change(base.get(key), parts[key]) if key in parts else None for key in self._since}

    @property
    def count_changed(self) -> int:
        """How many parts have changed since the tables were written."""
        return len(self._since)

    def items(self) -> ItemsView[Key, OpenPart]:
        """Return keys and parts."""
        return self.by_key.items()

    def __len__(self) -> int:
        return len(self.by_key)

    def __iter__(self) -> Iterator[OpenPart]:
        return iter(self.by_key.values())

    @overload
    def __getitem__(self, at: int) -> OpenPart: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[OpenPart, ...]: ...

    def __getitem__(self, at: int | slice) -> OpenPart | tuple[OpenPart, ...]:
        return tuple(self)[at]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (OpenParts, tuple)):
            return NotImplemented
        return tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return f"OpenParts({self.changes if self._parts is None else tuple(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel in the form of a record: tasks read their own parts from the tables."""
        return (OpenParts.unread, (self.changes, self.tables)) if self.tables else (OpenParts, (tuple(self),))


def _count(files: dict[str, int], part: OpenPart, by: int) -> None:
    """Add the segments of a part to the number of segments in each file, or subtract them (`by` is 1 or -1)."""
    for segment in part.segments:
        count = files.get(segment.file, 0) + by
        if count:
            files[segment.file] = count
        else:
            del files[segment.file]


# -- in JSON -----------------------------------------------------------------------------------------------------------


def part_form(part: OpenPart, kept: int = 0) -> dict[str, Any]:
    """Return a part, or a change that keeps segments, in its JSON form. Empty fields of later versions are left out."""
    kind = {name: value for name, value in vars(part.kind).items() if name not in _LATER_KIND or value not in _NOTHING}
    form = vars(part) | {"kind": kind, "segments": [_segment_form(segment) for segment in part.segments]}
    if part.kind.recipients:
        kind["recipients"] = list(part.kind.recipients)
    if not part.name:
        del form["name"]
    if kept:
        form["kept"] = kept
    return form


def _segment_form(segment: Segment) -> dict[str, Any]:
    form = vars(segment)
    return form if segment.key else {name: value for name, value in form.items() if name != "key"}


def part_of(form: dict[str, Any]) -> Change:
    """Return the change from the JSON form of `part_form`; a malformed form raises `KeyError`, `TypeError`, `ValueError` or the like."""
    if form.get("name"):
        check_filled(form["name"])
    kind, kept = form["kind"], form.get("kept", 0)
    recipients = tuple(kind.get("recipients", ()))
    if not all(isinstance(recipient, str) for recipient in recipients):
        msg = f"the recipients {recipients!r}"
        raise TypeError(msg)
    if not isinstance(kept, int) or kept < 0:
        msg = f"{kept!r} segments kept"
        raise ValueError(msg)
    fields = {name: value for name, value in form.items() if name != "kept"}
    fields |= {"kind": Kind(**(kind | {"recipients": recipients})), "segments": segments_of(form)}
    part = OpenPart(**fields)
    check_relative([part.bucket, *(segment.file for segment in part.segments)])
    return Change(part, kept)


def changes_form(changes: Iterable[tuple[Key, Change | None]]) -> dict[str, Any]:
    """Return changes in the JSON form of a record and of a table's line."""
    given = list(changes)
    ended = [list(key) for key, changed in given if changed is None]
    return {"open": [part_form(*changed) for _, changed in given if changed is not None]} | (
        {"ended": ended} if ended else {}
    )


def changes_of(form: dict[str, Any]) -> dict[Key, Change | None]:
    """Return the changes from the JSON form of `changes_form`.

    A malformed form raises `KeyError`, `TypeError`, `ValueError` or the like.
    """
    changed = [part_of(part) for part in form["open"]]
    ended = [(str(bucket), str(name), int(writer)) for bucket, name, writer in form.get("ended", ())]
    changes: dict[Key, Change | None] = dict.fromkeys(ended)
    return changes | {one.part.key: one for one in changed}


def open_form(parts: OpenParts) -> dict[str, Any]:
    """Return the open parts in the JSON form of a record."""
    form = changes_form(parts.changes.items())
    return form | ({"open_tables": [vars(table) for table in parts.tables]} if parts.tables else {})


def open_of(form: dict[str, Any]) -> OpenParts:
    """Return the open parts from the JSON form of `open_form`, unread if there are tables; a malformed form raises as in `changes_of`."""
    changes, tables = changes_of(form), tuple(PartTable(**table) for table in form.get("open_tables", ()))
    check_relative(table.file for table in tables)
    whole = OpenParts.unread(changes, tables)
    return whole if tables else whole.upon(OpenParts())


def segments_of(form: dict[str, Any]) -> tuple[Segment, ...]:
    """Return the segments from the JSON form of a part or of a growth."""
    return tuple(Segment(**segment) for segment in form["segments"])


def check_relative(paths: Iterable[str]) -> None:
    """Raise `ValueError` for a path that could lead out of its directory; no record that we put has such a path."""
    for path in paths:
        if path.startswith("/") or (".." in path and ".." in path.split("/")):
            msg = f"the path {path!r}"
            raise ValueError(msg)
