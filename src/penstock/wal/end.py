"""The end of a log on its storage: found when the log is opened, then moved on by whole groups.

The rules are those of `wal.writer`, whose failures are named here by their numbers.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from penstock import failpoints, unique
from penstock.errors import AlreadyThere, DamagedState, Fenced, NotSupported, NotThere
from penstock.wal import form
from penstock.wal.form import Position
from penstock.wal.order import numbers
from penstock.wal.segment import LogSegment, copies, path_of

if TYPE_CHECKING:
    from penstock.storage import Storage, WriteHandle
    from penstock.wal.form import Header


class PendingGroup(NamedTuple):
    """Records that will be one group, and the segment they go into."""

    segment: int
    sequence: int
    records: list[bytes]
    sizes: list[int]


@dataclass
class _Tail:
    """The last segment: its number, its length so far, its last checksum, up to where it is durable, and the salt of its groups."""

    number: int = 0
    at: int = 0
    check: int = 0
    durable: int = 0
    salt: int = 0


class LogEnd:
    """Where the log in `directory` ends, after `recover`. For one thread at a time.

    With `whole`, each `write` closes a segment. After an error of `write` the end is unknown: the log has to be opened
    again.
    """

    def __init__(self, storage: Storage, directory: str, *, whole: bool) -> None:
        self._storage, self._directory, self._whole = storage, directory, whole
        self._file: WriteHandle | None = None
        self._log, self._epoch = b"", 1
        self._tail = _Tail()

    @property
    def position(self) -> Position:
        """Return the position of the end of what was written."""
        tail = self._tail
        return Position(tail.number, tail.at + form.GROUP_HEAD_BYTES) if tail.number else Position(1, form.FIRST_ENTRY)

    def recover(self, *, locked: bool) -> tuple[int, int]:
        """Find out where the log ends, its id and our epoch; return the sequence number of the next record, and its segment."""
        listed = numbers(self._storage, self._directory)
        self._check_gaps(listed)
        sequence = 0
        for index, number in reversed(list(enumerate(listed))):
            with LogSegment(self._storage, self._directory, number) as segment:
                if not locked:
                    self._fence(segment)
                if segment.header is not None:
                    self._check_chain(segment.path, segment.header, listed[:index])
                    sequence = self._go_on_after(segment, segment.header)
                    break
        self._log = self._log or bytes.fromhex(unique.token())
        return sequence, max([*listed, *copies(self._storage, self._directory)], default=0) + 1

    def _fence(self, segment: LogSegment) -> None:
        """Take the file from any writer that has it open; if it is locked, or only visible when whole, no writer has."""
        with suppress(NotSupported):
            self._storage.extend(segment.path, 0).close()
            segment.refresh()

    def _check_gaps(self, listed: list[int]) -> None:
        """Make sure that a missing number belongs to no segment of the log: readers could not get past a missing segment."""
        for index in range(1, len(listed)):
            if listed[index] > listed[index - 1] + 1:
                with LogSegment(self._storage, self._directory, listed[index]) as segment:
                    if segment.header is not None:
                        self._check_chain(segment.path, segment.header, listed[:index])

    def _check_chain(self, path: str, header: Header, before: list[int]) -> None:
        """Make sure that a segment was written after what is there: it may belong to another log, and no reader would reach it."""
        for number in reversed(before):
            with suppress(NotThere), LogSegment(self._storage, self._directory, number) as segment:
                if segment.header is None or (header.previous in before and number != header.previous):
                    continue
                if not segment.ends_at(header):
                    msg = (
                        f"{path!r} was not written after {segment.path!r} as it is: found another end in its header; one of them "
                        "was put here, or cut, or one between is missing; restore the log from a copy, or repair it"
                    )
                    raise DamagedState(msg)
                break

    def _go_on_after(self, segment: LogSegment, header: Header) -> int:
        """Make the last groups of the segment durable; return the sequence number after them."""
        end = segment.end()
        if segment.size > end.at and not segment.is_torn(end.at, end.sequence):
            msg = (
                f"{segment.path!r} is damaged at byte {end.at}: found bytes that do not fit their checksum, expected record "
                f"{end.sequence}; restore it from a copy, or repair the log, which drops what comes after"
            )
            raise DamagedState(msg)
        with suppress(NotSupported):  # see failure 8
            last = segment.read(end.durable, end.at - end.durable)
            with self._storage.extend(segment.path, end.durable) as file:
                file.write(last)
                file.sync()
        self._log, self._epoch = header.log, header.epoch + 1
        self._tail = _Tail(segment.number, end.at, end.check)
        return end.sequence

    def write(self, groups: list[PendingGroup]) -> None:
        """Write groups, and make them durable."""
        for group in groups:
            if group.segment != self._tail.number or self._file is None:
                self._sync()
                file = self._roll(group)
            else:
                file = self._file
            tail = self._tail
            seed = tail.check ^ tail.salt
            data, tail.check = form.encode_group(group.records, group.sizes, group.sequence, tail.durable, seed)
            tail.at += file.write(data)
        self._sync()

    def _sync(self) -> None:
        """Make durable what was written to the segment."""
        if self._file is None or self._tail.durable == self._tail.at:
            return
        self._file.sync()
        self._tail.durable = self._tail.at
        if self._whole:
            file, self._file = self._file, None
            file.close()
        if not self._storage.goes_on:
            self._check_alone(self._tail.number)

    def _roll(self, group: PendingGroup) -> WriteHandle:
        """Begin the group's segment: its header decides where the segment before it ends. Return its file."""
        before = self._tail
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
        path = path_of(self._directory, group.segment)
        previous = before.number, before.at, before.check
        header = form.encode_header(self._log, group.segment, self._epoch, group.sequence, previous)
        failpoints.hit("wal.roll")
        try:
            self._file = self._storage.create(path)
        except AlreadyThere as error:
            self._fenced(f"found {path!r}, which this writer was to make", error)
        known = form.decode_header(header, path)
        if known is None:
            raise AssertionError(path)
        self._tail = _Tail(group.segment, form.HEADER_BYTES, known.check, 0, known.salt)
        self._file.write(header)
        if self._storage.goes_on:
            self._file.sync()
            failpoints.hit("wal.rolled")
            self._check_alone(group.segment)
            self._tail.durable = form.HEADER_BYTES
        return self._file

    def _check_alone(self, number: int) -> None:
        """Make sure that no other writer took over while this one was stalled (failure 6)."""
        later = [other for other in numbers(self._storage, self._directory) if other > number]
        if later:
            if not self._is_gone_on_after(number, later):
                self._storage.delete(path_of(self._directory, number))
            self._fenced(f"found {path_of(self._directory, later[-1])!r}, expected {number} to be the last one", None)

    def _is_gone_on_after(self, number: int, later: list[int]) -> bool:
        """Tell whether a later segment names this one. If none has a header yet, one will: its writer has seen this segment."""
        named = []
        for other in later:
            with suppress(NotThere), LogSegment(self._storage, self._directory, other) as segment:
                named += [segment.header.previous] if segment.header else []
        return number in named or not named

    def _fenced(self, evidence: str, cause: Exception | None) -> NoReturn:
        msg = f"another writer has taken over the log {self._directory!r}: {evidence}; end this one, nothing of it was acknowledged since"
        raise Fenced(msg) from cause

    def close(self) -> None:
        """Close what is open, without a sync."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
