"""Writing a log: who may write, what is durable when, and what a crash leaves.

A writer never writes to a segment that another writer made. It reads where the last segment ends, makes that durable,
and begins the next one, whose header names that end. That header is the decision. So nothing is cut or overwritten, and
it is the same for a log that was closed, crashed or torn, and on every storage. If a synced file cannot be written any
further (`Storage.goes_on`), or must not be (`whole`), each flush is a segment.

*Group commit.* Records are collected. One of the threads that wait in `flush` writes and syncs for all of them:
everything collected at that moment, as one group, with one write and one sync. Records that come meanwhile are the next
group. There is no timer; with `delay` the writing thread first waits for others to come.

The failures, and the rule against each:

1. *Torn write.* A power cut keeps a part of a group. Rule: a group has one checksum, and the next segment begins after
   the last valid group. What was acknowledged was synced and is valid.
2. *A sync fails.* The system may have dropped the bytes and will not report it twice. Rule: the writer is poisoned:
   this flush, all that wait for it and all later ones fail. Records that were not acknowledged may or may not be there;
   open the log again to see.
3. *A full disk.* As 2. The rest of a group that did not fit is torn, see 1.
4. *Two writers.* Rule: the directory is locked (locally). Elsewhere the last segment is taken from any writer that has
   it open (a lease), and if two create the next number, one succeeds.
5. *Stalled writer.* A stalls; B opens the log and goes on; A goes on. Rule: A's next create finds its number taken, or
   its lease lost: `Fenced`.
6. *Stalled for long.* As 5, but B's segments up to A's next number have been purged already, so that number is free.
   Rule: after the sync of a new segment the directory is listed; a higher number means that B was here, and A takes its
   segment back. But not if B came between the sync and the list, and continued after that segment: taking it back would
   leave a hole.
7. *Crash while a segment is made.* It has a name and no header. Rule: the header is synced before any group is written,
   so the segment holds nothing; the next writer skips its number.
8. *Seen, not durable.* A process dies; its last groups are in the system's memory, and B names their end in its header;
   the power fails; the header is there, the groups are not. Rule: B makes the last groups durable before it names their
   end, by writing them again, over themselves: a sync alone can succeed though an earlier one failed and dropped them.
9. *Fork.* A child has the same open file, the same lock, and a copy of what was not flushed. Rule: its flush fails.
10. *Interrupt.* A signal's handler raises in the middle of an append, and the program goes on. Rule: things that must
    change together change without a call between them, after which Python would run signal handlers. In a flush it is
    as 2.
11. *Close during a flush.* A file is closed between another thread's write and sync, which then has nothing to sync.
    Rule: the thread that closes the log waits for the thread that is writing.

Rejected: cutting a torn end off (destroys evidence, and needs a storage that can do it); a file that says how long the
log is (one more sync for each group); preallocation (zeros written ahead, a megabyte at a time, save a third of
`fdatasync` of small groups on ext4, and nothing for large ones; `fallocate` alone saves less. But a reader that follows
a live writer would have to read through those zeros each time, and what comes after the end is what distinguishes a
torn end from damage).
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock import clock, tally
from penstock.arguments import flag, is_number, named
from penstock.errors import Fenced, OptionError, StorageError
from penstock.storage import TEMPORARY, locate, names_at
from penstock.units import parse_size
from penstock.wal import form
from penstock.wal.end import LogEnd, PendingGroup
from penstock.wal.form import ENTRY_BYTES, Position
from penstock.wal.segment import held
from penstock.wal.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.storage import Hold, Storage

GROUP_BYTES = 1 << 20  # a group is closed before it grows longer, because a seek reads a whole group
WAITING_BYTES_MAX = 8 << 20  # appending more than this without a flush causes one
DELAY_SECONDS_MAX = 3600
_ONE_RECORD_BYTES = form.group_bytes(1, 0) + 7  # at most this much besides the record in a group of one record


@named
class Writer:
    """Appends to the log in `directory`, which is created if needed; safe for threads. `Locked` if another process writes to it.

    `DamagedState` if the last segment is damaged before its end. `delay` is in seconds. With `whole` each flush is a
    segment that is closed on return, so that readers see it on storages that do not show open files
    (`Storage.reads_open`). A writer that is dropped releases its lock, and loses what was not flushed.
    """

    _hold: Hold | None = None

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        segment_size: str | int = "64m",
        delay: float = 0.0,
        whole: bool = False,
        storage: Storage | None = None,
    ) -> None:
        size = segment_bytes(segment_size)
        if not is_number(delay) or not 0 <= delay <= DELAY_SECONDS_MAX:
            msg = f"delay={delay!r} is not a time to wait for others: expected seconds, from 0 to {DELAY_SECONDS_MAX}, such as 0.001"
            raise OptionError(msg)
        self._storage, self._directory = locate(directory, storage=storage)
        self._segment_size, self._delay = size, delay
        self._whole = flag(whole, name="whole") or not self._storage.goes_on
        self._end = LogEnd(self._storage, self._directory, whole=self._whole)
        self._lock = threading.Lock()
        self._failed: BaseException | None = None
        self._closed = False
        self._process = os.getpid()
        self._storage.make_directory(self._directory)
        self._hold = held(self._storage, self._directory)
        try:
            self._first, self._number = self._end.recover(locked=self._hold is not None)
            self._remove_strays()
        except BaseException:  # whatever is raised, the lock must not outlive it
            self._release()
            raise
        # `_first` is the sequence number of the first record of the open group; the group begins at `_number` and
        # `_at`.
        self._at = form.HEADER_BYTES
        self._before = self._end.position  # the end of the segment before that one
        self._turns = Turns(self._lock, self._first)
        self._records: list[bytes] = []
        self._left = -1  # how long the next record may be, to fit into the group
        self._positions = _positions(*self._place())  # of the next records
        self._groups: list[PendingGroup] = []
        self._waiting = 0  # their size in bytes

    # -- what users call -------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """Return the end of what was appended so far. The next record is read from there, and has this position unless it begins a segment.

        A reader accepts it as soon as everything appended before is flushed. `StorageError` if a flush has failed: then
        the end of the log is unknown. Asking closes the open group, so do not ask for each record.
        """
        with self._lock:
            if self._closed and self._failed is None:
                return self._end.position
            return self._boundary()

    @property
    def sequence(self) -> int:
        """Return the sequence number of the next record: how many records were ever appended before it."""
        with self._lock:
            return self._next

    def _remove_strays(self) -> None:
        """Remove what a crash in the middle of a put has left: a repair's temporaries, because no repair runs beside a writer."""
        for name in names_at(self._storage, self._directory):
            if name.startswith(TEMPORARY):
                self._storage.delete(f"{self._directory}/{name}")

    def append(self, record: bytes) -> Position:
        """Append a record; return its position. It is not durable before `flush`. `OptionError` if it is too long."""
        if type(record) is bytes:  # only what every record needs is here; `append_many` does the rest
            size = len(record)
            with self._lock:
                if size <= self._left:
                    self._left -= size + ENTRY_BYTES
                    self._records += (record,)  # no call: see failure 10
                    return next(self._positions)
        return self.append_many((record,))

    def append_many(self, records: Iterable[bytes]) -> Position:
        """Append records; return the position of the first one, or `position` if there are none. Costs little more than one `append`."""
        records = _several(records)
        count, size = len(records), sum(map(len, records))
        if form.group_bytes(count, size) > min(GROUP_BYTES, self._segment_size - form.HEADER_BYTES):
            _check_length(max(map(len, records), default=0))
            if count > 1:
                first = self.append_many(records[: count // 2])
                self.append_many(records[count // 2 :])
                return first
        with self._lock:
            if not count:
                return self._boundary()
            if size + ENTRY_BYTES * (count - 1) > self._left:
                self._make_room(size, count)
            first = self._place()
            following = _positions(first.segment, first.offset + ENTRY_BYTES * count)
            self._left -= size + ENTRY_BYTES * count
            self._records += records
            self._positions = following
        if self._waiting > WAITING_BYTES_MAX:
            self.flush()
        return first

    def flush(self) -> None:
        """Make everything durable that was appended before this call, together with the records of other waiting threads.

        After a failure nothing can be made durable any more: `StorageError` here and from then on, `Fenced` if another
        writer has taken over. Records that were not acknowledged by a flush may or may not be there when the log is
        opened again.
        """
        turns, leading, durable = self._turns, False, 0
        try:
            with self._lock:
                if turns.makes_durable(self._next, self._check):
                    return
                crowded, turns.crowded = turns.crowded, False
                turns.leading = leading = True
            if self._delay or crowded:
                clock.sleep(self._delay)  # even a delay of 0 lets threads append first that the last group has woken
            with self._lock:
                groups = self._take()
                until = self._next
            self._end.write(groups)
            durable = until
            tally.add({tally.LOG_FLUSHES: 1, **_amounts(groups)})
        except BaseException as error:  # whatever is raised, nobody knows what was written
            if leading:
                self._failed = error
            raise
        finally:
            if leading:
                turns.leading = False  # first of all: no thread may wait for an interrupted one
                with self._lock:
                    if self._failed is not None:
                        self._left = -1
                    turns.hand_over(durable)

    def close(self) -> None:
        """Flush, and close the log. Idempotent."""
        if self._closed:
            return
        try:
            if self._failed is None:
                self.flush()
        finally:
            self._end_it()

    def __enter__(self) -> Writer:
        """Return itself."""
        return self

    def __exit__(self, kind: object = None, *exc: object) -> None:
        """Close; after an exception without a flush, so unacknowledged records are not written."""
        if kind is not None:
            self._end_it()
        self.close()

    def __del__(self, *, _at_the_end: Callable[[], bool] = sys.is_finalizing) -> None:
        """Release the log if there is a lock that keeps others out; on other storages closing a file may wait for dead servers.

        At the end of the interpreter the system does that, while Python takes modules apart.
        """
        if self._hold is not None and not _at_the_end():
            with suppress(StorageError):
                self._release()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if isinstance(self._failed, Fenced):
            raise Fenced(self._failed.message)
        why = "this writer was closed" if self._closed else ""
        if self._failed:
            why = "an earlier write or sync of it failed"
        if self._process != os.getpid():
            why = f"process {self._process} opened it, of which this one is a fork"
        if why:
            msg = f"{self._directory!r} cannot be appended to: {why}; open the log again, it knows what is durable"
            raise StorageError(msg) from self._failed

    @property
    def _next(self) -> int:
        """Return the sequence number of the next record."""
        return self._first + len(self._records)

    def _place(self) -> Position:
        """Return the position of the next record, if it goes into the open group, or begins one at that place."""
        return Position(self._number, self._at + form.GROUP_HEAD_BYTES + ENTRY_BYTES * len(self._records))

    def _make_room(self, size: int, count: int) -> None:
        """Begin a group that has room for `count` records, in the segment where it belongs."""
        self._check()
        self._left = -1  # and stays -1 if this is interrupted
        self._close_group()
        needed = form.group_bytes(count, size)
        if self._at > form.HEADER_BYTES and self._at + needed > self._segment_size:
            self._next_segment()
        self._left = self._room()

    def _next_segment(self) -> None:
        self._before = self._place()
        self._number, self._at = self._number + 1, form.HEADER_BYTES

    def _boundary(self) -> Position:
        """Return where the next group will begin; a place inside an open group may never become a record's."""
        if self._failed is not None:
            self._check()
        if self._records:
            self._left = -1  # and stays -1 if this is interrupted
            self._close_group()
            self._left, self._positions = self._room(), _positions(*self._place())
        return self._place() if self._at > form.HEADER_BYTES else self._before

    def _room(self) -> int:
        """Return how long a record may be as the first of a group, here."""
        return min(GROUP_BYTES, self._segment_size - self._at) - _ONE_RECORD_BYTES

    def _close_group(self) -> None:
        records = self._records
        if records:
            sizes = list(map(len, records))
            length = form.group_bytes(len(sizes), sum(sizes))
            group = PendingGroup(self._number, self._first, records, sizes)
            following = self._first + len(records)
            self._groups += (group,)
            self._first, self._records = following, []
            self._at += length
            self._waiting += length

    def _take(self) -> list[PendingGroup]:
        """Return what must be written; what is appended from now on belongs to the next flush."""
        self._close_group()
        groups, self._groups, self._waiting = self._groups, [], 0
        if groups and self._whole:
            self._next_segment()
        self._left, self._positions = self._room(), _positions(*self._place())
        return groups

    def _end_it(self) -> None:
        """Accept no more records, wait for the writing thread, and close the log: a file is not closed between a write and its sync."""
        with self._lock:
            self._closed, self._left = True, -1
            while self._turns.leading:
                self._turns.wait()
            self._turns.wake()
        self._release()

    def _release(self) -> None:
        try:
            self._end.close()
        except StorageError:
            if self._failed is None:
                raise
        finally:
            hold, self._hold = self._hold, None
            if hold is not None:
                hold.close()


def segment_bytes(size: object) -> int:
    """Return a segment length from a number or a text with a unit; `OptionError` for anything else."""
    number = parse_size(size, name="segment_size") if isinstance(size, str) else size
    if isinstance(number, bool) or not isinstance(number, int) or number < form.FIRST_ENTRY:
        msg = f"segment_size={size!r} is not a length of a segment: expected {form.FIRST_ENTRY} bytes at least, such as 64m or 67108864"
        raise OptionError(msg)
    return number


def _amounts(groups: list[PendingGroup]) -> dict[str, float]:
    """Return the counts to report for groups that are durable."""
    records, size = sum(len(group.records) for group in groups), sum(sum(map(len, group.records)) for group in groups)
    return {tally.LOG_RECORDS: records, tally.LOG_BYTES: size}


def _positions(segment: int, offset: int) -> Iterator[Position]:
    """Return the positions of records from this one on. They are made in C, because each record needs one."""
    offsets = itertools.count(offset, ENTRY_BYTES)
    return map(tuple.__new__, itertools.repeat(Position), zip(itertools.repeat(segment), offsets, strict=False))


def _several(given: object) -> list[bytes]:
    """Return the records for `append_many`; `OptionError` for a single record, or for something else."""
    if isinstance(given, (str, bytes, bytearray, memoryview)):
        msg = f"append_many was given one {type(given).__name__}; expected several records: append_many([...]), or append for one"
        raise OptionError(msg)
    records = list(given)  # type: ignore[call-overload]  # - Python says what is wrong if it is not iterable
    return records if set(map(type, records)) <= {bytes} else list(map(as_bytes, records))


def as_bytes(record: object) -> bytes:
    """Return a record as bytes; `OptionError` if it is neither bytes nor a buffer of bytes."""
    if isinstance(record, bytes):
        return record
    try:
        return bytes(memoryview(record))  # type: ignore[arg-type]  # - that is what it refuses
    except TypeError:
        hint = "; encode it: text.encode()" if isinstance(record, str) else ""
        msg = f"a record is a {type(record).__name__}; expected bytes, or what has a buffer of them{hint}"
        raise OptionError(msg) from None


def _check_length(size: int) -> None:
    if size > form.RECORD_BYTES_MAX:
        msg = f"a record of {size} bytes is too long for a log: expected {form.RECORD_BYTES_MAX} at most; cut it"
        raise OptionError(msg)
