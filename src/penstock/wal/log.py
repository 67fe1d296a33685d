"""A log as a whole: what is in it, whether it is intact, repairing it, and dropping its beginning.

*Purge.* Whole segments are deleted, the oldest first. Each removal is durable before the next, so a power cut leaves no
hole. The last segment that has a header stays. So does a segment that a reader holds, and all segments after it.

*Repair* cuts a log after its last valid record, counted from the first record on. Nothing is lost by it: everything
that is cut is kept beside the log, whole segments as `<segment>.broken`. The steps, each of which may be the last
before a crash:

1. Every segment after the damaged one, the last first: its copy is put, then it is deleted. Whatever the crash leaves
   is the same log with the same damage and fewer segments after it.
2. The copy of the damaged segment is put.
3. The damaged segment is deleted.
4. Its valid part is put under its name.

A crash on the way leaves a copy of a segment that follows the last remaining segment. So every reader and writer
refuses the log (`order.numbers`), and another repair puts back the valid part of each such copy, in order: all segments
that were moved or, after step 3, the damaged one, cut. Once that one is there, no other copy fits any more, because it
ends with another checksum than they name.

A full disk stops a repair like a crash: another repair, with space, completes it. A log that a later version has
written to is left unchanged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from penstock.arguments import named
from penstock.errors import AlreadyThere, DamagedState, Locked, NotThere, StorageError
from penstock.storage import locate
from penstock.wal import form
from penstock.wal.form import Position, checked_position
from penstock.wal.order import follower, interrupted, numbers
from penstock.wal.reader import Reader
from penstock.wal.segment import LogSegment, check_directory, copies, locked, path_of

if TYPE_CHECKING:
    import os

    from penstock.storage import Storage
    from penstock.wal.form import Header


@dataclass(frozen=True)
class Info:
    """The content of a log: records [first, end) by sequence number, from position to position; bytes of the files.

    `torn` is the number of bytes after the end in the last segment: the rest of a write that was never acknowledged.
    `broken` are the segments of which a repair has kept a copy.
    """

    segments: tuple[int, ...]
    start: Position
    end: Position
    first: int
    next: int
    epoch: int
    size: int
    torn: int
    broken: tuple[int, ...]

    @property
    def records(self) -> int:
        """Return how many records can be read."""
        return self.next - self.first


@dataclass(frozen=True)
class _Damage:
    """The segment in which a log ends though something comes after it, and whether a part of that segment is valid."""

    number: int
    partly: bool


@named
class Log:
    """The log in `directory`. Reading it needs no lock, so it may be inspected while a writer works.

    Every call: `NotThere` if there is no directory, `UsageError` if it contains something other than a log; a new one
    is an empty log.
    """

    def __init__(self, directory: str | os.PathLike[str], *, storage: Storage | None = None) -> None:
        self._storage, self._directory = locate(directory, storage=storage)

    def info(self) -> Info:
        """Return what the log contains; reads the headers of the first segment and the last one, and all of the last one."""
        check_directory(self._storage, self._directory)
        listed = numbers(self._storage, self._directory)
        kept = tuple(copies(self._storage, self._directory))
        size = self._size(listed) if listed else 0
        first = self._first_with_header(listed)
        last = self._open_first(listed[::-1]) if first else None
        if first is None or last is None or last.header is None:
            nowhere = Position(listed[0] if listed else 1, form.FIRST_ENTRY)
            return Info(tuple(listed), nowhere, nowhere, 0, 0, 0, size, 0, kept)
        with last:
            last_end = last.end()
            torn = last.size - last_end.at
        start = Position(first.number, form.FIRST_ENTRY)
        end = Position(last.number, last_end.at + form.GROUP_HEAD_BYTES)
        return Info(tuple(listed), start, end, first.sequence, last_end.sequence, last.header.epoch, size, torn, kept)

    def _size(self, listed: list[int]) -> int:
        """Return the size of the files of these segments."""
        sizes = {entry.name: entry.size for entry in self._storage.list(self._directory)}
        return sum(sizes.get(path_of("", number)[1:], 0) for number in listed)

    def _first_with_header(self, listed: list[int]) -> Header | None:
        """Return the header of the first of these segments that has one."""
        segment = self._open_first(listed)
        if segment is None:
            return None
        with segment:
            return segment.header

    def _open_first(self, listed: list[int]) -> LogSegment | None:
        """Return the first of these segments that has a header, open."""
        for number in listed:
            segment = LogSegment(self._storage, self._directory, number)
            if segment.header is not None:
                return segment
            segment.close()
        return None

    def verify(self) -> Info:
        """Read everything; return what the log contains. `DamagedState` at the first damage. A torn end is not damage."""
        with Reader(self._directory, storage=self._storage) as reader:
            for _ in reader.batches():
                pass
        return self.info()

    def purge(self, before: Position) -> list[int]:
        """Delete the segments that end before this position; return their numbers. Fewer if a reader has not got that far."""
        before, gone = checked_position(before), list[int]()
        listed = [number for number in numbers(self._storage, self._directory) if number <= before.segment]
        last = self._first_with_header(listed[::-1])
        stays = min(before.segment, last.number if last else 0)
        for number in listed[: bisect_left(listed, stays)]:
            try:
                self._delete(number)
            except Locked:
                break
            except NotThere:  # another process purges, too
                continue
            gone.append(number)
        return gone

    def _delete(self, number: int) -> None:
        """Delete a segment, durably; `Locked` while a reader holds it."""
        path = path_of(self._directory, number)
        with locked(self._storage, path):
            self._storage.delete(path)
            self._storage.persist(self._directory, [])

    def repair(self) -> list[str]:
        """Cut the log after the last valid record; return the paths of the copies of what was cut, none if nothing had to be cut.

        `Locked` while a writer has the log open. A torn end is cut, too, though no reader needs that.
        """
        check_directory(self._storage, self._directory)
        with locked(self._storage, self._directory):
            return self._repair()

    def _repair(self) -> list[str]:
        while (waiting := interrupted(self._storage, self._directory)) is not None:
            self._put_back(*waiting)
        self._refuse_newer()
        damage = self._first_damage()
        if damage is None:
            return []
        damaged, kept = damage.number, []
        listed = numbers(self._storage, self._directory)
        for later in reversed(listed[bisect_right(listed, damaged) :]):
            kept.append(self._copy(later))
            self._storage.delete(path_of(self._directory, later))
            self._storage.persist(self._directory, [])
        data = self._storage.read(path_of(self._directory, damaged))
        kept.append(self._copy(damaged))
        self._storage.delete(path_of(self._directory, damaged))
        if damage.partly:
            self._put_back(damaged, data)
        else:
            self._storage.persist(self._directory, [])
        return sorted(kept)

    def _refuse_newer(self) -> None:
        """Raise `DamagedState` if there is a segment of a later version: it is valid, and this version must not cut it."""
        for number in numbers(self._storage, self._directory):
            path = path_of(self._directory, number)
            with self._storage.open(path) as file:
                data = file.read(0, form.HEADER_BYTES)
            if form.is_newer(data):
                form.decode_header(data, path)  # raises the error

    def _put_back(self, number: int, data: bytes) -> None:
        """Put the valid part of a segment under its name; nothing if not even its header is valid."""
        path = path_of(self._directory, number)
        if form.decode_header(data, path) is None:
            self._storage.persist(self._directory, [])
            return
        with LogSegment(self._storage, self._directory, number, data=data) as segment:
            self._storage.put_if_absent(path, data[: segment.end().at])

    def _copy(self, number: int) -> str:
        """Keep a copy of a segment, and return its path. An identical copy may be there already, from an interrupted repair."""
        path = path_of(self._directory, number)
        data = self._storage.read(path)
        for name in chain([f"{path}.broken"], (f"{path}.broken.{n}" for n in range(2, 1000))):
            try:
                self._storage.put_if_absent(name, data)
            except AlreadyThere:
                if self._storage.read(name) != data:
                    continue
                self._storage.persist(self._directory, [name.rpartition("/")[2]])
            return name
        msg = f"{path!r} was repaired too often: remove its copies, {path}.broken*"
        raise StorageError(msg)

    def _first_damage(self) -> _Damage | None:
        """Return where the log ends though something comes after it, or `None`."""
        listed = numbers(self._storage, self._directory)
        for number in listed:
            try:
                header = self._header(number)
                if header is None:
                    continue
                if header.previous in listed:
                    return _Damage(header.previous, partly=False)
                return self._damage_from(number, listed)
            except DamagedState:
                return _Damage(number, partly=False)
        return None

    def _damage_from(self, number: int, listed: list[int]) -> _Damage | None:
        """Follow the log from this segment to its end; return the first damage on the way."""
        while True:
            with LogSegment(self._storage, self._directory, number) as segment:
                end = segment.end()
                try:
                    header = self._header_after(number)
                except DamagedState:
                    return _Damage(listed[bisect_right(listed, number)], partly=False)
                if header is None:
                    return _Damage(number, partly=True) if segment.size > end.at else None
                if header.end > end.at:
                    return _Damage(number, partly=True)
                if (header.end, header.sequence) != (end.at, end.sequence) or not segment.ends_at(header):
                    return _Damage(header.number, partly=False)
            number = header.number

    def _header_after(self, number: int) -> Header | None:
        """Return the header of the segment that counts as the next one; `None` if there is none yet."""
        following = follower(self._storage, self._directory, number)
        if following is None:
            return None
        with following:
            return following.header

    def _header(self, number: int) -> Header | None:
        """Return the header of a segment, `None` if it has no valid header."""
        with LogSegment(self._storage, self._directory, number) as segment:
            return segment.header
