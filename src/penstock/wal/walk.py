"""A reader's place in a log, group by group. The rules are those of `wal.reader`, whose failures are named here by their numbers.

This walk stops at damage, with an error; `salvage` skips it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import DamagedState, Locked, NotThere, PositionError
from penstock.wal import form
from penstock.wal.form import Position
from penstock.wal.order import first, follower, numbers
from penstock.wal.segment import LogSegment

if TYPE_CHECKING:
    from penstock.storage import Storage
    from penstock.wal.form import Header, LogBatch

_OFFSET_MAX = 1 << 62  # the operating system cannot read at larger offsets
_BEYOND = "it is beyond the end of the log or of its segment (not flushed yet, or lost with its writer)"


class Walk:
    """A walk through the log in `directory`: its segment, held; the byte where the next group begins; that group's sequence number.

    At first it is nowhere, which is before the first segment. With `strict` a torn end is an error.
    """

    def __init__(self, storage: Storage, directory: str, *, strict: bool = False) -> None:
        self._storage, self._directory, self._strict = storage, directory, strict
        self.segment: LogSegment | None = None
        self.at, self.sequence = form.HEADER_BYTES, 0

    @property
    def position(self) -> Position:
        """Return the position of the next record, which begins a group; at the end, where the next one will be."""
        number = self.segment.number if self.segment else next(iter(numbers(self._storage, self._directory)), 1)
        return Position(number, self.at + form.GROUP_HEAD_BYTES)

    def let_go(self) -> None:
        """Release the segment."""
        if self.segment is not None:
            self.segment.close()

    def next(self) -> LogBatch | None:
        """Go past the next group of records, and return it; None at the end of the log."""
        while self.segment is not None or self._begin():
            batch = self._right() or self._after_gap()
            if batch is None:
                return None
            self._pass(batch)
            if batch.kind == form.RECORDS:
                return batch
            self._check_may_skip(batch)
        return None

    def _check_may_skip(self, batch: LogBatch) -> None:
        """Raise `DamagedState` for a group of an unknown type, unless its writer said that it may be skipped."""
        if not batch.flags & form.MAY_SKIP:
            msg = (
                f"{self._path!r} has a group of type {batch.kind} at byte {batch.at}, expected {form.RECORDS}: use the "
                "Penstock that wrote it, or newer"
            )
            raise DamagedState(msg)

    def seek(self, position: Position) -> LogBatch | None:
        """Go to a position, from nowhere; return the rest of its group, None if it is an end. Raises as `Reader.seek` does."""
        if position.offset == 0:
            position = Position(position.segment, form.FIRST_ENTRY)
        if position.offset < 0:
            self.refuse(position, "offsets begin at 0")
        if position.offset > _OFFSET_MAX:
            self.refuse(position, "no file is that long")
        segment = self._open(position.segment)
        if segment is None:
            self._seek_beside(position)
            return None
        self._enter(segment, 0)
        head = segment.head_of(position.offset)
        batch = segment.batch(head) if head >= form.HEADER_BYTES and head % 8 == 0 else None
        index = (position.offset - head - form.GROUP_HEAD_BYTES) // form.ENTRY_BYTES
        if batch is not None and index < batch.count:
            self._pass(batch)
            return batch.rest(index)
        self._seek_end(segment, position)
        return None

    def _seek_beside(self, position: Position) -> None:
        """Go to a position of a segment that does not exist: the end of a purged one, or the beginning of a log without records."""
        listed = numbers(self._storage, self._directory)
        header = self.segment.header if self._begin() and self.segment else None
        if _is_begin(position, header, listed) or _is_end(position, header):
            return
        if not listed:
            self.refuse(position, f"{_BEYOND}; no position is valid yet")
        why = "it was purged" if position.segment < listed[0] else _BEYOND
        self.refuse(position, f"{why}; the first position is {Position(listed[0], form.FIRST_ENTRY)}")

    def _seek_end(self, segment: LogSegment, position: Position) -> None:
        """Go to the end of a segment, if this is its position."""
        end = segment.end()
        self._enter(segment, end.sequence)
        self.at = end.at
        if position.offset != self._end_before(segment, position.offset) + form.GROUP_HEAD_BYTES:
            where = _BEYOND if position.offset > end.at else "it is inside a record"
            self.refuse(position, f"{where}; segment {position.segment} ends at byte {end.at}")

    def _end_before(self, segment: LogSegment, offset: int) -> int:  # noqa: ARG002 - a salvage continues in it
        """Return where the segment ends for a reader that asks for this offset; `DamagedState` if the valid groups end before it."""
        end = self.at
        if offset > end and offset != end + form.GROUP_HEAD_BYTES:
            self._after_gap()  # raises if that is not the end
        return end

    def _pass(self, batch: LogBatch) -> None:
        """Go past a group."""
        self.at, self.sequence = batch.end, batch.sequence + batch.count

    def refuse(self, position: Position, why: str) -> NoReturn:
        """Raise `PositionError`."""
        msg = f"{position} is not a position of {self._directory!r}: {why}"
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
        before, self.segment = self.segment, segment
        if before is not None and before is not segment:
            before.close()
        self.at, self.sequence = form.HEADER_BYTES, sequence

    @property
    def _path(self) -> str:
        return self.segment.path if self.segment else self._directory

    def _begin(self) -> bool:
        """Open the first segment."""
        segment = self._first()
        if segment is None or segment.header is None:
            return False
        self._enter(segment, segment.header.sequence)
        return True

    def _first(self) -> LogSegment | None:
        return first(self._storage, self._directory, hold=True)

    def _right(self) -> LogBatch | None:
        """Return the group at this place, `None` if it is invalid, or has another number than expected."""
        batch = self.segment.batch(self.at) if self.segment else None
        return batch if batch is not None and batch.sequence == self.sequence else None

    def _after_gap(self) -> LogBatch | None:
        """Return the next group after a place without a valid one: in the next segment, or written meanwhile."""
        segment = self.segment
        if segment is None:
            return None
        following = follower(self._storage, self._directory, segment.number, hold=True)
        try:
            segment.refresh()
            batch = self._right()
            if batch is not None or following is None or following.header is None:
                return batch or self._at_the_end(segment)
            self._check_end(segment, following.path, following.header)
            entered, following = following, None
        finally:
            if following is not None:
                following.close()
        self._enter(entered, self.sequence)
        return self._right() or self._after_gap()

    def _check_end(self, segment: LogSegment, path: str, header: Header) -> None:
        """Make sure that all of the segment that counts was read, as the header of the next one says."""
        right = (header.end, header.sequence) == (self.at, self.sequence)
        with suppress(NotThere):  # purged, on a storage without locks: all of it was read
            right = right and segment.ends_at(header)
        if not right:
            self._damaged(
                f"found the end of the valid records, after {self.sequence} records; expected that of byte {header.end}, "
                f"after {header.sequence}, as {path!r} says"
            )

    def _at_the_end(self, segment: LogSegment) -> LogBatch | None:
        if segment.size == self.at:
            return None
        if segment.is_torn(self.at, self.sequence):
            if self._strict:
                self._damaged(f"found {segment.size - self.at} bytes of a torn write, expected a whole group")
            return None
        segment.refresh()  # see failure 2
        batch = self._right()
        if batch is None:
            self._damaged(f"found bytes that do not fit their checksum or number, expected record {self.sequence}")
        return batch

    def _damaged(self, damage: str) -> NoReturn:
        msg = (
            f"{self._path!r} is damaged at byte {self.at}: {damage}; restore it from a copy, or repair the log, which drops what "
            "comes after"
        )
        raise DamagedState(msg)


def _is_begin(position: Position, header: Header | None, listed: list[int]) -> bool:
    """Tell whether this is the beginning of a log without records, whose first header, if there is one, names no previous segment."""
    nothing_before = header is None or not header.previous
    return nothing_before and position.offset == form.FIRST_ENTRY and position.segment in {1, *listed}


def _is_end(position: Position, following: Header | None) -> bool:
    """Tell whether this is the end of the segment before the one that has this header."""
    return following is not None and position == (following.previous, following.end + form.GROUP_HEAD_BYTES)
