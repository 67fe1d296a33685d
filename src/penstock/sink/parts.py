"""Parts in one task: segments of parts that stay open, and whole files of parts that fill.

A task has one part for each bucket that its rows go to, and continues the part that the ledger has open for (bucket, writer). A
row reaches the disk in one of three ways, which differ only in cost:

- *Small*: the rows of this batch stay in memory (limited for each part by `stage_bytes`, and for the task as a whole). At the end
  they go as one range into the task's *pack*, a single file for all its buckets: one sync for each task, however many buckets.
- *Large*: the rows go to the part's own file, already in the final form. If the part fills, and has no earlier segments, that
  file *is* the finished part: it is written once and not copied.
- *Assembly*: a part that is closed and has earlier segments is written again in one pass: the segments, then the rows of this
  batch. For files of records that copies bytes (also compressed members, since members concatenate). For tables it decodes the
  rows and encodes them in row groups of a proper size. Row groups of Parquet that have such a size already are copied as bytes, too.

A file is encrypted once, in one piece. If a part is known to end with this batch and in this task, its rows are encrypted as they
come, in the part's own file. No other encrypted part has its own file: its rows wait in the pack, even those of a large batch,
clear or under the staging key, and are assembled when the part is closed. A part that is complete while its rows are still in
memory goes straight into its file. Therefore more bytes are held in memory before encryption.

A part that gathers many segments (a batch a second for a quarter of an hour) folds the small ones at its end into one with the
new rows, as a log-structured merge tree does. So the number of segments stays logarithmic, and no byte is copied more than a
logarithmic number of times.

This file has what all parts share; `byteparts` and `tableparts` are the two kinds of parts, `writer` gives rows to them, and
`staging` has the files. Rows come as one of two payloads (`payload`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.sink.batch import ClosedPart
from penstock.sink.ledger import Destination, Kind, OpenPart, Segment, is_aside
from penstock.sink.payload import ArrowRows, Encoded
from penstock.sink.rolling import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Future

    from penstock.sink.staging import Output, Staging

_STAGE_BYTES = 4 << 20
_OWN_FILES_MAX = 64  # own files of parts that a task keeps open
_SEGMENTS_MAX = 16  # a part with this many segments folds the small ones

# The forms of segments that are pieces of a file; any other form is the name of a format, and the segment is a file of
# it.
BYTES, ARROW = "bytes", "arrow"

Payload = TypeVar("Payload", Encoded, ArrowRows)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Origin:
    """The task that opens parts, with the values that they are stamped with."""

    writer: int
    batch: int
    base: int
    time_ns: int
    host: str
    pid: int
    attempt: int = 0


@dataclass
class Desk:
    """What the parts of one task share."""

    staging: Staging
    origin: Origin
    limits: Limits
    ratio: float
    root: str  # path of the output, for messages
    final: bool = False  # the query ends with this batch
    merge_below: int = 0  # bytes: the driver assembles, and merges, smaller parts that end with this batch
    as_text: bool = False  # write columns as text that the format cannot hold
    growing: bool = False  # files of rows grow, and no limit closes them
    own_files: int = 0
    buffered: int = 0
    closed: list[Callable[[], ClosedPart]] = field(default_factory=list)

    def limits_of(self, bucket: str) -> Limits:
        """Return the limits for a part of this bucket."""
        return Limits.never() if self.growing and not is_aside(bucket) else self.limits

    def ends(self, part: OpenPart) -> bool:
        """Tell whether a part ends with this batch, whatever rows still come."""
        return self.final or self.limits_of(part.bucket).ends_with(part.first_batch, self.origin.batch)

    def own_file(self) -> Output | None:
        """Return a new file for one part alone, `None` if the task has too many open."""
        if self.own_files >= _OWN_FILES_MAX:
            return None
        self.own_files += 1
        return self.staging.create()


class Part(ABC, Generic[Payload]):
    """One part in one task: the segments that the ledger has, and after them the rows of this batch.

    The rows of this batch are, in this order, in the pack (as segments), in the part's own file, and in memory.
    """

    def __init__(self, desk: Desk, place: Destination, kind: Kind, before: OpenPart | None) -> None:
        origin = desk.origin
        times = (origin.time_ns, origin.time_ns, origin.batch, origin.batch)
        self.opened = before or OpenPart(
            place.bucket, origin.writer, kind, *times, (), origin.host, origin.pid, origin.attempt, place.name
        )
        self._desk = desk
        self._limits = desk.limits_of(place.bucket)
        self._segments = list(self.opened.segments)
        self._own: Output | None = None
        self._own_rows = 0
        self._limit = self.opened.kind.room(self._limits.size)
        self._held: list[Payload] = []
        self._grew = False
        self.buffered = 0

    @property
    def rows(self) -> int:
        """Return the number of the part's rows, committed or not."""
        return sum(s.rows for s in self._segments) + self._own_rows + sum(p.rows for p in self._held)

    @property
    def size(self) -> int:
        """Return the bytes that the finished file would have now (an estimate for tables)."""
        return sum(s.size for s in self._segments) + self._own_size() + self._held_size()

    def fitting(self, payload: Payload) -> int:
        """Return how many of the payload's rows the part can take before it reaches a limit."""
        limits = self._limits
        room_rows = None if limits.rows is None else max(limits.rows - self.rows, 0)
        return self._fitting(payload, max(self._limit - self.size, 0), room_rows)

    def full(self) -> bool:
        """Tell whether no further record can fit."""
        rows = self._limits.rows
        return self.size >= self._limit or (rows is not None and self.rows >= rows)

    @property
    def is_to_be_staged(self) -> bool:
        """Whether more of the part is in memory than there should be."""
        return self.buffered >= self.stage_bytes

    def add(self, payload: Payload) -> None:
        """Take all the rows."""
        self._held.append(payload)
        self._grew = True
        self._hold(self._weigh(payload))

    def _hold(self, size: int) -> None:
        """Count bytes that are in memory."""
        self.buffered += size
        self._desk.buffered += size

    @property
    def is_encrypted_now(self) -> bool:
        """Whether the part's rows are encrypted as they come.

        Then the task must close it: it can neither stay open nor be left to the driver.
        """
        return self._own is not None and bool(self.opened.kind.recipients)

    @property
    def _has_own_file(self) -> bool:
        """Whether the part has its own file, or may have one; an encrypted part may only if this task is sure to close it."""
        if self._own is not None or not self.opened.kind.recipients:
            return True
        return self.size >= self._desk.merge_below and self._desk.ends(self.opened)

    def relieve(self) -> None:
        """Move what is in memory to disk: into the part's own file, or into the pack if the part cannot have one."""
        if self._own is None and self._has_own_file:
            self._own = self._desk.own_file()
            if self._own is not None:
                self._own.encrypt_to(self.opened.kind.recipients)
                self._begin_own()
        if self._own is not None:
            self._own_rows += self._write_own()
        elif self._held:
            self._segments.append(self._packed([]))
        self._held = []
        self._hold(-self.buffered)

    def close(self) -> None:
        """Bring the part into one complete file and begin to seal it; the task's `closed` will describe it."""
        rows = self.rows
        if self._own is not None and not self._segments:
            output = self._own
            self._write_own()
            arrow_bytes = self._end_own()
        else:
            output = self._desk.staging.create()
            # Close the generators at once, also if a write fails, because they hold the staged files open that they
            # read.
            with closing(self._assembled()) as contents:
                output.fill(contents, self.opened.kind.recipients)
            arrow_bytes = self._assembled_arrow_bytes()
        self._desk.own_files -= self._own is not None
        self._hold(-self.buffered)
        self._desk.closed.append(self._described(output, self._desk.staging.seal(output), rows, arrow_bytes))

    def _described(
        self, output: Output, sealed: Future[tuple[int, str]], rows: int, arrow_bytes: int
    ) -> Callable[[], ClosedPart]:
        """Return a function that describes the closed part, and waits for its sync."""
        opened, last = self.opened, self._last_batch()

        def describe() -> ClosedPart:
            size, digest = sealed.result()
            stamp = opened.bucket, opened.writer, opened.kind, opened.opened_ns, opened.first_batch, last
            return ClosedPart(
                *stamp,
                opened.host,
                opened.pid,
                output.name,
                rows,
                size,
                digest,
                arrow_bytes,
                opened.attempt,
                opened.name,
            )

        return describe

    def leave(self, *, durable: bool) -> OpenPart:
        """Stage what is in memory and return the open part for the ledger.

        Not `durable`: the driver assembles the part before the ledger names it, so its segments need no sync.
        """
        if self._own is not None:
            self._own_rows += self._write_own()
            self._end_own()
            self._segments += self._own_segments(self._own)
            if durable:
                self._desk.staging.seal(self._own)
            else:
                self._own.complete()
        elif self._held:
            segment = self._packed(self._absorbed())
            self._segments.append(segment)
        self._hold(-self.buffered)
        time_ns = self._desk.origin.time_ns if self._grew else self.opened.written_ns
        last = self._last_batch()
        return replace(self.opened, segments=tuple(self._segments), written_ns=time_ns, last_batch=last)

    def _last_batch(self) -> int:
        return self._desk.origin.batch if self._grew else self.opened.last_batch

    def _absorbed(self) -> list[Segment]:
        """Remove and return the last segments, which are folded together with the rows in memory."""
        if len(self._segments) < _SEGMENTS_MAX:
            return []
        keep, size = len(self._segments), self._held_size()
        while keep and self._segments[keep - 1].size <= size and self._segments[keep - 1].form in {BYTES, ARROW}:
            keep -= 1
            size += self._segments[keep].size
        absorbed, self._segments = self._segments[keep:], self._segments[:keep]
        return absorbed

    # The methods that differ between bytes and Arrow:

    stage_bytes = _STAGE_BYTES

    @abstractmethod
    def _own_segments(self, own: Output) -> list[Segment]:
        """Return the contents of the own file as segments for the ledger."""

    @abstractmethod
    def _weigh(self, payload: Payload) -> int: ...

    @abstractmethod
    def _held_size(self) -> int: ...

    @abstractmethod
    def _own_size(self) -> int: ...

    @abstractmethod
    def _fitting(self, payload: Payload, room: int, room_rows: int | None) -> int: ...

    def _begin_own(self) -> None:
        """Prepare the part's own file, which is new."""

    @abstractmethod
    def _write_own(self) -> int:
        """Write what is in memory to the own file; return the number of rows."""

    def _end_own(self) -> int:
        """Complete the own file; return the number of Arrow bytes in it, 0 if unknown."""
        return 0

    @abstractmethod
    def _packed(self, absorbed: list[Segment]) -> Segment:
        """Write the absorbed segments and what is in memory into the pack."""

    @abstractmethod
    def _assembled(self) -> Generator[bytes | memoryview, None, None]:
        """Yield the whole file: segments, own file and memory. The own file is not used afterwards."""

    def _assembled_arrow_bytes(self) -> int:
        """Return the number of Arrow bytes in an assembled file, 0 if unknown."""
        return 0


def required(value: _T | None) -> _T:
    """Return a value that the part must have set by now; `RuntimeError`, a fault in our code, if it has not."""
    if value is None:
        msg = "a part was asked for something that it has not begun yet"
        raise RuntimeError(msg)
    return value
