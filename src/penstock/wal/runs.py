"""Runs of a log, from one position to another: planned in one place, read in others, always with the same records.

This presents the log as a stream. A *run* is the part between two offsets. An offset is a position, the id of the log,
and the places where the run that ends there may be cut into tasks. What may happen, and the rule that makes it
harmless:

1. A group was written and is not synced. A run includes it, and a downstream consumer commits the run. The power fails,
   the group is gone, and the writer's next group takes its place. Rule: the end of a run is made durable before anybody
   gets it.
2. A run is read again, and the log has grown. Rule: it goes from its start to its end, or it fails; where the log ends
   does not matter.
3. The segment in which a run ended was read to its end, and purged. Rule: that is where the next one begins
   (`Reader.seek`).
4. A purge removed records that were not read, or the log was restored from a copy that ends earlier. Rule:
   `PositionError`; nothing is skipped. To detect the copy if it was appended to since, up to the end of the last run or further: the
   offset has the checksum before its position (`check`), which all checksums before it go into, and it is compared. If that segment was
   purged since, there is nothing to compare with.
5. The log was removed, and begun again under the same name. Rule: the offset names the log, by its id.
6. A run began before there was a log. Rule: it begins with record number 0, or it fails.
7. The first run is read again, and has no start: Spark keeps no offset before it, and asks for one at each start, when
   the log may begin or end elsewhere. Rule: the end of that run stores in `from` where the run began, and its start
   says that it is such a start (`begin`).
8. The first run of `latest` is empty, and ends; records come; the next `latest` is after them. Rule: the end of the
   first run is another offset than its start, even if nothing lies between them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import DamagedState, NotThere, OptionError, PositionError
from penstock.wal import form
from penstock.wal.form import Position
from penstock.wal.log import Log
from penstock.wal.reader import Reader
from penstock.wal.segment import path_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.storage import Storage
    from penstock.wal.form import LogBatch

SCHEMA = pa.schema([("segment", pa.int32()), ("offset", pa.int64()), ("record", pa.binary())])
VERSION = 1
_BEGIN, _FROM, _CHECK = "begin", "from", "check"
NO_LOG = Position(0, 0)  # before the first record of a log that does not exist yet
_ARROW_BYTES = 1 << 20  # small groups are combined until they have this size


@dataclass(frozen=True)
class LogRun:
    """Records from `start` up to `end`, of the log with this id (hex; "" if it is not known yet)."""

    log: str
    start: Position
    end: Position


class _Group(NamedTuple):
    """A group of records, the id of its log, and the position where the next one begins."""

    log: str
    end: Position
    batch: LogBatch

    @property
    def size(self) -> int:
        """Return its length in the log, in bytes."""
        return self.batch.end - self.batch.at


def begin(directory: str, starting: str, storage: Storage) -> dict[str, Any]:
    """Return the offset before the first run: `earliest`, `latest`, or a position as text."""
    if starting not in {"earliest", "latest"}:
        return _offset("", Position.parse(starting)) | {_BEGIN: True}
    info = Log(directory, storage=storage).info()
    return _offset("", (info.end if starting == "latest" else info.start) if info.epoch else NO_LOG) | {_BEGIN: True}


class LogPlanner:
    """Plans one run after another. It keeps its place in the log, so that a look at an idle log costs almost nothing.

    If the storage has locks, it holds the segment where it is, so a purge deletes neither that segment nor those after
    it.
    """

    def __init__(self, directory: str, storage: Storage) -> None:
        self._directory, self._storage = directory, storage
        self._reader: Reader | None = None
        self._at: dict[str, Any] | None = None  # the offset where the reader is

    def plan(
        self, start: dict[str, Any], *, size: int | None, split: int, until: Position | None = None
    ) -> dict[str, Any]:
        """Return the offset of the end of a run of at most `size` bytes, in whole groups and at least one; `start` if there is none.

        After the offset of `begin` there is a run in any case, see failure 8.

        The run may be cut into tasks of about `split` bytes. It ends at or before `until`, an end of the log at an
        earlier time.
        """
        run = _run(start, start)
        if self._reader is None or self._at != start:
            self.close()
            self._reader = _reader(self._directory, run, self._storage)
            if self._reader.log.hex() == run.log:  # another log is told when it has something to read
                self._check_before(start, run.start)
        self._at = None
        cuts: list[Position] = []
        left, last = split, None
        for group in self._within(self._reader, run, size, until):
            if left <= 0 and last is not None:
                cuts.append(last.end)
                left = split
            left, last = left - group.size, group
        self._at = _begun_at(start, _offset(start["log"], run.end)) if _BEGIN in start else start
        if last is not None:  # everything before the last segment is durable, or that segment would not exist
            self._storage.persist(self._directory, [path_of("", last.end.segment)[1:]])
            self._at = _begun_at(start, _offset(last.log, last.end, cuts) | {_CHECK: f"{last.batch.check:016x}"})
        return self._at

    def _check_before(self, start: dict[str, Any], at: Position) -> None:
        """Raise `PositionError` if the log has other records before an offset than were read (failure 4)."""
        if _CHECK not in start:
            return
        begin = at.offset - form.GROUP_HEAD_BYTES - form.CHECK_BYTES
        with suppress(NotThere), self._storage.open(path_of(self._directory, at.segment)) as segment:
            check = f"{int.from_bytes(segment.read(begin, form.CHECK_BYTES), 'little'):016x}"
            if check != start[_CHECK]:
                msg = (
                    f"the log {self._directory!r} has other records before {at} than were read: checksum {check}, expected "
                    f"{start[_CHECK]}; it was put back from an older copy and appended to since: restore the log that was read, or give "
                    "the query a new checkpoint, with startingFrom where the copy ended"
                )
                raise PositionError(msg)

    def _within(self, reader: Reader, run: LogRun, size: int | None, until: Position | None) -> Iterator[_Group]:
        """Yield the groups of the next run; the arguments are those of `plan`."""
        taken = 0
        for group in _groups(reader, self._directory, run):
            if until is not None and group.batch.position(0) >= until:
                return
            if size is not None and taken and taken + group.size > size:
                return
            taken += group.size
            yield group

    def close(self) -> None:
        """Close the log. Idempotent."""
        if self._reader is not None:
            self._reader.close()


def runs(start: dict[str, Any], end: dict[str, Any]) -> list[LogRun]:
    """Return the run between two offsets, in parts for tasks; reads nothing."""
    whole = _run(start, end)
    if _BEGIN in start and _FROM in end:
        whole = _run(end | {"position": end[_FROM]}, end)
    if whole.start == whole.end:
        return []
    bounds = [whole.start, *map(Position.parse, end["cuts"]), whole.end]
    return [LogRun(whole.log, *bound) for bound in pairwise(bounds)]


def read(directory: str, run: LogRun, storage: Storage) -> Iterator[pa.RecordBatch]:
    """Yield the records of a run with their positions, by `SCHEMA`. `PositionError` or `DamagedState` if the run is incomplete."""
    ready: list[pa.RecordBatch] = []
    at, size = run.start, 0
    with _reader(directory, run, storage) as reader:
        for group in _groups(reader, directory, run):
            at = group.end
            if at > run.end:
                break
            ready.append(_arrow(group.batch))
            size += group.size
            if size >= _ARROW_BYTES or at == run.end:
                yield from _together(ready)
                ready, size = [], 0
            if at == run.end:
                return
    msg = (
        f"the log {directory!r} has a group that ends at {at}, and none that ends at {run.end}, where the plan does: it was changed, "
        "or (on HDFS) a writer is opening it, or died at that; start the query again when a writer has"
    )
    raise DamagedState(msg)


def _reader(directory: str, run: LogRun, storage: Storage) -> Reader:
    return Reader(directory, None if run.start == NO_LOG else run.start, storage=storage)


def _groups(reader: Reader, directory: str, run: LogRun) -> Iterator[_Group]:
    """Yield the groups from the start of a run on; make sure that they belong to the run's log."""
    start = run.start
    for batch in reader.batches():
        log = reader.log.hex()
        if log != (run.log or log):
            msg = (
                f"the log {directory!r} has the id {log}, expected {run.log}: it was begun again, or is another one; "
                "give it a new checkpoint"
            )
            raise PositionError(msg)
        if start == NO_LOG and batch.sequence:
            msg = (
                f"the log {directory!r} begins with record {batch.sequence}, expected 0: it was purged before it was read; restore it, "
                "or give it a new checkpoint, which begins with what is kept"
            )
            raise PositionError(msg)
        start = Position(batch.segment, batch.end + form.GROUP_HEAD_BYTES)
        yield _Group(log, start, batch)


def _arrow(batch: LogBatch) -> pa.RecordBatch:
    at = batch.position(0).offset
    offsets = np.arange(at, at + form.ENTRY_BYTES * batch.count, form.ENTRY_BYTES, dtype=np.int64)
    segments = np.full(batch.count, batch.segment, dtype=np.int32)
    columns = [_numbers(segments, pa.int32()), _numbers(offsets, pa.int64()), batch.array().cast(pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _numbers(values: Any, kind: pa.DataType) -> pa.Array:  # noqa: ANN401 - numpy's
    """Return numbers as a column; `pa.array` would import pandas, a fifth of a second in each new process."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _together(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    whole: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole if len(batches) > 1 else batches


def _offset(log: str, at: Position, cuts: Iterable[Position] = ()) -> dict[str, Any]:
    return {"v": VERSION, "log": log, "position": str(at), "cuts": [str(cut) for cut in cuts]}


def _begun_at(start: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
    """Return the end of a run; for the first run, with the place where it began."""
    return end | {_FROM: start["position"]} if _BEGIN in start else end


def _run(start: dict[str, Any], end: dict[str, Any]) -> LogRun:
    first, last = _checked(start), _checked(end)
    return LogRun(end["log"] or start["log"], first, last)


def _checked(offset: dict[str, Any]) -> Position:
    """Return the position in an offset; `DamagedState` for an invalid offset, because Spark does not check its log."""
    try:
        if offset["v"] != VERSION or not isinstance(offset["log"], str):
            raise ValueError  # noqa: TRY301 - reported like any other invalid offset
        _ = [Position.parse(cut) for cut in offset["cuts"]]
        return Position.parse(offset["position"])
    except (AttributeError, KeyError, TypeError, ValueError, OptionError) as error:
        msg = f"the checkpoint has the offset {offset!r}, expected one of version {VERSION}; restore it from a copy"
        raise DamagedState(msg) from error
