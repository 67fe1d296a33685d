"""Brings both sides of a comparison into records of one form.

The form is that of the output. If the output is text, a record is a line, byte by byte: a line of the source, or the line that
the sink makes of a row. Otherwise it is a row of the schema that the sink writes. The stage that the ingest noted reads and
transforms the source; the reader of its format reads the output. So the comparison also covers what encoding and decoding might
lose.

A row's place (its bucket, and the columns of `fileName`) belongs to the record. So a row in the wrong directory or file is
missing in one and foreign in the other, and columns that `dropBucketColumns` left out count as far as the path shows them. Places
are not compared if the template uses the batch's time, which cannot be repeated.

Rows that are committed and not visible yet (staged files that are owed, segments of open parts) are read from the staged files.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadFile, InputError
from penstock.formats import ReadFormat, arrow_batches, decoder, format_named
from penstock.formats.account import Account
from penstock.formats.aside import FILE, LINES_READ, RECORD, RETRIED, Aside, path_of, record_bytes
from penstock.formats.charsets import UTF_8_CHARSET
from penstock.formats.codecs import decompressed
from penstock.formats.families import RecordFormat, TableFormat
from penstock.formats.registry import record_format, table_format
from penstock.formats.trial import as_text, refused, text_schema
from penstock.ingestion.mended import Key, Mended, header_of
from penstock.ingestion.mendedfiles import FileKey, MendedFiles, Replacement
from penstock.sink.ledger import Destination, is_aside
from penstock.sink.parts import ARROW, BYTES
from penstock.source.transcoding import EXPANDED_BYTES_MAX, EXPANSION_MAX
from penstock.storage import entry_at
from penstock.verify.opened import opened, staging_keys
from penstock.verify.sums import lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet
    from contextlib import AbstractContextManager

    from penstock.formats.encryption import Keys
    from penstock.ingestion.stage import Stage
    from penstock.sink.ledger import Growth
    from penstock.sink.sink import Sink
    from penstock.source.cursor import Split
    from penstock.storage import ReadableFile, Storage
    from penstock.verify.files import SinkView
    from penstock.verify.taken import ReadBy

    Records = Iterator[tuple[str, pa.RecordBatch]]  # (bucket, rows of the common form)

ASIDE = "(set aside)"  # the bucket of records that are lines about what was set aside
_BLOCK_BYTES = 8 << 20
_SPLIT_BYTES = 64 << 20
_GROUP_FILES = 2000
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # neither can begin UTF-8 text


@dataclass(frozen=True)
class Unit:
    """Some records of one side: a label for their place, their size in bytes, and a function that reads them, any number of times."""

    label: str
    size: int
    read: Callable[[], Records]


@dataclass(frozen=True)
class Piece:
    """Bytes [start, end) of an output or staged file, all of one bucket. `form`: bytes, arrow, or the name of the file's format.

    `whole`: the piece is the beginning of a file of the output, with a header if such files have one. `keys` open it if it is
    encrypted; then the piece is an age file by itself.
    """

    path: str
    label: str
    start: int
    end: int
    form: str
    bucket: str
    whole: bool = False
    name: str = ""
    keys: Keys | None = field(default=None, repr=False, compare=False)

    def opened(self, storage: Storage) -> AbstractContextManager[tuple[ReadableFile, int, int]]:
        """Open the file; yields it, decrypted if necessary, and where the piece begins and ends in it."""
        return opened(storage, self.path, self.start, self.end, self.keys)

    @property
    def place(self) -> str:
        """The label of the place where the piece's rows belong."""
        return label_of(Destination(self.bucket, self.name))


def label_of(place: Destination) -> str:
    """Return the label of a place for comparisons: the bucket, and the part's name template if `fileName` has columns."""
    return "/".join(filter(None, place))


class Feed:
    """How one source becomes one output: the noted stage, and the sink that wrote its rows.

    `left_out` are columns that are not compared, because rows from before they were added or widened do not have them so.
    """

    def __init__(self, stage: Stage, sink: Sink, left_out: frozenset[str] = frozenset()) -> None:
        self.stage = stage
        self._left_out = left_out
        self.versions: AbstractSet[tuple[bytes, int, int]] = frozenset()
        """Path, size and time of the files that the source has. A line about another version has no counterpart there."""
        self.mended: AbstractSet[FileKey] = frozenset()
        """Files that were taken in unchanged. The source gives their rows, and no line about them."""
        self.copies: Mapping[FileKey, Replacement] = {}
        """The mended copies of files that were taken in from copies."""
        self.compares_names = True
        """Whether the names of files are compared: not if some files were named by another `fileName`."""
        self._sink = sink
        self.as_lines = format_named(sink.options["format"]).as_lines
        self._passes_text = self.as_lines and self.stage.plain_text
        self._places = sink.layout.places(self.stage.schema)
        self._passes_text = self._passes_text and self._places.is_one
        self._schema, self.dropped = sink.layout.data_schema(self.stage.schema)
        self._fmt = sink.layout.format(self._schema)
        form = format_named(self._fmt.name)
        # Columns that `finish --as-text` has published as JSON text, because the files could not hold them.
        self._texts = refused(form, self._schema, self._fmt.compression) if isinstance(form, TableFormat) else ()
        self.compares_buckets = self._places.follows_from_rows
        """Whether directories are compared: not if some were named by another `bucketBy`, or by the time of a batch."""

    # -- the source ----------------------------------------------------------------------------------------------

    def read_by(self, way: ReadBy) -> Feed:
        """Return the feed for data that was read in another way than the last run's."""
        stage = self.stage if way.schema is None else self.stage.by_schema(way.schema)
        if way.zone is not None:
            stage = replace(stage, reading=stage.reading.in_zone(way.zone))
        if stage is self.stage:
            return self
        feed = Feed(stage, self._sink, self._left_out)
        feed.versions, feed.mended, feed.copies = self.versions, self.mended, self.copies
        feed.compares_names, feed.compares_buckets = self.compares_names, self.compares_buckets
        return feed

    def source(self, splits: Iterable[Split]) -> Iterator[Unit]:
        """Yield units of the splits: small splits together, large ones cut if that is cheap."""
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

    def retried(self, view: SinkView) -> Iterator[Unit]:
        """Yield units of what was set aside and then taken in: records that the source does not have in this form."""
        for piece in pieces(view):
            if is_aside(piece.bucket) and view.head.aside.retried:
                label = f"(retried) {piece.label}"
                yield Unit(label, piece.end - piece.start, partial(self._taken_in, view.sink.storage, piece))

    def _taken_in(self, storage: Storage, piece: Piece) -> Records:
        records: dict[Key, bytes] = {}
        headers: dict[tuple[bytes, int], tuple[str, ...]] = {}
        files: dict[FileKey, Replacement] = {}
        with piece.opened(storage) as (file, start, end):
            for about in lines_of(_chunks(file.read, start, end)):
                for line, record in _receipts(about):
                    if record is not None:
                        records[Key(path_of(line), line["modified_ns"], line["offset"])] = record
                        headers |= header_of(line)
                    elif line["copy"] is not None:
                        files[FileKey.of(line)] = self.copies[FileKey.of(line)]
        if records:
            for rows in Mended(self.stage, records, headers).rows():
                yield from ((bucket, self._compared(placed)) for bucket, placed in self._placed(rows))
        aside = Aside()
        for rows in MendedFiles(self.stage, files).rows(aside):
            yield from ((bucket, self._compared(placed)) for bucket, placed in self._placed(rows))
            yield from self._beside(aside)
        yield from self._beside(aside)

    def single(self, splits: Iterable[Split]) -> Iterator[Unit]:
        """Yield units of one file each, so that a record can be traced to its file."""
        return (self._unit([split]) for split in splits)

    def _unit(self, splits: list[Split]) -> Unit:
        label = self.stage.reading.files.full_path(splits[0].file)
        return Unit(label, sum(s.end - s.start for s in splits), partial(self._rows, splits))

    def _cut(self, split: Split) -> Iterator[Split]:
        reading = self.stage.reading
        if reading.form.anchored or not reading.divisible(split.file.path):
            yield split
            return
        for start in range(split.start, split.end, _SPLIT_BYTES):
            yield split._replace(start=start, end=min(start + _SPLIT_BYTES, split.end))

    def _rows(self, splits: list[Split]) -> Records:
        # If the sink fails for strings that are not UTF-8, none of them were committed, so `replace` is right here.
        aside = Aside()
        for piece in self.stage.setting_aside(aside).read(splits, text=self._passes_text, errors="replace"):
            if isinstance(piece, bytes):
                yield "", lines(piece)
            else:
                yield from ((bucket, self._compared(rows)) for bucket, rows in self._placed(piece))
            yield from self._beside(aside)
        yield from self._beside(aside)

    def _compared(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with only the columns that are compared."""
        return rows.drop_columns([name for name in rows.schema.names if name in self._left_out])

    def _beside(self, aside: Aside) -> Records:
        for about in aside.handed_on():
            yield ASIDE, _identified(about)

    def _placed(self, rows: pa.RecordBatch) -> Records:
        if self._places.is_one:
            yield "", self._written(rows)
        elif self.compares_buckets:
            for place, of_place in self._places.split(rows, 0):
                yield self._label(place), self._written(of_place.drop_columns(list(self.dropped)))
        else:
            yield "", self._written(rows.drop_columns(list(self.dropped)))

    def _label(self, place: Destination) -> str:
        """Return the label of a place for comparisons; for a growing file, it is the path."""
        if not self.compares_names:
            return place.bucket
        if place.name and self._sink.options["growing"]:
            return self._sink.rules.path(place, self._sink.layout.kind(self._schema))
        return label_of(place)

    def _written(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in the form that the sink writes."""
        form = format_named(self._fmt.name)
        if not isinstance(form, RecordFormat):
            return as_text(rows, self._texts)
        return lines(form.encoder(self._fmt).encode(rows)) if self.as_lines else form.read_back(self._fmt, rows)

    # -- the output ----------------------------------------------------------------------------------------------

    def output(self, view: SinkView) -> Iterator[Unit]:
        """Yield units of everything that is committed: finished files, owed files, and open parts."""
        storage = view.sink.storage
        for piece in pieces(view):
            yield Unit(piece.label, piece.end - piece.start, partial(self._records, storage, piece))

    def _records(self, storage: Storage, piece: Piece) -> Records:
        if is_aside(piece.bucket):
            with piece.opened(storage) as (file, start, end):
                for about in lines_of(_chunks(file.read, start, end)):
                    yield ASIDE, _identified(self._told(about))
            return
        bucket = self._place_of(piece) if self.compares_buckets else ""
        with piece.opened(storage) as (file, start, end), _naming(piece, self._fmt.name):
            if piece.form == ARROW:
                staged = arrow_batches(file.read(start, end - start))
                batches: Iterable[pa.RecordBatch] = (as_text(rows, self._texts) for rows in staged)
            elif piece.form == BYTES:
                batches = self._decoded(_plain(_chunks(file.read, start, end)), whole=piece.whole)
            else:
                fmt, span = ReadFormat(piece.form, text_schema(self._schema, self._texts)), (start, end)
                batches = table_format(fmt.name).rows(fmt, file, end, span)
            yield from ((bucket, self._compared(rows)) for rows in batches)

    def _place_of(self, piece: Piece) -> str:
        return piece.place if self.compares_names else piece.bucket

    def _told(self, about: pa.RecordBatch) -> pa.RecordBatch:
        """Return the lines that have a counterpart in the source: not lines about a version that it no longer has."""
        versions = [
            line["code"] == RECORD or (line["code"] == FILE and self._is_there(FileKey.of(line)))
            for line in about.select(["code", "path", "path_base64", "offset", "size", "modified_ns"]).to_pylist()
        ]
        return about.filter(pa.array(versions, pa.bool_()))

    def _is_there(self, key: FileKey) -> bool:
        """Tell whether the source still has the version that was set aside, and no retry has taken it in unchanged."""
        return (key.path, key.size, key.modified_ns) in self.versions and key not in self.mended

    def _decoded(self, chunks: Iterator[bytes], *, whole: bool) -> Iterator[pa.RecordBatch]:
        if self.as_lines:
            yield from map(lines, _line_blocks(chunks))
            return
        form = record_format(self._fmt.name)
        dialect = replace(self._fmt.csv, comment=None, empty_value=None)
        fmt = ReadFormat(form.name, self._schema, csv=dialect)
        decode, header = form.decoder(fmt, Account()).decode, form.header(self._fmt)
        for offset, block in form.stream_blocks(fmt, chunks, UTF_8_CHARSET):
            yield decode(block.removeprefix(header) if whole and not offset else block)


@contextmanager
def _naming(piece: Piece, form: str) -> Iterator[None]:
    """Make an error of a format name the file of the output, and a possible reason."""
    try:
        yield
    except InputError as error:
        msg = (
            f"{piece.label!r} of the output is not as format={form}, which the last run had, would be: {error.message}; where an "
            "earlier run had another format its files cannot be compared: each format needs a DST of its own for --source"
        )
        raise BadFile(msg) from error


def aside_lines(view: SinkView) -> Iterator[pa.RecordBatch]:
    """Yield all lines of a sink about what was set aside, visible or not."""
    for piece in pieces(view):
        if is_aside(piece.bucket):
            with piece.opened(view.sink.storage) as (file, start, end):
                yield from lines_of(_chunks(file.read, start, end))


def file_receipts(view: SinkView) -> Iterator[dict[str, Any]]:
    """Yield the lines that say that files were taken in."""
    if view.head.aside.retried:
        for about in aside_lines(view):
            yield from (line for line, record in _receipts(about) if record is None)


def _receipts(about: pa.RecordBatch) -> Iterator[tuple[dict[str, Any], bytes | None]]:
    """Yield the lines that say that something was taken in, each with the record, `None` for a file."""
    chosen = about.filter(pc.equal(about.column("code"), RETRIED))
    yield from zip(chosen.to_pylist(), record_bytes(chosen).to_pylist(), strict=True)


def lines_of(chunks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the lines of a file about what was set aside, in blocks."""
    read = decoder(LINES_READ)
    for block in _line_blocks(chunks):
        yield read.decode(block)


def _identified(about: pa.RecordBatch) -> pa.RecordBatch:
    """Return the fields that identify the record or file of each line; when and why it was set aside may differ."""
    names = ["path", "path_base64", "offset", "size", "code"]
    arrays = [*(about.column(name) for name in names), record_bytes(about)]
    return pa.RecordBatch.from_arrays(arrays, names=[*names, "bytes"])


def pieces(view: SinkView) -> Iterator[Piece]:
    """Yield the pieces that hold every committed row of a sink; first those that a live query may remove as soon as they are published."""
    form = format_named(view.sink.options["format"])
    whole = BYTES if isinstance(form, RecordFormat) else form.name
    growing = {} if view.published else {growth.path: growth for growth in view.head.grown}
    yield from _waiting(view, growing)
    yield from _finished(view, whole)
    yield from _grown(view, whole, growing)


def _finished(view: SinkView, whole: str) -> Iterator[Piece]:
    """Yield the finished files; a file that is owed and not visible yet is still in staging."""
    root, owed = view.sink.root, {file.path for file in view.owed}
    for file in view.files:
        hidden = file.path in owed and entry_at(view.sink.storage, file.at(root)) is None
        path = f"{view.sink.staging}/{file.staged}" if hidden else file.at(root)
        at = path, file.path, 0, file.bytes, whole, file.bucket
        yield Piece(*at, whole=True, name=file.name, keys=view.keys)


def _grown(view: SinkView, whole: str, growing: Mapping[str, Growth]) -> Iterator[Piece]:
    """Yield the part of growing files that is certainly visible: without what they gain by `growing`."""
    for path, length in view.lengths.items():
        end = growing[path].before if path in growing else length
        if end:
            place = _place_of(view, path)
            yield Piece(f"{view.sink.root}/{path}", path, 0, end, whole, place.bucket, whole=True, name=place.name)


def _place_of(view: SinkView, path: str) -> Destination:
    """Return the place of a growing file. Its name belongs to the place if `fileName` has columns; otherwise all names are the same."""
    bucket, _, name = path.rpartition("/")
    return Destination(bucket, name if view.sink.layout.names.columns else "")


def _waiting(view: SinkView, growing: Mapping[str, Growth]) -> Iterator[Piece]:
    """Yield the segments of open parts, and of what growing files gain."""
    waiting = [(part.place, part.segments) for part in view.head.open]
    waiting += [(_place_of(view, growth.path), growth.segments) for growth in growing.values()]
    keys = staging_keys(view.sink, view.keys) if waiting else None
    for place, segments in waiting:
        label = f"(not visible yet) {label_of(place)}"
        for segment in segments:
            path, span = f"{view.sink.staging}/{segment.file}", (segment.start, segment.end)
            yield Piece(path, label, *span, segment.form, place.bucket, name=place.name, keys=keys)


def _chunks(read: Callable[[int, int], bytes], start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, _BLOCK_BYTES):
        yield read(at, min(_BLOCK_BYTES, end - at))


def _plain(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Return the chunks, decompressed if their first bytes show a compression, whatever the file's name."""
    first = next(chunks, b"")
    codec = next((codec for magic, codec in _MAGIC.items() if first.startswith(magic)), None)
    whole = _chained(first, chunks)
    return decompressed(whole, codec, limit_bytes=EXPANDED_BYTES_MAX, ratio_max=EXPANSION_MAX) if codec else whole


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _line_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks of whole lines; unlike a reader, this keeps a byte order mark."""
    rest: list[bytes] = []
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join([*rest, chunk[:cut]])
            rest = []
        rest.append(chunk[cut:])
    if any(rest):
        yield b"".join(rest)
