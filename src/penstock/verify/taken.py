"""Which bytes of a source the committed batches of a query have read, from its checkpoint alone.

The answer is in the offset of the last committed batch: files at or before the cursor were read, but for those within
`lateness` of it that `recent` does not have; of the file that a byte limit cut, the bytes up to the cut. What else is
there is not ingested yet, which is no fault. Further behind the cursor than `lateness` nothing is remembered: such a
file counts as read, so that one that came too late and was only reported shows up as missing, as it should.

A batch is committed when the ledger says so or Spark does, whichever is later: Spark's log may lack the last batch (a
crash after the put), and a ledger that lost its end must not pass for one that never had it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError, StorageError
from penstock.query.checkpoint import Checkpoint
from penstock.sink.sink import STATE_DIRECTORY
from penstock.source import recent
from penstock.source.cursor import Cursor, FileVersion, Split
from penstock.source.noted import Notes
from penstock.source.scan import Scan
from penstock.storage import locate

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


def changed_columns(view: SinkView) -> frozenset[str]:
    """Return the columns of the source that have changed since the first rows, as the checkpoint of an ingest has noted."""
    place = view.sink.options["checkpointLocation"]
    if not place:
        return frozenset()
    try:
        query = Checkpoint(place).query_id()
        committed = -1 if query is None else view.head.last_batch(query)
        notes = Notes(*_below(place)).bound(committed)
    except (OptionError, StorageError):
        return frozenset()
    if not notes:
        return frozenset()
    first = {column["name"]: column for column in notes[0].fields}
    return frozenset(column["name"] for column in notes[-1].fields if first.get(column["name"]) != column)


def _below(checkpoint: str) -> tuple[Storage, str]:
    storage, path = locate(checkpoint)
    return storage, f"{path}/penstock"


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

    Raises `StorageError` if it cannot be listed, `DamagedState` if the offset is damaged.
    """
    listed = Scan.of(storage, root, options).refresh().came
    files = sorted((file for file, _ in listed), key=lambda file: file.order)
    if offset is None:
        return Taken.of(files, list(map(_whole, files)), [_UNTOLD])
    if not offset:
        return Taken.of(files, [])
    return _passed(files, offset)


def _whole(file: FileVersion) -> Split:
    return Split(file, 0, file.size)


def _passed(files: list[FileVersion], offset: dict[str, Any]) -> Taken:
    """Return what an offset that has one of our batches says was read."""
    cursor = Cursor.from_json(offset)
    files = _from_floor(files, cursor)
    late, notes = _late(files, cursor, offset)
    cut = _cut(files, cursor)
    not_whole = late | {split.file.path for split in cut}
    splits = [_whole(file) for file in files if cursor.passed(file) and file.path not in not_whole] + cut
    return Taken.of(files, splits, notes + _uncounted(splits, cursor))


def _from_floor(files: list[FileVersion], cursor: Cursor) -> list[FileVersion]:
    """Return the files that the query reads at all: those from before its `startingFrom` it never will."""
    floor = cursor.floor
    return files if floor is None else [file for file in files if file.modified_ns >= floor]


def _cut(files: list[FileVersion], cursor: Cursor) -> list[Split]:
    """Return the beginning of the file that a byte limit cut, if there is one."""
    if cursor.cut is None:
        return []
    return [Split(file, 0, cursor.at) for file in files if file.path == cursor.cut.path]


def _late(files: list[FileVersion], cursor: Cursor, offset: dict[str, Any]) -> tuple[set[str], list[str]]:
    """Return the files behind the cursor that were not read, and what is to be said about it."""
    if cursor.order is None:
        return set(), []
    remembered = offset["recent"]
    passed = filter(cursor.passed, files)
    inside = {file.key: file for file in passed if file.modified_ns >= remembered["from"]}
    times = {key: file.modified_ns for key, file in inside.items()}
    answer = recent.recall(remembered, times, (), cursor.latest_ns)
    if answer.near is None:
        return set(), [_FORGOTTEN]
    gone = len(answer.away)
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
