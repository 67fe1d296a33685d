"""Parts of tables: their rows wait as Arrow, or in files of the format, and are then written in row groups of a proper size."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import Unwritable
from penstock.formats import ReadFormat, format_named
from penstock.formats.families import TableFormat
from penstock.formats.format import WriteFormat
from penstock.formats.registry import table_format
from penstock.formats.schema import spark_name
from penstock.formats.staged import arrow_batches, arrow_stream
from penstock.formats.trial import as_text, refused, text_schema
from penstock.sink.parts import ARROW, Desk, Part, required
from penstock.sink.payload import ArrowRows

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from penstock.formats.families import TableWriter, WritableFile
    from penstock.sink.ledger import Destination, Kind, OpenPart, Segment
    from penstock.sink.staging import Output, Staging

_ROW_GROUP_BYTES = 32 << 20  # bytes of Arrow in one row group
_OWN_BYTES = 8 << 20  # bytes of Arrow that make a row group which is not small


class ArrowPart(Part[ArrowRows]):
    """A part of a table: staged as Arrow, or as a file of its format when a batch brings a row group or more.

    Sizes are estimates of the rows' bytes in the file, from the ratio that the sink's finished files have shown.
    """

    stage_bytes = _ROW_GROUP_BYTES

    def __init__(self, desk: Desk, place: Destination, kind: Kind, before: OpenPart | None) -> None:
        super().__init__(desk, place, kind, before)
        self._form = table_format(kind.format)
        self._writer: TableWriter | None = None
        self._refused: tuple[str, ...] = ()  # columns that the format cannot hold
        self._schema: pa.Schema | None = None  # schema of the staged rows, once it was needed
        self._arrow_bytes = 0

    def settle(self) -> bool:
        """Do nothing: the size stays an estimate until a row group is written."""
        return False

    def add(self, payload: ArrowRows) -> None:
        """Take the rows."""
        super().add(payload)
        self._arrow_bytes += payload.batch.nbytes

    def leave(self, *, durable: bool) -> OpenPart:
        """Stage what is in memory, as a file of the format if the part ends now and the driver can take its rows over from there.

        So tasks encode them side by side, and not the driver, after all tasks, every file by one thread.
        """
        if not durable and self._own is None and self.buffered >= _OWN_BYTES and self._form.takes_over:
            self.relieve()
        return super().leave(durable=durable)

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
        """Begin the part's own file. If it is encrypted, or earlier segments are no larger than what is in memory, writes these first."""
        self._writer = self._new_writer(required(self._own))
        if self.is_encrypted_now or sum(s.size for s in self._segments) <= self._held_size():
            self._own_rows += self._copy(self._segments, self._writer)
            self._segments = []

    def _write_own(self) -> int:
        writer = required(self._writer)
        for held in self._held:
            writer.write(held.batch)
        return sum(held.rows for held in self._held)

    def _end_own(self) -> int:
        required(self._writer).close()
        required(self._own).end()
        return 0 if self.opened.segments else self._arrow_bytes

    def _packed(self, absorbed: list[Segment]) -> Segment:
        staging = self._desk.staging
        batches = [batch for segment in absorbed for batch in read_batches(staging, segment, None)]
        batches += [held.batch for held in self._held]
        size = sum(s.size for s in absorbed) + self._held_size()
        return staging.pack(arrow_stream(batches, batches[0].schema), sum(b.num_rows for b in batches), ARROW, size)

    def _own_segments(self, own: Output) -> list[Segment]:
        """Return the own file as a segment, after a segment without rows if nothing else would show the schema."""
        segment = own.segment(self._own_rows, self._form.name)
        if self._segments or self._form.tells_schema:
            return [segment]
        schema = required(self._schema)
        nothing = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        return [self._desk.staging.pack(arrow_stream([nothing], schema), 0, ARROW, 0), segment]

    def _assembled(self) -> Generator[bytes, None, None]:
        if self._own is not None:
            required(self._writer).close()
            self._segments += self._own_segments(self._own)
        encoded = _Encoded()
        writer = self._new_writer(encoded)
        for _ in self._copied(self._segments, writer):
            yield from encoded.taken()
        for held in self._held:
            writer.write(held.batch)
            yield from encoded.taken()
        writer.close()
        yield from encoded.taken()
        if self._own is not None:
            self._own.discard()

    def _assembled_arrow_bytes(self) -> int:
        return 0 if self.opened.segments else self._arrow_bytes

    def _copy(self, segments: list[Segment], writer: TableWriter) -> int:
        """Write the rows of segments; return how many."""
        for _ in self._copied(segments, writer):
            pass
        return sum(segment.rows for segment in segments)

    def _copied(self, segments: list[Segment], writer: TableWriter) -> Iterator[None]:
        """Write the rows of segments, a piece each time."""
        for segment in segments:
            # What a segment has was written by this sink for this part, so by the same codec.
            if self._refused or not (yield from taken_over(self._desk.staging, segment, self._form, writer)):
                for batch in read_batches(self._desk.staging, segment, self._schema):
                    writer.write(as_text(batch, self._refused))
                    yield

    def _new_writer(self, output: WritableFile) -> TableWriter:
        kind = self.opened.kind
        schema = self._staged_schema()
        # If all rows are staged, an earlier version may have done that, without trying whether the format can hold them.
        if not self._held:
            self._refused = refused(self._form, schema, kind.compression)
            self._check_refused(schema)
            schema = text_schema(schema, self._refused)
        fmt = WriteFormat(self._form.name, schema, kind.compression, level=kind.level)
        return self._form.writer(output, fmt, group_bytes=_ROW_GROUP_BYTES, ratio=self._desk.ratio)

    def _staged_schema(self) -> pa.Schema:
        """Return the schema of the part's rows."""
        self._schema = self._held[0].batch.schema if self._held else read_schema(self._desk.staging, self._segments)
        return self._schema

    def _check_refused(self, schema: pa.Schema) -> None:
        """Raise `Unwritable` if columns cannot be written, and `as_text` does not ask for their text."""
        if self._refused and not self._desk.as_text:
            name = self._refused[0]
            msg = (
                f"{self.rows} rows of bucket {self.opened.bucket!r} were staged by an earlier version, with column {name!r} of type "
                f"{spark_name(schema.field(name).type)}, which {self._form.name} cannot hold; none is lost. Publish them with such columns "
                f"as JSON text: penstock finish {quote(self._desk.root)} --as-text"
            )
            raise Unwritable(msg)


class _Encoded:
    """Collects what a table writer has written since the last `taken`: at most a row group."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def write(self, data: Any) -> None:  # noqa: ANN401 - as `WritableFile`
        self._chunks.append(data if isinstance(data, bytes) else bytes(data))

    def taken(self) -> list[bytes]:
        chunks, self._chunks = self._chunks, []
        return chunks


def taken_over(
    staging: Staging, segment: Segment, form: TableFormat, writer: TableWriter
) -> Generator[None, None, bool]:
    """Take the rows of a segment that is a file of the format over as they are stored there, and tell whether that was possible.

    The segment is compared with its digest before.
    """
    if segment.form != form.name:
        return False
    with staging.open(segment) as handle:
        steps = writer.taking(handle, segment.end)
        if steps is None:
            return False
        for _ in steps:
            yield
    return True


def read_batches(staging: Staging, segment: Segment, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a staged segment of form `arrow` or of a table format; `schema` may be `None` if the segment has it."""
    if segment.form == ARROW:
        yield from arrow_batches(pa.py_buffer(b"".join(staging.read(segment))))
        return
    form = table_format(segment.form)
    with staging.open(segment) as handle:
        written = form.written_schema(handle, segment.end) or required(schema)
        yield from form.rows(ReadFormat(form.name, written), handle, segment.end, (0, segment.end))


def read_schema(staging: Staging, segments: Sequence[Segment]) -> pa.Schema:
    """Return the schema of staged segments, which the first one has."""
    first = segments[0]
    if first.form != ARROW and (form := table_format(first.form)).tells_schema:
        with staging.open(first) as handle:
            return required(form.written_schema(handle, first.end))
    return next(iter(read_batches(staging, segments[0], None))).schema


def unwritable(staging: Staging, part: OpenPart) -> tuple[str, ...]:
    """Return the columns of an open part that its format cannot hold; an earlier version accepted such columns."""
    form = format_named(part.kind.format)
    if not isinstance(form, TableFormat):
        return ()
    return refused(form, read_schema(staging, part.segments), part.kind.compression)
