"""What a task writes: segments of parts that stay open, and whole files of parts that fill.

A task has one part for each bucket it meets, and continues the part that the ledger says is open for (bucket, writer).
Three ways lead from a row to disk, and the choice is only about cost:

- *Small*: the rows of this batch stay in memory (at most `_STAGE_BYTES` a part, `_BUFFER_BYTES` a task) and go, at the
  end, as one range into the task's *pack*, a single file for all its buckets: one sync a task, however many buckets.
- *Large*: they go to a file of their own, already in the final form. If the part fills, has no earlier segments, and
  nothing else, that file *is* the finished part: written once, no copy.
- *Assembly*: a part that is closed and has earlier segments is written anew: the segments, then the rows of this
  batch, in one pass. Bytes where files are records (compressed members too, since members concatenate); decoded and
  encoded in groups of a proper size where they are tables.

A part that gathers many segments (a batch a second for a quarter of an hour) folds the small ones at its end into one
with the new rows, as a log-structured merge tree does: their number stays logarithmic, and no byte is copied more than
a logarithmic number of times.

Every file has a name that nobody else can have, begins with the number of the record the task started from, and means
nothing until a record names it. All of them are synced before the task reports them; syncs run beside the work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import xxhash

from penstock import failpoints, unique
from penstock.errors import StorageError, Unwritable
from penstock.formats import ReadFormat, format_named
from penstock.formats.codecs import compress
from penstock.formats.families import TableFormat
from penstock.formats.registry import table_format
from penstock.formats.schema import spark_name
from penstock.formats.staged import arrow_batches, arrow_stream
from penstock.formats.trial import as_text, refused, text_schema
from penstock.sink.batch import ClosedPart
from penstock.sink.ledger import Kind, OpenPart, Segment
from penstock.sink.segments import check_segment, segment_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from penstock.formats import Encoder
    from penstock.formats.families import TableWriter
    from penstock.sink.buckets import BucketTemplate
    from penstock.sink.rolling import Limits
    from penstock.storage import ReadHandle, Storage, WriteHandle

_STAGE_BYTES = 4 << 20
_BUFFER_BYTES = 64 << 20
_MEMBER_BYTES = 1 << 20  # of text in one compressed member
_ROW_GROUP_BYTES = 32 << 20  # of Arrow in one row group
_OWN_FILES_MAX = 64  # files of their own that a task keeps open
_SEGMENTS_MAX = 16  # beyond which a part folds
_SYNCS_MAX = 8  # at a time: each waits for a disk, or on HDFS for three
_COUNT_BYTES = 256 << 10  # fits in a core's cache together with what is computed of it
_LINE_FEED = ord("\n")
BYTES, ARROW = (
    "bytes",
    "arrow",
)  # the forms of segments that are pieces of a file; any other is a file of the format of that name


@dataclass(frozen=True)
class Origin:
    """Who opens parts in a task: what they are stamped with."""

    writer: int
    batch: int
    base: int
    time_ns: int
    host: str
    pid: int


class Output:
    """A staged file in its final form, hashed as it is written."""

    def __init__(self, handle: WriteHandle, name: str) -> None:
        self.name = name
        self.header_bytes = 0
        self._handle = handle
        self._hash = xxhash.xxh3_128()
        self._rows_hash = self._hash
        self._discarded = False

    def begin(self, header: bytes) -> None:
        """Write what is in front of the rows, first of all."""
        if header:
            self.write(header)
            self.header_bytes = len(header)
            self._rows_hash = xxhash.xxh3_128()

    def write(self, data: bytes | memoryview | pa.Buffer) -> None:
        """Append all of `data`; once discarded do nothing, for Arrow completes a file that was given up, later."""
        if not self._discarded:
            self._hash.update(memoryview(data))
            if self._rows_hash is not self._hash:
                self._rows_hash.update(memoryview(data))
            self._handle.write(data)

    def tell(self) -> int:
        """Return the bytes written so far."""
        return self._handle.tell()

    def segment(self, rows: int, form: str) -> Segment:
        """Return all that was written so far behind the header as a segment of `rows` rows."""
        end = self.tell()
        size = end - self.header_bytes
        return Segment(self.name, self.header_bytes, end, rows, form, size, self._rows_hash.hexdigest())

    def seal(self) -> tuple[int, str]:
        """Make the file durable and close it; return its length and digest."""
        failpoints.hit("sink.write.before-sync")
        self._handle.sync()
        size = self._handle.tell()
        self._handle.close()
        return size, self._hash.hexdigest()

    def discard(self) -> None:
        """Close without syncing, whatever state it is in."""
        self._discarded = True
        with suppress(StorageError):
            self._handle.close()


class Staging:
    """The staged files of one task attempt, or of a driver that assembles. Closing it waits for its syncs."""

    def __init__(self, storage: Storage, directory: str, *, base: int, batch: int, writer: int) -> None:
        self._storage = storage
        self._directory = directory
        self._prefix = f"{base:012d}-{batch}-{writer}"
        self._syncs = storage.workers(_SYNCS_MAX)
        self._sealing: list[Future[Any]] = []
        self._outputs: list[Output] = []
        self._pack: WriteHandle | None = None
        self._pack_name = ""

    def create(self) -> Output:
        """Create a staged file of its own."""
        name = f"{self._prefix}-{unique.token()}.part"
        output = Output(self._storage.create(f"{self._directory}/{name}"), name)
        self._outputs.append(output)
        return output

    def seal(self, output: Output) -> Future[tuple[int, str]]:
        """Sync and close `output` beside the work; the result is its length and digest."""
        sealing = self._syncs.submit(output.seal)
        self._sealing.append(sealing)
        return sealing

    def pack(self, data: bytes | pa.Buffer, rows: int, form: str, size: int) -> Segment:
        """Append to the task's pack; return the range as a segment."""
        if self._pack is None:
            self._pack_name = f"{self._prefix}-{unique.token()}.pack"
            self._pack = self._storage.create(f"{self._directory}/{self._pack_name}")
        start = self._pack.tell()
        self._pack.write(data)
        digest = xxhash.xxh3_128_hexdigest(data)
        return Segment(self._pack_name, start, self._pack.tell(), rows, form, size, digest)

    def read(self, segment: Segment) -> Iterator[bytes]:
        """Yield the bytes of a segment; `DamagedState`, at the latest behind the last, if they are not what was staged."""
        return segment_bytes(self._storage, self._directory, segment)

    @contextmanager
    def open(self, segment: Segment) -> Iterator[ReadHandle]:
        """Open the file that a segment is all of, once it is known to be what was staged."""
        check_segment(self._storage, self._directory, segment)
        with self._storage.open(f"{self._directory}/{segment.file}") as handle:
            yield handle

    def finish(self, *, durable: bool = True) -> None:
        """Wait until everything staged is durable (the pack only if asked); raises what any sync raised."""
        if self._pack is not None:
            failpoints.hit("sink.write.before-pack-sync")
            if durable:
                self._pack.sync()
            self._pack.close()
        for sealing in self._sealing:
            sealing.result()
        self._syncs.shutdown()

    def discard(self) -> None:
        """Close what is open after a failure; the files mean nothing and are swept later."""
        self._syncs.shutdown(cancel_futures=True)
        for output in self._outputs:
            output.discard()
        if self._pack is not None:
            with suppress(StorageError):
                self._pack.close()


@dataclass
class Encoded:
    """Encoded records: `ends()` gives the end of each row in `data`."""

    data: bytes | memoryview | pa.Buffer
    rows: int
    ends: Callable[[], np.ndarray[tuple[int], np.dtype[np.int64]]] = field(
        default=lambda: np.zeros(0, np.int64), repr=False
    )

    def fitting(self, room_bytes: int, room_rows: int | None) -> int:
        """Return how many of the first rows fit."""
        if len(self.data) <= room_bytes and (room_rows is None or self.rows <= room_rows):
            return self.rows
        fit = int(np.searchsorted(self.ends(), room_bytes, side="right"))
        return fit if room_rows is None else min(fit, room_rows)

    def cut(self, rows: int) -> tuple[Encoded, Encoded]:
        """Return the first `rows` rows and the rest."""
        ends = self.ends()
        at, view = int(ends[rows - 1]), memoryview(self.data)
        head = Encoded(view[:at], rows, lambda: ends[:rows])
        return head, Encoded(view[at:], self.rows - rows, lambda: ends[rows:] - at)


def lines(data: bytes) -> Encoded:
    """Return UTF-8 lines, each ended by a line feed, as encoded records."""
    codes = np.frombuffer(data, np.uint8)
    pieces = (codes[start : start + _COUNT_BYTES] for start in range(0, len(codes), _COUNT_BYTES))
    rows = sum(int(np.count_nonzero(piece == _LINE_FEED)) for piece in pieces)
    return Encoded(data, rows, lambda: (np.flatnonzero(codes == _LINE_FEED) + 1).astype(np.int64))


@dataclass
class ArrowRows:
    """Rows that are still Arrow."""

    batch: pa.RecordBatch

    @property
    def rows(self) -> int:
        """Return how many there are."""
        return int(self.batch.num_rows)

    def cut(self, rows: int) -> tuple[ArrowRows, ArrowRows]:
        """Return the first `rows` rows and the rest."""
        return ArrowRows(self.batch.slice(0, rows)), ArrowRows(self.batch.slice(rows))


Payload = TypeVar("Payload", Encoded, ArrowRows)
_T = TypeVar("_T")


@dataclass
class Desk:
    """What the parts of one task share."""

    staging: Staging
    origin: Origin
    limits: Limits
    ratio: float
    root: str  # of the output, for messages
    as_text: bool = False  # columns that the format cannot hold
    own_files: int = 0
    buffered: int = 0
    closed: list[Callable[[], ClosedPart]] = field(default_factory=list)

    def own_file(self) -> Output | None:
        """Return a new file of its own for a part, `None` if the task has enough of them."""
        if self.own_files >= _OWN_FILES_MAX:
            return None
        self.own_files += 1
        return self.staging.create()


class Part(ABC, Generic[Payload]):
    """One part in one task: what the ledger has of it, and behind that the rows of this batch.

    The rows of this batch are in the pack (as segments), then in a file of the part's own, then in memory: in this order.
    """

    def __init__(self, desk: Desk, bucket: str, kind: Kind, before: OpenPart | None) -> None:
        origin = desk.origin
        times = (origin.time_ns, origin.time_ns, origin.batch, origin.batch)
        self.opened = before or OpenPart(bucket, origin.writer, kind, *times, (), origin.host, origin.pid)
        self._desk = desk
        self._segments = list(self.opened.segments)
        self._own: Output | None = None
        self._own_rows = 0
        self._held: list[Payload] = []
        self._grew = False
        self.buffered = 0

    @property
    def rows(self) -> int:
        """Return the part's rows, committed or not."""
        return sum(s.rows for s in self._segments) + self._own_rows + sum(p.rows for p in self._held)

    @property
    def size(self) -> int:
        """Return the bytes the finished file would have now (estimated where it must be)."""
        return sum(s.size for s in self._segments) + self._own_size() + self._held_size()

    def fitting(self, payload: Payload) -> int:
        """Return how many of the payload's rows the part can take before a limit."""
        limits = self._desk.limits
        room_rows = None if limits.rows is None else max(limits.rows - self.rows, 0)
        return self._fitting(payload, max(limits.size - self.size, 0), room_rows)

    def full(self) -> bool:
        """Tell whether no further record can fit."""
        limits = self._desk.limits
        return self.size >= limits.size or (limits.rows is not None and self.rows >= limits.rows)

    def add(self, payload: Payload) -> None:
        """Take the rows, all of them."""
        self._held.append(payload)
        self._grew = True
        self._hold(self._weigh(payload))

    def _hold(self, size: int) -> None:
        """Count what is in memory."""
        self.buffered += size
        self._desk.buffered += size

    def relieve(self) -> None:
        """Move what is in memory to disk: into the part's own file, or the pack when there are too many of those."""
        if self._own is None:
            self._own = self._desk.own_file()
            if self._own is not None:
                self._begin_own()
        if self._own is not None:
            self._own_rows += self._write_own()
        elif self._held:
            self._segments.append(self._packed([]))
        self._held = []
        self._hold(-self.buffered)

    def close(self) -> None:
        """Bring the part into one complete file and have it sealed; the task's `closed` will describe it."""
        rows = self.rows
        if self._own is not None and not self._segments:
            output = self._own
            self._write_own()
            arrow_bytes = self._end_own()
        else:
            output = self._desk.staging.create()
            arrow_bytes = self._assemble(output)
        self._desk.own_files -= self._own is not None
        self._hold(-self.buffered)
        self._desk.closed.append(self._described(output, self._desk.staging.seal(output), rows, arrow_bytes))

    def _described(
        self, output: Output, sealed: Future[tuple[int, str]], rows: int, arrow_bytes: int
    ) -> Callable[[], ClosedPart]:
        """Return what describes the closed part once its sync is done."""
        opened, last = self.opened, self._last_batch()

        def describe() -> ClosedPart:
            size, digest = sealed.result()
            stamp = opened.bucket, opened.writer, opened.kind, opened.opened_ns, opened.first_batch, last
            return ClosedPart(*stamp, opened.host, opened.pid, output.name, rows, size, digest, arrow_bytes)

        return describe

    def leave(self, *, durable: bool) -> OpenPart:
        """Stage what is in memory and return the part as the ledger shall know it, still open.

        Not `durable`: the driver assembles the part before the ledger names it, so its segments need no sync.
        """
        if self._own is not None:
            self._own_rows += self._write_own()
            self._end_own()
            self._segments += self._own_segments(self._own)
            if durable:
                self._desk.staging.seal(self._own)
            else:
                self._own.discard()
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
        """Take off the last segments that the rows in memory should be folded with."""
        if len(self._segments) < _SEGMENTS_MAX:
            return []
        keep, size = len(self._segments), self._held_size()
        while keep and self._segments[keep - 1].size <= size and self._segments[keep - 1].form in {BYTES, ARROW}:
            keep -= 1
            size += self._segments[keep].size
        absorbed, self._segments = self._segments[keep:], self._segments[:keep]
        return absorbed

    # What differs between bytes and Arrow:

    stage_bytes = _STAGE_BYTES

    @abstractmethod
    def _own_segments(self, own: Output) -> list[Segment]:
        """Return what was written to the own file as the segments that the ledger shall know."""

    @abstractmethod
    def _weigh(self, payload: Payload) -> int: ...

    @abstractmethod
    def _held_size(self) -> int: ...

    @abstractmethod
    def _own_size(self) -> int: ...

    @abstractmethod
    def _fitting(self, payload: Payload, room: int, room_rows: int | None) -> int: ...

    def _begin_own(self) -> None:
        """Prepare the own file, which is new."""

    @abstractmethod
    def _write_own(self) -> int:
        """Write what is in memory to the own file; return the rows."""

    def _end_own(self) -> int:
        """Complete the own file; return the Arrow bytes it holds, 0 if that is not known."""
        return 0

    @abstractmethod
    def _packed(self, absorbed: list[Segment]) -> Segment:
        """Write the absorbed segments and what is in memory into the pack."""

    @abstractmethod
    def _assemble(self, output: Output) -> int:
        """Write segments, own file and memory into a new file; return its Arrow bytes, 0 if that is not known."""


class BytePart(Part[Encoded]):
    """A part of a file of records: any run of bytes is a segment, and segments concatenate.

    With a compression, rows are held as text and become members (gzip) or frames (zstd) of about `_MEMBER_BYTES`.
    """

    def __init__(self, desk: Desk, bucket: str, kind: Kind, before: OpenPart | None) -> None:
        super().__init__(desk, bucket, kind, before)
        self._codec = kind.compression
        self._header = kind.header_bytes
        self._text: list[Encoded] = []  # not compressed yet
        self._text_bytes = 0

    @property
    def rows(self) -> int:
        """Return the part's rows, committed or not."""
        return super().rows + sum(p.rows for p in self._text)

    @property
    def size(self) -> int:
        """Return the bytes the finished file would have now."""
        return super().size + len(self._header)

    def add(self, payload: Encoded) -> None:
        """Take the rows; a full member is compressed at once."""
        if self._codec == "none":
            super().add(payload)
            return
        self._text.append(payload)
        self._text_bytes += len(payload.data)
        self._grew = True
        self._hold(len(payload.data))
        if self._text_bytes >= _MEMBER_BYTES:
            self.settle()

    def settle(self) -> bool:
        """Compress what is still text, so that its size is known; tell whether that made room worth filling."""
        if not self._text:
            return False
        data = compress(b"".join(p.data for p in self._text), self._codec)
        rows = sum(p.rows for p in self._text)
        self._hold(-self._text_bytes)
        self._text, self._text_bytes = [], 0
        super().add(Encoded(data, rows))
        return self._desk.limits.size - self.size > self._desk.limits.size // 16

    def relieve(self) -> None:
        """Move what is in memory to disk."""
        self.settle()
        super().relieve()

    def close(self) -> None:
        """Bring the part into one complete file."""
        self.settle()
        super().close()

    def leave(self, *, durable: bool) -> OpenPart:
        """Stage what is in memory."""
        self.settle()
        return super().leave(durable=durable)

    def _weigh(self, payload: Encoded) -> int:
        return len(payload.data)

    def _held_size(self) -> int:
        return sum(len(p.data) for p in self._held) + self._text_bytes

    def _own_size(self) -> int:
        return self._own.tell() - self._own.header_bytes if self._own else 0

    def _fitting(self, payload: Encoded, room: int, room_rows: int | None) -> int:
        return payload.fitting(room, room_rows)

    def _begin_own(self) -> None:
        """Begin the own file, which may become the finished one."""
        _required(self._own).begin(self._header)

    def _write_own(self) -> int:
        for held in self._held:
            _required(self._own).write(held.data)
        return sum(held.rows for held in self._held)

    def _packed(self, absorbed: list[Segment]) -> Segment:
        staging = self._desk.staging
        data = [data for segment in absorbed for data in staging.read(segment)] + [held.data for held in self._held]
        whole = b"".join(data)
        rows = sum(s.rows for s in absorbed) + sum(held.rows for held in self._held)
        return staging.pack(whole, rows, BYTES, len(whole))

    def _own_segments(self, own: Output) -> list[Segment]:
        return [own.segment(self._own_rows, BYTES)]

    def _assemble(self, output: Output) -> int:
        staging, own = self._desk.staging, self._own
        output.begin(self._header)
        earlier = [*self._segments, *(self._own_segments(own) if own else [])]
        for segment in earlier:
            for data in staging.read(segment):
                output.write(data)
        for held in self._held:
            output.write(held.data)
        if own is not None:
            own.discard()
        return 0


class ArrowPart(Part[ArrowRows]):
    """A part of a table: staged as Arrow, or as a file of its format when a batch brings a row group or more.

    Sizes are estimates: what the rows will take in the file, from the ratio that the sink's finished files have shown.
    """

    stage_bytes = _ROW_GROUP_BYTES

    def __init__(self, desk: Desk, bucket: str, kind: Kind, before: OpenPart | None) -> None:
        super().__init__(desk, bucket, kind, before)
        self._form = table_format(kind.format)
        self._writer: TableWriter | None = None
        self._refused: tuple[str, ...] = ()  # columns that the format cannot hold
        self._schema: pa.Schema | None = None  # of the rows that are staged, once it is asked for
        self._arrow_bytes = 0

    def settle(self) -> bool:
        """Do nothing: an estimate is all there is until a row group is written."""
        return False

    def add(self, payload: ArrowRows) -> None:
        """Take the rows."""
        super().add(payload)
        self._arrow_bytes += payload.batch.nbytes

    def _weigh(self, payload: ArrowRows) -> int:
        return int(payload.batch.nbytes)

    def _held_size(self) -> int:
        return int(self.buffered * self._desk.ratio)

    def _own_size(self) -> int:
        return self._writer.bytes_estimate if self._writer else 0

    def _fitting(self, payload: ArrowRows, room: int, room_rows: int | None) -> int:
        rows, size = payload.rows, payload.batch.nbytes * self._desk.ratio
        fit = rows if size <= room else int(rows * room / size)
        return fit if room_rows is None else min(fit, room_rows)

    def _begin_own(self) -> None:
        """Begin the own file; earlier segments that are no larger than what is in memory are written first."""
        self._writer = self._new_writer(_required(self._own))
        if sum(s.size for s in self._segments) <= self._held_size():
            self._own_rows += self._copy(self._segments, self._writer)
            self._segments = []

    def _write_own(self) -> int:
        writer = _required(self._writer)
        for held in self._held:
            writer.write(held.batch)
        return sum(held.rows for held in self._held)

    def _end_own(self) -> int:
        _required(self._writer).close()
        return 0 if self.opened.segments else self._arrow_bytes

    def _packed(self, absorbed: list[Segment]) -> Segment:
        staging = self._desk.staging
        batches = [batch for segment in absorbed for batch in read_batches(staging, segment, None)]
        batches += [held.batch for held in self._held]
        size = sum(s.size for s in absorbed) + self._held_size()
        return staging.pack(arrow_stream(batches, batches[0].schema), sum(b.num_rows for b in batches), ARROW, size)

    def _own_segments(self, own: Output) -> list[Segment]:
        """Return the file, behind a segment without rows if nothing else would tell their schema."""
        segment = own.segment(self._own_rows, self._form.name)
        if self._segments or self._form.tells_schema:
            return [segment]
        schema = _required(self._schema)
        nothing = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        return [self._desk.staging.pack(arrow_stream([nothing], schema), 0, ARROW, 0), segment]

    def _assemble(self, output: Output) -> int:
        if self._own is not None:
            _required(self._writer).close()
            self._segments += self._own_segments(self._own)
        writer = self._new_writer(output)
        self._copy(self._segments, writer)
        for held in self._held:
            writer.write(held.batch)
        writer.close()
        if self._own is not None:
            self._own.discard()
        return 0 if self.opened.segments else self._arrow_bytes

    def _copy(self, segments: list[Segment], writer: TableWriter) -> int:
        """Write the rows of segments; return how many."""
        for segment in segments:
            for batch in read_batches(self._desk.staging, segment, self._schema):
                writer.write(as_text(batch, self._refused))
        return sum(segment.rows for segment in segments)

    def _new_writer(self, output: Output) -> TableWriter:
        codec = self.opened.kind.compression
        schema = self._staged_schema()
        if not self._held:  # an earlier version may have staged them, which has not tried their schema
            self._refused = refused(self._form, schema, codec)
            self._check_refused(schema)
            schema = text_schema(schema, self._refused)
        return self._form.writer(output, schema, codec, group_bytes=_ROW_GROUP_BYTES, ratio=self._desk.ratio)

    def _staged_schema(self) -> pa.Schema:
        """Return the schema of the part's rows, which were not tried if they are all staged."""
        self._schema = self._held[0].batch.schema if self._held else read_schema(self._desk.staging, self._segments)
        return self._schema

    def _check_refused(self, schema: pa.Schema) -> None:
        """Raise `Unwritable` if columns cannot be written, and nobody has said that their text shall be."""
        if self._refused and not self._desk.as_text:
            name = self._refused[0]
            msg = (
                f"{self.rows} rows of bucket {self.opened.bucket!r} were staged by an earlier version, with column {name!r} of type "
                f"{spark_name(schema.field(name).type)}, which {self._form.name} cannot hold; none is lost. Publish them with such columns "
                f"as JSON text: penstock finish {self._desk.root} --as-text"
            )
            raise Unwritable(msg)


def read_batches(staging: Staging, segment: Segment, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a staged segment, of form `arrow` or a table's; `schema` is theirs, `None` if the segment tells it."""
    if segment.form == ARROW:
        yield from arrow_batches(pa.py_buffer(b"".join(staging.read(segment))))
        return
    form = table_format(segment.form)
    with staging.open(segment) as handle:
        written = form.written_schema(handle, segment.end) or _required(schema)
        yield from form.rows(ReadFormat(form.name, written), handle, segment.end, (0, segment.end))


def read_schema(staging: Staging, segments: Sequence[Segment]) -> pa.Schema:
    """Return the schema of staged segments, of which the first tells it."""
    return next(iter(read_batches(staging, segments[0], None))).schema


def unwritable(staging: Staging, part: OpenPart) -> tuple[str, ...]:
    """Return the columns of an open part that its format cannot hold: an earlier version took them."""
    form = format_named(part.kind.format)
    if not isinstance(form, TableFormat):
        return ()
    return refused(form, read_schema(staging, part.segments), part.kind.compression)


def new_part(desk: Desk, bucket: str, kind: Kind, before: OpenPart | None) -> BytePart | ArrowPart:
    """Return the part for rows of this kind, continuing `before` if the ledger has it open."""
    make = ArrowPart if isinstance(format_named(kind.format), TableFormat) else BytePart
    return make(desk, bucket, kind, before)


_NOTHING = Encoded(b"", 0)


def _required(value: _T | None) -> _T:
    if value is None:
        msg = "a part was asked for what it has not begun"
        raise RuntimeError(msg)
    return value


@dataclass(frozen=True)
class AsideParts:
    """Where lines about what is set aside go, and what the files are that they become."""

    bucket: str
    kind: Kind
    encoder: Encoder


class TaskWriter:
    """The rows of one task attempt, from Arrow (or lines of text) to staged files. Use it once, then `finish` or `discard`.

    `before` are the open parts of this writer. Those whose time was up when the batch began, or that hold another kind
    of file than the sink writes by now, are not continued: new rows open another part.
    """

    def __init__(
        self,
        desk: Desk,
        kind: Kind,
        *,
        before: list[OpenPart],
        bucket_by: BucketTemplate | None,
        drop: tuple[str, ...] = (),
        encode: Encoder | None = None,
        aside: AsideParts,
    ) -> None:
        self._desk = desk
        self._kind = kind
        self._aside = aside
        self._bucket_by = bucket_by
        self._drop = drop
        self._encode = encode
        self._parts: dict[str, BytePart | ArrowPart] = {}
        self._before = {
            p.bucket: p
            for p in before
            if p.kind == self._kind_of(p.bucket) and not desk.limits.expired(p, desk.origin.time_ns)
        }
        self._consumed: list[str] = []
        self._expired = [p for p in before if p.bucket not in self._before]

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch."""
        if self._bucket_by is None:
            self._write("", batch)
            return
        for bucket, rows in self._bucket_by.split(batch, self._desk.origin.time_ns):
            self._write(bucket, rows.drop_columns(list(self._drop)) if self._drop else rows)

    def write_text(self, data: bytes) -> int:
        """Take lines of text as they are (UTF-8, each ended by a line feed; no buckets); return how many."""
        payload = lines(data)
        self._place("", payload)
        return payload.rows

    def set_aside(self, lines: pa.RecordBatch) -> None:
        """Take lines about what is set aside: rows of a part like others, in the bucket and of the kind that is for them."""
        data, encode = self._aside.encoder.encode(lines), self._aside.encoder
        self._place(self._aside.bucket, Encoded(data, lines.num_rows, lambda: encode.ends(lines, data)))

    def _kind_of(self, bucket: str) -> Kind:
        return self._aside.kind if bucket == self._aside.bucket else self._kind

    def _write(self, bucket: str, batch: pa.RecordBatch) -> None:
        if self._encode is None:
            table_format(self._kind.format).check(batch)
            self._place(bucket, ArrowRows(batch))
            return
        data, encode = self._encode.encode(batch), self._encode
        self._place(bucket, Encoded(data, batch.num_rows, lambda: encode.ends(batch, data)))

    def _place(self, bucket: str, payload: Any) -> None:  # noqa: ANN401 - Encoded or ArrowRows, as the parts of this kind take
        while payload.rows:
            part = self._part(bucket)
            fit = part.fitting(payload)
            if fit == 0 and (part.settle() or part.rows):
                if not part.fitting(payload):
                    self._parts.pop(bucket).close()
                continue
            fit = max(fit, 1)
            head, payload = (payload, _NOTHING) if fit >= payload.rows else payload.cut(fit)
            part.add(head)
            if part.full() and not part.settle():
                self._parts.pop(bucket).close()
            elif part.buffered >= part.stage_bytes or self._desk.buffered >= _BUFFER_BYTES:
                max(self._parts.values(), key=lambda p: p.buffered).relieve()

    def _part(self, bucket: str) -> BytePart | ArrowPart:
        if bucket not in self._parts:
            before = self._before.pop(bucket, None)
            if before is not None:
                self._consumed.append(bucket)
            self._parts[bucket] = new_part(self._desk, bucket, self._kind_of(bucket), before)
        return self._parts[bucket]

    def finish(self, *, final: bool, merge_below: int) -> tuple[list[ClosedPart], list[OpenPart], list[str]]:
        """Bring everything to disk; return (closed parts, parts left open, buckets whose earlier part they continue).

        `final`: the query ends with this batch. Parts whose end has come are closed here if they have `merge_below`
        bytes; smaller ones are left as they are: the driver merges those of several writers.
        """
        self._close_untouched(final=final, merge_below=merge_below)
        left, stays = [], False
        for part in self._parts.values():
            ends = self._ends(part.opened, final=final)
            if ends and part.size >= merge_below:
                part.close()
            else:
                left.append(part.leave(durable=not ends))
                stays |= not ends
        failpoints.hit("sink.write.staged")
        self._desk.staging.finish(durable=stays)
        return [describe() for describe in self._desk.closed], left, self._consumed

    def _ends(self, part: OpenPart, *, final: bool) -> bool:
        return final or self._desk.limits.ends_with(part.first_batch, self._desk.origin.batch)

    def _close_untouched(self, *, final: bool, merge_below: int) -> None:
        """Close the large ones of those parts that end with this batch but had no rows in it."""
        ending = [part for part in self._before.values() if self._ends(part, final=final)]
        for part in self._expired + ending:
            if part.size >= merge_below:
                new_part(self._desk, part.bucket, part.kind, part).close()
                self._consumed.append(part.bucket)

    def discard(self) -> None:
        """Give up after a failure."""
        self._desk.staging.discard()
