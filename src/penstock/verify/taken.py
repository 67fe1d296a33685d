"""Finds out which bytes of a source the committed batches of a query have read, from its checkpoint alone.

The answer is in the offset of the last committed batch. Files at or before the cursor were read, except those within `lateness`
of it that `recent` does not have. Of a file that a byte limit cut, the bytes up to the cut were read. Everything else is not
ingested yet, which is not an error. The offset lists files that came too late as not read (`source.late`). About other files that
are older than the cursor by more than `lateness` nothing is remembered: they count as read.

A batch counts as committed if the ledger or Spark says so, whichever has more: Spark's log may lack the last batch (a crash after
the put), and a ledger that has lost its end must not look like one that never had it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import DamagedState, FileChanged, OptionError, StorageError
from penstock.query.checkpoint import Checkpoint
from penstock.query.offset import check
from penstock.sink.sink import STATE_DIRECTORY
from penstock.source import follow, recent
from penstock.source.archive import archived_files
from penstock.source.clean import archive_of
from penstock.source.cursor import Cursor, FileVersion, Followed, Split
from penstock.source.late import CERTAIN, LateFile
from penstock.source.noted import SchemaNotes
from penstock.source.plan import Planner
from penstock.source.scan import Scan
from penstock.source.sides import SideRecords
from penstock.storage import locate
from penstock.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.options import Options
    from penstock.source.noted import SchemaNote
    from penstock.storage import Storage
    from penstock.verify.files import SinkView

UNTOLD = "the checkpoint cannot be read, so every file of the source is taken to be ingested"
_FORGOTTEN = (
    "too many files came or went since, so it is unknown which files before the cursor were read: all count as read"
)


@dataclass(frozen=True)
class Taken:
    """What was read from a source: files or their beginnings. `waiting_*` counts input that is there and no batch has read yet."""

    splits: tuple[Split, ...]
    waiting_files: int
    waiting_bytes: int
    notes: tuple[str, ...]

    @staticmethod
    def of(files: Sequence[FileVersion], splits: Sequence[Split], notes: Sequence[str] = ()) -> Taken:
        """Return the result if only `splits` of `files` were read; an empty file also waits until it has a split."""
        ends = {split.file.path: split.end for split in splits}
        waiting = [file.size - ends.get(file.path, 0) for file in files if ends.get(file.path, -1) < file.size]
        return Taken(tuple(splits), len(waiting), sum(waiting), tuple(notes))

    def with_archived(self, splits: Sequence[Split]) -> Taken:
        """Return the result with files of the archive added."""
        return replace(self, splits=(*self.splits, *splits))


def last_offset(view: SinkView) -> dict[str, Any] | None:
    """Return our source's end offset of the last committed batch; `{}` if no batch is committed, `None` if it cannot be read here."""
    for checkpoint, last in _checkpoints(view):
        offset = _offset(checkpoint, last) if last >= 0 else {}
        if offset is not None:
            return offset
    return None if view.head.batches else {}


def changed_columns(view: SinkView) -> frozenset[str]:
    """Return the columns of the source that have changed since the first rows, by the notes in an ingest's checkpoint."""
    for checkpoint, last in _checkpoints(view):
        notes = _noted(checkpoint, last)
        if notes:
            first = {column["name"]: column for column in notes[0].fields}
            return frozenset(column["name"] for column in notes[-1].fields if first.get(column["name"]) != column)
    return frozenset()


def _noted(checkpoint: Checkpoint, committed: int) -> list[SchemaNote]:
    """Return the schemas with which batches were committed; none if they cannot be read."""
    try:
        storage, path = locate(checkpoint.location)
        return SchemaNotes(storage, f"{path}/penstock").bound(committed)
    except (OptionError, StorageError):
        return []


class ReadBy(NamedTuple):
    """How some batches have read: the time zone for times without one, `None` if it was not set, and the schema.

    A schema of `None` is the schema of the last start.
    """

    zone: str | None = None
    schema: str | None = None


def readings(view: SinkView) -> list[tuple[Cursor, ReadBy]]:
    """Return up to which cursors the query has read in which way, in order, as far as its checkpoint still has them."""
    for checkpoint, last in _checkpoints(view):
        kept = {number: _offset(checkpoint, number) for number in checkpoint.numbers("offsets") if number <= last}
        if any("follow" in offset for offset in kept.values() if offset is not None):
            return []  # there is no cursor, so it is unknown which bytes of growing files were read in which way
        notes = _noted(checkpoint, last)
        ends = [
            (Cursor.from_json(offset), ReadBy(Planner.zone(offset), _schema_of(notes, number)))
            for number, offset in sorted(kept.items())
            if offset is not None
        ]
        later = [way for _, way in ends[1:]]
        changes = zip(ends[:-1], later, strict=True)
        return [(cursor, way) for (cursor, way), after in changes if way != after] + ends[-1:]
    return []


def _schema_of(notes: Sequence[SchemaNote], number: int) -> str | None:
    """Return the schema with which a batch was read, `None` if none was noted."""
    return next((note.schema for note in reversed(notes) if note.batch <= number), None)


def by_reading(splits: Sequence[Split], known: Sequence[tuple[Cursor, ReadBy]]) -> dict[ReadBy, list[Split]]:
    """Return splits by how they were read; a split is cut if that changed in the middle of its file.

    A file counts by its place in the order: a late file counts as read together with its neighbours.
    """
    places: dict[ReadBy, list[Split]] = {}
    for whole in splits:
        split, way = whole, ReadBy()
        for cursor, way in known:
            if cursor.passed(split.file):
                break
            if cursor.cut is not None and cursor.cut.path == split.file.path and split.start < cursor.at < split.end:
                places.setdefault(way, []).append(Split(split.file, split.start, cursor.at))
                split = Split(split.file, cursor.at, split.end)
        places.setdefault(way, []).append(split)
    return places


def _checkpoints(view: SinkView) -> Iterator[tuple[Checkpoint, int]]:
    """Yield the possible checkpoints of the sink's query, each with the last committed batch, -1 if there is none."""
    for checkpoint in map(Checkpoint, _places(view)):
        query = checkpoint.query_id()
        # If the directory was moved, another query's checkpoint may be there by now.
        if query is not None and _may_write(query, view):
            last, noted = view.head.last_batch(query), checkpoint.numbers("commits")
            # A batch without rows may be in the checkpoint alone. What a live query has committed since is not in the view.
            is_now = view.sink.ledger.head().last_batch(query) == last
            yield checkpoint, max([last, *noted]) if is_now else last


def _offset(checkpoint: Checkpoint, batch: int) -> dict[str, Any] | None:
    """Return a batch's end offset of our source; `None` if the checkpoint has none, or several."""
    offsets = [offset for offset in checkpoint.offsets(batch) if offset is not None]
    return offsets[0] if len(offsets) == 1 else None


def standing_files(view: SinkView, offset: dict[str, Any] | None) -> list[Any] | None:
    """Return the followed files that no longer grow, from the offset of a sink's query; `None` if the list is not available."""
    listed = (offset or {}).get("follow", {}).get("closed", [])
    return listed if isinstance(listed, list) else _beside(view, listed)


def _beside(view: SinkView, reference: dict[str, Any]) -> list[Any] | None:
    """Return a list that lies beside the checkpoint, `None` if it is missing or damaged."""
    for place in _places(view):
        with suppress(DamagedState):
            return SideRecords(locate(f"{place}/penstock", name="checkpoint")).load(reference)
    return None


def late_files(view: SinkView, offset: dict[str, Any] | None) -> list[LateFile]:
    """Return the files that the offset of a sink's query lists as not read; none if the list beside the checkpoint is not available."""
    listed = (offset or {}).get("late", {}).get("files", [])
    entries = listed if isinstance(listed, list) else _beside(view, listed)
    return [LateFile.from_json(entry) for entry in entries or ()]


def _places(view: SinkView) -> list[str]:
    """Return the possible places of the checkpoint: the noted place, and DST's own, because DST may have been moved with it."""
    sink = view.sink
    return list(filter(None, [sink.options["checkpointLocation"], f"{sink.root}/{STATE_DIRECTORY}/checkpoint"]))


def _may_write(query: str, view: SinkView) -> bool:
    """Tell whether the sink has a batch of the query; a sink without batches may belong to any query."""
    batches = view.head.batches
    return not batches or query in batches


def taken(
    storage: Storage,
    root: str,
    options: Options,
    offset: dict[str, Any] | None,
    late: Sequence[LateFile] = (),
    standing: list[Any] | None = None,
) -> Taken:
    """Return what the batches up to `offset` have read from the source at `root`, by a new listing; they have not read the files `late`.

    `standing` are the followed files that no longer grow, `None` if their list is not available.

    Files that the source has archived were read as a whole. Raises `StorageError` if a directory cannot be listed, `DamagedState`
    if the offset is damaged.
    """
    listed = Scan.of(storage, root, options).refresh().came
    files = sorted((file for file, _ in listed), key=lambda file: file.order)
    archive = archive_of(storage, options)
    archived = list(map(_whole, archived_files(storage, archive))) if archive else []
    if offset is None:
        return Taken.of(files, [*map(_whole, files), *archived], [UNTOLD])
    if not offset:
        return Taken.of(files, [])
    if "follow" in offset:
        return _followed(storage, root, files, offset, standing)
    return _passed(files, offset, {entry.file.key for entry in late if entry.why in CERTAIN}, archived)


def _whole(file: FileVersion) -> Split:
    return Split(file, 0, file.size)


def _passed(files: list[FileVersion], offset: dict[str, Any], not_read: set[bytes], archived: list[Split]) -> Taken:
    """Return what was read of the `files` that are there, by the offset of a batch, and the archived files."""
    cursor = Cursor.from_json(offset)
    files = _from_floor(files, cursor)
    late, notes = _late(files, cursor, offset, {split.file.key for split in archived})
    cut = _cut(files, cursor)
    too_late = {file.path for file in files if file.key in not_read} if not_read else set()
    if too_late:
        notes.append(f"{counted(len(too_late), 'file')} came too late, not read: see penstock late")
    not_whole = late | too_late | {split.file.path for split in cut}
    splits = [_whole(file) for file in files if cursor.passed(file) and file.path not in not_whole] + cut
    return Taken.of(files, splits, notes + _uncounted(splits + archived, cursor)).with_archived(archived)


def _followed(
    storage: Storage, root: str, files: list[FileVersion], offset: dict[str, Any], standing: list[Any] | None
) -> Taken:
    """Return what was read of followed files: the beginning of each, under whatever name the file has now."""
    check(offset)
    notes = []
    if standing is None:
        count = offset["follow"]["closed"]["splits"]
        notes.append(
            f"{count} files that do not grow any more are listed beside the checkpoint, and that list is missing: they were not compared"
        )
    lost_files, lost_bytes = offset["follow"].get("lost", (0, 0))
    if lost_files:
        notes.append(
            f"{lost_files} followed files went, or were cut, before they were read to their end: at least {lost_bytes} bytes are in no "
            "file here"
        )
    splits, gone = [], 0
    for path, identity, at, digest, _, modified_ns, *_ in [*offset["follow"]["growing"], *(standing or ())]:
        split = Split(FileVersion(path, at, modified_ns, identity), 0, at, Followed(0, digest))
        try:
            follow.opened(storage, root, split).close()
        except FileChanged:
            gone += bool(at)
            continue
        splits.append(split)
    if gone:
        notes.append(f"{gone} followed files are not there any more, or were cut since")
    if sum(split.end for split in splits) != offset["read"][1]:
        notes.append(
            f"the checkpoint has counted {offset['read'][1]} bytes as read, there are {sum(split.end for split in splits)} now: "
            "files were removed or cut after they were read"
        )
    return Taken.of(files, splits, notes)


def _from_floor(files: list[FileVersion], cursor: Cursor) -> list[FileVersion]:
    """Return the files that the query reads at all, without those from before its `startingFrom`."""
    floor = cursor.floor
    return files if floor is None else [file for file in files if file.modified_ns >= floor]


def _cut(files: list[FileVersion], cursor: Cursor) -> list[Split]:
    """Return the beginning of the file that a byte limit cut, if there is one."""
    if cursor.cut is None:
        return []
    return [Split(file, 0, cursor.at) for file in files if file.path == cursor.cut.path]


def _late(
    files: list[FileVersion], cursor: Cursor, offset: dict[str, Any], archived: set[bytes]
) -> tuple[set[str], list[str]]:
    """Return the paths of files before the cursor that were not read, and notes about them; `archived` are keys."""
    if cursor.order is None:
        return set(), []
    remembered = offset["recent"]
    passed = filter(cursor.passed, files)
    inside = {file.key: file for file in passed if file.modified_ns >= remembered["from"]}
    times = {key: file.modified_ns for key, file in inside.items()}
    answer = recent.recall(remembered, times, (), cursor.latest_ns)
    if answer.near is None:
        return set(), [_FORGOTTEN]
    gone = len(answer.away.keys() - archived)
    notes = [f"{counted(gone, 'file')} read before, and not there any more or changed since"] if gone else []
    return {inside[key].path for key in answer.near}, notes


def _uncounted(splits: list[Split], cursor: Cursor) -> list[str]:
    """Return a note if the checkpoint has counted other input than there is now."""
    files = sum(split.end == split.file.size for split in splits)
    size = sum(split.end for split in splits)
    if (files, size) == (cursor.files, cursor.bytes):
        return []
    note = (
        f"the checkpoint has counted {counted(cursor.files, 'file')} with {cursor.bytes} bytes as read, now it is "
        f"{counted(files, 'file')} with {size} bytes: files were removed, changed, or came too late"
    )
    return [note]
