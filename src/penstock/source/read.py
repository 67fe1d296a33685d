"""From a task's splits to Arrow batches, or to bytes where nothing need be parsed.

A range owns the records that begin in it. Each file is compared with the version that was planned before its first
byte is read and after its last: a task reads exactly the planned bytes or raises `FileChanged`, and never ends a file
early without a word. Memory is bounded by a few blocks of `BLOCK_BYTES` (or one record, or one page of a row group),
whatever the file's size.

Small files are joined into blocks before they are parsed: one parser call a file would cost a hundred times its
contents. A record that cannot be parsed is reported by its own file and byte offset all the same.
"""

from __future__ import annotations

import codecs
import logging
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock import failpoints
from penstock.errors import BadFile, BadRecord, FileChanged, NotThere
from penstock.formats import LINES, Decoder, ReadFormat, decoder
from penstock.formats.codecs import codec_of, decompressed
from penstock.formats.lines import blocks, stream_blocks
from penstock.formats.malformed import excerpt
from penstock.storage import SeekableFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from penstock.source.cursor import FileVersion, Split
    from penstock.storage import ReadHandle, Storage

_log = logging.getLogger("penstock.source")
_told: set[str] = set()  # the columns of headers of which it was told that they are not read
BLOCK_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 64 << 10  # of a csv file, which may have a header there
EXPANDED_BYTES_MAX = 64 << 30  # of one compressed file
EXPANSION_MAX = 1000  # uncompressed bytes for one compressed; gzip cannot pass 1,032, a bomb is near it
_AGAIN = "and run the same command again, nothing of this batch is visible"
FILES_SCHEMA = pa.schema(
    [("path", pa.string()), ("modified", pa.timestamp("us", tz="UTC")), ("size", pa.int64())],
)
METADATA_TYPE = pa.struct(
    [
        ("path", pa.string()),
        ("modified", pa.timestamp("us", tz="UTC")),
        ("size", pa.int64()),
        ("offset", pa.int64()),
    ],
)


@dataclass(frozen=True)
class Reading:
    """How the splits of one source are read; picklable, travels to tasks.

    `format.schema` is the schema of the data; with `metadata` a column of that name is added where `columns` puts it.
    """

    storage: Storage
    root: str
    format: ReadFormat
    metadata: str | None = None
    columns: tuple[str, ...] = ()

    def full_path(self, file: FileVersion) -> str:
        """Return the file's path on the storage."""
        return f"{self.root}/{file.path}" if file.path else self.root

    @property
    def _in_bytes(self) -> bool:
        """Whether records can be found in the bytes of the encoding."""
        return _by_bytes(self.format.encoding, self.format.csv.marks if self.format.name == "csv" else b"")

    def divisible(self, path: str) -> bool:
        """Tell whether a file of this name may be read in byte ranges."""
        name = self.format.name
        if name == "parquet":
            return True
        if name == "binary":
            return self.format.block_size is not None
        return codec_of(path or self.root) is None and self._in_bytes

    def boundary(self, file: FileVersion, anchor: int, target: int) -> int:
        """Return the first record start at or behind `target`, counting quotes from the record start `anchor` (csv)."""
        from penstock.formats.csvcut import csv_cut

        with self.storage.open(self.full_path(file)) as handle:
            _check(handle, file, self.full_path(file))
            return csv_cut(handle.read, file.size, anchor, target, self.format.csv)

    def batches(self, splits: Iterable[Split]) -> Iterator[pa.RecordBatch]:
        """Yield the records of the splits, in order.

        Raises `FileChanged`, `BadRecord`, `BadFile` or `StorageError`; what was yielded before must then be dropped.
        """
        if self.format.name in LINES:
            yield from self._lines(splits)
        else:
            for split in splits:
                yield from self._whole(split)

    def text(self, splits: Iterable[Split]) -> Iterator[bytes]:
        """Yield the lines of text splits as UTF-8 bytes, each line ended by a line feed: nothing is parsed."""
        check = decoder(self.format)
        for piece in _joined(self._pieces(splits), self.format.line_sep):
            data = _line_feeds(piece.data, self.format.line_sep)
            if not _is_utf8(data):
                self._decode(check.decode, piece)
            yield data

    # -- text, json, csv -----------------------------------------------------------------------------------------

    def _lines(self, splits: Iterable[Split]) -> Iterator[pa.RecordBatch]:
        decoders: dict[tuple[str, ...] | None, Decoder] = {}
        pieces = self._pieces(splits)
        for piece in pieces if self.metadata else _joined(pieces, self.format.line_sep):
            if piece.columns not in decoders:
                decoders[piece.columns] = decoder(replace(self.format, columns=piece.columns))
            how = decoders[piece.columns]
            batch = self._decode(how.decode, piece)
            if batch.num_rows and self.metadata:
                in_bytes = _is_utf8_name(self.format.encoding)  # else the block is not what the file has
                starts = how.starts(piece.data) if in_bytes else np.zeros(batch.num_rows, np.int64)
                yield self._with_metadata(batch, piece.parts[0], starts)
            elif batch.num_rows:
                yield batch

    def _decode(self, decode: Callable[[bytes], pa.RecordBatch], piece: _Piece) -> pa.RecordBatch:
        try:
            return decode(piece.data)
        except BadRecord as error:
            file, offset = piece.locate(error.offset or 0)
            path = self.full_path(file)
            msg = f"{path!r}, byte {offset}: {error.message}; mend or remove the record {_AGAIN}"
            raise BadRecord(msg, path=path, offset=offset) from error

    def _pieces(self, splits: Iterable[Split]) -> Iterator[_Piece]:
        for split in splits:
            failpoints.hit("source.read")
            path = self.full_path(split.file)
            with _open(self.storage, path) as handle:
                _check(handle, split.file, path)
                for columns, offset, data in self._blocks(handle, split, path):
                    yield _Piece(data, [(0, split.file, offset)], columns)
                _check(handle, split.file, path)

    def _blocks(
        self, handle: ReadHandle, split: Split, path: str
    ) -> Iterator[tuple[tuple[str, ...] | None, int, bytes]]:
        """Yield the columns of the file (`None`: those of the schema), and offset and bytes of its blocks, in UTF-8."""
        fmt = self.format
        codec = codec_of(path)
        try:
            if codec is None and self._in_bytes:
                header, found = self._ranges(handle, split)
            else:
                chunks = _chunks(handle, split.file.size)
                if codec is not None:
                    chunks = decompressed(chunks, codec, limit_bytes=EXPANDED_BYTES_MAX, ratio_max=EXPANSION_MAX)
                header, found = self._streamed(chunks if self._in_bytes else _transcoded(chunks, fmt.encoding, path))
            columns = self._columns(header, path) if header else None
            for offset, data in found:
                yield columns, offset, _utf8(data, fmt.encoding, path, offset) if self._in_bytes else data
        except BadFile as error:
            msg = f"{path!r}: {error.message}; mend or remove the file {_AGAIN}"
            raise BadFile(msg) from error
        except BadRecord as error:
            if error.path is not None:
                raise
            msg = f"{path!r}, byte {error.offset}: {error.message}; mend or remove the record {_AGAIN}"
            raise BadRecord(msg, path=path, offset=error.offset) from error

    def _ranges(self, handle: ReadHandle, split: Split) -> tuple[bytes, Iterator[tuple[int, bytes]]]:
        """Return the header, if there is one, and the blocks of a split behind it."""
        size, fmt = split.file.size, self.format
        if fmt.name != "csv":
            found = blocks(handle.read, size, split.start, split.end, sep=fmt.line_sep, block_bytes=BLOCK_BYTES)
            return b"", found
        from penstock.formats.csvcut import csv_blocks, csv_header

        read = _remembering(handle.read, size)
        start, header = csv_header(read, size, fmt.csv) if fmt.csv.header else (0, b"")
        start = max(start, split.start)
        if start >= split.end:
            return header, iter(())
        return header, csv_blocks(read, size, start, split.end, BLOCK_BYTES, dialect=fmt.csv)

    def _streamed(self, chunks: Iterable[bytes]) -> tuple[bytes, Iterator[tuple[int, bytes]]]:
        """Return the header, if there is one, and the blocks of a whole file behind it."""
        fmt = self.format
        if fmt.name != "csv":
            return b"", stream_blocks(chunks, sep=fmt.line_sep, block_bytes=BLOCK_BYTES)
        from penstock.formats.csvcut import csv_stream_blocks, csv_stream_header

        found = csv_stream_blocks(chunks, BLOCK_BYTES, dialect=fmt.csv)
        return csv_stream_header(found, fmt.csv) if fmt.csv.header else (b"", found)

    def _columns(self, header: bytes, path: str) -> tuple[str, ...]:
        """Return the names in a header, once it is known to have those of the schema. Tells, once a process, which are not read."""
        from penstock.formats.delimited import header_names, header_places

        in_utf8 = _utf8(header, self.format.encoding, path, 0) if self._in_bytes else header
        columns = header_names(in_utf8, self.format.csv)
        places = set(header_places(self.format.schema.names, columns))
        unread = [name for place, name in enumerate(columns) if place not in places]
        shown = excerpt(", ".join(unread))
        if unread and shown not in _told:
            _told.add(shown)
            _log.warning("%r has columns that the schema does not have, and that are not read: %s", path, shown)
        return columns

    # -- parquet, binary -----------------------------------------------------------------------------------------

    def _whole(self, split: Split) -> Iterator[pa.RecordBatch]:
        from penstock.formats.binary import binary_batches
        from penstock.formats.parquet import parquet_batches

        failpoints.hit("source.read")
        path, fmt = self.full_path(split.file), self.format
        with _open(self.storage, path) as handle:
            _check(handle, split.file, path)
            if fmt.name == "binary":
                size = split.file.size
                found = binary_batches(handle.read, size, split.start, split.end, fmt.block_size, fmt.schema)
            else:
                found = parquet_batches(
                    pa.PythonFile(SeekableFile(handle, split.file.size), "r"), split.start, split.end, fmt.schema
                )
            try:
                for batch in found:
                    starts = np.zeros(batch.num_rows, np.int64)
                    yield self._with_metadata(batch, (0, split.file, split.start), starts)
            except BadFile as error:
                _check(handle, split.file, path)
                msg = f"{path!r}: {error.message}; mend or remove the file {_AGAIN}"
                raise BadFile(msg) from error
            _check(handle, split.file, path)

    # -- the metadata column -------------------------------------------------------------------------------------

    def _with_metadata(
        self, batch: pa.RecordBatch, origin: tuple[int, FileVersion, int], starts: npt.NDArray[np.int64]
    ) -> pa.RecordBatch:
        """Add the column; `starts` are the rows' places behind the offset of `origin`."""
        if not self.metadata:
            return batch
        (_, file, offset), rows = origin, batch.num_rows
        offsets = pa.array(starts + offset)
        values = [_printable(self.full_path(file)), file.modified_ns // 1000, file.size]
        fields = [pa.repeat(pa.scalar(v, f.type), rows) for v, f in zip(values, METADATA_TYPE, strict=False)]
        column = pa.StructArray.from_arrays([*fields, offsets], fields=list(METADATA_TYPE))
        arrays = [column if name == self.metadata else batch.column(name) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, names=list(self.columns))


def files_batch(reading: Reading, splits: Iterable[Split]) -> pa.RecordBatch:
    """Return the files of a plan as rows (`emit=files`)."""
    files = [split.file for split in splits if split.end == split.file.size]
    columns = [
        pa.array([_printable(reading.full_path(f)) for f in files], pa.string()),
        pa.array([f.modified_ns // 1000 for f in files], FILES_SCHEMA.field("modified").type),
        pa.array([f.size for f in files], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FILES_SCHEMA)


@dataclass
class _Piece:
    """Bytes of whole records, and where they come from: (place in `data`, file, offset in the file), in order."""

    data: bytes
    parts: list[tuple[int, FileVersion, int]]
    columns: tuple[str, ...] | None = None  # what the header says

    def locate(self, at: int) -> tuple[FileVersion, int]:
        """Return the file and offset of the byte at `at`."""
        place, file, offset = self.parts[bisect_right([p[0] for p in self.parts], at) - 1]
        return file, offset + at - place


def _joined(pieces: Iterable[_Piece], sep: bytes | None) -> Iterator[_Piece]:
    """Join small pieces to blocks of about `BLOCK_BYTES`; a last line without an end is given one.

    Pieces that would grow together are kept apart: CR before LF, and any where lines end in more than one byte. So are
    those of other columns.
    """
    data: list[bytes] = []
    parts: list[tuple[int, FileVersion, int]] = []
    columns: tuple[str, ...] | None = None
    size = 0
    for piece in pieces:
        if size and (size >= BLOCK_BYTES or columns != piece.columns or _grow_together(data[-1], piece.data, sep)):
            yield _Piece(b"".join(data), parts, columns)
            data, parts, size = [], [], 0
        columns = piece.columns
        if not size and len(piece.data) >= BLOCK_BYTES // 2:
            yield piece
        elif piece.data:
            parts += [(size + place, file, offset) for place, file, offset in piece.parts]
            data.append(_ended(piece.data, sep))
            size += len(data[-1])
    if size:
        yield _Piece(b"".join(data), parts, columns)


def _grow_together(left: bytes, right: bytes, sep: bytes | None) -> bool:
    if sep is not None:
        return len(sep) > 1
    return left.endswith(b"\r") and right.startswith(b"\n")


def _ended(data: bytes, sep: bytes | None) -> bytes:
    if sep is None:
        return data if data.endswith((b"\n", b"\r")) else data + b"\n"
    return data if len(sep) > 1 or data.endswith(sep) else data + sep


def _open(storage: Storage, path: str) -> ReadHandle:
    try:
        return storage.open(path)
    except NotThere as error:
        msg = f"{path!r} was planned and is gone; put it back as it was and run the same command again"
        raise FileChanged(msg) from error


def _check(handle: ReadHandle, file: FileVersion, path: str) -> None:
    """Raise `FileChanged` unless the open file is the version that was planned."""
    now = handle.info()
    found = (now.size, now.modified_ns, now.identity)
    planned = (file.size, file.modified_ns, file.identity)
    if found != planned:
        names = ("size", "modification time", "identity")
        changes = [f"{n} {f}, planned {p}" for n, f, p in zip(names, found, planned, strict=True) if f != p]
        msg = (
            f"{path!r} changed after it was planned: {'; '.join(changes)}; put the planned version back (its time "
            "included) and run the same command again"
        )
        raise FileChanged(msg)


def _remembering(read: Callable[[int, int], bytes], size: int) -> Callable[[int, int], bytes]:
    """Return `read` of a file of `size` bytes that reads its beginning, which is looked at more than once, but once."""
    head = b""

    def remembering(offset: int, length: int) -> bytes:
        nonlocal head
        if offset + length > _HEAD_BYTES:
            return read(offset, length)
        head = head or read(0, min(_HEAD_BYTES, size))
        return head[offset : offset + length]

    return remembering


def _chunks(handle: ReadHandle, size: int) -> Iterator[bytes]:
    for offset in range(0, size, _CHUNK_BYTES):
        yield handle.read(offset, min(_CHUNK_BYTES, size - offset))


@lru_cache(maxsize=8)
def _by_bytes(encoding: str, marks: bytes = b"") -> bool:
    r"""Tell whether line breaks, and the ASCII characters `marks`, can be found in the bytes of the encoding.

    It must extend ASCII (not UTF-16), and no other character may have one of `marks` in its bytes: quotes and commas are in
    ISO-2022-JP, `\` and `|` in Shift_JIS.
    """
    ascii_bytes = bytes(range(128))
    try:
        extends = ascii_bytes.decode(encoding) == ascii_bytes.decode("ascii") and "\n".encode(encoding) == b"\n"
    except UnicodeDecodeError:
        return False
    return extends and not (marks and _bytes_of_others(encoding).intersection(marks))


@lru_cache(maxsize=8)
def _bytes_of_others(encoding: str) -> frozenset[int]:
    """Return the bytes that the characters beyond ASCII have in the encoding."""
    if _is_utf8_name(encoding):
        return frozenset(range(128, 256))
    others = "".join(map(chr, (*range(128, 0xD800), *range(0xE000, 0x30000))))
    return frozenset(others.encode(encoding, "ignore"))


@lru_cache(maxsize=8)
def _is_utf8_name(encoding: str) -> bool:
    """Tell whether bytes of the encoding are UTF-8 as they are."""
    return codecs.lookup(encoding).name == "utf-8"


def _utf8(data: bytes, encoding: str, path: str, offset: int) -> bytes:
    if _is_utf8_name(encoding):
        return data
    try:
        return data.decode(encoding).encode()
    except UnicodeDecodeError as error:
        at = offset + error.start
        msg = f"{path!r}, byte {at}: {data[error.start : error.start + 8]!r} is not {encoding}; set encoding to the file's"
        raise BadRecord(msg, path=path, offset=at) from error


def _transcoded(chunks: Iterable[bytes], encoding: str, path: str) -> Iterator[bytes]:
    convert = codecs.getincrementaldecoder(encoding)()
    at = 0
    try:
        for chunk in chunks:
            yield convert.decode(chunk).encode()
            at += len(chunk)
        yield convert.decode(b"", final=True).encode()
    except UnicodeDecodeError as error:
        msg = f"{path!r}, at about byte {at}: not {encoding} ({error.reason}); set encoding to the file's"
        raise BadRecord(msg, path=path, offset=at) from error


def _line_feeds(data: bytes, sep: bytes | None) -> bytes:
    if sep is not None:
        data = data if sep == b"\n" else data.replace(sep, b"\n")
    elif b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data if data.endswith(b"\n") else data + b"\n"


def _is_utf8(data: bytes) -> bool:
    bounds = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, bounds, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _printable(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
