"""Where a reader stands in a log, group by group. The rules are those of `wal.reader`, whose failures are named here by their numbers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import DamagedState, Locked, NotThere, PositionError
from penstock.wal import form
from penstock.wal.form import Position
from penstock.wal.segment import LogSegment, first, follower, numbers, path_of

if TYPE_CHECKING:
    from penstock.storage import Storage
    from penstock.wal.form import Header, LogBatch

_OFFSET_MAX = 1 << 62  # beyond it a system cannot be asked for what is there
_BEYOND = "it is beyond the end of the log or of its segment (not flushed yet, or lost with its writer)"


@dataclass(frozen=True)
class Skipped:
    """What a salvage passed over: bytes [start, end) of a segment."""

    path: str
    start: int
    end: int


class Walk:
    """A way through the log in `directory`: the segment where it is, held; the byte where the next group begins; its sequence number.

    At first it is nowhere, which is before the first segment. `skipped` is told what a salvage passes over.
    """

    def __init__(self, storage: Storage, directory: str, mode: str, skipped: list[Skipped]) -> None:
        self._storage, self._directory, self._mode, self._skipped = storage, directory, mode, skipped
        self.segment: LogSegment | None = None
        self.at, self.sequence = form.HEADER_BYTES, 0

    @property
    def position(self) -> Position:
        """Return the position of the next record, which begins a group; at the end, where the next one will be."""
        number = self.segment.number if self.segment else next(iter(numbers(self._storage, self._directory)), 1)
        return Position(number, self.at + form.GROUP_HEAD_BYTES)

    def let_go(self) -> None:
        """Let the segment go."""
        if self.segment is not None:
            self.segment.close()

    def next(self) -> LogBatch | None:
        """Go behind the next group of records, and return it; None at the end of the log."""
        while self.segment is not None or self._begin():
            batch = self._right() or self._behind()
            if batch is None:
                return None
            self.at, self.sequence = batch.end, batch.sequence + batch.count
            if batch.kind == form.RECORDS:
                return batch
            if not batch.flags & form.MAY_SKIP:
                msg = (
                    f"{self._path!r} has a group of type {batch.kind} at byte {batch.at}, expected {form.RECORDS}: use the "
                    "Penstock that wrote it, or newer"
                )
                raise DamagedState(msg)
        return None

    def seek(self, position: Position) -> LogBatch | None:
        """Go to a position, from nowhere; return what is left of its group, None if it is an end. Raises as `Reader.seek` does."""
        if not 0 <= position.offset <= _OFFSET_MAX:
            self.refuse(position, "no file is that long" if position.offset > 0 else "offsets begin at 0")
        segment = self._open(position.segment)
        if segment is None:
            self._seek_beside(position)
            return None
        self._enter(segment, 0)
        head = segment.head_of(position.offset)
        batch = segment.batch(head) if head >= form.HEADER_BYTES and head % 8 == 0 else None
        index = (position.offset - head - form.GROUP_HEAD_BYTES) // form.ENTRY_BYTES
        if batch is not None and index < batch.count:
            self.at, self.sequence = batch.end, batch.sequence + batch.count
            return batch.rest(index)
        self._seek_end(segment, position)
        return None

    def _seek_beside(self, position: Position) -> None:
        """Go to a position of a segment that is not there: the end of one that was purged, or the begin of a log without records."""
        there = numbers(self._storage, self._directory)
        header = self.segment.header if self._begin() and self.segment else None
        nothing_before = header is None or not header.previous
        if nothing_before and position.offset == form.FIRST_ENTRY and position.segment in {1, *there}:
            return
        if header is not None and _is_end(position, header):
            return
        gone = "it was purged" if there and position.segment < there[0] else _BEYOND
        begin = Position(there[0], form.FIRST_ENTRY) if there else "none"
        self.refuse(position, f"{gone}; the first position is {begin}")

    def _seek_end(self, segment: LogSegment, position: Position) -> None:
        """Go to the end of a segment, if this is its position."""
        at, _, sequence, _ = segment.end()
        self._enter(segment, sequence)
        self.at = at
        if self._mode == "salvage":
            self._pass_damage(segment, position.offset - form.GROUP_HEAD_BYTES)
        if position.offset != self.at + form.GROUP_HEAD_BYTES:
            if position.offset > at and self._mode != "salvage":
                self._behind()  # it may be no end: then that is damage
            where = _BEYOND if position.offset > at else "it is inside a record"
            self.refuse(position, f"{where}; segment {position.segment} ends at byte {at}")

    def _pass_damage(self, segment: LogSegment, until: int) -> None:
        """Go on from where what is right ends to this byte, or to where nothing is right any more."""
        while self.at < until and (batch := self._right() or segment.find(self.at, self.sequence)) is not None:
            self.at, self.sequence = batch.end, batch.sequence + batch.count

    def refuse(self, position: Position, why: str) -> NoReturn:
        """Raise `PositionError`."""
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
        before, self.segment = self.segment, segment
        if before is not None and before is not segment:
            before.close()
        self.at, self.sequence = form.HEADER_BYTES, sequence

    @property
    def _path(self) -> str:
        return self.segment.path if self.segment else self._directory

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
        batch = self.segment.batch(self.at) if self.segment else None
        return batch if batch is not None and batch.sequence == self.sequence else None

    def _behind(self) -> LogBatch | None:
        """Return the next group behind a place where none is right: in the next segment, or written meanwhile."""
        segment = self.segment
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
                self._enter(entered, self.sequence)
                return self._right() or self._behind()
        finally:
            if following is not None:
                following.close()
        return batch or self._at_the_end(segment)

    def _check_end(self, segment: LogSegment, path: str, header: Header) -> None:
        """Make sure that all of the segment was read that counts, as the header of the next one says."""
        right = (header.end, header.sequence) == (self.at, self.sequence)
        with suppress(NotThere):  # purged, where nothing can be held: all of it was read
            right = right and segment.ends_at(header)
        if not right:
            self._damaged(
                f"found the end of what is right, behind {self.sequence} records; expected that of byte {header.end}, "
                f"behind {header.sequence}, as {path!r} says"
            )

    def _at_the_end(self, segment: LogSegment) -> LogBatch | None:
        if segment.size == self.at:
            return None
        if segment.is_torn(self.at, self.sequence):
            if self._mode == "strict":
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
            "is behind"
        )
        raise DamagedState(msg)

    def _salvaged(self, segment: LogSegment) -> LogBatch | None:
        """Return the next group that is right anywhere behind, and tell what was passed over."""
        segment.refresh()
        batch = self._right() or segment.find(self.at, self.sequence)
        if (batch.at if batch else segment.size) > self.at:
            self._skip(segment.path, self.at, batch.at if batch else segment.size)
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
        if Skipped(path, start, end) not in self._skipped:
            self._skipped.append(Skipped(path, start, end))


def _is_end(position: Position, following: Header) -> bool:
    """Tell whether this is the end of the segment in front of the one that has this header."""
    return position == (following.previous, following.end + form.GROUP_HEAD_BYTES)
