"""Reading a log: from a position on, in batches or record by record, also behind a live writer.

Three modes. `tail`: what is torn at the end is the end. `strict`: it is an error. `salvage`: damage is passed over, and told
(`skipped`). Damage before the end is an error in the first two: `DamagedState`, with file, offset, found and expected.

What may happen while a reader looks, and the rule that makes it harmless:

1. *Half a group.* The writer is in the middle of it. Rule: what is not right in the last segment is the end for now, unless
   somebody says that it was durable (`form`). It is looked at again at the next call.
2. *The end moves while it is looked at.* A part was read before a write and a part behind it. Rule: before anything is called
   damage it is read again; whoever says that it is durable said so when it was whole.
3. *The writer rolls.* Rule: the header of the next segment names the length of this one, and is only there when that length
   is durable. So first all of it is read, then the next one is opened.
4. *A purge.* Rule: a segment is held while it is read; a purge deletes the oldest first and stops at one that is held.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import DamagedState, Locked, NotThere, OptionError, PenstockError, PositionError, UsageError
from penstock.storage import locate
from penstock.wal import form
from penstock.wal.form import Position
from penstock.wal.segment import LogSegment, first, follower, numbers, path_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from penstock.storage import Storage
    from penstock.wal.form import Header, LogBatch

MODES = ("tail", "strict", "salvage")


@dataclass(frozen=True)
class Skipped:
    """What a salvage passed over: bytes [start, end) of a segment."""

    path: str
    start: int
    end: int


class Reader:
    """Reads the log in `directory` from `start` (its first record by default). Not shared between threads.

    Iterating ends at the end of the log; iterating again, or `advance`, goes on there with what was appended since.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        start: Position | None = None,
        *,
        mode: str = "tail",
        storage: Storage | None = None,
    ) -> None:
        if mode not in MODES:
            msg = f"mode={mode!r} is not a way to read a log: expected one of {', '.join(MODES)}"
            raise OptionError(msg)
        self._storage, self._directory = locate(directory, storage=storage)
        self._mode = mode
        self._segment: LogSegment | None = None
        self._closed = False
        self._at, self._sequence = form.HEADER_BYTES, 0
        self._batch: LogBatch | None = None  # of the next record, whose index is `_index`
        self._records: list[bytes] = []
        self._index = 0
        self._got: bytes | None = None
        self.skipped: list[Skipped] = []
        if start is not None:
            try:
                self.seek(start)
            except PenstockError:
                self.close()
                raise

    # -- what users call -------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """Return the position of the next record; at the end, where the next one will be."""
        if self._batch is not None and self._index < self._batch.count:
            return self._batch.position(self._index)
        number = self._segment.number if self._segment else next(iter(numbers(self._storage, self._directory)), 1)
        return Position(number, self._at + form.GROUP_HEAD_BYTES)

    @property
    def log(self) -> bytes:
        """Return the id of the log, which a log that is begun anew has another one of; `b""` before anything was found of it."""
        return self._segment.header.log if self._segment and self._segment.header else b""

    @property
    def sequence(self) -> int:
        """Return the sequence number of the next record: how many were ever appended before it."""
        if self._batch is not None and self._index < self._batch.count:
            return self._batch.sequence + self._index
        return self._sequence

    def seek(self, position: Position) -> None:
        """Go to a position that the log gave; `PositionError` if none of its records, nor its end, is there.

        `DamagedState` if the record is damaged, or the position cannot be told from one behind damage.
        The end of the last segment that was purged is the begin of the first one that is there. Behind an error the reader is where
        it was.
        """
        self._check_open()
        before = self.__dict__.copy()
        self._segment = None  # which is kept until there is another one
        try:
            self._go(position)
        except BaseException:  # whatever it is, the reader must not be somewhere else
            self._let_go()
            self.__dict__.update(before)
            raise
        if before["_segment"] is not None:
            before["_segment"].close()

    def _go(self, position: Position) -> None:
        segment = self._open(position.segment)
        if segment is None:
            if self._begin() and self._segment and self._segment.header and _is_end(position, self._segment.header):
                return
            there = numbers(self._storage, self._directory)
            gone = "it was purged" if there and position.segment < there[0] else "it is beyond the end"
            begin = Position(there[0], form.FIRST_ENTRY) if there else "none"
            self._refuse(position, f"{gone}; the first position is {begin}")
        self._enter(segment, 0)
        head = segment.head_of(position.offset)
        batch = segment.batch(head) if head >= form.HEADER_BYTES and head % 8 == 0 else None
        index = (position.offset - head - form.GROUP_HEAD_BYTES) // form.ENTRY_BYTES
        if batch is not None and index < batch.count:
            self._at, self._sequence = batch.end, batch.sequence + batch.count
            self._batch, self._records, self._index = batch.rest(index), batch.rest(index).records(), 0
            return
        at, _, sequence, _ = segment.end()
        self._enter(segment, sequence)
        self._at = at
        if position.offset != at + form.GROUP_HEAD_BYTES:
            if position.offset > at and self._mode != "salvage":
                self._behind()  # it may be no end: then that is damage
            where = "beyond the end of the log or of the segment" if position.offset > at else "inside a record"
            self._refuse(position, f"it is {where}; segment {position.segment} ends at byte {at}")

    def advance(self) -> bool:
        """Go on to the next record; False at the end of the log."""
        while self._closed or self._batch is None or self._index >= self._batch.count:
            if not self._take():
                self._got = None
                return False
            self._records = self._batch.records() if self._batch else []
        self._got = self._records[self._index]
        self._index += 1
        return True

    def get(self) -> bytes:
        """Return the record that `advance` went to."""
        if self._got is None:
            self._refuse(self.position, "there is no record before the first, or behind a failed, `advance`")
        return self._got

    def __iter__(self) -> Iterator[bytes]:
        """Yield records up to the end of the log."""
        while self.advance():
            yield self._records[self._index - 1]

    def batches(self) -> Iterator[LogBatch]:
        """Yield what is left group by group: the fast way."""
        while (self._batch is not None and not self._closed) or self._take():
            batch = self._batch
            if batch is not None and self._index < batch.count:
                yield batch.rest(self._index)
            self._batch = None

    def close(self) -> None:
        """Let the log go. Idempotent. What it says of its place stays; to read on is a `UsageError`."""
        self._closed = True
        self._let_go()

    def __enter__(self) -> Reader:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        if self._segment is not None:
            self._segment.close()

    def _check_open(self) -> None:
        if self._closed:
            msg = f"this reader of {self._directory!r} was closed: open another one, at its position"
            raise UsageError(msg)

    def _refuse(self, position: Position, why: str) -> NoReturn:
        msg = f"{position} is no position of {self._directory!r}: {why}"
        raise PositionError(msg)

    def _open(self, number: int) -> LogSegment | None:
        """Return a segment that has a header, held; `None` if there is none, or it is being purged."""
        with suppress(NotThere, Locked):
            segment = LogSegment(self._storage, self._directory, number, hold=True)
            if segment.header is not None:
                return segment
            segment.close()
        return None

    def _enter(self, segment: LogSegment, sequence: int) -> None:
        before, self._segment = self._segment, segment
        if before is not None and before is not segment:
            before.close()
        self._at, self._sequence = form.HEADER_BYTES, sequence
        self._batch, self._got = None, None

    def _take(self) -> bool:
        """Go to the next batch of records; False at the end of the log. `UsageError` if the reader was closed."""
        self._check_open()
        while self._segment is not None or self._begin():
            batch = self._right() or self._behind()
            if batch is None:
                return False
            self._at, self._sequence = batch.end, batch.sequence + batch.count
            if batch.kind == form.RECORDS:
                self._batch, self._index = batch, 0
                return True
            if not batch.flags & form.MAY_SKIP:
                msg = (
                    f"{self._path!r} has a group of type {batch.kind} at byte {batch.at}, expected {form.RECORDS}: use the "
                    "Penstock that wrote it, or newer"
                )
                raise DamagedState(msg)
        return False

    @property
    def _path(self) -> str:
        return self._segment.path if self._segment else self._directory

    def _begin(self) -> bool:
        """Open the first segment there is."""
        segment = (
            self._salvaged_behind(0) if self._mode == "salvage" else first(self._storage, self._directory, hold=True)
        )
        if segment is None or segment.header is None:
            return False
        self._enter(segment, segment.header.sequence)
        return True

    def _right(self) -> LogBatch | None:
        """Return the group where the reader is, `None` if it is not right, or has another number than the next one."""
        batch = self._segment.batch(self._at) if self._segment else None
        return batch if batch is not None and batch.sequence == self._sequence else None

    def _behind(self) -> LogBatch | None:
        """Return the next group behind a place where none is right: in the next segment, or written meanwhile."""
        segment = self._segment
        if segment is None:
            return None
        if self._mode == "salvage":
            return self._salvaged(segment)
        following = follower(self._storage, self._directory, segment.number, hold=True)
        try:
            segment.refresh()
            batch = self._right()
            if batch is None and following is not None and following.header is not None:
                self._check_end(segment, following.path, following.header)
                entered, following = following, None
                self._enter(entered, self._sequence)
                return self._right() or self._behind()
        finally:
            if following is not None:
                following.close()
        return batch or self._at_the_end(segment)

    def _check_end(self, segment: LogSegment, path: str, header: Header) -> None:
        """Make sure that all of the segment was read that counts, as the header of the next one says."""
        right = (header.end, header.sequence) == (self._at, self._sequence)
        with suppress(NotThere):  # purged, where nothing can be held: all of it was read
            right = right and segment.ends_at(header)
        if not right:
            self._damaged(
                f"found the end of what is right, behind {self._sequence} records; expected that of byte {header.end}, "
                f"behind {header.sequence}, as {path!r} says"
            )

    def _at_the_end(self, segment: LogSegment) -> LogBatch | None:
        if segment.size == self._at:
            return None
        if segment.is_torn(self._at, self._sequence):
            if self._mode == "strict":
                self._damaged(f"found {segment.size - self._at} bytes of a torn write, expected a whole group")
            return None
        segment.refresh()  # see failure 2
        batch = self._right()
        if batch is None:
            self._damaged(f"found bytes that do not fit their checksum or number, expected record {self._sequence}")
        return batch

    def _damaged(self, what: str) -> NoReturn:
        msg = f"{self._path!r} is damaged at byte {self._at}: {what}; restore it from a copy, or repair the log, which drops what is behind"
        raise DamagedState(msg)

    def _salvaged(self, segment: LogSegment) -> LogBatch | None:
        """Return the next group that is right anywhere behind, and tell what was passed over."""
        segment.refresh()
        batch = self._right() or segment.find(self._at, self._sequence)
        if (batch.at if batch else segment.size) > self._at:
            self._skip(segment.path, self._at, batch.at if batch else segment.size)
        if batch is not None:
            return batch
        following = self._salvaged_behind(segment.number)
        if following is None or following.header is None:
            return None
        self._enter(following, following.header.sequence)
        return self._right() or self._salvaged(following)

    def _salvaged_behind(self, number: int) -> LogSegment | None:
        """Return the next segment that has a header, held; one whose header is damaged is passed over."""
        for later in numbers(self._storage, self._directory):
            if later > number:
                try:
                    if segment := self._open(later):
                        return segment
                except DamagedState:
                    path = path_of(self._directory, later)
                    self._skip(path, 0, self._storage.stat(path).size)
        return None

    def _skip(self, path: str, start: int, end: int) -> None:
        if Skipped(path, start, end) not in self.skipped:
            self.skipped.append(Skipped(path, start, end))


def _is_end(position: Position, following: Header) -> bool:
    """Tell whether this is the end of the segment in front of the one that has this header."""
    return position == (following.previous, following.end + form.GROUP_HEAD_BYTES)
