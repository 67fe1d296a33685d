"""From a task's splits to Arrow batches, or to bytes where nothing need be parsed.

A range owns the records that begin in it. Each file is compared with the version that was planned (its size and
modification time) before its first byte is read and after its last: a task reads that version or raises `FileChanged`, and
never ends a file early without a word. Memory is bounded by a few blocks of `BLOCK_BYTES` (or one record, or one page of a row group),
whatever the file's size.

Small files are joined into blocks before they are parsed: one parser call a file would cost a hundred times its
contents. A record that cannot be parsed is reported by its own file and byte offset all the same.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock import failpoints
from penstock.errors import BadFile, BadRecord, FileChanged, NotThere
from penstock.formats import LINES, ReadFormat, decoder
from penstock.formats.codecs import codec_of, decompressed
from penstock.formats.lines import blocks, record_at, stream_blocks
from penstock.source import advice
from penstock.source.cursor import is_version
from penstock.storage import SeekableFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from penstock.source.cursor import FileVersion, Split
    from penstock.storage import Entry, ReadHandle, Storage

BLOCK_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
_REACH_BYTES = 4 << 20
EXPANDED_BYTES_MAX = 64 << 30  # of one compressed file
EXPANSION_MAX = 1000  # uncompressed bytes for one compressed; gzip cannot pass 1,032, a bomb is near it
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
    `follow` allows links that lead out of `root`; with `partitions` directories `k=v` are columns (see `source.partitions`).
    """

    storage: Storage
    root: str
    format: ReadFormat
    metadata: str | None = None
    columns: tuple[str, ...] = ()
    follow: bool = False
    partitions: bool = False

    def full_path(self, file: FileVersion) -> str:
        """Return the file's path on the storage."""
        return f"{self.root}/{file.path}" if file.path else self.root

    def divisible(self, path: str) -> bool:
        """Tell whether a file of this name may be read in byte ranges."""
        name = self.format.name
        if name == "parquet":
            return True
        if name == "binary":
            return self.format.block_size is not None
        return codec_of(path or self.root) is None and _by_bytes(self.format.encoding)

    def boundary(self, file: FileVersion, anchor: int, target: int) -> int:
        """Return the first record start at or behind `target`, counting quotes from the record start `anchor` (csv)."""
        from penstock.formats import delimited

        with self.storage.open(self.full_path(file)) as handle:
            self._check(handle, file, self.full_path(file))
            return delimited.csv_cut(handle.read, file.size, anchor, target, sep=self.format.sep)

    def reach(self, handle: ReadHandle, size: int, at: int) -> int | None:
        """Return where the records end that begin before the cut `at`: what is in front of that, a cut there has read.

        `None` if there is no such place near: a record is very long, or where one begins depends on all of the file
        (Parquet).
        """
        from penstock.formats.binary import whole_blocks

        fmt = self.format
        if fmt.name == "csv":
            return at
        if fmt.name == "binary" and fmt.block_size:
            return min(whole_blocks(at, fmt.block_size), size)
        if fmt.name in LINES:
            limit = at + _REACH_BYTES
            found = record_at(handle.read, size, at, limit, sep=fmt.line_sep)
            return size if found is None and limit >= size else found
        return None

    def batches(self, splits: Iterable[Split]) -> Iterator[pa.RecordBatch]:
        """Yield the records of the splits, in order.

        Raises `FileChanged`, `BadRecord`, `BadFile` or `StorageError`; what was yielded before must then be dropped.
        """
        if self.partitions:
            from penstock.source import partitions

            yield from partitions.batches(self, splits)
        elif self.format.name in LINES:
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

    # -- the planned version -------------------------------------------------------------------------------------

    def _open(self, file: FileVersion, path: str) -> ReadHandle:
        try:
            return self.storage.open(path)
        except NotThere as error:
            msg = f"{path!r} was planned and is gone; {advice.put_back(file)}, or leave it away, {advice.AGAIN}"
            raise FileChanged(msg) from error

    def _check(self, handle: ReadHandle, file: FileVersion, path: str) -> None:
        """Raise `FileChanged` unless the open file is the version that was planned, in this file or in a copy of it."""
        now = handle.info()
        alike = is_version(self.storage, now, file)
        if alike and (now.identity == file.identity or self.follow or self._is_inside(path, now)):
            return
        facts = [("size", now.size, file.size), ("modification time", now.modified_ns, file.modified_ns)]
        facts = [(name, is_now, planned) for name, is_now, planned in facts if is_now != planned]
        changes = "; ".join(f"{name} {is_now}, planned {planned}" for name, is_now, planned in facts)
        msg = (
            f"{path!r} changed after it was planned: {changes or 'another file is there'}; {advice.put_back(file)}, or leave it "
            f"as it is, {advice.AGAIN}"
        )
        raise FileChanged(msg)

    def _is_inside(self, path: str, opened: Entry) -> bool:
        """Tell whether the open file is one below the path, and no link has led elsewhere since it was planned.

        Who may put files there could else swap one for a link to a file that he may not read. What is at the resolved path
        must be what is open: a link that is swapped in just for the opening does not help him.
        """
        root, target = self.storage.resolve(self.root), self.storage.resolve(path)
        if target != root and not target.startswith(f"{root.rstrip('/')}/"):
            return False
        try:
            return self.storage.stat(target).identity == opened.identity
        except NotThere:
            return False

    # -- text, json, csv -----------------------------------------------------------------------------------------

    def _lines(self, splits: Iterable[Split]) -> Iterator[pa.RecordBatch]:
        how = decoder(self.format)
        pieces = self._pieces(splits)
        for piece in pieces if self.metadata else _joined(pieces, self.format.line_sep):
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
            msg = f"{path!r}, byte {offset}: {error.message}; mend or remove the record {advice.AGAIN}"
            raise BadRecord(msg, path=path, offset=offset) from error

    def _pieces(self, splits: Iterable[Split]) -> Iterator[_Piece]:
        for split in splits:
            failpoints.hit("source.read")
            path = self.full_path(split.file)
            with self._open(split.file, path) as handle:
                self._check(handle, split.file, path)
                for offset, data in self._blocks(handle, split, path):
                    yield _Piece(data, [(0, split.file, offset)])
                self._check(handle, split.file, path)

    def _blocks(self, handle: ReadHandle, split: Split, path: str) -> Iterator[tuple[int, bytes]]:
        fmt = self.format
        codec = codec_of(path)
        if codec is None and _by_bytes(fmt.encoding):
            found = self._ranges(handle, split)
        else:
            chunks = _chunks(handle, split.file.size)
            if codec is not None:
                chunks = decompressed(chunks, codec, limit_bytes=EXPANDED_BYTES_MAX, ratio_max=EXPANSION_MAX)
            found = self._streamed(chunks if _by_bytes(fmt.encoding) else _transcoded(chunks, fmt.encoding, path))
        try:
            for offset, data in found:
                yield offset, _utf8(data, fmt.encoding, path, offset) if _by_bytes(fmt.encoding) else data
        except BadFile as error:
            msg = f"{path!r}: {error.message}; mend or remove the file {advice.AGAIN}"
            raise BadFile(msg) from error
        except BadRecord as error:
            if error.path is not None:
                raise
            msg = f"{path!r}, byte {error.offset}: {error.message}; mend or remove the record {advice.AGAIN}"
            raise BadRecord(msg, path=path, offset=error.offset) from error

    def _ranges(self, handle: ReadHandle, split: Split) -> Iterator[tuple[int, bytes]]:
        size = split.file.size
        if self.format.name != "csv":
            sep = self.format.line_sep
            return blocks(handle.read, size, split.start, split.end, sep=sep, block_bytes=BLOCK_BYTES)
        from penstock.formats import delimited

        start = split.start
        if self.format.header and start == 0:
            start = delimited.csv_after_header(handle.read, size, self.format.sep)
        if start >= split.end:
            return iter(())
        return delimited.csv_blocks(handle.read, size, start, split.end, BLOCK_BYTES, sep=self.format.sep)

    def _streamed(self, chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        if self.format.name != "csv":
            return stream_blocks(chunks, sep=self.format.line_sep, block_bytes=BLOCK_BYTES)
        from penstock.formats import delimited

        found = delimited.csv_stream_blocks(chunks, BLOCK_BYTES, sep=self.format.sep)
        return delimited.csv_without_header(found, self.format.sep) if self.format.header else found

    # -- parquet, binary -----------------------------------------------------------------------------------------

    def _whole(self, split: Split) -> Iterator[pa.RecordBatch]:
        from penstock.formats.binary import binary_batches
        from penstock.formats.parquet import parquet_batches

        failpoints.hit("source.read")
        path, fmt = self.full_path(split.file), self.format
        with self._open(split.file, path) as handle:
            self._check(handle, split.file, path)
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
                self._check(handle, split.file, path)
                msg = f"{path!r}: {error.message}; mend or remove the file {advice.AGAIN}"
                raise BadFile(msg) from error
            self._check(handle, split.file, path)

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

    def locate(self, at: int) -> tuple[FileVersion, int]:
        """Return the file and offset of the byte at `at`."""
        place, file, offset = self.parts[bisect_right([p[0] for p in self.parts], at) - 1]
        return file, offset + at - place


def _joined(pieces: Iterable[_Piece], sep: bytes | None) -> Iterator[_Piece]:
    """Join small pieces to blocks of about `BLOCK_BYTES`; a last line without an end is given one.

    Pieces that would grow together are kept apart: CR before LF, and any where lines end in more than one byte.
    """
    data: list[bytes] = []
    parts: list[tuple[int, FileVersion, int]] = []
    size = 0
    for piece in pieces:
        if size and (size >= BLOCK_BYTES or _grow_together(data[-1], piece.data, sep)):
            yield _Piece(b"".join(data), parts)
            data, parts, size = [], [], 0
        if not size and len(piece.data) >= BLOCK_BYTES // 2:
            yield piece
        elif piece.data:
            parts += [(size + place, file, offset) for place, file, offset in piece.parts]
            data.append(_ended(piece.data, sep))
            size += len(data[-1])
    if size:
        yield _Piece(b"".join(data), parts)


def _grow_together(left: bytes, right: bytes, sep: bytes | None) -> bool:
    if sep is not None:
        return len(sep) > 1
    return left.endswith(b"\r") and right.startswith(b"\n")


def _ended(data: bytes, sep: bytes | None) -> bytes:
    if sep is None:
        return data if data.endswith((b"\n", b"\r")) else data + b"\n"
    return data if len(sep) > 1 or data.endswith(sep) else data + sep


def _chunks(handle: ReadHandle, size: int) -> Iterator[bytes]:
    for offset in range(0, size, _CHUNK_BYTES):
        yield handle.read(offset, min(_CHUNK_BYTES, size - offset))


@lru_cache(maxsize=8)
def _by_bytes(encoding: str) -> bool:
    """Tell whether line breaks of the encoding can be found in its bytes (all that extend ASCII; not UTF-16)."""
    ascii_bytes = bytes(range(128))
    try:
        return ascii_bytes.decode(encoding) == ascii_bytes.decode("ascii") and "\n".encode(encoding) == b"\n"
    except UnicodeDecodeError:
        return False


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
