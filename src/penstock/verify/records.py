"""Both sides of a comparison as records of one form.

The form is that of the output. Where it is text, a record is a line, byte by byte: a line of the source, or the line
that the sink makes of a row. Else it is a row of the schema that the sink writes; the source is read, and transformed,
by the stage that the ingest noted, the output by the reader of its format. So the comparison also covers what encoding
and decoding might lose.

A row's place, its bucket and what the columns of `fileName` say, belongs to the record: a row in the wrong directory or file is
missing in one and foreign in the other, and the columns that `dropBucketColumns` left out count as far as the path shows them.
Only where the template uses the time of the batch, which nobody can repeat, places are not compared.

What is committed and not visible yet (staged files that are owed, segments of open parts) is read where it is staged.
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

ASIDE = "(set aside)"  # in place of a bucket, with those records that are lines about what was set aside
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

    `whole`: it begins as files of the output do, with a header if they have one. `keys` open it if it is encrypted; then it is
    a file of age by itself.
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
        """Open the file; give it, and where the piece begins and ends in it, decrypted if need be."""
        return opened(storage, self.path, self.start, self.end, self.keys)

    @property
    def place(self) -> str:
        """Where its rows belong."""
        return label_of(Destination(self.bucket, self.name))


def label_of(place: Destination) -> str:
    """Return a place as records are compared by: the bucket, and the template of the files' names if it has columns."""
    return "/".join(filter(None, place))


class Feed:
    """How one source becomes one output: the stage, as it was noted, and the sink that wrote what it gave.

    `left_out` are columns that are not compared: rows from before they were added have none of them.
    """

    def __init__(self, stage: Stage, sink: Sink, left_out: frozenset[str] = frozenset()) -> None:
        self.stage = stage
        self._left_out = left_out
        self.versions: AbstractSet[tuple[bytes, int, int]] = frozenset()
        """Path, size and time of the files that the source has: a line about another version has no like there."""
        self.mended: AbstractSet[FileKey] = frozenset()
        """Files that were taken in as they are: the source has their rows, and no line about them."""
        self.copies: Mapping[FileKey, Replacement] = {}
        """Of files that were taken in as mended copies: these."""
        self.compares_names = True
        """Whether records belong to the names of their files: not where some were named by another `fileName`."""
        self._sink = sink
        self.as_lines = format_named(sink.options["format"]).as_lines
        self._passes_text = self.as_lines and self.stage.plain_text
        self._places = sink.layout.places(self.stage.schema)
        self._passes_text = self._passes_text and self._places.is_one
        self._schema, self.dropped = sink.layout.data_schema(self.stage.schema)
        self._fmt = sink.layout.format(self._schema)
        form = format_named(self._fmt.name)
        # Columns that `finish --as-text` has published as their JSON, since no file could hold them.
        self._texts = refused(form, self._schema, self._fmt.compression) if isinstance(form, TableFormat) else ()
        self.compares_buckets = self._places.follows_from_rows
        """Whether records belong to their directories: not where some were named by another `bucketBy`, or by the time of a batch."""

    # -- the source ----------------------------------------------------------------------------------------------

    def read_by(self, way: ReadBy) -> Feed:
        """Return the same for what was read in another way than the last run had."""
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

    def retried(self, view: SinkView) -> Iterator[Unit]:
        """Yield units of what was taken in of what had been set aside: records that the source does not have so."""
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
        # Where the sink fails over strings that are no text, there are none that were committed.
        aside = Aside()
        for piece in self.stage.setting_aside(aside).read(splits, text=self._passes_text, errors="replace"):
            if isinstance(piece, bytes):
                yield "", lines(piece)
            else:
                yield from ((bucket, self._compared(rows)) for bucket, rows in self._placed(piece))
            yield from self._beside(aside)
        yield from self._beside(aside)

    def _compared(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the columns that are compared."""
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
        """Return what records of a place are compared by; a growing file is known by its path alone."""
        if not self.compares_names:
            return place.bucket
        if place.name and self._sink.options["growing"]:
            return self._sink.rules.path(place, self._sink.layout.kind(self._schema))
        return label_of(place)

    def _written(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records that the sink makes of rows."""
        form = format_named(self._fmt.name)
        if not isinstance(form, RecordFormat):
            return as_text(rows, self._texts)
        return lines(form.encoder(self._fmt).encode(rows)) if self.as_lines else form.read_back(self._fmt, rows)

    # -- the output ----------------------------------------------------------------------------------------------

    def output(self, view: SinkView) -> Iterator[Unit]:
        """Yield units of all that is committed: finished files, those that are owed, and what is open."""
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
        """Return the lines that the source can be compared with: not those about a version that it does not have any more."""
        versions = [
            line["code"] == RECORD or (line["code"] == FILE and self._is_there(FileKey.of(line)))
            for line in about.select(["code", "path", "path_base64", "offset", "size", "modified_ns"]).to_pylist()
        ]
        return about.filter(pa.array(versions, pa.bool_()))

    def _is_there(self, key: FileKey) -> bool:
        """Tell whether the source has the file as it was set aside, and it was not taken in as it is."""
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
    """Have an error of a format say which file of the output it is about, and why that may be."""
    try:
        yield
    except InputError as error:
        msg = (
            f"{piece.label!r} of the output is not as format={form}, which the last run had, would be: {error.message}; where an "
            "earlier run had another format its files cannot be compared: each format needs a DST of its own for --source"
        )
        raise BadFile(msg) from error


def aside_lines(view: SinkView) -> Iterator[pa.RecordBatch]:
    """Yield all that a sink has about what was set aside, visible or not."""
    for piece in pieces(view):
        if is_aside(piece.bucket):
            with piece.opened(view.sink.storage) as (file, start, end):
                yield from lines_of(_chunks(file.read, start, end))


def file_receipts(view: SinkView) -> Iterator[dict[str, Any]]:
    """Yield the lines that say of files that they are taken in."""
    if view.head.aside.retried:
        for about in aside_lines(view):
            yield from (line for line, record in _receipts(about) if record is None)


def _receipts(about: pa.RecordBatch) -> Iterator[tuple[dict[str, Any], bytes | None]]:
    """Yield the lines that say that something is taken in, each with the record that was, `None` for a file."""
    chosen = about.filter(pc.equal(about.column("code"), RETRIED))
    yield from zip(chosen.to_pylist(), record_bytes(chosen).to_pylist(), strict=True)


def lines_of(chunks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield what a file of a sink has about what was set aside, in blocks."""
    read = decoder(LINES_READ)
    for block in _line_blocks(chunks):
        yield read.decode(block)


def _identified(about: pa.RecordBatch) -> pa.RecordBatch:
    """Return what of the lines says which record or file they are about; when and why it was set aside may differ."""
    names = ["path", "path_base64", "offset", "size", "code"]
    arrays = [*(about.column(name) for name in names), record_bytes(about)]
    return pa.RecordBatch.from_arrays(arrays, names=[*names, "bytes"])


def pieces(view: SinkView) -> Iterator[Piece]:
    """Yield where every committed row of a sink is."""
    form = format_named(view.sink.options["format"])
    whole = BYTES if isinstance(form, RecordFormat) else form.name
    growing = {} if view.published else {growth.path: growth for growth in view.head.grown}
    yield from _finished(view, whole)
    yield from _grown(view, whole, growing)
    yield from _waiting(view, growing)


def _finished(view: SinkView, whole: str) -> Iterator[Piece]:
    """Yield the finished files; one that is owed and not visible yet is still where it was staged."""
    root, owed = view.sink.root, {file.path for file in view.owed}
    for file in view.files:
        hidden = file.path in owed and entry_at(view.sink.storage, file.at(root)) is None
        path = f"{view.sink.staging}/{file.staged}" if hidden else file.at(root)
        at = path, file.path, 0, file.bytes, whole, file.bucket
        yield Piece(*at, whole=True, name=file.name, keys=view.keys)


def _grown(view: SinkView, whole: str, growing: Mapping[str, Growth]) -> Iterator[Piece]:
    """Yield the growing files as far as they are certain to be visible: what they gain is `growing`."""
    for path, length in view.lengths.items():
        end = growing[path].before if path in growing else length
        if end:
            place = _place_of(view, path)
            yield Piece(f"{view.sink.root}/{path}", path, 0, end, whole, place.bucket, whole=True, name=place.name)


def _place_of(view: SinkView, path: str) -> Destination:
    """Return the place of a growing file: what its name tells is said by columns, or is the same for all."""
    bucket, _, name = path.rpartition("/")
    return Destination(bucket, name if view.sink.layout.names.columns else "")


def _waiting(view: SinkView, growing: Mapping[str, Growth]) -> Iterator[Piece]:
    """Yield the segments of parts that are open, and of what growing files gain."""
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
