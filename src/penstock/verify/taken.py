"""Which bytes of a source the committed batches of a query have read, from its checkpoint alone.

The answer is in the offset of the last committed batch: files at or before the cursor were read, but for those within
`lateness` of it that `recent` does not have; of the file that a byte limit cut, the bytes up to the cut. What else is
there is not ingested yet, which is no fault. Further behind the cursor than `lateness` nothing is remembered: such a
file counts as read, so that one that came too late and was only reported shows up as missing, as it should.

A batch is committed when the ledger says so or Spark does, whichever is later: Spark's log may lack the last batch (a
crash after the put), and a ledger that lost its end must not pass for one that never had it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.errors import FileChanged
from penstock.query.checkpoint import Checkpoint
from penstock.query.offset import check
from penstock.sink.sink import STATE_DIRECTORY
from penstock.source import follow, recent
from penstock.source.archive import archived_files
from penstock.source.clean import archive_of
from penstock.source.cursor import Cursor, FileVersion, Followed, Split
from penstock.source.scan import Scan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.options import Options
    from penstock.storage import Storage
    from penstock.verify.files import SinkView

_UNTOLD = "the checkpoint cannot be read, so every file of the source is taken to be ingested"
_FORGOTTEN = "too many files came or went since to tell which behind the cursor were read: all count as read"


@dataclass(frozen=True)
class Taken:
    """What was read of a source: files or their beginnings. `waiting_*`: what is there and no batch has read yet."""

    splits: tuple[Split, ...]
    waiting_files: int
    waiting_bytes: int
    notes: tuple[str, ...]

    @staticmethod
    def of(files: Sequence[FileVersion], splits: Sequence[Split], notes: Sequence[str] = ()) -> Taken:
        """Return what waits where of `files` only `splits` were read; an empty file waits as well, until it has a split."""
        ends = {split.file.path: split.end for split in splits}
        waiting = [file.size - ends.get(file.path, 0) for file in files if ends.get(file.path, -1) < file.size]
        return Taken(tuple(splits), len(waiting), sum(waiting), tuple(notes))

    def with_archived(self, splits: Sequence[Split]) -> Taken:
        """Return the same with files that are in the archive."""
        return replace(self, splits=(*self.splits, *splits))


def last_offset(view: SinkView) -> dict[str, Any] | None:
    """Return our source's end offset of the last committed batch; `{}` if none is, `None` if it cannot be read here."""
    sink = view.sink
    noted, usual = sink.options["checkpointLocation"], f"{sink.root}/{STATE_DIRECTORY}/checkpoint"
    # The directory may have moved with its checkpoint, so the noted place is not the only one.
    for place in filter(None, [noted, usual]):
        offset = _offset(Checkpoint(place), view)
        if offset is not None:
            return offset
    return None if view.head.batches else {}


def _offset(checkpoint: Checkpoint, view: SinkView) -> dict[str, Any] | None:
    """Return the offset that this checkpoint has of our source; `None` if it has none, or is that of another query."""
    query = checkpoint.query_id()
    # Another query's checkpoint may be there by now, where the directory was moved.
    if query is None or not _may_write(query, view):
        return None
    batch = max([view.head.last_batch(query), *checkpoint.numbers("commits")])
    if batch < 0:
        return {}
    offsets = [offset for offset in checkpoint.offsets(batch) if offset is not None]
    return offsets[0] if len(offsets) == 1 else None


def _may_write(query: str, view: SinkView) -> bool:
    """Tell whether the query is one of those that the sink has a batch of; of a new sink it may be."""
    batches = view.head.batches
    return not batches or query in batches


def taken(storage: Storage, root: str, options: Options, offset: dict[str, Any] | None) -> Taken:
    """Return what of the source at `root` the batches up to `offset` have read, by the listing of now.

    What a source that cleans has archived was read, whole. Raises `StorageError` if a directory cannot be listed,
    `DamagedState` if the offset is damaged.
    """
    listed = Scan.of(storage, root, options).refresh().came
    files = sorted((file for file, _ in listed), key=lambda file: file.order)
    archive = archive_of(storage, options)
    archived = list(map(_whole, archived_files(storage, archive))) if archive else []
    if offset is None:
        return Taken.of(files, [*map(_whole, files), *archived], [_UNTOLD])
    if not offset:
        return Taken.of(files, [])
    if "follow" in offset:
        return _followed(storage, root, files, offset)
    return _passed(files, offset, archived)


def _whole(file: FileVersion) -> Split:
    return Split(file, 0, file.size)


def _passed(files: list[FileVersion], offset: dict[str, Any], archived: list[Split]) -> Taken:
    """Return what an offset that has one of our batches says was read of the `files` that are there, and what is archived."""
    cursor = Cursor.from_json(offset)
    files = _from_floor(files, cursor)
    late, notes = _late(files, cursor, offset, {split.file.key for split in archived})
    cut = _cut(files, cursor)
    not_whole = late | {split.file.path for split in cut}
    splits = [_whole(file) for file in files if cursor.passed(file) and file.path not in not_whole] + cut
    return Taken.of(files, splits, notes + _uncounted(splits + archived, cursor)).with_archived(archived)


def _followed(storage: Storage, root: str, files: list[FileVersion], offset: dict[str, Any]) -> Taken:
    """Return what was read of files that grow: of each its beginning, in whatever file that is by now."""
    check(offset)
    closed = offset["follow"]["closed"]
    notes = []
    if isinstance(closed, dict):
        notes.append(
            f"{closed['splits']} files that stand still are noted beside the checkpoint, and were not compared"
        )
        closed = []
    splits, gone = [], 0
    for path, identity, at, digest, _, modified_ns in [*offset["follow"]["growing"], *closed]:
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
    """Return the files that the query reads at all: those from before its `startingFrom` it never will."""
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
    """Return the files behind the cursor that were not read, and what is to be said about it; `archived` are keys."""
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
    notes = [f"{gone} files that were read are not there any more, or changed since"] if gone else []
    return {inside[key].path for key in answer.near}, notes


def _uncounted(splits: list[Split], cursor: Cursor) -> list[str]:
    """Say so if the checkpoint has counted other input than there is now."""
    files = sum(split.end == split.file.size for split in splits)
    size = sum(split.end for split in splits)
    if (files, size) == (cursor.files, cursor.bytes):
        return []
    note = (
        f"the checkpoint has counted {cursor.files} files with {cursor.bytes} bytes as read, there are {files} with "
        f"{size} bytes now: files were removed, changed, or came too late"
    )
    return [note]
