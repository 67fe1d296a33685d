"""From a task's splits to Arrow batches, or to bytes where nothing need be parsed.

A range owns the records that begin in it. Each file is compared with the version that was planned (its size and
modification time) before its first byte is read and after its last: a task reads that version or raises `FileChanged`, and
never ends a file early without a word. Memory is bounded by a few blocks of `BLOCK_BYTES` (or one record, or one page of a row group),
whatever the file's size.

Small files are joined into blocks before they are parsed: one parser call a file would cost a hundred times its
contents. A record that cannot be parsed is reported by its own file and byte offset all the same.

Records are found in the bytes of a file wherever the encoding allows it (`charsets`), and each block is decoded by itself;
offsets are those of the file. Where it does not, the file is decoded as a stream and records are found in that, offsets too.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from penstock import failpoints
from penstock.errors import BadFile, BadRecord, FileChanged, NotThere, OptionError
from penstock.formats import ReadFormat, decoder, format_named
from penstock.formats.account import Account
from penstock.formats.charsets import (
    UTF_8,
    UTF_8_CHARSET,
    Charset,
    by_mark,
    charset,
    encoded,
    is_utf8,
    to_utf8,
)
from penstock.formats.codecs import COMPRESSED_NAMES, codec_of, decompressed, unreadable
from penstock.formats.families import HEAD_BYTES, RecordFormat, TableFormat, separator
from penstock.formats.lines import BLOCK_BYTES, begun, record_starts, without_bom
from penstock.formats.malformed import excerpt
from penstock.formats.registry import record_format
from penstock.formats.strings import checked
from penstock.source import advice
from penstock.source.cursor import is_version
from penstock.source.rescue import rescuing, with_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from penstock.formats import Decoder
    from penstock.formats.families import Format, Found
    from penstock.source.cursor import FileVersion, Split
    from penstock.storage import Entry, ReadHandle, Storage

_CHUNK_BYTES = 1 << 20
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
    `follow` allows links that lead out of `root`. Of columns that directories name it knows nothing (see `source.partitions`).
    """

    storage: Storage
    root: str
    format: ReadFormat
    metadata: str | None = None
    columns: tuple[str, ...] = ()
    follow: bool = False

    @property
    def form(self) -> Format:
        """What files of the format are."""
        return format_named(self.format.name)

    def full_path(self, file: FileVersion) -> str:
        """Return the file's path on the storage."""
        return f"{self.root}/{file.path}" if file.path else self.root

    def in_zone(self, zone: str) -> Reading:
        """Return how the same is read with the times that say no zone in this one."""
        return self if zone == self.format.zone else replace(self, format=replace(self.format, zone=zone))

    def divisible(self, path: str) -> bool:
        """Tell whether a file of this name may be read in byte ranges."""
        return self.form.divisible(self.format, path or self.root)

    def admit(self, path: str) -> None:
        """Raise `BadFile` if a file of this name holds what is not read, such as an archive."""
        kind = unreadable(path or self.root) if isinstance(self.form, RecordFormat) else None
        if kind:
            name = f"{self.root}/{path}" if path else self.root
            msg = (
                f"{name!r}: found {kind} by its name, expected a file of {self.form.name}, plain or compressed "
                f"({COMPRESSED_NAMES}); unpack it, or move it away, or say what is to be read, such as "
                f"pathGlobFilter='*{self.form.extension}'"
            )
            raise BadFile(msg)

    def boundary(self, file: FileVersion, anchor: int, target: int) -> int:
        """Return the first record start at or behind `target`, from the record start `anchor` on; for what is `anchored`."""
        with self.storage.open(self.full_path(file)) as handle:
            self._check(handle, file, self.full_path(file))
            return self.form.boundary(self.format, handle.read, file.size, anchor, target)

    def reach(self, handle: ReadHandle, size: int, at: int) -> int | None:
        """Return where the records end that begin before the cut `at`: what is in front of that, a cut there has read.

        `None` if there is no such place near; see `Format.reach`.
        """
        return self.form.reach(self.format, handle.read, size, at)

    def batches(self, splits: Iterable[Split], account: Account | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records of the splits, in order; what they have and no column has is entered into `account`.

        Raises `FileChanged`, `BadRecord`, `BadFile` or `StorageError`; what was yielded before must then be dropped.
        """
        account = Account() if account is None else account
        form = self.form
        if isinstance(form, TableFormat):
            for split in splits:
                yield from self._table(form, split, account)
        else:
            yield from self._records(splits, account)

    def blocks(self, splits: Iterable[Split]) -> Iterator[tuple[bytes, tuple[str, ...] | None, Callable[[int], str]]]:
        """Yield blocks of whole records as they are decoded: with what the header of their files says, and whose byte is whose.

        The last is a function from a byte of the block to the path of its file. Raises what `batches` does, short of parsing.
        """
        for piece in _joined(self._pieces(splits), self.format.line_sep):
            yield piece.data, piece.columns, lambda at, piece=piece: self.full_path(piece.origin_of(at).file)  # type: ignore[misc]  # - mypy does not infer it

    def stored_schema(self, form: TableFormat, file: FileVersion) -> pa.Schema:
        """Return the columns that a table's file says it has, in the types that Spark reads them as. `BadFile`, `FileChanged`."""
        path = self.full_path(file)
        with self._open(file, path) as handle:
            self._check(handle, file, path)
            with _named(path):
                return form.stored_schema(handle, file.size)

    def text(self, splits: Iterable[Split]) -> Iterator[bytes]:
        """Yield the lines of text splits as UTF-8 bytes, each line ended by a line feed: nothing is parsed.

        Lines of a binary column are not checked, and must be in an encoding that `gives_utf8`.
        """
        check = decoder(self.format)
        for piece in _joined(self._pieces(splits), self.format.line_sep):
            data = _line_feeds(piece.data, self.format.line_sep)
            if not is_utf8(data):
                self._decode(check, piece)
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

    # -- records in bytes ----------------------------------------------------------------------------------------

    def _records(self, splits: Iterable[Split], account: Account) -> Iterator[pa.RecordBatch]:
        alone = self.metadata or not self.gives_utf8
        decoders: dict[tuple[Charset, tuple[str, ...] | None], Decoder] = {}
        pieces = self._pieces(splits)
        for piece in pieces if alone else _joined(pieces, self.format.line_sep):
            origin = piece.origins[0]
            key = origin.charset, piece.columns
            how = decoders.get(key) or decoders.setdefault(key, self._decoder(*key, account))
            batch = self._decode(how, piece)
            if self.format.rescued is not None:
                batch = self._with_path(batch, how, piece, account)
            if batch.num_rows and self.metadata:
                starts = self._in_file(how.starts(piece.data), piece.data, origin)
                yield self._with_metadata(batch, origin.file, starts)
            elif batch.num_rows:
                yield batch

    @property
    def gives_utf8(self) -> bool:
        """Tell whether values are made of UTF-8, and not of bytes in the file's own encoding."""
        return self._gives_text or _is_utf8_name(self.format.encoding)

    @property
    def _gives_text(self) -> bool:
        """Tell whether values are text, and not the bytes of the file as they are."""
        return self._in_records.gives_text(self.format)

    @property
    def _in_records(self) -> RecordFormat:
        return record_format(self.format.name)

    def _decoder(self, how: Charset, columns: tuple[str, ...] | None, account: Account) -> Decoder:
        """Return what makes rows of the blocks of a file that is written so, with these columns in its header."""
        fmt = self.format if columns is None else replace(self.format, columns=columns)
        return decoder(fmt if self._gives_text else replace(fmt, line_sep=separator(fmt, how), unit=how.unit), account)

    def _decode(self, how: Decoder, piece: _Piece) -> pa.RecordBatch:
        try:
            return how.decode(piece.data)
        except BadRecord as error:
            origin = piece.origin_of(error.offset or 0)
            place = np.array([(error.offset or 0) - origin.place])
            offset = int(self._in_file(place, piece.data_of(origin), origin)[0])
            path = self.full_path(origin.file)
            hint = "" if is_utf8(piece.data) else "; set encoding to what the file has, or encodingErrors=replace"
            msg = f"{path!r}, byte {offset}: {error.message}{hint}; mend or remove the record {advice.AGAIN}"
            raise BadRecord(msg, path=path, offset=offset) from error

    def _in_file(self, starts: npt.NDArray[np.int64], text: bytes, origin: _Origin) -> npt.NDArray[np.int64]:
        """Return where in the file the records begin that begin at `starts` of `text`, all that came from `origin`.

        Decoding changes lengths; which line is which stays.
        """
        if origin.raw is None:
            return starts + origin.offset
        lines = np.searchsorted(record_starts(text, sep=self.format.line_sep), starts, side="right") - 1
        how = origin.charset
        return record_starts(origin.raw, sep=separator(self.format, how), unit=how.unit)[lines] + origin.offset

    def _pieces(self, splits: Iterable[Split]) -> Iterator[_Piece]:
        for split in splits:
            failpoints.hit("source.read")
            path = self.full_path(split.file)
            self.admit(split.file.path)
            with self._open(split.file, path) as handle:
                self._check(handle, split.file, path)
                with _named(path):
                    yield from self._pieces_of(handle, split, codec_of(path))
                self._check(handle, split.file, path)

    def _pieces_of(self, handle: ReadHandle, split: Split, codec: str | None) -> Iterator[_Piece]:
        """Yield what one split holds, as UTF-8 wherever values are made of text. Raises `BadFile`, and `BadRecord` without a path."""
        form, fmt = self._in_records, self.format
        known = None if by_mark(fmt.encoding) else charset(fmt.encoding, b"")
        in_place = form.in_bytes(fmt)
        decodes = in_place and self._gives_text and not (known == UTF_8_CHARSET and fmt.errors == "fail")
        _check_range(split, whole=not in_place or codec is not None)
        chunks, how = _opened(handle, split.file.size, codec, fmt.encoding, known)
        read = self._blocks if in_place else self._decoded
        header, blocks = read(handle, split, chunks, how)
        columns = None
        if header:
            columns = form.columns(fmt, self._text(header, 0, how) if decodes else header)
        for offset, data in blocks:
            text = self._text(data, offset, how) if decodes else data
            yield _Piece(text, [_Origin(0, split.file, offset, how, None if text is data else data)], columns)

    def _blocks(self, handle: ReadHandle, split: Split, chunks: Iterator[bytes] | None, how: Charset) -> Found:
        """Return what a split holds as the file has it."""
        form, fmt = self._in_records, self.format
        if chunks is not None:
            return form.streamed(fmt, chunks, how)
        return form.ranged(fmt, handle.read, split.file.size, (split.start, split.end), how)

    def _decoded(self, handle: ReadHandle, split: Split, chunks: Iterator[bytes] | None, how: Charset) -> Found:
        """Return what a file holds that is decoded as a stream, offsets in its UTF-8. Raises `BadRecord` without a path."""
        mark = how.bom if how.bom == UTF_8_CHARSET.bom else b""  # any other comes out as U+FEFF, and is left out then
        taken, rest = without_bom(chunks or _chunks(handle, split.file.size), mark)
        text = chain((mark[:taken],), _transcoded(rest, how.codec, self._errors, taken))
        return self._in_records.streamed(self.format, text, UTF_8_CHARSET)

    @property
    def _errors(self) -> str:
        """Return `encodingErrors` in the words of Python's codecs."""
        return "strict" if self.format.errors == "fail" else self.format.errors

    def _text(self, data: bytes, offset: int, how: Charset) -> bytes:
        """Return a block as UTF-8."""
        try:
            return to_utf8(data, how.codec, self._errors)
        except UnicodeDecodeError as error:
            starts = record_starts(data, sep=separator(self.format, how), unit=how.unit)
            begin = int(starts[np.searchsorted(starts, error.start, side="right") - 1])
            raise _undecodable(data[error.start : error.start + 4], offset + begin, self.format.encoding) from error

    def _with_path(self, batch: pa.RecordBatch, how: Decoder, piece: _Piece, account: Account) -> pa.RecordBatch:
        """Return the rows with whole objects in the column for what is rescued, each with the path of its file."""
        name = self.format.rescued
        place = batch.schema.get_field_index(name)
        if batch.column(place).null_count == batch.num_rows:
            return batch
        places = np.array([origin.place for origin in piece.origins])
        origins = np.searchsorted(places, how.starts(piece.data), side="right") - 1
        paths = [self.full_path(origin.file) for origin in piece.origins]
        return batch.set_column(
            place, batch.schema.field(place), with_paths(batch.column(place), paths, origins, account)
        )

    # -- tables --------------------------------------------------------------------------------------------------

    def _table(self, form: TableFormat, split: Split, account: Account) -> Iterator[pa.RecordBatch]:
        failpoints.hit("source.read")
        path, fmt = self.full_path(split.file), self.format
        with self._open(split.file, path) as handle:
            self._check(handle, split.file, path)
            try:
                span = split.start, split.end
                rows = rescuing(form, fmt, handle, split.file.size, span, path, account) if fmt.is_strict else None
                for batch in rows or form.rows(fmt, handle, split.file.size, span, account):
                    starts = np.full(batch.num_rows, split.start)
                    yield self._with_metadata(checked(batch, fmt.errors), split.file, starts)
            except (BadFile, OptionError) as error:
                self._check(handle, split.file, path)
                msg = f"{path!r}: {error.message}; mend or remove the file {advice.AGAIN}"
                raise BadFile(msg) from error
            self._check(handle, split.file, path)

    # -- the metadata column -------------------------------------------------------------------------------------

    def _with_metadata(self, batch: pa.RecordBatch, file: FileVersion, starts: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Add the column; `starts` is where in the file the rows begin."""
        if not self.metadata:
            return batch
        rows, offsets = batch.num_rows, pa.array(starts)
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


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Name the file in what is wrong with it."""
    try:
        yield
    except BadFile as error:
        msg = f"{path!r}: {error.message}; mend or remove the file {advice.AGAIN}"
        raise BadFile(msg) from error
    except BadRecord as error:
        if error.path is not None:
            raise
        msg = f"{path!r}, byte {error.offset}: {error.message}; mend or remove the record {advice.AGAIN}"
        raise BadRecord(msg, path=path, offset=error.offset) from error


class _Origin(NamedTuple):
    """What part of a piece came from: the part begins at `place` of the piece and at `offset` of what the file holds.

    `raw` is what the file has there, if the piece has it in another encoding.
    """

    place: int
    file: FileVersion
    offset: int
    charset: Charset
    raw: bytes | None


@dataclass
class _Piece:
    """Bytes of whole records, and where they come from, in order."""

    data: bytes
    origins: list[_Origin]
    columns: tuple[str, ...] | None = None  # what the header of a csv file says

    def origin_of(self, at: int) -> _Origin:
        """Return where the byte at `at` comes from."""
        return self.origins[bisect_right([origin.place for origin in self.origins], at) - 1]

    def data_of(self, origin: _Origin) -> bytes:
        """Return the part that came from there."""
        later = [other.place for other in self.origins if other.place > origin.place]
        return self.data[origin.place : min(later, default=len(self.data))]


def _joined(pieces: Iterable[_Piece], sep: bytes | None) -> Iterator[_Piece]:
    """Join small pieces to blocks of about `BLOCK_BYTES`; a last line without an end is given one.

    Pieces that would grow together are kept apart: CR before LF, and any where lines end in more than one byte. So are
    those of other columns.
    """
    data: list[bytes] = []
    origins: list[_Origin] = []
    columns: tuple[str, ...] | None = None
    size = 0
    for piece in pieces:
        if size and (size >= BLOCK_BYTES or columns != piece.columns or _grow_together(data[-1], piece.data, sep)):
            yield _Piece(b"".join(data), origins, columns)
            data, origins, size = [], [], 0
        columns = piece.columns
        if not size and len(piece.data) >= BLOCK_BYTES // 2:
            yield piece
        elif piece.data:
            origins += [_Origin(size + o.place, o.file, o.offset, o.charset, o.raw) for o in piece.origins]
            data.append(_ended(piece.data, sep))
            size += len(data[-1])
    if size:
        yield _Piece(b"".join(data), origins, columns)


def _grow_together(left: bytes, right: bytes, sep: bytes | None) -> bool:
    if sep is not None:
        return len(sep) > 1
    return left.endswith(b"\r") and right.startswith(b"\n")


def _ended(data: bytes, sep: bytes | None) -> bytes:
    if sep is None:
        return data if data.endswith((b"\n", b"\r")) else data + b"\n"
    return data if len(sep) > 1 or data.endswith(sep) else data + sep


def _opened(
    handle: ReadHandle, size: int, codec: str | None, encoding: str, known: Charset | None
) -> tuple[Iterator[bytes] | None, Charset]:
    """Return the bytes of a compressed file, None for one that can be read anywhere; and how it is written, if that is not `known`."""
    if codec is None:
        return None, known or charset(encoding, handle.read(0, min(HEAD_BYTES, size)))
    chunks = decompressed(_chunks(handle, size), codec, limit_bytes=EXPANDED_BYTES_MAX, ratio_max=EXPANSION_MAX)
    if known:
        return chunks, known
    head, rest = begun(chunks, HEAD_BYTES)
    return chain((head,), rest), charset(encoding, head)


def _check_range(split: Split, *, whole: bool) -> None:
    """Raise `BadFile` for a range of a file that can only be read whole: each range of it would give all records."""
    if whole and (split.start, split.end) != (0, split.file.size):
        msg = (
            f"bytes {split.start} to {split.end} of {split.file.size} were planned, and such a file can only be read whole: it was "
            "planned with another encoding or lineSep, or by an older version; set them as they were, or read it under a new "
            "checkpoint"
        )
        raise BadFile(msg)


def _chunks(handle: ReadHandle, size: int) -> Iterator[bytes]:
    for offset in range(0, size, _CHUNK_BYTES):
        yield handle.read(offset, min(_CHUNK_BYTES, size - offset))


def _is_utf8_name(encoding: str) -> bool:
    """Tell whether bytes of the encoding are UTF-8 as they are."""
    return charset(encoding, b"").codec == UTF_8


def _transcoded(chunks: Iterable[bytes], codec: str, errors: str, taken: int) -> Iterator[bytes]:
    """Yield text as UTF-8. Raises `BadRecord` with the offset of what is no text; `taken` bytes stand in front."""
    convert = codecs.getincrementaldecoder(codec)(errors)
    try:
        for chunk in chunks:
            taken += len(chunk)
            yield encoded(convert.decode(chunk), errors)
        yield encoded(convert.decode(b"", final=True), errors)
    except UnicodeDecodeError as error:
        at = taken - len(error.object) + error.start
        raise _undecodable(error.object[error.start : error.start + 4], at, codec) from error
    except UnicodeEncodeError as error:
        found = error.object[error.start].encode("ascii", "backslashreplace")
        raise _undecodable(found, max(taken - _CHUNK_BYTES, 0), codec) from error


def _undecodable(found: bytes, offset: int, encoding: str) -> BadRecord:
    """Return the error for bytes that are no text; `offset` is where they are, or where their record begins."""
    shown = excerpt(found.decode("ascii", "backslashreplace"))
    msg = f"found '{shown}', expected {encoding}; set encoding to what the file has, or encodingErrors=replace"
    return BadRecord(msg, offset=offset)


def _line_feeds(data: bytes, sep: bytes | None) -> bytes:
    if sep is not None:
        data = data if sep == b"\n" else data.replace(sep, b"\n")
    elif b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data if data.endswith(b"\n") else data + b"\n"


def _printable(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
