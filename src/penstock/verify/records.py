"""Both sides of a comparison as records of one form.

The form is that of the output. Where it is text, a record is a line, byte by byte: a line of the source, or the line
that the sink makes of a row. Else it is a row of the schema that the sink writes; the source is read, and transformed,
by the stage that the ingest noted, the output by the reader of its format. So the comparison also covers what encoding
and decoding might lose.

A row's bucket belongs to the record: a row in the wrong directory is missing in one and foreign in the other, and the
columns that `dropBucketColumns` left out count as far as the directory shows them. Only where the template uses the
time of the batch, which nobody can repeat, buckets are not compared.

What is committed and not visible yet (staged files that are owed, segments of open parts) is read where it is staged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import NotThere
from penstock.formats import ReadFormat, arrow_batches, format_named
from penstock.formats.account import Account
from penstock.formats.charsets import UTF_8_CHARSET
from penstock.formats.codecs import decompressed
from penstock.formats.families import RecordFormat
from penstock.formats.registry import record_format, table_format
from penstock.sink.parts import ARROW, BYTES
from penstock.source.read import EXPANDED_BYTES_MAX, EXPANSION_MAX
from penstock.verify.sums import lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from penstock.ingestion.stage import Stage
    from penstock.sink.sink import Sink
    from penstock.source.cursor import Split
    from penstock.storage import Storage
    from penstock.verify.files import SinkView

    Records = Iterator[tuple[str, pa.RecordBatch]]  # (bucket, rows of the common form)

_BLOCK_BYTES = 8 << 20
_SPLIT_BYTES = 64 << 20
_GROUP_FILES = 2000
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # neither can begin UTF-8 text


@dataclass(frozen=True)
class Unit:
    """Some records of one side: where they are, their size in bytes, and what reads them, any number of times."""

    label: str
    size: int
    read: Callable[[], Records]


@dataclass(frozen=True)
class Piece:
    """Bytes [start, end) of an output or staged file, all of one bucket. `form`: bytes, arrow, or a format whose file it is.

    `whole`: it begins as files of the output do, with a header if they have one.
    """

    path: str
    label: str
    start: int
    end: int
    form: str
    bucket: str
    whole: bool = False


class Feed:
    """How one source becomes one output: the stage, as it was noted, and the sink that wrote what it gave.

    `left_out` are columns that are not compared: rows from before they were added have none of them.
    """

    def __init__(self, stage: Stage, sink: Sink, left_out: frozenset[str] = frozenset()) -> None:
        self.stage = stage
        self._left_out = left_out
        self._sink = sink
        self._as_lines = format_named(sink.options["format"]).as_lines
        self._passes_text = self._as_lines and not sink.options["bucketBy"] and self.stage.plain_text
        self._buckets = sink.bucket_by(self.stage.schema)
        self._schema, self.dropped = sink.data_schema(self.stage.schema)
        self._fmt = sink.format(self._schema)
        self.compares_buckets = self._buckets is None or self._buckets.follows_from_rows

    # -- the source ----------------------------------------------------------------------------------------------

    def source(self, splits: Iterable[Split]) -> Iterator[Unit]:
        """Yield units of the splits: small ones together, large ones cut where that is cheap."""
        group: list[Split] = []
        size = 0
        for split in splits:
            if split.end - split.start > _SPLIT_BYTES:
                yield from (self._unit([part]) for part in self._cut(split))
                continue
            group.append(split)
            size += split.end - split.start
            if size >= _SPLIT_BYTES or len(group) >= _GROUP_FILES:
                yield self._unit(group)
                group, size = [], 0
        if group:
            yield self._unit(group)

    def single(self, splits: Iterable[Split]) -> Iterator[Unit]:
        """Yield units of one file each, so that a record can be traced to its file."""
        return (self._unit([split]) for split in splits)

    def _unit(self, splits: list[Split]) -> Unit:
        label = self.stage.reading.full_path(splits[0].file)
        return Unit(label, sum(s.end - s.start for s in splits), partial(self._rows, splits))

    def _cut(self, split: Split) -> Iterator[Split]:
        how = self.stage.reading
        if how.form.anchored or not how.divisible(split.file.path):
            yield split
            return
        for start in range(split.start, split.end, _SPLIT_BYTES):
            yield type(split)(split.file, start, min(start + _SPLIT_BYTES, split.end))

    def _rows(self, splits: list[Split]) -> Records:
        # Where the sink fails over strings that are no text, there are none that were committed.
        for some in self.stage.read(splits, text=self._passes_text, errors="replace"):
            if isinstance(some, bytes):
                yield "", lines(some)
            else:
                yield from ((bucket, self._compared(rows)) for bucket, rows in self._placed(some))

    def _compared(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the columns that are compared."""
        return rows.drop_columns([name for name in rows.schema.names if name in self._left_out])

    def _placed(self, rows: pa.RecordBatch) -> Records:
        if self._buckets is None:
            yield "", self._written(rows)
        elif self.compares_buckets:
            for bucket, some in self._buckets.split(rows, 0):
                yield bucket, self._written(some.drop_columns(list(self.dropped)))
        else:
            yield "", self._written(rows.drop_columns(list(self.dropped)))

    def _written(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records that the sink makes of rows."""
        form = format_named(self._fmt.name)
        if not isinstance(form, RecordFormat):
            return rows
        return lines(form.encoder(self._fmt).encode(rows)) if self._as_lines else form.read_back(self._fmt, rows)

    # -- the output ----------------------------------------------------------------------------------------------

    def output(self, view: SinkView) -> Iterator[Unit]:
        """Yield units of all that is committed: finished files, those that are owed, and what is open."""
        storage = view.sink.storage
        for piece in pieces(view):
            yield Unit(piece.label, piece.end - piece.start, partial(self._records, storage, piece))

    def _records(self, storage: Storage, piece: Piece) -> Records:
        bucket = piece.bucket if self.compares_buckets else ""
        with storage.open(piece.path) as handle:
            if piece.form == ARROW:
                batches: Iterable[pa.RecordBatch] = arrow_batches(handle.read(piece.start, piece.end - piece.start))
            elif piece.form == BYTES:
                batches = self._decoded(_plain(_chunks(handle.read, piece.start, piece.end)), whole=piece.whole)
            else:
                fmt, span = ReadFormat(piece.form, self._schema), (piece.start, piece.end)
                batches = table_format(fmt.name).rows(fmt, handle, piece.end, span)
            yield from ((bucket, self._compared(rows)) for rows in batches)

    def _decoded(self, chunks: Iterator[bytes], *, whole: bool) -> Iterator[pa.RecordBatch]:
        if self._as_lines:
            yield from map(lines, _line_blocks(chunks))
            return
        form = record_format(self._fmt.name)
        dialect = replace(self._fmt.csv, comment=None, empty_value=None)
        fmt = ReadFormat(form.name, self._schema, csv=dialect)
        decode, header = form.decoder(fmt, Account()).decode, form.header(self._fmt)
        for offset, block in form.stream_blocks(fmt, chunks, UTF_8_CHARSET):
            yield decode(block.removeprefix(header) if whole and not offset else block)


def pieces(view: SinkView) -> Iterator[Piece]:
    """Yield where every committed row of a sink is."""
    root, staging = view.sink.root, view.sink.staging
    form = format_named(view.sink.options["format"])
    whole = BYTES if isinstance(form, RecordFormat) else form.name
    owed = {file.path for file in view.owed}
    for file in view.files:
        hidden = file.path in owed and not _is_there(view.sink.storage, f"{root}/{file.path}")
        path = f"{staging}/{file.staged}" if hidden else f"{root}/{file.path}"
        yield Piece(path, file.path, 0, file.bytes, whole, file.bucket, whole=True)
    growing = {} if view.published else {growth.path: growth for growth in view.head.grown}
    for path, length in view.head.lengths.items():
        end = growing[path].before if path in growing else length
        if end:
            yield Piece(f"{root}/{path}", path, 0, end, whole, path.rpartition("/")[0], whole=True)
    held: list[Any] = [(part.bucket, part.segments) for part in view.head.open]
    held += [(growth.path.rpartition("/")[0], growth.segments) for growth in growing.values()]
    for bucket, segments in held:
        for s in segments:
            yield Piece(f"{staging}/{s.file}", f"(not visible yet) {bucket}", s.start, s.end, s.form, bucket)


def _is_there(storage: Storage, path: str) -> bool:
    try:
        storage.stat(path)
    except NotThere:
        return False
    return True


def _chunks(read: Callable[[int, int], bytes], start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, _BLOCK_BYTES):
        yield read(at, min(_BLOCK_BYTES, end - at))


def _plain(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Return the chunks unpacked if they are compressed, which their first bytes tell, whatever the file is called."""
    first = next(chunks, b"")
    codec = next((codec for magic, codec in _MAGIC.items() if first.startswith(magic)), None)
    whole = _chained(first, chunks)
    return decompressed(whole, codec, limit_bytes=EXPANDED_BYTES_MAX, ratio_max=EXPANSION_MAX) if codec else whole


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _line_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks of whole lines; unlike a reader this also keeps a byte order mark."""
    rest: list[bytes] = []
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join([*rest, chunk[:cut]])
            rest = []
        rest.append(chunk[cut:])
    if any(rest):
        yield b"".join(rest)
