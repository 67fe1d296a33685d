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

from penstock.query.checkpoint import Checkpoint
from penstock.sink.sink import STATE_DIRECTORY
from penstock.source import recent
from penstock.source.cursor import Cursor, FileVersion, Split
from penstock.source.scan import Scan

if TYPE_CHECKING:
    from penstock.options import Options
    from penstock.storage import Storage
    from penstock.verify.files import SinkView

_UNTOLD = "the checkpoint cannot be read, so every file of the source is taken to be ingested"


@dataclass(frozen=True)
class Taken:
    """What was read of a source: files or their beginnings. `waiting_*`: what is there and no batch has read yet."""

    splits: tuple[Split, ...]
    waiting_files: int
    waiting_bytes: int
    notes: tuple[str, ...]


def last_offset(view: SinkView) -> dict[str, Any] | None:
    """Return our source's end offset of the last committed batch; `{}` if none is, `None` if it cannot be read here."""
    sink = view.sink
    noted, usual = sink.options["checkpointLocation"], f"{sink.root}/{STATE_DIRECTORY}/checkpoint"
    places = [noted, usual]  # the directory may have moved with its checkpoint
    for place in filter(None, places):
        offset = _offset(Checkpoint(place), view)
        if offset is not None:
            return offset
    return None if view.head.batches else {}


def _offset(checkpoint: Checkpoint, view: SinkView) -> dict[str, Any] | None:
    query = checkpoint.query_id()
    if query is None or (view.head.batches and query not in view.head.batches):
        return None  # of another query: the directory was moved, and something else is there by now
    batch = max([view.head.last_batch(query), *checkpoint.numbers("commits")])
    if batch < 0:
        return {}
    offsets = [offset for offset in checkpoint.offsets(batch) if offset is not None]
    return offsets[0] if len(offsets) == 1 else None


def taken(storage: Storage, root: str, options: Options, offset: dict[str, Any] | None) -> Taken:
    """Return what of the source at `root` the batches up to `offset` have read, by the listing of now.

    Raises `StorageError` if it cannot be listed, `DamagedState` if the offset is damaged.
    """
    listed = Scan.of(storage, root, options).refresh().came
    files = sorted((file for file, _ in listed), key=lambda file: file.order)
    if offset is None:
        return Taken(tuple(Split(file, 0, file.size) for file in files), 0, 0, (_UNTOLD,))
    if not offset:
        return Taken((), len(files), sum(file.size for file in files), ())
    return _passed(files, offset)


def _passed(files: list[FileVersion], offset: dict[str, Any]) -> Taken:
    cursor = Cursor.from_json(offset)
    files = [file for file in files if cursor.floor is None or file.modified_ns >= cursor.floor]
    late, notes = _late(files, cursor, offset)
    cut = cursor.cut.path if cursor.cut else None
    splits = [Split(f, 0, f.size) for f in files if cursor.passed(f) and f.path not in late and f.path != cut]
    ends = {split.file.path: split.end for split in splits}
    if cursor.cut is not None:
        splits += [Split(file, 0, cursor.at) for file in files if file.path == cut]
        ends |= {split.file.path: split.end for split in splits}
    notes += _uncounted(splits, cursor)
    waiting = [file.size - ends.get(file.path, 0) for file in files if ends.get(file.path, -1) < file.size]
    return Taken(tuple(splits), len(waiting), sum(waiting), tuple(notes))


def _late(files: list[FileVersion], cursor: Cursor, offset: dict[str, Any]) -> tuple[set[str], list[str]]:
    """Return the files behind the cursor that were not read, and what is to be said about it."""
    if cursor.order is None:
        return set(), []
    since = offset["recent"]["from"]
    inside = {f.key: f for f in files if cursor.passed(f) and f.modified_ns >= since}
    times = {key: file.modified_ns for key, file in inside.items()}
    answer = recent.recall(offset["recent"], times, (), cursor.latest_ns)
    if answer.near is None:
        return set(), ["too many files came or went since to tell which behind the cursor were read: all count as read"]
    gone = len(answer.away)
    notes = [f"{gone} files that were read are not there any more, or changed since"] if gone else []
    return {inside[key].path for key in answer.near}, notes


def _uncounted(splits: list[Split], cursor: Cursor) -> list[str]:
    """Say so if the checkpoint has counted other input than there is now."""
    found = sum(split.end == split.file.size for split in splits), sum(split.end for split in splits)
    counted = cursor.files, cursor.bytes
    if found == counted:
        return []
    note = (
        f"the checkpoint has counted {counted[0]} files with {counted[1]} bytes as read, there are {found[0]} with "
        f"{found[1]} bytes now: files were removed, changed, or came too late"
    )
    return [note]
